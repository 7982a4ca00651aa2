"""Units in dynamic order and in a given one: the kernels against the rule word for word and each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from semu.engine.kernels import dispatch as dispatch_kernels
from semu.engine.kernels import orders as order_kernels
from semu.units import TIME_GRID_PER_S
from tests.engine import dispatch_reference
from tests.engine.dispatch_reference import Edge, Op, Unit

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Problem:
    """Units, edges of the graph, edges added later, and the units' positions by priority."""

    units: tuple[Unit, ...]
    edges: tuple[Edge, ...]
    new_edges: tuple[Edge, ...]
    rank: tuple[int, ...]

    @property
    def num_streams(self) -> int:
        return max((stream + 1 for unit in self.units for stream in unit.streams), default=0)

    @property
    def all_edges(self) -> tuple[Edge, ...]:
        return self.edges + self.new_edges

    def with_latencies(self, latencies: Sequence[Sequence[int]]) -> Problem:
        """The same problem where the operators take other times."""
        units = tuple(
            replace(unit, ops=tuple(replace(op, latency=steps) for op, steps in zip(unit.ops, row, strict=True)))
            for unit, row in zip(self.units, latencies, strict=True)
        )
        return replace(self, units=units)


def int32(values: Sequence[int]) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def seconds(steps: Sequence[int]) -> NDArray[np.float64]:
    return np.array(steps, dtype=np.float64) / TIME_GRID_PER_S


def compress(rows: Sequence[Sequence[int]]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    return int32(np.cumsum([0, *map(len, rows)]).tolist()), int32([item for row in rows for item in row])


class Arrays:
    """A problem as the kernels want it, and results that hold rubbish until a kernel writes them."""

    def __init__(self, problem: Problem) -> None:
        units = problem.units
        alone = [dispatch_reference.run_ops(unit.ops, 0, {}) for unit in units]
        bound: list[set[int]] = [set() for _ in units]
        for edge in problem.all_edges:
            if edge.into is not None:
                bound[edge.target].add(edge.into)
        slots = [sorted(ops) for ops in bound]
        self.slot_ptr, self.slot_op = compress(slots)
        self.slot_start = seconds([alone[unit][0][op] for unit, row in enumerate(slots) for op in row])
        slot_of = {(unit, op): i for i, (unit, op) in enumerate((u, op) for u, row in enumerate(slots) for op in row)}

        def columns(edges: Sequence[Edge]) -> tuple[NDArray[Any], ...]:
            return (
                int32([e.target for e in edges]),
                seconds([7 if e.op is None else alone[e.source][1][e.op] for e in edges]),
                int32([-1 if e.op is None else e.op for e in edges]),
                int32([-1 if e.into is None else slot_of[e.target, e.into] for e in edges]),
            )

        self.hold_ptr, self.hold = compress([unit.streams for unit in units])
        self.num_streams = problem.num_streams
        self.rank = int32(problem.rank)
        self.latency = seconds([max([0, *ends]) for _, ends in alone])
        by_source = sorted(problem.edges, key=lambda e: e.source)
        self.edge_ptr = int32(np.searchsorted([e.source for e in by_source], range(len(units) + 1)).tolist())
        self.edge = columns(by_source)
        self.new_source = int32([e.source for e in problem.new_edges])
        self.new = columns(problem.new_edges)
        programs: dict[tuple[Op, ...], int] = {}
        prog, cost_ptr, costs = [], [], []
        for unit, row in zip(units, slots, strict=True):
            shape = tuple(replace(op, latency=0) for op in unit.ops)
            prog.append(programs.setdefault(shape, len(programs)) if row else -1)
            cost_ptr.append(len(costs) if row else -1)
            costs += [op.latency for op in unit.ops] if row else []
        self.op_latency = seconds(costs)
        ops = [op for program in programs for op in program]
        self.program = (
            int32(prog),
            int32(np.cumsum([0, *map(len, programs)]).tolist()),
            *compress([op.preds for op in ops]),
            int32([op.stream for op in ops]),
            int32([1 + max(op.stream for op in program) for program in programs]),
            np.array(cost_ptr, dtype=np.int64),
        )
        self.start, self.end = np.full((2, len(units)), -7.0)
        self.release = np.full(len(self.slot_op), -7.0)
        self.touched = np.ones(len(units), dtype=np.bool_)
        self.order = np.full(len(units), -7, dtype=np.int32)

    @property
    def results(self) -> tuple[NDArray[Any], ...]:
        return self.start, self.end, self.release, self.touched

    @property
    def streams(self) -> tuple[Any, ...]:
        return self.hold_ptr, self.hold, self.num_streams

    def dispatch(self) -> int:
        return dispatch_kernels.dispatch_units(
            *(self.streams, self.rank, self.latency, (self.edge_ptr, *self.edge), (self.new_source, *self.new)),
            *((self.slot_ptr, self.slot_op, self.slot_start, *self.program, self.op_latency), self.results, self.order),
        )

    def replay(self, order: NDArray[np.int32], variants: Sequence[Arrays]) -> tuple[NDArray[Any], ...]:
        """Start, end, release and touched of every variant, which are this problem with other latencies."""
        num_units = len(order)
        start, end = np.full((2, len(variants), num_units), -7.0)
        release = np.full((len(variants), len(self.slot_op)), -7.0)
        touched = np.ones((len(variants), num_units), dtype=np.bool_)
        slot_start, op_latency = (
            np.stack([getattr(v, name) for v in variants]) for name in ("slot_start", "op_latency")
        )
        dispatch_kernels.replay_units(
            *(order, self.streams, np.stack([v.latency for v in variants]), *self.edges_of(variants)),
            *((self.slot_ptr, self.slot_op, slot_start, *self.program, op_latency), (start, end, release, touched)),
        )
        return start, end, release, touched

    def edges_of(self, variants: Sequence[Arrays]) -> tuple[tuple[NDArray[Any], ...], ...]:
        """Edges of the graph and those added later, with the lags of every variant."""
        (target, _, *rest), (new_target, _, *new_rest) = self.edge, self.new
        lag, new_lag = np.stack([v.edge[1] for v in variants]), np.stack([v.new[1] for v in variants])
        return (self.edge_ptr, target, lag, *rest), (self.new_source, new_target, new_lag, *new_rest)

    def is_order_forced(self) -> bool:
        count, is_forced = order_kernels.forced_order(self.streams, *self.edges_of([self]), np.empty_like(self.order))
        assert count == len(self.order)
        return is_forced


# --------------------------------------------------------------------------------------------- instances

few_steps = st.one_of(st.integers(0, 3), st.sampled_from([0, 1, 2**40]))


@st.composite
def unit_ops(draw: st.DrawFn, most: int = 5) -> tuple[Op, ...]:
    ops: list[Op] = []
    for position in range(draw(st.integers(0, most))):
        preds = draw(st.sets(st.integers(0, position - 1), max_size=2)) if position else ()
        ops.append(Op(draw(few_steps), draw(st.integers(0, 2)), tuple(preds)))
    return tuple(ops)


@st.composite
def problems(
    draw: st.DrawFn, acyclic: bool = True, most: int = 14, inner: bool = True, held: int | None = None
) -> Problem:
    """Units in a hidden topological order (if acyclic) that neither their numbers nor their ranks know.

    Args:
        inner: whether edges read and bind operators. held: number of streams of every unit; None: any.
    """
    num_units = draw(st.integers(0, most))
    num_streams = draw(st.integers(held or 1, 4))
    most_held = held or draw(st.sampled_from([1, 1, 3]))
    units = []
    for _ in range(num_units):
        least = draw(st.integers(0, 1)) if held is None else held
        streams = draw(st.sets(st.integers(0, num_streams - 1), min_size=least, max_size=most_held))
        units.append(Unit(tuple(streams), draw(unit_ops() if inner else unit_ops(1))))
    hidden = draw(st.permutations(range(num_units)))
    edges: list[Edge] = []
    for _ in range(draw(st.integers(0, 2 * num_units)) if num_units > 1 else 0):
        a, b = draw(st.lists(st.integers(0, num_units - 1), min_size=2, max_size=2, unique=True))
        if acyclic:
            a, b = min(a, b), max(a, b)
        source, target = hidden[a], hidden[b]
        op, into = None, None
        if inner and units[source].ops and draw(st.booleans()):
            op = draw(st.integers(0, len(units[source].ops) - 1))
        if inner and units[target].ops and draw(st.booleans()):
            into = draw(st.integers(0, len(units[target].ops) - 1))
        edges.append(Edge(source, target, op, into))
    split = draw(st.integers(0, len(edges)))
    rank = draw(st.permutations(range(num_units)))
    return Problem(tuple(units), tuple(edges[:split]), tuple(edges[split:]), tuple(rank))


def check(problem: Problem) -> Arrays:
    """The kernel's results equal the reference's; returns them."""
    expected = dispatch_reference.dispatch(problem.units, problem.all_edges, problem.rank)
    arrays = Arrays(problem)
    count = arrays.dispatch()
    assert arrays.order[:count].tolist() == expected.order
    for unit in expected.order:
        assert arrays.start[unit] * TIME_GRID_PER_S == expected.start[unit]
        assert arrays.end[unit] * TIME_GRID_PER_S == expected.end[unit]
        assert bool(arrays.touched[unit]) == expected.touched[unit]
    return arrays


@pytest.mark.slow
@given(problems())
def test_dispatch_is_the_rule(problem: Problem) -> None:
    check(problem)


@pytest.mark.slow
@given(problems(inner=False, most=30))
def test_dispatch_of_plain_units_is_the_rule(problem: Problem) -> None:
    check(problem)


@given(problems(inner=False, most=24, held=2))
def test_dispatch_of_crowds_that_hold_the_same_streams_is_the_rule(problem: Problem) -> None:
    check(problem)


@pytest.mark.slow
@given(problems(acyclic=False))
def test_dispatch_stops_at_a_circle(problem: Problem) -> None:
    check(problem)


def test_a_release_may_let_a_unit_start_before_the_unit_that_made_it_ready() -> None:
    """1 follows 0; 2 has a stream of its own, and its operator 1 waits for the end of 1: it stalls inside."""
    units = (Unit((0,), (Op(10, 0),)), Unit((0,), (Op(10, 0),)), Unit((1,), (Op(3, 0), Op(4, 1), Op(1, 0, (1,)))))
    edges = (Edge(0, 1), Edge(1, 2, into=1), Edge(2, 3, op=0))
    arrays = check(Problem((*units, Unit((1,), ())), edges, (), (0, 1, 2, 3)))
    assert arrays.order.tolist() == [0, 1, 2, 3]
    assert (arrays.start * TIME_GRID_PER_S).tolist() == [0, 10, 0, 25]
    assert (arrays.end * TIME_GRID_PER_S).tolist() == [10, 20, 25, 25]
    assert (arrays.release * TIME_GRID_PER_S).tolist() == [20]
    assert arrays.touched.tolist() == [False, False, True, False]


def test_units_that_may_start_equally_early_go_by_rank_even_in_the_past() -> None:
    """2, 3 and 4 could have started at 0, but only 1 makes them ready, at 10."""
    late = [Unit((stream,), (Op(3, 0), Op(1, 0))) for stream in (1, 2, 3)]
    edges = (Edge(0, 1), *(Edge(1, unit, into=1) for unit in (2, 3, 4)))
    units = (Unit((0,), (Op(10, 0),)), Unit((0,), (Op(10, 0),)), *late)
    arrays = check(Problem(units, edges, (), (0, 1, 4, 3, 2)))
    assert arrays.order.tolist() == [0, 1, 4, 3, 2]
    assert (arrays.start * TIME_GRID_PER_S).tolist() == [0, 10, 0, 0, 0]


def test_units_that_take_no_time_go_by_rank_as_they_become_ready() -> None:
    """All at 0 on one stream; 3 outranks all others, but only 1 makes it ready."""
    nothing = Unit((0,), (Op(0, 0),))
    arrays = check(Problem((nothing,) * 4, (Edge(1, 3),), (), (3, 1, 2, 0)))
    assert arrays.order.tolist() == [1, 3, 2, 0]


def test_a_unit_of_several_streams_waits_for_the_last_and_blocks_nobody_meanwhile() -> None:
    units = (Unit((0,), (Op(2, 0),)), Unit((1,), (Op(9, 0),)), Unit((0, 1), (Op(1, 0),)), Unit((0,), (Op(3, 0),)))
    arrays = check(Problem(units, (), (), (0, 1, 2, 3)))
    assert arrays.order.tolist() == [0, 1, 3, 2]
    assert (arrays.start * TIME_GRID_PER_S).tolist() == [0, 0, 9, 2]


# --------------------------------------------------------------------------------------------- given orders


@st.composite
def variants_of(draw: st.DrawFn, problem: Problem) -> list[Problem]:
    """The problem itself and up to three with other latencies."""
    steps = st.tuples(*(st.lists(few_steps, min_size=len(unit.ops), max_size=len(unit.ops)) for unit in problem.units))
    return [problem, *(problem.with_latencies(rows) for rows in draw(st.lists(steps, max_size=3)))]


def chained(problem: Problem) -> Problem:
    """The problem with an edge between any two units that follow one another on a stream, as dispatched."""
    order = dispatch_reference.dispatch(problem.units, problem.all_edges, problem.rank).order
    chains = [[unit for unit in order if s in problem.units[unit].streams] for s in range(problem.num_streams)]
    links = tuple(Edge(a, b) for chain in chains for a, b in pairwise(chain))
    return replace(problem, edges=problem.edges + links[::2], new_edges=problem.new_edges + links[1::2])


@pytest.mark.slow
@given(problems())
def test_replay_in_the_order_of_dispatch_finds_its_times(problem: Problem) -> None:
    arrays = check(problem)
    for one, other in zip(arrays.results, arrays.replay(arrays.order, [arrays]), strict=True):
        assert other.tolist() == [one.tolist()]


@pytest.mark.slow
@given(problems(), st.data())
def test_replay_of_a_forced_order_is_dispatch_whatever_the_latencies(problem: Problem, data: st.DataObject) -> None:
    forced = chained(problem)
    variants = [Arrays(variant) for variant in data.draw(variants_of(forced))]
    variants[0].dispatch()
    assert variants[0].is_order_forced()
    replayed = variants[0].replay(variants[0].order, variants)
    for v, variant in enumerate(variants):
        assert variant.dispatch() == len(problem.units)
        for one, other in zip(variant.results, replayed, strict=True):
            assert other[v].tolist() == one.tolist()


@given(problems(most=8))
def test_an_order_is_forced_by_links_between_all_neighbours_on_a_stream(problem: Problem) -> None:
    arrays = check(problem)
    units, edges = problem.units, problem.all_edges
    links = {(e.source, e.target) for e in edges if e.op is None and e.into is None}
    chains = [[u for u in arrays.order.tolist() if s in units[u].streams] for s in range(problem.num_streams)]
    assert arrays.is_order_forced() == all(link in links for chain in chains for link in pairwise(chain))


# --------------------------------------------------------------------------------------------- without compilation


def small_part() -> list[Any]:
    """What all kernels make of small cases with everything in them."""
    inside = (Op(2, 0), Op(5, 1), Op(1, 0, (1,)))
    units = (Unit((0,), inside), Unit((1, 2), inside), Unit((0, 2), (Op(3, 0),)), Unit((), ()), Unit((1,), (Op(0, 0),)))
    edges = (Edge(0, 1, op=0, into=2), Edge(0, 2), Edge(3, 4))
    problem = Problem(units, edges, (Edge(1, 4), Edge(2, 1, into=1), Edge(0, 4, op=2)), (4, 1, 2, 0, 3))
    arrays = Arrays(problem)
    count = arrays.dispatch()
    replayed = arrays.replay(arrays.order, [arrays, Arrays(problem.with_latencies([[1] * len(u.ops) for u in units]))])
    results = [arrays.order, *arrays.results, *replayed]
    return [count, bool(arrays.is_order_forced()), *(result.tolist() for result in results)]


def test_plain_python_finds_the_same_as_compiled_code() -> None:
    script = "import json; from tests.engine.test_dispatch import small_part; print(json.dumps(small_part()))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=ROOT,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == small_part()
