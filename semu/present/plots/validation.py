"""``draw_validation``: predicted over measured, times beside memory, both axes logarithmic, a colour per group."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from semu.present.plots.canvas import make_sheet
from semu.present.plots.diagonal import BAND, BAND_COLOR, GUTTER_IN, looks_of, set_square
from semu.present.plots.style import FONT_SIZE, INK, TEXT, area_key, dot_key, frame
from semu.records import dataclass
from semu.units import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "os^Dv"
_HEIGHT_IN = 5.9
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
    looks = looks_of((point.group for point in (*times, *memory)), _MARKERS)
    legend = {name: dot_key(color, marker=marker) for name, (color, marker) in looks.items()}
    legend[f"within {BAND:.0%}"] = area_key(BAND_COLOR)
    subtitle = f"{len(times)} iteration times, {len(memory)} memory peaks; grey: within {BAND:.0%}"
    sheet = make_sheet(_HEIGHT_IN, title, subtitle, legend)
    in_gib = [ScatterPoint(point.group, point.measured / GIB, point.predicted / GIB) for point in memory]
    left, right = sheet.two_axes(GUTTER_IN)
    _draw_panel(left, times, "iteration time [s]", looks)
    _draw_panel(right, in_gib, "peak memory [GiB]", looks)
    sheet.save(path)


def _draw_panel(axes: Axes, points: Sequence[ScatterPoint], what: str, looks: dict[str, tuple[str, str]]) -> None:
    """Dots, the diagonal and the band around it, on equal axes."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    values = [value for point in points for value in (point.measured, point.predicted)] or [0.1, 10.0]
    low, high = min(values) / _MARGIN, max(values) * _MARGIN
    set_square(axes, low, high)
    axes.plot((low, high), (low, high), color=INK, linewidth=1.0)
    for name, (color, marker) in looks.items():
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
        axes.text(0.5, 0.5, "no runs", transform=axes.transAxes, ha="center", size=FONT_SIZE, **TEXT)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    frame(axes, f"measured {what}", f"predicted {what}", which="both", labelsize=FONT_SIZE - 1.5)
