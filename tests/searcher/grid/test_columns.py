"""Configurations as columns: what they are, how they are grouped and ordered, against lists of them; rules asked once
for all that are alike, against rules asked for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from searcher.grid.cases import all_combinations, dense, experts, is_legal, vision

from semu.hardware.cluster import Cluster
from semu.job import Training, TrainingJob
from semu.nn.trace.sharding import ContextKind
from semu.parallel.config import Parallel
from semu.searcher.grid.columns import FIELDS, Points, answers, groups_of
from semu.searcher.grid.framework import Framework, framework_misfits
from semu.searcher.grid.legal import legal_points
from semu.searcher.grid.space import Point, Space

WORDS = {"recompute": ("none", "full", "selective"), "schedule": ("1f1b", "interleaved", "gpipe", "zb-h1")}
WORDS |= {"placement": ("circular", "v-shape"), "segments": ("mixed", "apart"), "cp_balance": ("zigzag", "lpt")}
WORDS |= {
    "partition": ("parameters", "latency"),
    "cp_kind": tuple(kind.value for kind in ContextKind),
    "shares": ("",),
    "modules": ("",),
}
JOBS = {"text": dense(), "experts": experts(), "vision": vision()}
NUMBERS = st.sampled_from((1, 2, 3, 4, 8))
COUNTS = st.sampled_from((1, 2, 6, 8, 24))
SMALL = {"zero": st.integers(0, 3), "attention_split": st.sampled_from((0, 2))}
POINTS = st.builds(
    Point, **{name: st.sampled_from(WORDS[name]) if name in WORDS else SMALL.get(name, NUMBERS) for name in FIELDS}
)


@settings(max_examples=60, deadline=None)
@given(st.lists(POINTS, max_size=30), st.randoms())
def test_columns_are_the_configurations(every: list[Point], random: object) -> None:
    points = Points.of(every)
    assert [*points] == every and len(points) == len(every) and points[1:3] == every[1:3]
    assert [points[row] for row in range(len(every))] == every
    for name in ("dp", "zero"):
        assert points.column(name).tolist() == [getattr(point, name) for point in every]
    firsts, place = points.groups("tp", "schedule", np.array([point.zero for point in every], dtype=np.int64))
    keys = [(point.tp, point.schedule, point.zero) for point in every]
    assert [keys[first] for first in firsts] == list(dict.fromkeys(keys))
    assert [keys[firsts[number]] for number in place] == keys
    bound = np.array([float(point.tp) for point in every])
    assert [point for _, point in points.in_turn(bound)] == sorted(every, key=lambda point: (point.tp, point))
    assert all(every[row] == point for row, point in points.in_turn(bound))
    for point in every[:3]:
        differ = [sum(a != b for a, b in zip(point[1:], other[1:], strict=True)) for other in every]
        assert points.differences(point).tolist() == differ


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 30), st.integers(0, 2)), max_size=20))
def test_groups_of_large_numbers(rows: list[tuple[int, int, int]]) -> None:
    """More of them than an integer tells apart."""
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    firsts, place = groups_of([*columns], len(rows))
    assert [rows[first] for first in firsts] == list(dict.fromkeys(rows))
    assert [rows[firsts[number]] for number in place] == rows


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(POINTS, COUNTS), min_size=1, max_size=40), st.sampled_from([*JOBS]))
def test_a_rule_that_is_asked_once_says_the_same(rows: list[tuple[Point, int]], name: str) -> None:
    job = JOBS[name]
    points, counts = Points.of([point for point, _ in rows]), np.array([count for _, count in rows])
    for framework in (Framework.MEGATRON, Framework.TORCHTITAN):
        for rule, misfit in framework_misfits(framework, job):
            said, place = answers(misfit, points, counts)
            assert [said[number] for number in place] == [misfit(*row) for row in rows], rule.asks


def test_nothing_but_fields_can_be_asked_for() -> None:
    """Else configurations that are not alike would be given one answer."""
    points = Points.of(
        [Point(1, 1, 1, 1, 1, 1, 1, "none", "1f1b", 0, "circular", "mixed", "zigzag", 0, "", "", "", "")]
    )
    for odd in (lambda point, _: point[0], lambda point, _: len(point), lambda point, _: [*point]):
        with pytest.raises(TypeError):
            answers(odd, Points.of(points), np.ones(1, dtype=np.int64))


@settings(max_examples=8, deadline=None)
@given(
    st.sets(st.sampled_from((1, 2, 4)), min_size=1, max_size=2),
    st.sets(st.sampled_from((1, 2, 4)), min_size=1, max_size=2),
    st.sets(st.sampled_from((1, 2, 3)), min_size=1, max_size=2),
    st.sampled_from((("1f1b",), ("interleaved", "gpipe"))),
    st.sampled_from(({}, {"cp": (1, 2)}, {"zero": (0, 3)}, {"placement": ("circular", "v-shape")})),
    st.sampled_from((8, 12)),
)
def test_columns_and_constructors_agree_on_drawn_spaces(
    tp: set[int], pp: set[int], micro_batch: set[int], schedule: tuple[str, ...], more: dict[str, Any], batch: int
) -> None:
    job = TrainingJob(
        JOBS["text"].model, Cluster("h800", 1, 4), Parallel(dp=4), Training(global_batch=batch, seq_len=64)
    )
    vary = {"tp": sorted(tp), "pp": sorted(pp), "vpp": (1, 2), "micro_batch": sorted(micro_batch), "schedule": schedule}
    space = Space.of(job, vary | more)
    legal = legal_points(job, space)
    assert len(legal.points) + sum(cut.count for cut in legal.cuts) == legal.total
    assert {*legal.points} == {point for point in all_combinations(job, dict(space.values)) if is_legal(job, point)}
