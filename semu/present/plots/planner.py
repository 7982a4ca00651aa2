"""Iterations of a training loop with a planner: times by schedule, planning beside them, what was in the batches."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from semu.present.plots.canvas import FONT, FONT_SIZE, INK, LEFT_IN, RIGHT_IN, WIDTH_IN, make_sheet

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

_HUES = ("#D55E00", "#E69F00", "#0072B2")
_LATENCY, _ITEMS, _MISSED = "#009E73", "#888888", "#B00020"
"""Okabe and Ito's palette (Color Universal Design, 2008)."""
_HEIGHTS_IN = (3.6, 1.25, 1.25)
_GAP_IN = 0.2


def draw_iterations(
    path: str | os.PathLike[str],
    *,
    times: Mapping[str, Sequence[float | None]],
    latency: Sequence[float],
    items: Sequence[int],
    counted: str,
    missed: Sequence[int],
    first: int,
    title: str,
    said: str,
) -> None:
    """Draw iterations as a PNG: times, planning time beside them, and items in the batch, below one another.

    Args:
        path: the file to make. times: schedule -> time of every iteration [s], None where it cannot run; three at most.
        latency: planning time of every iteration [s]. items: in the batches. counted: what they are.
        missed: iterations whose search had not ended when they began. first: number of the first iteration.
        title, said: headline and second line.
    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.lines import Line2D

    legend: dict[str, Artist] = {
        name: Line2D([], [], color=hue, linewidth=2.0) for name, hue in zip(times, _HUES, strict=False)
    }
    legend["time to plan"] = Line2D([], [], color=_LATENCY, linewidth=2.0)
    if missed:
        legend["search cut short"] = Line2D([], [], color=_MISSED, marker="v", markersize=5, linewidth=0)
    sheet = make_sheet(sum(_HEIGHTS_IN) + _GAP_IN * (len(_HEIGHTS_IN) - 1), title, said, legend)
    left, width = LEFT_IN / WIDTH_IN, 1 - (LEFT_IN + RIGHT_IN) / WIDTH_IN
    top = sheet.box[1] + sheet.box[3]
    across = np.arange(first, first + len(items))
    frames: list[Axes] = []
    for height_in in _HEIGHTS_IN:
        height = height_in / sheet.height_in
        axes = sheet.figure.add_axes((left, top - height, width, height))
        axes.set_xlim(first - 0.5, first + len(items) - 0.5)
        frames.append(axes)
        top -= height + _GAP_IN / sheet.height_in
    for (_, values), hue in zip(times.items(), _HUES, strict=False):
        frames[0].plot(across, [np.nan if v is None else v for v in values], color=hue, linewidth=1.5)
    if missed:
        marks: dict[str, Any] = {"color": _MISSED, "marker": "v", "markersize": 5, "linewidth": 0}
        own = list(times.values())[-1]
        at = [(number, value) for number in missed if (value := own[number - first]) is not None]
        frames[0].plot([n for n, _ in at], [value for _, value in at], **marks)
    frames[1].plot(across, latency, color=_LATENCY, linewidth=1.5)
    frames[2].bar(across, items, color=_ITEMS, width=0.8, linewidth=0)
    for axes, up in zip(frames, ("iteration [s]", "planning [s]", counted), strict=True):
        axes.set_ylim(bottom=0)
        axes.set_ylabel(up, size=FONT_SIZE, color=INK, family=FONT)
        axes.tick_params(labelsize=FONT_SIZE - 0.5, color=INK, labelcolor=INK, labelfontfamily=FONT)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        if axes is not frames[-1]:
            axes.tick_params(axis="x", labelbottom=False)
    frames[-1].set_xlabel("iteration", size=FONT_SIZE, color=INK, family=FONT)
    sheet.save(path)
