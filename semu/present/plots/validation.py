"""``draw_validation``: predicted over measured, times beside memory, both axes logarithmic, a colour per group."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semu.present.plots.canvas import FONT, FONT_SIZE, INK, WIDTH_IN, make_sheet, mix
from semu.units import GIB

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

BAND = 0.1
"""Half the width of the grey band: predictions within 10 %."""
_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#6A4C93")
"""Okabe and Ito's palette (Color Universal Design, 2008), its yellow, which is too light for dots, replaced."""
_MARKERS = ("o", "s", "^", "D", "v")
_BAND_COLOR = mix("#A9B4BC", 0.55)
_HEIGHT_IN = 5.9
_GUTTER_IN = 1.1
_MARGIN = 1.25
"""Room around the points, as a factor."""


@dataclass(frozen=True)
class ScatterPoint:
    """A run: its group, and two positive numbers in seconds or in bytes."""

    group: str
    measured: float
    predicted: float


def draw_validation(
    path: str | os.PathLike[str], times: Sequence[ScatterPoint], memory: Sequence[ScatterPoint], *, title: str
) -> None:
    """Draw predictions over measurements as a PNG, a panel for iteration times [s] and one for memory [bytes].

    Args:
        path: the file to make. times, memory: the runs; either may be empty. title: headline.
    Raises:
        OSError: the file cannot be written.
    """
    groups = list(dict.fromkeys(point.group for point in (*times, *memory)))
    styles = {
        name: (_COLORS[i % len(_COLORS)], _MARKERS[i // len(_COLORS) % len(_MARKERS)]) for i, name in enumerate(groups)
    }
    subtitle = f"{len(times)} iteration times, {len(memory)} memory peaks; grey: within {BAND:.0%}"
    sheet = make_sheet(_HEIGHT_IN, title, subtitle, _legend(styles))
    left, bottom, width, height = sheet.box
    gutter = _GUTTER_IN / WIDTH_IN
    panel = (width - gutter) / 2
    in_gib = [ScatterPoint(point.group, point.measured / GIB, point.predicted / GIB) for point in memory]
    for number, (points, what) in enumerate(((times, "iteration time [s]"), (in_gib, "peak memory [GiB]"))):
        axes = sheet.figure.add_axes((left + number * (panel + gutter), bottom, panel, height))
        _draw_panel(axes, points, what, styles)
    sheet.save(path)


def _legend(styles: dict[str, tuple[str, str]]) -> dict[str, Artist]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    dots: dict[str, Artist] = {
        name: Line2D([], [], color=color, marker=marker, linewidth=0) for name, (color, marker) in styles.items()
    }
    return {**dots, f"within {BAND:.0%}": Patch(facecolor=_BAND_COLOR)}


def _draw_panel(axes: Axes, points: Sequence[ScatterPoint], what: str, styles: dict[str, tuple[str, str]]) -> None:
    """Dots, the diagonal and the band around it, on equal axes."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    values = [value for point in points for value in (point.measured, point.predicted)] or [0.1, 10.0]
    low, high = min(values) / _MARGIN, max(values) * _MARGIN
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    ends = (low, high)
    axes.fill_between(
        ends, [end * (1 - BAND) for end in ends], [end * (1 + BAND) for end in ends], color=_BAND_COLOR, linewidth=0
    )
    axes.plot(ends, ends, color=INK, linewidth=1.0)
    for name, (color, marker) in styles.items():
        own = [point for point in points if point.group == name]
        axes.plot(
            [point.measured for point in own],
            [point.predicted for point in own],
            color=color,
            marker=marker,
            markersize=6.5,
            markeredgecolor="white",
            markeredgewidth=0.5,
            linewidth=0,
        )
    if not points:
        axes.text(0.5, 0.5, "no runs", transform=axes.transAxes, ha="center", size=FONT_SIZE, color=INK, family=FONT)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(f"measured {what}", size=FONT_SIZE, color=INK, family=FONT)
    axes.set_ylabel(f"predicted {what}", size=FONT_SIZE, color=INK, family=FONT)
    axes.tick_params(which="both", labelsize=FONT_SIZE - 1.5, color=INK, labelcolor=INK, labelfontfamily=FONT)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
