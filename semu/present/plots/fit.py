"""``draw_fit``: predicted over measured times beside the residuals over size, a colour per source."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from semu.present.plots.canvas import make_sheet
from semu.present.plots.diagonal import BAND, BAND_COLOR, GUTTER_IN, looks_of, set_square
from semu.present.plots.style import FONT_SIZE, INK, area_key, dot_key, frame, mix
from semu.records import dataclass

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

MARKERS = "os^D"
"""One for each round of colours."""
_HEIGHT_IN = 5.4
_SHORT_SPAN = 300.0
_WORST = 0.6
"""Residuals beyond are drawn at the edge."""

Looks = Mapping[str, tuple[str, str]]
"""Source -> colour and marker."""


@dataclass(frozen=True)
class FitPoints:
    """Rows of one source: their sizes [FLOP or bytes], measured and predicted times [s], held out of the fit or not."""

    source: str
    is_held_out: bool
    size: NDArray[np.float64]
    measured_s: NDArray[np.float64]
    predicted_s: NDArray[np.float64]


def draw_fit(
    path: str | os.PathLike[str], points: Sequence[FitPoints], *, title: str, subtitle: str, size: str
) -> None:
    """Draw a fit as a PNG: held-out rows full, the others pale.

    Args:
        path: the file to make. points: at least one. title, subtitle: headline and the line under it.
        size: what sizes are, for the axis.
    Raises:
        OSError: the file cannot be written.
    """
    looks = looks_of((item.source for item in points), MARKERS)
    legend = {
        f"{source}, {word}": dot_key(color if is_held_out else mix(color, 0.6), marker=marker)
        for source, (color, marker) in looks.items()
        for is_held_out, word in ((True, "held out"), (False, "fitted"))
        if any(item.source == source and item.is_held_out is is_held_out for item in points)
    }
    legend[f"within {BAND:.0%}"] = area_key(BAND_COLOR)
    sheet = make_sheet(_HEIGHT_IN, title, subtitle, legend)
    times, residuals = sheet.two_axes(GUTTER_IN)
    points = sorted(points, key=lambda item: item.is_held_out)  # pale dots under full ones
    _times(times, points, looks)
    _residuals(residuals, points, looks, size)
    sheet.save(path)


def _times(axes: Axes, points: Sequence[FitPoints], looks: Looks) -> None:
    values = np.concatenate([np.concatenate((item.measured_s, item.predicted_s)) for item in points]) * 1e6
    low, high = float(values.min()) / 1.3, float(values.max()) * 1.3
    set_square(axes, low, high)
    for item in points:
        _dots(axes, item, looks, item.measured_s * 1e6, item.predicted_s * 1e6)
    axes.plot((low, high), (low, high), color=INK, linewidth=1.0)
    for axis in (axes.xaxis, axes.yaxis):
        _ticks(axis, high / low)
    frame(axes, "measured time [us]", "predicted time [us]", which="both", labelsize=FONT_SIZE - 1.5)


def _residuals(axes: Axes, points: Sequence[FitPoints], looks: Looks, size: str) -> None:
    from matplotlib.ticker import PercentFormatter

    sizes = np.concatenate([item.size for item in points])
    ends = (float(sizes.min()) / 1.5, float(sizes.max()) * 1.5)
    axes.set_xscale("log")
    axes.set_xlim(*ends)
    _ticks(axes.xaxis, ends[1] / ends[0])
    axes.set_ylim(-_WORST, _WORST)
    axes.fill_between(ends, -BAND, BAND, color=BAND_COLOR, linewidth=0)
    for item in points:
        error = np.clip(item.predicted_s / item.measured_s - 1.0, -_WORST, _WORST)
        _dots(axes, item, looks, item.size, error, clip=False)
    axes.axhline(0.0, color=INK, linewidth=1.0)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    beyond = sum(int((np.abs(item.predicted_s / item.measured_s - 1.0) > _WORST).sum()) for item in points)
    up = "predicted / measured - 1" + (f"  ({beyond:,} beyond, drawn at the edge)" if beyond else "")
    frame(axes, size, up, which="both", labelsize=FONT_SIZE - 1.5)


def _dots(
    axes: Axes, item: FitPoints, looks: Looks, x: NDArray[np.float64], y: NDArray[np.float64], *, clip: bool = True
) -> None:
    full, marker = looks[item.source]
    color = full if item.is_held_out else mix(full, 0.6)
    size = 5.0 if len(x) < 200 else 2.2
    axes.plot(x, y, color=color, marker=marker, markersize=size, markeredgewidth=0, linewidth=0, clip_on=clip)


def _ticks(axis: Axis, span: float) -> None:
    """Labels at 1, 2 and 5 times powers of ten where the axis spans few of them, else at powers of ten."""
    from matplotlib.ticker import LogFormatterSciNotation, LogLocator, NullFormatter

    if span < _SHORT_SPAN:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(LogFormatterSciNotation(labelOnlyBase=False, minor_thresholds=(np.inf, np.inf)))
    axis.set_minor_formatter(NullFormatter())
