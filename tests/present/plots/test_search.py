"""Pictures of a search by what they are made of: which curve has which colour, axis and place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from present.plots.artists import color_of, figure_of, labels_of, legend_of, lines_of, points_of

from semu.engine.timeline import IterationTimeline, MemoryCurve
from semu.graph.tensor import Role
from semu.present.plots.search import draw_curve, draw_fullest, draw_timelines
from semu.units import GIB
from tests.present.timeline_fixture import make_timeline

BEFORE, AFTER, LIMIT = "#d55e00", "#0072b2", "#b00020"
"""Vermilion and blue of Okabe and Ito, and a red."""


def holding(timeline: IterationTimeline, curves: Sequence[Sequence[tuple[float, int]]]) -> IterationTimeline:
    """The iteration with ranks of these memory curves: pairs of a time [s] and what is allocated from then on [GiB]."""
    ranks = []
    for number, steps in enumerate(curves):
        times_s, sizes = (np.array(column) for column in zip(*steps, strict=True))
        curve = MemoryCurve(times_s.astype(np.float64), sizes[np.newaxis] * GIB, (Role.ACTIVATION,), 80 * GIB)
        peak = replace(timeline.ranks[number].peak, size_bytes=int(sizes.max()) * GIB)
        ranks.append(
            replace(
                timeline.ranks[number],
                find_peak=lambda _, peak=peak: peak,
                build_memory=lambda curve=curve: curve,
            )
        )
    return replace(timeline, ranks=tuple(ranks))


@pytest.fixture(scope="module")
def pair() -> list[tuple[str, IterationTimeline]]:
    """Two iterations of two ranks; the second is shorter and its fullest rank is the other one."""
    long, short = make_timeline(2, 4, 2), make_timeline(2, 3, 2)
    ends = [timeline.iteration_time_s for timeline in (long, short)]
    assert ends[0] > 1.1 * ends[1]
    before = holding(long, [[(0.0, 2), (ends[0] / 4, 12), (ends[0] / 2, 6)], [(0.0, 3), (ends[0] / 2, 4)]])
    after = holding(short, [[(0.0, 1), (ends[1] / 2, 2)], [(0.0, 5), (ends[1] / 2, 9)]])
    return [("Megatron-LM", before), ("search", after)]


def test_the_fullest_rank_of_each_iteration_has_its_colour(
    pair: list[tuple[str, IterationTimeline]], tmp_path: Path
) -> None:
    """Vermilion before and blue after, in the picture and in the legend."""
    figure = figure_of(partial(draw_fullest, tmp_path / "memory.png", pair, limit_bytes=16 * GIB, title="memory"))
    (axes,) = figure.axes
    assert labels_of(axes) == ("time [s]", "allocated [GiB]")
    assert legend_of(figure) == {"Megatron-LM, rank 0": BEFORE, "search, rank 1": AFTER, "limit": LIMIT}
    assert [color_of(line) for line in axes.lines] == [BEFORE, AFTER, LIMIT]
    ends = [timeline.iteration_time_s for _, timeline in pair]
    expected = [[(0.0, 2), (ends[0] / 4, 12), (ends[0] / 2, 6)], [(0.0, 5), (ends[1] / 2, 9)]]
    for color, end_s, steps in zip((BEFORE, AFTER), ends, expected, strict=True):
        (line,) = lines_of(axes, color)
        assert line.get_drawstyle() == "steps-post"
        points = points_of(line)
        pixel = max(ends) / 1440
        assert points[0][0] == 0.0 and end_s - 2 * pixel < points[-1][0] < end_s
        for at, held in points:
            begun = [size for begin, size in steps if begin < at + pixel]
            during = [size for begin, size in steps if at <= begin < at + pixel]
            before = [size for begin, size in steps if begin <= at]
            assert held in {float(begun[-1]), float(max([*during, before[-1]]))}
    (limit,) = lines_of(axes, LIMIT)
    assert [height for _, height in points_of(limit)] == [16.0, 16.0]
    low, high = axes.get_ylim()
    assert low == 0.0 and 16.0 < high < 20.0
    assert axes.get_xlim() == (0.0, max(ends))


def test_the_first_iteration_lies_above_the_second(pair: list[tuple[str, IterationTimeline]], tmp_path: Path) -> None:
    """On one time axis, each with the line at the end of its pipeline."""
    figure = figure_of(partial(draw_timelines, tmp_path / "timeline.png", pair, title="times"))
    upper, lower = figure.axes
    assert upper.get_position().y0 > lower.get_position().y1
    assert upper.get_xlim() == lower.get_xlim() == (0.0, pair[0][1].iteration_time_s)
    for axes, (name, timeline) in zip((upper, lower), pair, strict=True):
        assert axes.get_title(loc="left").split("  ·  ")[0] == name
        (end,) = axes.lines
        assert [x for x, _ in points_of(end)] == [timeline.makespan_s] * 2
    assert labels_of(upper) == ("", "")
    assert labels_of(lower) == ("time [s]", "")


@pytest.mark.parametrize(
    ("in_seconds", "across"), [(True, "time of the search [s]"), (False, "rollouts and moves tried")]
)
def test_the_curve_of_a_search_falls_to_its_bound(in_seconds: bool, across: str, tmp_path: Path) -> None:
    """Time across, makespans up, in the colour of what the search found."""
    points = [(0.0, float("inf")), (0.5, 30.0), (1.25, 27.0), (3.0, 26.5)]
    draw = partial(draw_curve, points=points, end=(4.0, 26.75), bound_s=25.0, title="curve", in_seconds=in_seconds)
    figure = figure_of(partial(draw, tmp_path / "curve.png"))
    (axes,) = figure.axes
    assert labels_of(axes) == (across, "makespan [s]")
    best, result = lines_of(axes, AFTER)
    assert best.get_drawstyle() == "steps-post"
    assert points_of(best) == [(0.5, 30.0), (1.25, 27.0), (3.0, 26.5), (4.0, 26.5)]
    assert (points_of(result), result.get_marker()) == ([(4.0, 26.75)], "o")
    (bound,) = [line for line in axes.lines if line not in (best, result)]
    assert [height for _, height in points_of(bound)] == [25.0, 25.0]
    assert legend_of(figure) == {
        "best makespan": AFTER,
        "result, simulated in full": AFTER,
        "lower bound": color_of(bound),
    }
    assert color_of(bound) not in (BEFORE, AFTER)
    assert axes.get_xlim() == (0.0, 4.0)
    low, high = axes.get_ylim()
    assert 20.0 < low < 25.0 and 30.0 < high < 35.0


def test_the_fullest_replicas_peak_stands_in_the_picture(
    pair: list[tuple[str, IterationTimeline]], tmp_path: Path
) -> None:
    """Rank 1 of the search is fullest in another replica: 14 GiB there, 9 in the one that is drawn."""
    peaks = [(12 * GIB, 4 * GIB), (2 * GIB, 14 * GIB)]
    draw = partial(draw_fullest, tmp_path / "m.png", pair, limit_bytes=16 * GIB, title="memory", peak_bytes=peaks)
    figure = figure_of(draw)
    (axes,) = figure.axes
    assert next(line.get_ydata()[0] for line in axes.lines if color_of(line) == AFTER) == 14
    texts = [text.get_text() for text in figure.findobj(lambda one: hasattr(one, "get_text"))]
    assert any("search 14.00 GiB" in text and "Megatron-LM 12.00 GiB" in text for text in texts)
