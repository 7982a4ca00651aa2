"""What all pictures share: the sheet with headline, margins, axes and legend, and saving.

Everything is placed by hand, in inches: automatic layout would measure every text twice.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from semu.present.plots.style import FONT, FONT_SIZE, INK, TEXT
from semu.records import dataclass

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN = 13.5
DPI = 120
LEFT_IN, RIGHT_IN, TOP_IN = 1.15, 0.3, 0.78
_TITLE_SIZE, _SMALLEST_TITLE = 14.0, 9.0
_AXIS_IN = 0.62
"""Height of tick labels and axis label under the axes."""
_LEGEND_ROW_IN = 0.23


@dataclass(frozen=True)
class Sheet:
    """A figure with room for axes between the headline and the legend.

    Attributes:
        figure: the figure. bottom_in: height under the axes [inch]. height_in: of the whole figure [inch].
    """

    figure: Figure
    bottom_in: float
    height_in: float

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, bottom, width and height of the axes as shares of the figure."""
        width = (WIDTH_IN - LEFT_IN - RIGHT_IN) / WIDTH_IN
        height = (self.height_in - self.bottom_in - TOP_IN) / self.height_in
        return (LEFT_IN / WIDTH_IN, self.bottom_in / self.height_in, width, height)

    def axes(self, left_in: float = LEFT_IN) -> Axes:
        """Axes in all of the room. ``left_in``: left of them [inch]."""
        _, bottom, _, height = self.box
        width = (WIDTH_IN - left_in - RIGHT_IN) / WIDTH_IN
        return self.figure.add_axes((left_in / WIDTH_IN, bottom, width, height))

    def stacked_axes(
        self, heights_in: Sequence[float], gap_in: float, *, left_in: float = LEFT_IN, above_in: float = 0.0
    ) -> list[Axes]:
        """Axes below one another.

        Args:
            heights_in: of the axes, from top to bottom [inch]. gap_in: between them. left_in, above_in: left of them
                and above the first.
        """
        left, top = left_in / WIDTH_IN, self.box[1] + self.box[3] - above_in / self.height_in
        width = 1 - left - RIGHT_IN / WIDTH_IN
        found = []
        for height_in in heights_in:
            height = height_in / self.height_in
            found.append(self.figure.add_axes((left, top - height, width, height)))
            top -= height + gap_in / self.height_in
        return found

    def two_axes(self, gutter_in: float) -> tuple[Axes, Axes]:
        """Axes beside one another. ``gutter_in``: between them [inch]."""
        left, bottom, width, height = self.box
        gutter = gutter_in / WIDTH_IN
        panel = (width - gutter) / 2
        add = self.figure.add_axes
        return add((left, bottom, panel, height)), add((left + panel + gutter, bottom, panel, height))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Render, then write the PNG in one go."""
        Path(path).write_bytes(_png(self.figure))


def make_sheet(axes_height_in: float, title: str, subtitle: str, legend: Mapping[str, Artist]) -> Sheet:
    """A figure of the common width with headline and legend.

    Args:
        axes_height_in: height that the axes get [inch]. title: headline; shrunk, then cut, to fit.
        subtitle: second line. legend: label -> what it stands for.
    """
    from matplotlib.figure import Figure

    columns = _legend_columns(list(legend))
    bottom_in = _AXIS_IN + _LEGEND_ROW_IN * -(-len(legend) // columns) + 0.08
    height_in = round((axes_height_in + bottom_in + TOP_IN) * DPI) / DPI
    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, facecolor="white")
    size, shown = _fit_title(title)
    left = LEFT_IN / WIDTH_IN
    for text, down_in, points, weight in ((shown, 0.34, size, "bold"), (subtitle, 0.62, FONT_SIZE, "normal")):
        figure.text(left, 1 - down_in / height_in, text, size=points, weight=weight, parse_math=False, **TEXT)
    labels = figure.legend(
        list(legend.values()),
        list(legend),
        loc="lower center",
        bbox_to_anchor=(0.5, 0.05 / height_in),
        borderaxespad=0.0,
        ncols=columns,
        frameon=False,
        prop={"family": FONT, "size": FONT_SIZE - 0.5},
        labelcolor=INK,
        handlelength=1.5,
        handleheight=0.95,
        columnspacing=1.6,
        labelspacing=0.45,
    )
    for label in labels.get_texts():
        label.set_parse_math(False)
    figure._repr_png_ = partial(_png, figure)  # type: ignore[attr-defined]  # notebooks show it without pyplot
    return Sheet(figure, bottom_in, height_in)


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def _fit_title(title: str) -> tuple[float, str]:
    """Font size and text that fit on one line; a bold character is about 0.7 of the size wide."""
    room = (WIDTH_IN - LEFT_IN - RIGHT_IN) * 72 / 0.7
    size = max(_SMALLEST_TITLE, min(_TITLE_SIZE, room / max(1, len(title))))
    most = int(room / _SMALLEST_TITLE)
    return size, title if len(title) <= most else title[: most - 1] + "…"


def _legend_columns(labels: list[str]) -> int:
    """The most columns that fit; entries go down the columns, and a column is as wide as its longest label."""
    for columns in range(len(labels), 1, -1):
        rows = -(-len(labels) // columns)
        longest = [max(len(label) for label in labels[first : first + rows]) for first in range(0, len(labels), rows)]
        if sum(longest) * 0.58 * FONT_SIZE / 72 + 0.6 * len(longest) <= WIDTH_IN - 0.4:
            return len(longest)
    return 1
