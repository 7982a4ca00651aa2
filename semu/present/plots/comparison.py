"""``draw_comparison``: where the time of several runs goes, and the memory of their ranks, side by side."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from semu.present.plots.canvas import LEFT_IN, make_sheet
from semu.present.plots.style import FONT_SIZE, PALETTE, TEXT, area_key, frame
from semu.units import GIB, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from semu.present.comparison import Comparison  # circle: a comparison draws itself

_ROW_IN = 0.5
_GAP_IN = 0.9
_LABEL_IN = 1.6
_LEAST = 0.01
"""Parts below this share of the longest time are drawn together."""
_MOST_PARTS = 6
_REST = "all else"
_UNKNOWN, _MEMORY = "#B8BEC4", "#56606A"


def draw_comparison(path: str | os.PathLike[str], comparison: Comparison) -> None:
    """Draw a stacked bar of time for each side, and its ranks' peaks, as a PNG.

    Raises:
        OSError: the file cannot be written.
    """
    sides = comparison.sides
    names = _names(comparison)
    colors = dict(zip(names, PALETTE, strict=False)) | {_REST: "#9AA3AB"}
    shown = [name for name in (*names, _REST) if any(_share(part, name, names) for part in (s.parts_s for s in sides))]
    legend = {name: area_key(colors[name]) for name in shown}
    if any(not side.parts_s for side in sides):
        legend["iteration, parts not known"] = area_key(_UNKNOWN)
    has_memory = any(side.memory for side in sides)
    heights = [_ROW_IN * len(sides) + 0.1] + ([_ROW_IN * len(sides) + 0.4] if has_memory else [])
    title = "Iteration time" + (" and memory" if has_memory else "")
    marks = [chr(ord("a") + number) for number in range(len(sides))]
    subtitle = "   ".join(f"({mark}) {side.name}" for mark, side in zip(marks, sides, strict=True))
    sheet = make_sheet(sum(heights) + _GAP_IN * (len(heights) - 1), title, subtitle[:110], legend)
    panels = sheet.stacked_axes(heights, _GAP_IN, left_in=LEFT_IN + _LABEL_IN - 1.0)
    labels = [f"({mark})" for mark in marks]
    _draw_times(panels[0], comparison, names, colors, labels)
    if has_memory:
        _draw_memory(panels[1], comparison, labels)
    sheet.save(path)


def _names(comparison: Comparison) -> list[str]:
    """The parts that are drawn by themselves, the largest first."""
    longest = max(side.time_s for side in comparison.sides)
    largest: dict[str, float] = {}
    for side in comparison.sides:
        for name, time in side.parts_s.items():
            largest[name] = max(largest.get(name, 0.0), time)
    ranked = sorted(largest, key=lambda name: -largest[name])
    return [name for name in ranked if largest[name] >= _LEAST * longest][:_MOST_PARTS]


def _share(parts: object, name: str, names: list[str]) -> float:
    assert isinstance(parts, dict)
    if name != _REST:
        return float(parts.get(name, 0.0))
    return float(sum(time for key, time in parts.items() if key not in names))


def _draw_times(
    axes: Axes, comparison: Comparison, names: list[str], colors: dict[str, str], labels: list[str]
) -> None:
    longest = max(side.time_s for side in comparison.sides)
    for row, side in enumerate(comparison.sides):
        left = 0.0
        if not side.parts_s:
            axes.barh(row, side.time_s, height=0.62, color=_UNKNOWN, linewidth=0)
        for name in (*names, _REST):
            width = _share(dict(side.parts_s), name, names)
            if width > 0:
                axes.barh(row, width, left=left, height=0.62, color=colors[name], linewidth=0)
                left += width
        if side.interval_s is not None:
            low, high = side.interval_s
            axes.plot([low, high], [row, row], color="#222222", linewidth=1.2, marker="|", markersize=7)
        end = max(side.time_s, side.interval_s[1] if side.interval_s is not None else 0.0)
        axes.text(end + longest * 0.012, row, format_time(side.time_s), va="center", size=FONT_SIZE - 1.5, **TEXT)
    ends = [side.interval_s[1] if side.interval_s is not None else side.time_s for side in comparison.sides]
    axes.set(xlim=(0, max(*ends, longest) * 1.14), ylim=(len(labels) - 0.5, -0.5))
    axes.set_yticks(range(len(labels)), labels)
    frame(axes, "iteration [s]; lines: 90 % interval", labelsize=FONT_SIZE - 1)
    axes.tick_params(axis="y", length=0)


def _draw_memory(axes: Axes, comparison: Comparison, labels: list[str]) -> None:
    most = max(max(side.memory.values(), default=0.0) for side in comparison.sides) / GIB
    for row, side in enumerate(comparison.sides):
        ranks = sorted(side.memory)
        height = 0.76 / max(len(ranks), 1)
        for number, rank in enumerate(ranks):
            offset = row - 0.38 + height * (number + 0.5)
            axes.barh(offset, side.memory[rank] / GIB, height=height * 0.86, color=_MEMORY, linewidth=0)
        if ranks:
            fullest = max(ranks, key=lambda rank: side.memory[rank])
            told = f"{side.memory[fullest] / GIB:.1f}" + (f" (rank {fullest})" if len(ranks) > 1 else "")
            axes.text(side.memory[fullest] / GIB + most * 0.012, row, told, va="center", size=FONT_SIZE - 1.5, **TEXT)
    axes.set(xlim=(0, most * 1.18), ylim=(len(labels) - 0.5, -0.5))
    axes.set_yticks(range(len(labels)), labels)
    frame(axes, "peak of allocated memory of each pipeline rank [GiB]", labelsize=FONT_SIZE - 1)
    axes.tick_params(axis="y", length=0)
