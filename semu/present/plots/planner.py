"""Iterations of a training loop with a planner: times by schedule, planning beside them, what was in the batches."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from semu.present.plots.canvas import make_sheet
from semu.present.plots.style import BLUE, GREEN, LIMIT, ORANGE, VERMILLION, dot_key, frame, line_key

_HUES = (VERMILLION, ORANGE, BLUE)
_LATENCY, _ITEMS, _MISSED = GREEN, "#888888", LIMIT
_HEIGHTS_IN = (3.6, 1.25, 1.25)
_GAP_IN = 0.2
_CUT: Mapping[str, Any] = {"marker": "v", "markersize": 6}
_FEW = 20
"""Iterations up to which each is a dot: a line of one point cannot be seen."""


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
    legend = {name: line_key(hue) for name, hue in zip(times, _HUES, strict=False)}
    legend["time to plan"] = line_key(_LATENCY)
    if missed:
        legend["search cut short"] = dot_key(_MISSED, **_CUT)
    sheet = make_sheet(sum(_HEIGHTS_IN) + _GAP_IN * (len(_HEIGHTS_IN) - 1), title, said, legend)
    frames = sheet.stacked_axes(_HEIGHTS_IN, _GAP_IN)
    across = np.arange(first, first + len(items))
    dot: dict[str, Any] = {"linewidth": 1.5, "marker": "o" if len(items) <= _FEW else "", "markersize": 4}
    for (_, values), hue in zip(times.items(), _HUES, strict=False):
        frames[0].plot(across, [np.nan if v is None else v for v in values], color=hue, **dot)
    if missed:
        last = list(times.values())[-1]
        at = [(number, value) for number in missed if (value := last[number - first]) is not None]
        frames[0].plot(*zip(*at, strict=True), color=_MISSED, linewidth=0, **_CUT)
    frames[1].plot(across, latency, color=_LATENCY, **dot)
    frames[2].bar(across, items, color=_ITEMS, width=0.8, linewidth=0)
    for axes, up in zip(frames, ("iteration [s]", "planning [s]", counted), strict=True):
        is_last = axes is frames[-1]
        axes.set_xlim(first - 0.5, first + len(items) - 0.5)
        axes.set_ylim(0, 1.04 * axes.get_ylim()[1])
        frame(axes, "iteration" if is_last else "", up, labelbottom=is_last)
        axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    sheet.save(path)
