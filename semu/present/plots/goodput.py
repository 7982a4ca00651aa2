"""``draw_goodput``: where the GPU-seconds of each strategy go, and what a run looks like over time;
``draw_against_mtbf``: goodput by how often failures come."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from semu.present.plots.canvas import make_sheet
from semu.present.plots.style import FONT_SIZE, INK, PALETTE, TEXT, area_key, frame, line_key, mix
from semu.records import dataclass

_ROW_IN = 0.42
_OVER_TIME_IN = 1.5
_GAP_IN = 0.75
_HEAD_IN = 0.3
_LEFT_IN = 2.15
_CURVES_IN = 3.6


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


def draw_against_mtbf(
    path: str | os.PathLike[str],
    title: str,
    subtitle: str,
    curves: Mapping[str, Sequence[tuple[float, float]]],
    mtbf_s: float,
) -> None:
    """Draw goodput over the mean time between failures, a line for each strategy, as a PNG.

    Args:
        path: the file to make. title, subtitle: headline. curves: strategy -> (time [s], goodput).
        mtbf_s: the time that was asked for.
    Raises:
        OSError: the file cannot be written.
    """
    styles = ("-", "--", ":")
    colors = {name: PALETTE[k % len(PALETTE)] for k, name in enumerate(curves)}
    sheet = make_sheet(_CURVES_IN, title, subtitle, {name: line_key(color) for name, color in colors.items()})
    axes = sheet.axes(_LEFT_IN / 2)
    for k, (name, points) in enumerate(curves.items()):
        hours, goodput = np.array(points).T
        axes.plot(hours / 3600.0, goodput, styles[k // len(PALETTE) % 3], marker="o", ms=3.5, color=colors[name])
    axes.axvline(mtbf_s / 3600.0, color=INK, linewidth=0.8, linestyle="--")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(lambda x, _at: f"{x:g}" if f"{x:e}"[0] in "25" else "")
    axes.set_ylim(0.0, 1.02)
    frame(axes, "mean time between failures of the job's nodes, h", "goodput")
    sheet.save(path)
