"""Pictures of schedules, masks, loops and long runs: marks stand where their numbers are, and none look alike."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.image import AxesImage
from present.plots.artists import color_of, figure_of, points_of

from semu.present.plots import ScheduleRow, draw_schedules, style
from semu.present.plots.canvas import _fit_title
from semu.present.plots.goodput import GoodputPicture, RunCurve, draw_against_mtbf, draw_goodput
from semu.present.plots.mask import MaskPanel, MaskPicture, draw_mask
from semu.present.plots.planner import draw_iterations
from semu.schedule.compare import compare_schedules

PATH = Path("picture.png")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_searches_cut_short_are_marked_on_the_last_schedule(count: int) -> None:
    times = {
        f"schedule {k}": [None if (k, i) == (count - 1, 4) else 1.0 + 10 * k + i for i in range(6)]
        for k in range(count)
    }
    figure = figure_of(
        lambda: draw_iterations(
            PATH,
            times=times,
            latency=[0.5 + i for i in range(6)],
            items=[7 + i for i in range(6)],
            counted="images",
            missed=[12, 14, 15],
            first=10,
            title="a loop",
            said="of six iterations",
        )
    )
    top, below, bottom = figure.axes
    edges = [edge for axes in figure.axes for edge in (axes.get_position().y1, axes.get_position().y0)]
    assert (
        edges[0] < 0.95 and edges == sorted(edges, reverse=True) and edges[-1] * figure.get_figheight() > 0.4
    )  # inches of numbers
    assert all(axes.get_xlim() == (9.5, 15.5) for axes in figure.axes), "half an iteration on either side"
    last = times[f"schedule {count - 1}"]
    (marks,) = [line for line in top.lines if line.get_marker() == "v"]
    assert points_of(marks) == [(12.0, last[2]), (15.0, last[5])]
    (legend,) = figure.legends
    key = legend.legend_handles[-1]
    assert (key.get_marker(), key.get_markersize()) == (marks.get_marker(), marks.get_markersize())
    assert color_of(key) == color_of(marks)
    drawn = [line for line in top.lines if line is not marks]
    assert len({color_of(line) for line in drawn}) == count
    for line, values in zip(drawn, times.values(), strict=True):
        assert np.array_equal(line.get_xdata(), np.arange(10, 16))
        assert np.array_equal(line.get_ydata(), np.array(values, dtype=float), equal_nan=True)
    assert points_of(below.lines[0]) == [(10 + i, 0.5 + i) for i in range(6)]
    assert [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in bottom.patches] == [
        (pytest.approx(10 + i), 7 + i) for i in range(6)
    ]


@pytest.mark.parametrize("missed", [[], [11]])
def test_the_legend_speaks_of_cut_searches_where_there_are_some(missed: list[int]) -> None:
    figure = figure_of(
        lambda: draw_iterations(
            PATH, times={"a": [1.0, 2.0]}, latency=[0.1, 0.2], items=[1, 2], counted="images", missed=missed, first=10,
            title="a loop", said="of two",
        )
    )  # fmt: skip
    (legend,) = figure.legends
    words = [text.get_text() for text in legend.get_texts()]
    assert words == ["a", "time to plan", *["search cut short"] * bool(missed)]
    assert [axes.get_ylabel() for axes in figure.axes] == ["iteration [s]", "planning [s]", "images"]
    assert [axes.get_xlabel() != "" for axes in figure.axes] == [False, False, True]
    assert all(axes.get_ylim()[0] == 0 for axes in figure.axes)


def test_bars_of_a_long_run_are_its_shares() -> None:
    """Beside one another from 0 to 1; what no strategy spends time on is left out."""
    shares = {
        "restart": {"work": 0.5, "lost": 0.3, "saving": 0.0, "idle": 0.2},
        "go on": {"work": 0.75, "lost": 0.0, "saving": 0.0, "idle": 0.25},
    }
    curves = tuple(
        RunCurve(name, np.array([0.0, 1.0, 3.0]), np.array([fast, 0.5]), np.array([4, 3]))
        for name, fast in (("a", 1.0), ("b", 2.0))
    )
    figure = figure_of(lambda: draw_goodput(PATH, GoodputPicture("goodput", "of two", shares, curves, 4)))
    first, *others = figure.axes
    bars = sorted((round(bar.get_y() + bar.get_height() / 2), bar.get_x(), bar.get_width()) for bar in first.patches)
    expected = [(0, 0.0, 0.5), (0, 0.5, 0.3), (0, 0.8, 0.2), (1, 0.0, 0.75), (1, 0.75, 0.0), (1, 0.75, 0.25)]
    assert np.allclose(bars, expected)
    assert first.get_xlim() == (0.0, 1.0)
    assert first.get_ylim()[0] > first.get_ylim()[1], "the first strategy is on top"
    assert [label.get_text() for label in first.get_yticklabels()] == list(shares)
    (legend,) = figure.legends
    words = [text.get_text() for text in legend.get_texts()]
    assert words == ["work", "lost", "idle", "nodes alive, over the job's"]
    colors = [to_hex(handle.get_facecolor()) for handle in legend.legend_handles[:3]]
    assert len(set(colors)) == 3
    assert [to_hex(bar.get_facecolor()) for bar in first.patches] == [color for color in colors for _ in range(2)]
    for axes, curve in zip(others, curves, strict=True):
        speed, alive = [one.get_data() for one in axes.patches]
        assert (speed.values.tolist(), speed.edges.tolist()) == (curve.speed.tolist(), curve.days.tolist())
        assert (alive.values.tolist(), alive.edges.tolist()) == ([1.0, 0.75], curve.days.tolist())
        assert axes.get_xlim() == (0.0, 3.0)
        low, high = axes.get_ylim()
        assert low == 0 and high > 1.0 and curve.speed.max() < high < 1.2 * max(1.0, curve.speed.max())
        assert axes.get_title(loc="left") == curve.name
    assert [axes.get_xlabel() for axes in others] == ["", "day"]


def test_colours_of_a_long_run_s_parts_begin_again_paler() -> None:
    names = [f"part {k}" for k in range(2 * len(style.PALETTE))]
    shares = {"one": dict.fromkeys(names, 1 / len(names))}
    figure = figure_of(lambda: draw_goodput(PATH, GoodputPicture("goodput", "of many parts", shares)))
    colors = [to_hex(bar.get_facecolor()) for bar in figure.axes[0].patches]
    assert len(set(colors)) == len(names)
    assert colors[: len(style.PALETTE)] == [one.lower() for one in style.PALETTE]


def test_goodput_over_failures_has_an_axis_that_holds_every_curve() -> None:
    curves = {"a": [(3600.0, 0.25), (36000.0, 0.5)], "b": [(3600.0, 0.9), (36000.0, 1.0)]}
    axes = figure_of(lambda: draw_against_mtbf(PATH, "goodput", "of two", curves, 7200.0)).axes[0]
    low, high = axes.get_ylim()
    assert low == 0.0 and 1.0 < high < 1.1
    assert axes.get_xlim()[0] <= 1.0 and axes.get_xlim()[1] >= 10.0
    assert any(set(line.get_xdata()) == {2.0} for line in axes.lines), "the time that was asked for"


def test_curves_of_many_strategies_look_different() -> None:
    names = [f"strategy {k}" for k in range(3 * len(style.PALETTE))]
    curves = {name: [(3600.0 * hour, 0.5 + k / 100) for hour in (1, 2, 4)] for k, name in enumerate(names)}
    figure = figure_of(lambda: draw_against_mtbf(PATH, "goodput", "of strategies", curves, 7200.0))
    lines = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert len({(color_of(line), line.get_linestyle()) for line in lines}) == len(lines) == len(names)
    for line, (_, points) in zip(lines, curves.items(), strict=True):
        assert points_of(line) == [(seconds / 3600, goodput) for seconds, goodput in points]


@pytest.mark.parametrize("ranks", [2, 8, 20])
def test_tiles_have_the_colour_of_their_rank_s_bar(ranks: int) -> None:
    """Of up to three times as many ranks as there are colours, no two are alike."""
    state = np.full((ranks, 4), 2, dtype=np.int8)
    work = np.arange(1.0, ranks + 1.0)
    panel = MaskPanel("policy", np.arange(ranks), work)
    figure = figure_of(lambda: draw_mask(PATH, MaskPicture("mask", "of tiles", state, (panel,), ranks)))
    bars = [patch for axes in figure.axes for patch in axes.patches if patch.get_height() > 0]
    (image,) = [one for axes in figure.axes for one in axes.get_children() if isinstance(one, AxesImage)]
    tiles = [to_hex(color) for color in np.asarray(image.get_array())[:, 0]]
    assert [bar.get_height() for bar in bars] == work.tolist()
    assert [to_hex(bar.get_facecolor()) for bar in bars] == tiles
    assert len(set(tiles)) == ranks
    squares, below = figure.axes
    assert squares.get_title() == f"policy: busiest rank {work.max() / work.mean():.3f} x the mean"
    assert {line.get_ydata()[0] for line in below.lines} == {work.mean()}
    assert below.get_ylim()[0] == 0 and work.max() < below.get_ylim()[1] < 1.2 * work.max()


def test_policies_beside_one_another_share_an_axis_and_do_not_overlap() -> None:
    state = np.array([[2, 0], [1, 2]], dtype=np.int8)
    panels = (
        MaskPanel("a", np.array([0, 1]), np.array([1.0, 3.0])),
        MaskPanel("b", np.array([1, 0]), np.array([2.0, 2.0])),
    )
    figure = figure_of(lambda: draw_mask(PATH, MaskPicture("mask", "of tiles", state, panels, 2)))
    frames = [axes.get_position() for axes in figure.axes]
    assert all(0 <= one.x0 < one.x1 <= 1 and 0 <= one.y0 < one.y1 <= 1 for one in frames)
    assert not any(one.overlaps(two) for i, one in enumerate(frames) for two in frames[:i])
    first, bars, second, others = figure.axes
    assert bars.get_ylim() == others.get_ylim() and bars.get_ylim()[1] > 3
    for axes, panel in ((first, panels[0]), (second, panels[1])):
        image = np.asarray(axes.images[0].get_array())
        assert to_hex(image[0, 1]) == "#ffffff", "skipped"
        full = [to_hex(image[0, 0]), to_hex(image[1, 1])]
        assert full == [style.PALETTE[rank].lower() for rank in panel.owner]
        assert to_hex(image[1, 0]) not in (*full, "#ffffff"), "a cut tile is paler"


def test_boxes_of_schedules_stand_at_their_times() -> None:
    """All rows have one time axis, from 0 to the longest schedule's end; idle time is what no box covers."""
    compared, _ = compare_schedules(2, 4, names=["1f1b", "zb-v", "gpipe"])
    rows = [ScheduleRow(row.evaluation, row.study.arrays) for row in compared]
    figure = figure_of(lambda: draw_schedules(PATH, rows, title="schedules", subtitle="three"))
    longest = max(row.evaluation.makespan_s for row in rows)
    for axes, row in zip(figure.axes, rows, strict=True):
        assert axes.get_xlim() == (0.0, longest)
        assert axes.get_ylim() == (len(row.evaluation.busy_s), 0.0)
        boxes = [
            path.get_extents()
            for one in axes.collections
            if isinstance(one, PolyCollection)
            for path in one.get_paths()
        ]
        found = sorted((int(box.y0), box.x0, box.x1) for box in boxes)
        rank = np.repeat(np.arange(len(row.evaluation.busy_s)), np.diff(row.evaluation.ptr))
        expected = sorted(
            zip(rank.tolist(), row.evaluation.start_s.tolist(), row.evaluation.end_s.tolist(), strict=True)
        )
        assert np.allclose(found, expected)
        assert all(one[2] <= two[1] + 1e-9 for one, two in pairwise(found) if one[0] == two[0])
    for some in (rows[:1], rows):
        (legend,) = figure_of(lambda: draw_schedules(PATH, some, title="s", subtitle="t")).legends  # noqa: B023
        words = [text.get_text() for text in legend.get_texts()]
        has_two = any(row.arrays.shape.num_slots > 1 for row in some)
        assert ("second chunk of a rank" in words) == has_two
        assert words[-1] == "idle"


@pytest.mark.parametrize("length", [*range(1, 160, 7), *range(108, 128), *range(135, 140)])
def test_a_title_is_whole_while_there_is_a_size_for_it(length: int) -> None:
    """Characters of 0.7 of their size, 14 points to 9, on a line of 13.5 inches less its margins."""
    size, shown = _fit_title("x" * length)
    inches = (13.5 - 1.15 - 0.3) * (1 + 1e-9)
    assert len(shown) * 0.7 * size / 72 <= inches
    assert 9.0 <= size <= 14.0 and (size == 14.0 or (len(shown) + 1) * 0.7 * size / 72 > inches)
    assert (shown == "x" * length) == (length * 0.7 * 9.0 / 72 <= inches)
    assert shown == "x" * length or shown == "x" * (len(shown) - 1) + "…"
