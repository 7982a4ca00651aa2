"""``PipelineUnits``: the same pipeline as ``lower`` makes it, numbered before any schedule is known."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule.shapes import (
    Times,
    all_stages,
    legal_schedules,
    lowered_times,
    needs,
    sends,
    shapes,
    simulate,
    transfer_of,
)

from semu.engine.unit_graph import Edges, UnitGraph, UnitTimes
from semu.errors import GraphError
from semu.graph.operator import Phase
from semu.schedule.generators.one_f_one_b import one_f_one_b
from semu.schedule.problem import PipelineProblem, lower
from semu.schedule.schedule import PipelineShape, Schedule, StageKey
from semu.schedule.units import PipelineUnits

Pair = tuple[int, int]


def units_of_nodes(problem: PipelineProblem, units: PipelineUnits) -> list[int]:
    """The unit that each node of a lowered problem is."""
    stages = [units.unit(stage) for stage in problem.stages]
    return stages + [transfer_of(units, transfer.stage, transfer.consumer) for transfer in problem.transfers]


def lowered_edges(problem: PipelineProblem, unit: list[int]) -> tuple[set[Pair], set[Pair]]:
    """Predecessors of a lowered problem, and neighbours on its streams, as pairs of units."""
    needed = {
        (unit[before], unit[node])
        for node in range(problem.num_nodes)
        for before in problem.pred[problem.pred_ptr[node] : problem.pred_ptr[node + 1]].tolist()
    }
    bounds = problem.stream_ptr.tolist()
    neighbours = {pair for first, stop in pairwise(bounds) for pair in pairwise(unit[first:stop])}
    return needed, neighbours


def schedule_edges(units: PipelineUnits, schedule: Schedule, *, overlapped_sends: bool) -> np.ndarray:
    return units.order_edges(units.orders(schedule), overlapped_sends=overlapped_sends)


def dispatch(units: PipelineUnits, latency: np.ndarray, edges: np.ndarray) -> UnitTimes:
    """Times of the units by the dispatching kernel. ``latency``: float64[num_rows, num_units] [s]."""
    hold_ptr = np.arange(units.num_units + 1, dtype=np.int32)
    own = Edges.between(units.edges, len(latency))
    graph = UnitGraph.build(latency, (hold_ptr, units.stream), units.num_streams, own, units.name)
    return graph.resume(Edges.between(edges, len(latency)))


def random_latencies(data: st.DataObject, num_rows: int, num_units: int) -> np.ndarray:
    """Quarters of a second, so that sums are exact; a unit may take no time at all."""
    seed = data.draw(st.integers(0, 2**32 - 1))
    return np.random.default_rng(seed).integers(0, 40, (num_rows, num_units)) / 4


# -- against the lowered problem ---------------------------------------------------------------------------------------
@pytest.mark.slow
@settings(max_examples=150)
@given(shapes(), st.booleans(), st.data())
def test_units_have_the_edges_and_orders_of_the_lowered_problem(
    shape: PipelineShape, overlapped_sends: bool, data: st.DataObject
) -> None:
    schedule = data.draw(legal_schedules(shape))
    units, problem = PipelineUnits.of(shape), lower(schedule, shape, overlapped_sends=overlapped_sends)
    unit = units_of_nodes(problem, units)
    assert sorted(unit) == list(range(units.num_units))
    own = [tuple(pair) for pair in units.edges.tolist()]
    added = [tuple(pair) for pair in schedule_edges(units, schedule, overlapped_sends=overlapped_sends).tolist()]
    needed, neighbours = lowered_edges(problem, unit)
    assert set(own) | set(added) == needed | neighbours
    assert set(own) <= needed
    assert neighbours <= set(added)
    assert max(Counter(own).values(), default=1) == 1
    bounds = problem.stream_ptr.tolist()
    together = [set(unit[first:stop]) for first, stop in pairwise(bounds) if first < stop]
    held = [set(np.flatnonzero(units.stream == stream).tolist()) for stream in range(units.num_streams)]
    assert [mine for mine in held if mine] == together


@pytest.mark.slow
@settings(max_examples=150)
@given(shapes(), st.booleans(), st.data())
def test_dispatched_times_are_those_of_the_fixed_order(
    shape: PipelineShape, overlapped_sends: bool, data: st.DataObject
) -> None:
    schedule = data.draw(legal_schedules(shape))
    units, problem = PipelineUnits.of(shape), lower(schedule, shape, overlapped_sends=overlapped_sends)
    unit = units_of_nodes(problem, units)
    latency = random_latencies(data, data.draw(st.integers(1, 3)), units.num_units)
    times = dispatch(units, latency, schedule_edges(units, schedule, overlapped_sends=overlapped_sends))
    for row, lasts in enumerate(latency):
        expected = lowered_times(problem, lasts[unit].tolist())
        assert len(expected) == problem.num_nodes
        for node in range(problem.num_nodes):
            assert (times.start[row, unit[node]], times.end[row, unit[node]]) == expected[node]


@settings(max_examples=100)
@given(shapes(), st.booleans(), st.data())
def test_dispatched_times_are_those_of_the_slow_simulation(
    shape: PipelineShape, overlapped_sends: bool, data: st.DataObject
) -> None:
    schedule = data.draw(legal_schedules(shape))
    units = PipelineUnits.of(shape)
    latency = 0.25 + random_latencies(data, 1, units.num_units)
    stage_s = {stage: float(latency[0, units.unit(stage)]) for stage in all_stages(shape)}
    carries = {
        (stage, chunk): transfer_of(units, stage, StageKey(chunk, stage.phase, stage.microbatch))
        for stage in stage_s
        for chunk in sends(shape, stage)
    }
    send_s = {send: float(latency[0, unit]) for send, unit in carries.items()}
    times = dispatch(units, latency, schedule_edges(units, schedule, overlapped_sends=overlapped_sends))

    def span(unit: int) -> tuple[float, float]:
        return float(times.start[0, unit]), float(times.end[0, unit])

    seen = Times(
        {stage: span(units.unit(stage)) for stage in stage_s}, {send: span(unit) for send, unit in carries.items()}
    )
    assert seen == simulate(schedule, shape, stage_s, send_s, overlapped_sends=overlapped_sends)


# -- by themselves -----------------------------------------------------------------------------------------------------
@given(shapes())
def test_numbers_and_names(shape: PipelineShape) -> None:
    """Microbatch by microbatch; a stage is called as in a schedule, a transfer after what it carries and where to."""
    units, stages = PipelineUnits.of(shape), all_stages(shape)
    assert len(units.stream) == units.num_units == units.size * shape.num_microbatches
    for stage in stages:
        unit = units.unit(stage)
        assert unit == stage.microbatch * units.size + units.unit_position(stage)
        assert units.name(unit) == str(stage)
        assert StageKey.parse(units.name(unit)) == stage
        assert units.stream[unit] == shape.chunk_rank[stage.chunk]
        for chunk in sends(shape, stage):
            transfer = transfer_of(units, stage, StageKey(chunk, stage.phase, stage.microbatch))
            there = shape.chunk_rank[chunk]
            assert units.name(transfer) == f"send {stage} to rank {there}"
            assert units.pairs[units.stream[transfer] - shape.num_ranks] == (shape.chunk_rank[stage.chunk], there)
    named = {units.unit(stage) for stage in stages}
    assert len(named) == len(stages) == units.num_stages * shape.num_microbatches


@given(shapes())
def test_own_edges_are_what_every_stage_needs(shape: PipelineShape) -> None:
    """Through a transfer from another rank, directly on the same one, and nothing between microbatches."""
    units = PipelineUnits.of(shape)
    wanted = set()
    for stage in all_stages(shape):
        for before in needs(shape, stage):
            if shape.chunk_rank[before.chunk] == shape.chunk_rank[stage.chunk]:
                wanted.add((units.unit(before), units.unit(stage)))
            else:
                carrier = transfer_of(units, before, stage)
                wanted |= {(units.unit(before), carrier), (carrier, units.unit(stage))}
    assert {tuple(pair) for pair in units.edges.tolist()} == wanted
    assert all(a // units.size == b // units.size for a, b in wanted)


def test_a_schedule_that_deadlocks_closes_a_cycle() -> None:
    shape = PipelineShape.chain(2, 2)
    units = PipelineUnits.of(shape)
    stuck = Schedule.from_text("0F0 0B1 0F1 0B0\n1F0 1B0 1F1 1B1")
    latency = np.ones((1, units.num_units))
    with pytest.raises(GraphError, match="0B1 => 0F1"):
        dispatch(units, latency, schedule_edges(units, stuck, overlapped_sends=True))
    edges = schedule_edges(units, one_f_one_b(shape), overlapped_sends=True)
    assert dispatch(units, latency, edges).makespan_s.tolist() == [8.0]


def test_phases_are_numbered_forward_first() -> None:
    units = PipelineUnits.of(PipelineShape(1, 1, (0, 0), ((), (0,)), (False, True)))
    assert [units.name(unit) for unit in range(3)] == ["0F0", "1F0", "1B0"]
    assert units.phase.tolist() == [0, 0, 1]
    assert [units.unit_position(StageKey.parse(name)) for name in ("0F0", "1F0", "1B0")] == [0, 1, 2]
    assert units.unit(StageKey(1, Phase.BACKWARD, 0)) == 2
    assert units.num_transfers == 0
