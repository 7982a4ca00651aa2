"""Pictures of a grid of configurations: time against memory with the Pareto front, and a heat map over two axes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from semu.present.plots import style
from semu.present.plots.canvas import LEFT_IN, RIGHT_IN, WIDTH_IN, make_sheet
from semu.records import dataclass
from semu.units import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FITS, _MISFIT, _BOUND = style.BLUE, style.VERMILLION, "#C3C8CE"
_LABELS = 6
"""Configurations of the front that are named."""
_CELL_IN = 0.42
_WIDEST = 4
"""The axis of time ends at this multiple of the shortest time."""


@dataclass(frozen=True)
class ConfigurationCloud:
    """Configurations by time and memory.

    Attributes:
        title, subtitle: headline. time_s, memory_bytes: float64[n] [s], [bytes], of those that were simulated.
        labels: their names. bound_s, bound_bytes: the same two figures at best, of those that needed no simulation.
        capacity_bytes: memory of a device.
    """

    title: str
    subtitle: str
    time_s: NDArray[np.float64]
    memory_bytes: NDArray[np.float64]
    labels: tuple[str, ...]
    bound_s: NDArray[np.float64]
    bound_bytes: NDArray[np.float64]
    capacity_bytes: int

    @property
    def front(self) -> NDArray[np.int64]:
        """The configurations than which none is both faster and smaller, the fastest first: int64[k]."""
        order = np.lexsort((self.memory_bytes, self.time_s))
        lowest = np.minimum.accumulate(np.concatenate(([np.inf], self.memory_bytes[order])))[:-1]
        return order[self.memory_bytes[order] < lowest]


@dataclass(frozen=True)
class CellTable:
    """The best of every cell of two axes.

    Attributes:
        title, subtitle: headline. across, up: names of the axes. columns, rows: their values, in order.
        best: float64[num_rows, num_columns], figure of the best that fits, NaN: none fits. texts: what the cells
            say. colour_says: what the figure is.
    """

    title: str
    subtitle: str
    across: str
    up: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    best: NDArray[np.float64]
    texts: tuple[tuple[str, ...], ...]
    colour_says: str


def draw_pareto(path: str | os.PathLike[str], cloud: ConfigurationCloud) -> None:
    """Draw every configuration by its time (across, logarithmic) and its memory (up), with the Pareto front.

    Args:
        path: the PNG to make. cloud: the configurations.
    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    fits = cloud.memory_bytes <= cloud.capacity_bytes
    times_s = np.concatenate((cloud.time_s, cloud.bound_s))
    shortest_s, longest_s = float(times_s.min()), float(times_s.max())
    legend = {"fits": style.dot_key(_FITS, markersize=5)}
    if not fits.all():
        legend["does not fit"] = style.dot_key(_MISFIT, markersize=5)
    if len(cloud.bound_s):
        legend["not simulated: as fast and small as it can be at best"] = style.dot_key(_BOUND, markersize=3)
    legend["none simulated is both faster and smaller"] = style.line_key(style.INK, linewidth=1.4)
    legend["memory of a device"] = style.line_key(style.LIMIT, **style.DASHED)
    slow = int(np.sum(times_s > _WIDEST * shortest_s))
    said = f"; {slow:,} that take more than {_WIDEST} x the shortest time are not shown" if slow else ""
    sheet = make_sheet(4.6, cloud.title, cloud.subtitle + said, legend)
    axes = sheet.axes()
    height = cloud.memory_bytes / GIB
    axes.scatter(cloud.bound_s, cloud.bound_bytes / GIB, s=5, color=_BOUND, linewidths=0, zorder=1)
    axes.scatter(cloud.time_s[~fits], height[~fits], s=16, color=_MISFIT, linewidths=0, zorder=2)
    axes.scatter(cloud.time_s[fits], height[fits], s=16, color=_FITS, linewidths=0, zorder=3)
    front = cloud.front
    axes.step(cloud.time_s[front], height[front], where="post", color=style.INK, linewidth=1.2, zorder=4)
    axes.axhline(cloud.capacity_bytes / GIB, color=style.LIMIT, zorder=4, **style.DASHED)
    axes.set_xscale("log")
    axes.set_xlim(shortest_s / 1.06, min(longest_s, _WIDEST * shortest_s) * 1.1)
    axes.set_ylim(0, 1.6 * max(cloud.capacity_bytes / GIB, float(height[front].max())))
    axes.xaxis.set_major_locator(LogLocator(10, subs=(1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    _name_front(axes, cloud, [number for number in front.tolist() if fits[number]])
    style.frame(axes, "iteration time [s]", "memory that the fullest rank needs [GiB]")
    sheet.save(path)


def _name_front(axes: Axes, cloud: ConfigurationCloud, front: Sequence[int]) -> None:
    """Names beside the front's configurations: the fastest, and others far enough from those named before."""
    named: list[tuple[float, float]] = []
    low, high = np.log(axes.get_xlim())
    top = axes.get_ylim()[1]
    for number in [*front[:1], *reversed(front[1:])]:
        x = (np.log(cloud.time_s[number]) - low) / (high - low)
        y = cloud.memory_bytes[number] / GIB / top
        if len(named) == _LABELS or any(abs(y - other) < 0.06 and abs(x - left) < 0.4 for left, other in named):
            continue
        named.append((float(x), float(y)))
        axes.annotate(
            cloud.labels[number],
            (float(cloud.time_s[number]), float(cloud.memory_bytes[number]) / GIB),
            xytext=(56, -15),
            textcoords="offset points",
            size=style.FONT_SIZE - 2.5,
            zorder=5,
            arrowprops={"arrowstyle": "-", "color": style.INK, "linewidth": 0.7, "shrinkB": 2},
            bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.75},
            **style.TEXT,
        )


def draw_heat_map(path: str | os.PathLike[str], cells: CellTable) -> None:
    """Draw the best configuration of every pair of values, dark where it is good.

    Args:
        path: the PNG to make. cells: two axes and the best of every cell.
    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    shades = colormaps["Blues"]
    known = cells.best[np.isfinite(cells.best)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    span = np.log(high / low) if 0 < low < high else 1.0
    legend = {
        f"{cells.colour_says}: best": style.area_key(shades(0.85)),
        "worst": style.area_key(shades(0.1)),
        "no configuration that fits was simulated": style.area_key("#F1F2F4"),
    }
    sheet = make_sheet(max(1.6, _CELL_IN * len(cells.rows)), cells.title, cells.subtitle, legend)
    axes = sheet.axes()
    width = (WIDTH_IN - LEFT_IN - RIGHT_IN) / max(1, len(cells.columns))
    for row, texts in enumerate(cells.texts):
        for column, text in enumerate(texts):
            value = cells.best[row, column]
            share = 0.1 + 0.75 * (1 - np.log(value / low) / span if np.isfinite(value) and low > 0 else 0.0)
            color = shades(share)[:3] if np.isfinite(value) else (0.945, 0.949, 0.957)
            axes.add_patch(Rectangle((column - 0.49, row - 0.48), 0.98, 0.96, facecolor=color, linewidth=0))
            size = min(style.FONT_SIZE - 2, 118 * width / max(1, len(text)))
            ink = style.ink_on(color) if np.isfinite(value) else "#7A828B"
            text_style = {**style.TEXT, "color": ink, "ha": "center", "va": "center"}
            axes.text(column, row, text, size=size, parse_math=False, **text_style)
    axes.set(xlim=(-0.5, len(cells.columns) - 0.5), ylim=(-0.5, len(cells.rows) - 0.5))
    axes.set_xticks(range(len(cells.columns)), cells.columns)
    axes.set_yticks(range(len(cells.rows)), cells.rows)
    style.frame(axes, cells.across, cells.up, hidden=("top", "right", "left", "bottom"), length=0)
    sheet.save(path)
