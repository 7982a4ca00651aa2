"""What a picture is made of: matplotlib's figure as it is saved, and the colours of its lines and legend."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import chdir
from tempfile import TemporaryDirectory
from unittest.mock import patch

from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D


def figure_of(draw: Callable[[], None]) -> Figure:
    """The one figure that ``draw`` saves; nothing is rendered, and a relative path leaves no file behind."""
    saved: list[Figure] = []
    with (
        TemporaryDirectory() as folder,
        chdir(folder),
        patch.object(Figure, "savefig", lambda figure, *_, **__: saved.append(figure)),
    ):
        draw()
    (figure,) = saved
    return figure


def color_of(line: Line2D) -> str:
    """``#rrggbb``."""
    return str(to_hex(line.get_color()))


def points_of(line: Line2D) -> list[tuple[float, float]]:
    """Its points as (x, y)."""
    x, y = line.get_data()
    return [(float(a), float(b)) for a, b in zip(x, y, strict=True)]


def labels_of(axes: Axes) -> tuple[str, str]:
    """What is written at the x axis and at the y axis."""
    return axes.get_xlabel(), axes.get_ylabel()


def lines_of(axes: Axes, color: str) -> list[Line2D]:
    """The lines of a colour ``#rrggbb``, in the order in which they were drawn."""
    return [line for line in axes.lines if color_of(line) == color.lower()]


def legend_of(figure: Figure) -> dict[str, str]:
    """Label -> ``#rrggbb`` of the lines and dots in the legend."""
    (legend,) = figure.legends
    pairs = zip(legend.get_texts(), legend.legend_handles, strict=True)
    return {text.get_text(): color_of(handle) for text, handle in pairs if isinstance(handle, Line2D)}
