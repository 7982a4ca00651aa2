"""How all pictures look: colours, fonts, frames of axes, keys of the legend, coloured boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

Color: TypeAlias = tuple[float, float, float]

INK = "#222222"
FONT = "DejaVu Sans"
FONT_SIZE = 11.0
TEXT: Mapping[str, Any] = {"color": INK, "family": FONT}
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#6A4C93")
"""Okabe and Ito's palette (Color Universal Design, 2008), its yellow, which is too light for dots, replaced."""
BLUE, ORANGE, GREEN, PINK, VERMILLION, SKY, _ = PALETTE
LIMIT = "#B00020"
"""Colour of the memory that there is, and of what was missed."""
DASHED: Mapping[str, Any] = {"linewidth": 1.3, "linestyle": (0, (5, 3))}
"""Look of a limit."""
DOTTED: Mapping[str, Any] = {"linewidth": 1.3, "linestyle": (0, (1, 1.6))}
"""Look of the fullest replica's peak, where another replica is drawn."""


def line_key(color: str | Color, **look: Any) -> Artist:
    """A line in the legend, 2 points wide unless ``look`` says otherwise."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=color, **{"linewidth": 2.0, **look})


def dot_key(color: str | Color, **look: Any) -> Artist:
    """A dot in the legend, round unless ``look`` says otherwise."""
    return line_key(color, **{"marker": "o", "linewidth": 0, **look})


def area_key(color: Any, **look: Any) -> Artist:
    """A rectangle in the legend."""
    from matplotlib.patches import Patch

    return Patch(facecolor=color, **look)


def frame(
    axes: Axes,
    across: str = "",
    up: str = "",
    *,
    hidden: Sequence[str] = ("top", "right"),
    labelsize: float = FONT_SIZE - 0.5,
    **ticks: Any,
) -> None:
    """Names and ticks of axes.

    Args:
        axes: to be framed. across, up: names of the axes; empty: none. hidden: sides without a line.
        labelsize: of the ticks' numbers. ticks: further options of ``Axes.tick_params``.
    """
    axes.set_xlabel(across, size=FONT_SIZE, **TEXT)
    axes.set_ylabel(up, size=FONT_SIZE, **TEXT)
    axes.tick_params(labelsize=labelsize, color=INK, labelcolor=INK, labelfontfamily=FONT, **ticks)
    for side in hidden:
        axes.spines[side].set_visible(False)


def mix(color: str, whitening: float) -> Color:
    """``#rrggbb`` with a share of white (positive) or black (negative) mixed in."""
    rgb = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    red, green, blue = (rgb + (1 - rgb) * whitening if whitening >= 0 else rgb * (1 + whitening)).tolist()
    return (red, green, blue)


def ink_on(color: Color) -> str:
    """Black or white, whichever is legible on the colour (relative luminance, WCAG 2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return INK if luminance > 0.22 else "#FFFFFF"


def add_boxes(
    axes: Axes,
    starts: NDArray[np.float64],
    ends: NDArray[np.float64],
    rows: NDArray[np.float64],
    lane: tuple[float, float],
    color: Any,
    edge: float,
) -> None:
    """Draw rectangles of one colour as one collection.

    Args:
        starts, ends, rows: float64[num_boxes], row r goes from r to r + 1. lane: (low, high) within a row.
        edge: width of the white edges [pt].
    """
    from matplotlib.collections import PolyCollection

    lows, highs = rows + lane[0], rows + lane[1]
    x = np.stack((starts, ends, ends, starts), axis=1)
    y = np.stack((lows, lows, highs, highs), axis=1)
    corners = list(np.stack((x, y), axis=2))
    drawn = PolyCollection(corners, facecolors=[color], edgecolors="white", linewidths=edge)
    axes.add_collection(drawn, autolim=False)
