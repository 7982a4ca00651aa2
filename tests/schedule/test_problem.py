"""Lowered schedules: arrays in their documented form, times equal to a slow event-by-event simulation."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule.shapes import Times, all_stages, legal_schedules, lowered_times, needs, sends, shapes, simulate

from semu.graph.operator import Phase
from semu.parallel.pipeline import partition
from semu.schedule import SCHEDULES
from semu.schedule.generators.one_f_one_b import one_f_one_b
from semu.schedule.problem import PipelineProblem, lower
from semu.schedule.schedule import PipelineShape, Schedule, StageKey

F, B = Phase.FORWARD, Phase.BACKWARD


@dataclass(frozen=True)
class Latencies:
    """Seconds of every stage and of every send."""

    stage_s: dict[StageKey, float]
    send_s: dict[tuple[StageKey, int], float]


def evaluate(problem: PipelineProblem, rows: list[Latencies]) -> tuple[np.ndarray, np.ndarray]:
    """Start and end [rows, nodes] of a fixed order."""
    latency = np.array(
        [
            [row.stage_s[stage] for stage in problem.stages]
            + [row.send_s[transfer.stage, transfer.consumer.chunk] for transfer in problem.transfers]
            for row in rows
        ]
    )
    timed = [lowered_times(problem, row) for row in latency.tolist()]
    times = np.array([[nodes[node] for node in range(problem.num_nodes)] for nodes in timed])
    return times[..., 0], times[..., 1]


def seconds(draw: st.DrawFn, least: int) -> float:
    return draw(st.integers(least, 40)) / 4


@st.composite
def latencies(draw: st.DrawFn, shape: PipelineShape) -> Latencies:
    """Quarters of a second, so that sums are exact."""
    stages = all_stages(shape)
    return Latencies(
        {stage: seconds(draw, 1) for stage in stages},
        {(stage, chunk): seconds(draw, 0) for stage in stages for chunk in sends(shape, stage)},
    )


def as_times(problem: PipelineProblem, start: np.ndarray, end: np.ndarray) -> Times:
    split = problem.num_stages
    stages = {stage: (float(start[i]), float(end[i])) for i, stage in enumerate(problem.stages)}
    moved = {
        (transfer.stage, transfer.consumer.chunk): (float(start[split + j]), float(end[split + j]))
        for j, transfer in enumerate(problem.transfers)
    }
    return Times(stages, moved)


# -- times -------------------------------------------------------------------------------------------------------
@settings(max_examples=150)
@given(shapes(), st.booleans(), st.data())
def test_times_are_those_of_the_slow_simulation(
    shape: PipelineShape, overlapped_sends: bool, data: st.DataObject
) -> None:
    schedule = data.draw(legal_schedules(shape))
    rows = [data.draw(latencies(shape)) for _ in range(data.draw(st.integers(1, 2)))]
    problem = lower(schedule, shape, overlapped_sends=overlapped_sends)
    start, end = evaluate(problem, rows)
    for i, row in enumerate(rows):
        expected = simulate(schedule, shape, row.stage_s, row.send_s, overlapped_sends=overlapped_sends)
        assert as_times(problem, start[i], end[i]) == expected


@pytest.mark.parametrize("overlapped_sends", [True, False], ids=("overlapped", "waiting"))
@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_generated_schedules_take_as_long_as_in_the_slow_simulation(name: str, overlapped_sends: bool) -> None:
    shape = PipelineShape.chain(4, 7)
    schedule = SCHEDULES[name](shape)
    stage_s = {stage: (1.0 if stage.phase is F else 2.0) + stage.chunk / 8 for stage in all_stages(shape)}
    row = Latencies(stage_s, {(stage, chunk): 0.25 for stage in stage_s for chunk in sends(shape, stage)})
    problem = lower(schedule, shape, overlapped_sends=overlapped_sends)
    start, end = evaluate(problem, [row])
    expected = simulate(schedule, shape, row.stage_s, row.send_s, overlapped_sends=overlapped_sends)
    assert as_times(problem, start[0], end[0]) == expected


def test_a_rank_that_waits_for_its_sends_is_never_faster() -> None:
    shape = PipelineShape.chain(4, 8)
    stage_s = {stage: 1.0 if stage.phase is F else 2.0 for stage in all_stages(shape)}
    row = Latencies(stage_s, {(stage, chunk): 0.5 for stage in stage_s for chunk in sends(shape, stage)})
    ends = [
        evaluate(lower(one_f_one_b(shape), shape, overlapped_sends=overlap), [row])[1].max()
        for overlap in (True, False)
    ]
    assert ends[0] < ends[1]


def test_an_illegal_order_is_not_timed_to_its_end() -> None:
    shape = PipelineShape.chain(2, 2)
    problem = lower(Schedule.from_text("0F0 0B1 0F1 0B0\n1F0 1B0 1F1 1B1"), shape, overlapped_sends=True)
    assert len(lowered_times(problem, [1.0] * problem.num_nodes)) == 5  # 0F0, its send, 1F0, 1B0, its send


# -- form --------------------------------------------------------------------------------------------------------
@given(shapes(), st.booleans(), st.data())
def test_arrays_have_their_documented_form(shape: PipelineShape, overlapped_sends: bool, data: st.DataObject) -> None:
    schedule = data.draw(legal_schedules(shape))
    problem = lower(schedule, shape, overlapped_sends=overlapped_sends)
    n = problem.num_stages
    assert problem.stages == tuple(stage for order in schedule.orders for stage in order)
    assert problem.num_nodes == n + len(problem.transfers) == problem.stream_ptr[-1]
    assert problem.stream_ptr[: shape.num_ranks + 1].tolist() == np.cumsum([0, *map(len, schedule.orders)]).tolist()
    assert (np.diff(problem.stream_ptr[shape.num_ranks :]) > 0).all()
    assert len(problem.pred_ptr) == problem.num_nodes + 1
    assert problem.pred_ptr[-1] == len(problem.pred)
    assert problem.chunk.tolist() == [stage.chunk for stage in problem.stages]
    assert problem.microbatch.tolist() == [stage.microbatch for stage in problem.stages]
    assert problem.phase.tolist() == [int(stage.phase is B) for stage in problem.stages]
    assert problem.node_rank.tolist() == [shape.chunk_rank[stage.chunk] for stage in problem.stages]


@given(shapes(), st.data())
def test_every_result_goes_once_to_every_chunk_elsewhere_that_needs_it(
    shape: PipelineShape, data: st.DataObject
) -> None:
    problem = lower(data.draw(legal_schedules(shape)), shape, overlapped_sends=True)
    wanted = {(stage, chunk) for stage in all_stages(shape) for chunk in sends(shape, stage)}
    made = [(transfer.stage, transfer.consumer.chunk) for transfer in problem.transfers]
    assert len(made) == len(set(made))
    assert set(made) == wanted
    for transfer in problem.transfers:
        assert transfer.source == shape.chunk_rank[transfer.stage.chunk]
        assert transfer.target == shape.chunk_rank[transfer.consumer.chunk]
        assert transfer.stage in needs(shape, transfer.consumer)


def test_frozen_chunks_get_no_gradient() -> None:
    """Chunk 0 is frozen: nothing is sent back to it."""
    shape = PipelineShape(2, 2, (0, 1), ((), (0,)), (False, True))
    problem = lower(one_f_one_b(shape), shape, overlapped_sends=True)
    assert [(str(t.stage), t.source, t.target, str(t.consumer)) for t in problem.transfers] == [
        ("0F0", 0, 1, "1F0"),
        ("0F1", 0, 1, "1F1"),
    ]


# -- a published example -----------------------------------------------------------------------------------------
@pytest.mark.paper
def test_dip_worked_example() -> None:
    """DIP §2.2: 64 ViT layers of 6.75 ms and 64 language layers of 10.5 ms (forward and backward together, here 1 : 2)
    on 16 stages, 64 microbatches, 1F1B: 22.8 % of the time is bubble."""
    ranks, microbatches = 16, 64
    layers = [6.75e-3] * 64 + [10.5e-3] * 64
    cut = partition(layers, ranks)
    stage_total_s = [sum(layers[a:b]) for a, b in pairwise(cut)]
    shape = PipelineShape.chain(ranks, microbatches)

    def makespan_s(totals_s: list[float]) -> float:
        stage_s = {s: totals_s[s.chunk] * (1 / 3 if s.phase is F else 2 / 3) for s in all_stages(shape)}
        row = Latencies(stage_s, {(stage, chunk): 0.0 for stage in stage_s for chunk in sends(shape, stage)})
        _, end = evaluate(lower(one_f_one_b(shape), shape, overlapped_sends=True), [row])
        return float(end.max())

    took_s = makespan_s(stage_total_s)
    balanced_s = makespan_s([sum(layers) / ranks] * ranks)
    assert balanced_s == pytest.approx((microbatches + ranks - 1) * sum(layers) / ranks, rel=1e-12)
    bubble = 1 - microbatches * sum(layers) / (ranks * took_s)
    assert 0.225 < bubble < 0.230
    assert took_s / balanced_s - 1 == pytest.approx(0.052, abs=5e-4)
