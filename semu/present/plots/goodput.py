"""``draw_goodput``: where the GPU-seconds of each strategy go, and what a run looks like over time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semu.present.plots.canvas import make_sheet
from semu.present.plots.style import FONT_SIZE, INK, PALETTE, TEXT, area_key, frame, line_key, mix

_ROW_IN = 0.42
_OVER_TIME_IN = 1.5
_GAP_IN = 0.75
_HEAD_IN = 0.3
_LEFT_IN = 1.9


@dataclass(frozen=True, eq=False)
class RunCurve:
    """A run of a strategy over time.

    Attributes:
        name: of the strategy. days: float64[n + 1], edges of windows [d].
        speed: float64[n], progress in each, over that of the job without failures.
        nodes: int64[n], nodes alive at the end of each.
    """

    name: str
    days: NDArray[np.float64]
    speed: NDArray[np.float64]
    nodes: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GoodputPicture:
    """What is drawn.

    Attributes:
        title, subtitle: headline. shares: strategy -> what GPU-seconds were spent on -> share; shares sum to 1.
        curves: runs over time, in a row each. nodes: of the job; nodes alive are drawn over so many.
    """

    title: str
    subtitle: str
    shares: Mapping[str, Mapping[str, float]]
    curves: tuple[RunCurve, ...] = ()
    nodes: int = 1


def draw_goodput(path: str | os.PathLike[str], picture: GoodputPicture) -> None:
    """Draw stacked bars, a strategy each, over the runs in time, as a PNG.

    Args:
        path: the file to make. picture: what to draw.
    Raises:
        OSError: the file cannot be written.
    """
    seen = [what for what in next(iter(picture.shares.values())) if any(row[what] for row in picture.shares.values())]
    colors = {
        what: PALETTE[k % len(PALETTE)] if k < len(PALETTE) else mix(PALETTE[k % len(PALETTE)], 0.5)
        for k, what in enumerate(seen)
    }
    bars_in = _ROW_IN * len(picture.shares)
    heights = [bars_in, *[_OVER_TIME_IN] * len(picture.curves)]
    total = sum(heights) + _GAP_IN * (len(heights) - 1) + _HEAD_IN
    legend = {what: area_key(colors[what]) for what in seen}
    if picture.curves:
        legend["nodes alive, over the job's"] = line_key(INK)
    sheet = make_sheet(total, picture.title, picture.subtitle, legend)
    first, *others = sheet.stacked_axes(heights, _GAP_IN, left_in=_LEFT_IN, above_in=_HEAD_IN / 2)
    rows = np.arange(len(picture.shares))
    left = np.zeros(len(rows))
    for what in seen:
        width = np.array([row[what] for row in picture.shares.values()])
        first.barh(rows, width, left=left, color=colors[what], height=0.72)
        left += width
    first.set_yticks(rows, list(picture.shares))
    first.set_xlim(0.0, 1.0)
    first.invert_yaxis()
    frame(first, "share of wall x GPUs")
    for axes, curve in zip(others, picture.curves, strict=True):
        axes.stairs(curve.speed, curve.days, fill=True, color=PALETTE[0], alpha=0.85)
        axes.set_ylim(0.0, max(1.05, float(curve.speed.max()) * 1.05))
        axes.set_xlim(0.0, float(curve.days[-1]))
        axes.set_title(curve.name, size=FONT_SIZE, loc="left", **TEXT)
        axes.stairs(curve.nodes / max(1, picture.nodes), curve.days, color=INK, linewidth=1.0, baseline=None)
        frame(axes, "day" if curve is picture.curves[-1] else "", "speed")
    sheet.save(path)
