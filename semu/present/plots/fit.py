"""``draw_fit``: predicted over measured times beside the residuals over size, a colour per source."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from semu.present.plots.canvas import FONT, FONT_SIZE, INK, WIDTH_IN, make_sheet, mix

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

MARKERS = "os^D"
"""One for each round of colours."""
BAND = 0.1
"""Half the width of the grey band."""
_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#6A4C93")
"""Okabe and Ito's palette (Color Universal Design, 2008), its yellow, which is too light for dots, replaced."""
_BAND_COLOR = mix("#A9B4BC", 0.55)
_HEIGHT_IN = 5.4
_GUTTER_IN = 1.1
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
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    sources = list(dict.fromkeys(item.source for item in points))
    looks = {source: (_COLORS[i % len(_COLORS)], MARKERS[i // len(_COLORS) % 4]) for i, source in enumerate(sources)}
    legend: dict[str, Artist] = {}
    for source in sources:
        for held, word in ((True, "held out"), (False, "fitted")):
            if any(item.source == source and item.is_held_out is held for item in points):
                full, marker = looks[source]
                color = full if held else mix(full, 0.6)
                legend[f"{source}, {word}"] = Line2D([], [], color=color, marker=marker, linewidth=0)
    legend[f"within {BAND:.0%}"] = Patch(facecolor=_BAND_COLOR)
    sheet = make_sheet(_HEIGHT_IN, title, subtitle, legend)
    left, bottom, width, height = sheet.box
    gutter = _GUTTER_IN / WIDTH_IN
    panel = (width - gutter) / 2
    _times(sheet.figure.add_axes((left, bottom, panel, height)), points, looks)
    _residuals(sheet.figure.add_axes((left + panel + gutter, bottom, panel, height)), points, looks, size)
    sheet.save(path)


def _times(axes: Axes, points: Sequence[FitPoints], looks: Looks) -> None:
    values = np.concatenate([np.concatenate((item.measured_s, item.predicted_s)) for item in points]) * 1e6
    low, high = float(values.min()) / 1.3, float(values.max()) * 1.3
    for set_scale, set_limits in ((axes.set_xscale, axes.set_xlim), (axes.set_yscale, axes.set_ylim)):
        set_scale("log")
        set_limits(low, high)
    ends = (low, high)
    axes.fill_between(
        ends, [end * (1 - BAND) for end in ends], [end * (1 + BAND) for end in ends], color=_BAND_COLOR, linewidth=0
    )
    for item in _ordered(points):
        _dots(axes, item, looks, item.measured_s * 1e6, item.predicted_s * 1e6)
    axes.plot(ends, ends, color=INK, linewidth=1.0)
    for axis in (axes.xaxis, axes.yaxis):
        _ticks(axis, high / low)
    _label(axes, "measured time [us]", "predicted time [us]")


def _residuals(axes: Axes, points: Sequence[FitPoints], looks: Looks, size: str) -> None:
    from matplotlib.ticker import PercentFormatter

    sizes = np.concatenate([item.size for item in points])
    ends = (float(sizes.min()) / 1.5, float(sizes.max()) * 1.5)
    axes.set_xscale("log")
    axes.set_xlim(*ends)
    _ticks(axes.xaxis, ends[1] / ends[0])
    axes.set_ylim(-_WORST, _WORST)
    axes.fill_between(ends, -BAND, BAND, color=_BAND_COLOR, linewidth=0)
    for item in _ordered(points):
        error = np.clip(item.predicted_s / item.measured_s - 1.0, -_WORST, _WORST)
        _dots(axes, item, looks, item.size, error, clip=False)
    axes.axhline(0.0, color=INK, linewidth=1.0)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    beyond = sum(int((np.abs(item.predicted_s / item.measured_s - 1.0) > _WORST).sum()) for item in points)
    _label(axes, size, "predicted / measured - 1" + (f"  ({beyond:,} beyond, drawn at the edge)" if beyond else ""))


def _ordered(points: Sequence[FitPoints]) -> list[FitPoints]:
    """Pale dots under full ones."""
    return sorted(points, key=lambda item: item.is_held_out)


def _dots(
    axes: Axes,
    item: FitPoints,
    looks: Looks,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    *,
    clip: bool = True,
) -> None:
    full, marker = looks[item.source]
    color = full if item.is_held_out else mix(full, 0.6)
    few = len(x) < 200
    size = 5.0 if few else 2.2
    axes.plot(x, y, color=color, marker=marker, markersize=size, markeredgewidth=0, linewidth=0, clip_on=clip)


def _ticks(axis: Axis, span: float) -> None:
    """Labels at 1, 2 and 5 times powers of ten where the axis spans few of them, else at powers of ten."""
    from matplotlib.ticker import LogFormatterSciNotation, LogLocator, NullFormatter

    if span < _SHORT_SPAN:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(LogFormatterSciNotation(labelOnlyBase=False, minor_thresholds=(np.inf, np.inf)))
    axis.set_minor_formatter(NullFormatter())


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, size=FONT_SIZE, color=INK, family=FONT)
    axes.set_ylabel(y, size=FONT_SIZE, color=INK, family=FONT)
    axes.tick_params(which="both", labelsize=FONT_SIZE - 1.5, color=INK, labelcolor=INK, labelfontfamily=FONT)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
