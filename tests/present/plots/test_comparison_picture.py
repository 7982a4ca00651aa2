"""The picture of a comparison: bars stand for times, their parts and peaks of memory, and nothing that is not known."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.axes import Axes
from present.plots.artists import figure_of

from semu.present.comparison import Comparison, Side
from semu.present.plots.comparison import draw_comparison

PARTS = {"compute": 3.0, "bubble": 1.5, "optimizer": 0.5, "tiny": 1e-4}
GIB = 2.0**30


def bars(axes: Axes) -> dict[int, list[tuple[float, float]]]:
    """Row -> (left end, length) of its bars, from the left."""
    found: dict[int, list[tuple[float, float]]] = {}
    for bar in axes.patches:
        row = round(bar.get_y() + bar.get_height() / 2)
        found.setdefault(row, []).append((bar.get_x(), bar.get_width()))
    return {row: sorted(ends) for row, ends in found.items()}


@pytest.mark.parametrize("has_memory", [False, True])
@pytest.mark.parametrize("interval_s", [None, (4.5, 7.0)])
def test_bars_are_times_and_peaks(has_memory: bool, interval_s: tuple[float, float] | None) -> None:
    memory = {0: 3 * GIB, 1: 5 * GIB} if has_memory else {}
    comparison = Comparison(
        (
            Side("mine", "simulated", sum(PARTS.values()), interval_s, parts_s=PARTS, memory=memory),
            Side("of a log", "log", 6.0),
        )
    )
    figure = figure_of(lambda: draw_comparison(Path("picture.png"), comparison))
    said = [text.get_text() for text in figure.texts]
    assert ("Iteration time and memory" in said) == has_memory and ("Iteration time" in said) != has_memory
    assert len(figure.axes) == 1 + has_memory
    times = bars(figure.axes[0])
    ends = [left + length for left, length in times[0]]
    assert [length for _, length in times[0]] == pytest.approx([3.0, 1.5, 0.5, 1e-4])
    assert [left for left, _ in times[0]] == pytest.approx([0.0, *ends[:-1]])
    assert times[1] == [(0.0, 6.0)]
    lines = [list(line.get_xdata()) for line in figure.axes[0].lines]
    assert lines == ([] if interval_s is None else [list(interval_s)])
    assert figure.axes[0].get_xlim()[1] > max(6.0, *(interval_s or (0.0,)))
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names[:3] == ["compute", "bubble", "optimizer"] and "iteration, parts not known" in names
    if has_memory:
        assert [length for _, length in bars(figure.axes[1])[0]] == pytest.approx([3.0, 5.0])
        assert 1 not in bars(figure.axes[1])
        assert "5.0 (rank 1)" in [text.get_text() for text in figure.axes[1].texts]
