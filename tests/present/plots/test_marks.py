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
from semu.present.plots.goodput import draw_against_mtbf
from semu.present.plots.mask import MaskPanel, MaskPicture, draw_mask
from semu.present.plots.planner import draw_iterations
from semu.schedule.compare import compare_schedules

PATH = Path("unused.png")


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
    last = times[f"schedule {count - 1}"]
    (marks,) = [line for line in top.lines if line.get_marker() == "v"]
    assert points_of(marks) == [(12.0, last[2]), (15.0, last[5])]
    drawn = [line for line in top.lines if line is not marks]
    assert len({color_of(line) for line in drawn}) == count
    for line, values in zip(drawn, times.values(), strict=True):
        assert np.array_equal(line.get_xdata(), np.arange(10, 16))
        assert np.array_equal(line.get_ydata(), np.array(values, dtype=float), equal_nan=True)
    assert points_of(below.lines[0]) == [(10 + i, 0.5 + i) for i in range(6)]
    assert [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in bottom.patches] == [
        (pytest.approx(10 + i), 7 + i) for i in range(6)
    ]


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
