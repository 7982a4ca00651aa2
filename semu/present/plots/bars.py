"""``draw_bars``: measured beside simulated, a pair of horizontal bars per quantity, a panel per unit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from semu.present.plots.canvas import LEFT_IN, make_sheet
from semu.present.plots.style import BLUE, FONT_SIZE, TEXT, area_key, frame
from semu.records import dataclass

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURED, SIMULATED = "#56606A", BLUE
_ROW_IN = 0.46
_BAR = 0.36
"""Height of a bar, of which two and a gap make a row of height 1."""
_PANEL_GAP_IN = 0.75
_LABEL_IN = 1.5
"""Room for names, besides the canvas's own margin."""
_ROOM = 1.16
"""The axis's length, as a factor of the longest bar: the numbers stand at the ends."""


@dataclass(frozen=True)
class BarPair:
    """A quantity measured and simulated, None: not there."""

    name: str
    measured: float | None
    simulated: float | None


@dataclass(frozen=True)
class BarPanel:
    """Quantities of one unit. axis: text under the axis, with the unit. pairs: from top to bottom."""

    axis: str
    pairs: tuple[BarPair, ...]


def draw_bars(path: str | os.PathLike[str], panels: Sequence[BarPanel], *, title: str, subtitle: str) -> None:
    """Draw the panels one below the other as a PNG.

    Args:
        path: the file to make. panels: at least one, each with at least one pair. title, subtitle: headline.
    Raises:
        OSError: the file cannot be written.
    """
    legend = {"measured": area_key(MEASURED), "simulated": area_key(SIMULATED)}
    heights = [_ROW_IN * len(panel.pairs) + 0.1 for panel in panels]
    sheet = make_sheet(sum(heights) + _PANEL_GAP_IN * (len(panels) - 1), title, subtitle, legend)
    stacked = sheet.stacked_axes(heights, _PANEL_GAP_IN, left_in=LEFT_IN + _LABEL_IN)
    for axes, panel in zip(stacked, panels, strict=True):
        _draw_panel(axes, panel)
    sheet.save(path)


def _draw_panel(axes: Axes, panel: BarPanel) -> None:
    longest = max((value for pair in panel.pairs for value in (pair.measured, pair.simulated) if value), default=1.0)
    for row, pair in enumerate(panel.pairs):
        for value, offset, color in ((pair.measured, -_BAR, MEASURED), (pair.simulated, 0.0, SIMULATED)):
            if value is None:
                continue
            axes.barh(row + offset, value, height=_BAR, align="edge", color=color, linewidth=0)
            end, middle = max(value, 0.0) + longest * 0.006, row + offset + _BAR / 2
            axes.text(end, middle, f"{value:.4g}", va="center", size=FONT_SIZE - 2.5, **TEXT)
    axes.set(xlim=(0, longest * _ROOM), ylim=(len(panel.pairs) - 0.5, -0.5))
    axes.set_yticks(range(len(panel.pairs)), [pair.name for pair in panel.pairs])
    frame(axes, panel.axis, labelsize=FONT_SIZE - 1.5)
    axes.tick_params(axis="y", length=0)
