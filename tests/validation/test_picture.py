"""The scatter picture shows every run where it belongs: pixels are read back and measured."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from numpy.typing import NDArray
from present.plots.artists import color_of, figure_of, labels_of, legend_of, points_of

from semu.present.plots import ScatterPoint, draw_validation
from semu.present.plots.canvas import DPI, LEFT_IN, RIGHT_IN, TOP_IN, WIDTH_IN
from semu.present.plots.diagonal import BAND
from semu.present.plots.style import INK, mix
from semu.units import GIB

BLUE, ORANGE = "#0072B2", "#E69F00"
LEGEND_PX = 130
"""Under the axes there is the legend, whose dots have the same colours."""


def draw(path: Path, times: list[ScatterPoint], memory: list[ScatterPoint]) -> NDArray[np.int64]:
    draw_validation(path / "v.png", times, memory, title="runs")
    return np.rint(imread(path / "v.png")[..., :3] * 255).astype(np.int64)


def where(image: NDArray[np.int64], color: str) -> NDArray[np.bool_]:
    wanted = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)])
    found: NDArray[np.bool_] = np.all(np.abs(image - wanted) <= 1, axis=-1)
    found[-LEGEND_PX:] = False
    return found


def centre(mask: NDArray[np.bool_]) -> tuple[float, float]:
    """(x, y) in pixels, y downwards."""
    rows, columns = np.nonzero(mask)
    return float(columns.mean()), float(rows.mean())


def test_dots_lie_at_their_numbers(tmp_path: Path) -> None:
    image = draw(tmp_path, [ScatterPoint("a", 1.0, 10.0), ScatterPoint("b", 100.0, 20.0)], [])
    (ax, ay), (bx, by) = centre(where(image, BLUE)), centre(where(image, ORANGE))
    across = (bx - ax) / math.log10(100 / 1)
    down = (by - ay) / math.log10(10 / 20)
    assert across > 100
    decades = math.log10(100 * 1.25 / (1 / 1.25))
    width = (WIDTH_IN - LEFT_IN - RIGHT_IN - 1.1) / 2 * DPI
    assert across == pytest.approx(width / decades, rel=0.01)
    assert down == pytest.approx(5.9 * DPI / decades, rel=0.02)
    assert ax == pytest.approx(LEFT_IN * DPI + across * math.log10(1.25), abs=2)


def test_memory_stands_in_the_right_panel(tmp_path: Path) -> None:
    point = ScatterPoint("a", 40.0 * GIB, 40.0 * GIB)
    x, _ = centre(where(draw(tmp_path, [], [point]), BLUE))
    assert x > WIDTH_IN * DPI / 2
    x, _ = centre(where(draw(tmp_path, [ScatterPoint("a", 1.0, 1.0)], []), BLUE))
    assert x < WIDTH_IN * DPI / 2


def test_the_band_is_ten_percent_around_the_diagonal(tmp_path: Path) -> None:
    image = draw(tmp_path, [ScatterPoint("a", 1.0, 100.0), ScatterPoint("a", 100.0, 1.0)], [])
    grey = np.rint(np.array(mix("#A9B4BC", 0.55)) * 255)
    is_band = np.all(np.abs(image - grey) <= 1, axis=-1) | where(image, INK)
    left = round(LEFT_IN * DPI)
    width = (WIDTH_IN - LEFT_IN - RIGHT_IN - 1.1) / 2 * DPI
    column = is_band[round(TOP_IN * DPI) : -LEGEND_PX, left + round(width / 2)]
    rows = np.flatnonzero(column)
    height_per_decade = 5.9 * DPI / math.log10(100 * 1.25**2 / 1)
    assert rows.max() - rows.min() + 1 == pytest.approx(height_per_decade * math.log10((1 + BAND) / (1 - BAND)), abs=3)


def test_measured_goes_across_and_predicted_up(tmp_path: Path) -> None:
    """As the axes are labelled, with the dots of each group in its colour of the legend."""
    times = [ScatterPoint("a", 1.0, 10.0), ScatterPoint("b", 100.0, 20.0), ScatterPoint("a", 2.0, 3.0)]
    memory = [ScatterPoint("b", 40.0 * GIB, 50.0 * GIB), ScatterPoint("c", 8.0 * GIB, 6.0 * GIB)]
    figure = figure_of(partial(draw_validation, tmp_path / "v.png", times, memory, title="runs"))
    colors = legend_of(figure)
    assert set(colors) == {"a", "b", "c"} and len(set(colors.values())) == 3
    assert (colors["a"], colors["b"]) == (BLUE.lower(), ORANGE.lower())
    left, right = figure.axes
    assert left.get_position().x1 < right.get_position().x0
    panels = (
        (left, "iteration time [s]", {"a": [(1.0, 10.0), (2.0, 3.0)], "b": [(100.0, 20.0)], "c": []}),
        (right, "peak memory [GiB]", {"a": [], "b": [(40.0, 50.0)], "c": [(8.0, 6.0)]}),
    )
    for axes, what, groups in panels:
        assert labels_of(axes) == (f"measured {what}", f"predicted {what}")
        dots = {color_of(line): points_of(line) for line in axes.lines if line.get_marker() != "None"}
        assert dots == {colors[name]: points for name, points in groups.items()}
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        assert axes.get_xlim() == axes.get_ylim()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("groups", [0, 1, 8, 40])
def test_any_number_of_groups(groups: int, tmp_path: Path) -> None:
    points = [ScatterPoint(f"group {number}", 1.0 + number, 1.0 + number) for number in range(groups)]
    assert draw(tmp_path, points, points).shape[1] == WIDTH_IN * DPI
