"""The picture of bars: pixels are read back and measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from numpy.typing import NDArray

from semu.present.plots import BarPair, BarPanel, draw_bars
from semu.present.plots.bars import MEASURED, SIMULATED
from semu.present.plots.canvas import DPI, WIDTH_IN

LEGEND_PX = 80
"""Under the axes there is the legend, whose boxes have the same colours."""


def draw(path: Path, *panels: BarPanel) -> NDArray[np.int64]:
    draw_bars(path / "b.png", panels, title="run", subtitle="log")
    return np.rint(imread(path / "b.png")[..., :3] * 255).astype(np.int64)


def bars(image: NDArray[np.int64], color: str) -> list[tuple[int, int]]:
    """(first column, length) in pixels of the bars of a colour, from top to bottom."""
    wanted = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)])
    found = np.all(np.abs(image - wanted) <= 1, axis=-1)
    found[-LEGEND_PX:] = False
    widths = found.sum(axis=1)
    result: list[tuple[int, int]] = []
    for row in np.flatnonzero(widths > 3):
        if row == 0 or widths[row - 1] <= 3:
            result.append((0, 0))
        length = max(int(widths[row]), result[-1][1])
        result[-1] = (int(np.flatnonzero(found[row])[0]), length)
    return result


def test_bars_are_as_long_as_their_numbers(tmp_path: Path) -> None:
    pairs = (BarPair("a", 4.0, 2.0), BarPair("b", None, 1.0), BarPair("c", 3.0, None), BarPair("d", 0.0, 4.0))
    image = draw(tmp_path, BarPanel("time [s]", pairs))
    measured, simulated = bars(image, MEASURED), bars(image, SIMULATED)
    unit = measured[0][1] / 4.0
    assert unit > 100
    assert [length / unit for _, length in measured] == pytest.approx([4, 3], abs=0.02)
    assert [length / unit for _, length in simulated] == pytest.approx([2, 1, 4], abs=0.02)
    assert len({first for first, _ in (*measured, *simulated)}) == 1


def test_every_panel_has_its_own_scale(tmp_path: Path) -> None:
    image = draw(
        tmp_path, BarPanel("time [s]", (BarPair("t", 1.0, 0.5),)), BarPanel("memory [GiB]", (BarPair("m", 80, 40),))
    )
    (_, first), (_, second) = bars(image, MEASURED)
    assert abs(first - second) <= 2
    assert [length / first for _, length in bars(image, SIMULATED)] == pytest.approx([0.5, 0.5], abs=0.01)


@pytest.mark.parametrize("count", [1, 30])
def test_any_number_of_bars(count: int, tmp_path: Path) -> None:
    pairs = tuple(BarPair(f"quantity {number}", 0.0, 0.0) for number in range(count))
    assert draw(tmp_path, BarPanel("time [s]", pairs)).shape[1] == WIDTH_IN * DPI
