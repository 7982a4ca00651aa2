"""``draw_tornado``: what moves the time of an iteration, and which way; a row per thing that is changed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from semu.present.plots.canvas import LEFT_IN, make_sheet
from semu.present.plots.style import BLUE, FONT_SIZE, INK, TEXT, VERMILLION, area_key, frame
from semu.records import dataclass

FASTER, SLOWER, TOO_BIG = BLUE, VERMILLION, "#9AA3AB"
_ROW_IN = 0.36
_LABEL_IN = 2.6
"""Room for keys, besides the canvas's own margin."""
_ROOM = 1.3
"""The axis's length on either side, as a factor of the longest bar: labels stand at the ends."""
_LEAST = 1e-4
"""Share of the job's time below which a change is not drawn as a bar."""


@dataclass(frozen=True)
class TornadoBar:
    """One change: its words, the iteration's time under it [s], and whether it fits in memory."""

    label: str
    time_s: float
    fits: bool


@dataclass(frozen=True)
class TornadoRow:
    """All changes of one thing."""

    name: str
    bars: tuple[TornadoBar, ...]


def draw_tornado(
    path: str | os.PathLike[str], rows: Sequence[TornadoRow], base_s: float, *, title: str, subtitle: str
) -> None:
    """Draw rows from top to bottom as a PNG.

    Args:
        path: the file to make. rows: at least one. base_s: the iteration as it is [s]. title, subtitle: headline.
    Raises:
        OSError: the file cannot be written.
    """
    legend = {
        "faster": area_key(FASTER),
        "slower": area_key(SLOWER),
        "does not fit in memory": area_key("white", edgecolor=TOO_BIG, hatch="////", linewidth=0.8),
    }
    sheet = make_sheet(_ROW_IN * len(rows) + 0.1, title, subtitle, legend)
    axes = sheet.axes(LEFT_IN + _LABEL_IN)
    times = [bar.time_s for row in rows for bar in row.bars] + [base_s]
    low, high = base_s - min(times), max(times) - base_s
    reach = max(low, high, 1e-3 * base_s)
    text: dict[str, Any] = {"size": FONT_SIZE - 2.5, "va": "center", **TEXT}
    for place, row in enumerate(rows):
        for side in (-1, 1):
            own = [bar for bar in row.bars if (bar.time_s - base_s) * side > _LEAST * base_s]
            for bar in sorted(own, key=lambda bar: -abs(bar.time_s - base_s)):
                face = (FASTER if side < 0 else SLOWER) if bar.fits else "white"
                hatch = None if bar.fits else "////"
                edge = "white" if bar.fits else (FASTER if side < 0 else SLOWER)
                axes.barh(place, bar.time_s - base_s, left=base_s, height=0.62, color=face, edgecolor=edge, hatch=hatch)
            if own:
                told = sorted(own, key=lambda bar: abs(bar.time_s - base_s))
                end = told[-1].time_s + side * 0.012 * reach
                words = ", ".join(bar.label for bar in (told if side > 0 else told[::-1]))
                axes.text(end, place, words, ha="left" if side > 0 else "right", **text)
        still = [bar.label for bar in row.bars if abs(bar.time_s - base_s) <= _LEAST * base_s]
        if len(still) == len(row.bars):
            axes.text(base_s + 0.012 * reach, place, f"{', '.join(still)}: no change", ha="left", **text)
    axes.axvline(base_s, color=INK, linewidth=1.0)
    axes.set_xlim(base_s - max(low, 0.12 * reach) * _ROOM - 0.1 * reach, base_s + max(high, 0.3 * reach) * _ROOM)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    across = f"iteration time [s]; as it is: {base_s:.4g} s"
    frame(axes, across, hidden=("top", "right", "left"), labelsize=FONT_SIZE - 1.5)
    axes.tick_params(axis="y", length=0)
    sheet.save(path)
