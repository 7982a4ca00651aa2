"""``draw_bars``: measured beside simulated, a pair of horizontal bars per quantity, a panel per unit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from semu.present.plots.canvas import FONT, FONT_SIZE, INK, LEFT_IN, RIGHT_IN, WIDTH_IN, make_sheet

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

MEASURED, SIMULATED = "#56606A", "#0072B2"
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
    """Quantities of one unit.

    Attributes:
        axis: text under the axis, with the unit. pairs: from top to bottom.
    """

    axis: str
    pairs: tuple[BarPair, ...]


def draw_bars(path: str | os.PathLike[str], panels: Sequence[BarPanel], *, title: str, subtitle: str) -> None:
    """Draw the panels one below the other as a PNG.

    Args:
        path: the file to make. panels: at least one, each with at least one pair. title, subtitle: headline.
    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.patches import Patch

    legend: dict[str, Artist] = {"measured": Patch(facecolor=MEASURED), "simulated": Patch(facecolor=SIMULATED)}
    heights = [_ROW_IN * len(panel.pairs) + 0.1 for panel in panels]
    sheet = make_sheet(sum(heights) + _PANEL_GAP_IN * (len(panels) - 1), title, subtitle, legend)
    _, _, _, share = sheet.box
    top = sheet.box[1] + share
    left = (LEFT_IN + _LABEL_IN) / WIDTH_IN
    width = 1 - left - RIGHT_IN / WIDTH_IN
    for panel, height_in in zip(panels, heights, strict=True):
        height = height_in / sheet.height_in
        axes = sheet.figure.add_axes((left, top - height, width, height))
        _draw_panel(axes, panel)
        top -= height + _PANEL_GAP_IN / sheet.height_in
    sheet.save(path)


def _draw_panel(axes: Axes, panel: BarPanel) -> None:
    longest = max((value for pair in panel.pairs for value in (pair.measured, pair.simulated) if value), default=1.0)
    for row, pair in enumerate(panel.pairs):
        for value, offset, color in ((pair.measured, -_BAR, MEASURED), (pair.simulated, 0.0, SIMULATED)):
            if value is None:
                continue
            axes.barh(row + offset, value, height=_BAR, align="edge", color=color, linewidth=0)
            axes.text(
                max(value, 0.0) + longest * 0.006,
                row + offset + _BAR / 2,
                f"{value:.4g}",
                va="center",
                size=FONT_SIZE - 2.5,
                color=INK,
                family=FONT,
            )
    axes.set_xlim(0, longest * _ROOM)
    axes.set_ylim(len(panel.pairs) - 0.5, -0.5)
    axes.set_yticks(range(len(panel.pairs)), [pair.name for pair in panel.pairs])
    axes.set_xlabel(panel.axis, size=FONT_SIZE, color=INK, family=FONT)
    axes.tick_params(labelsize=FONT_SIZE - 1.5, color=INK, labelcolor=INK, labelfontfamily=FONT)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
