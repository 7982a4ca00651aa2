"""All schedules: legal for every shape; GPipe and 1F1B against their closed forms (equal stages, no transfer time)."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule.shapes import Times, all_stages, sends, shapes, simulate

from semu.errors import ConfigError, ScheduleError
from semu.graph.operator import Phase
from semu.schedule import SCHEDULES
from semu.schedule.compare import compare_schedules
from semu.schedule.registry import ALL_SCHEDULES
from semu.schedule.schedule import PipelineShape, Schedule

F, B = Phase.FORWARD, Phase.BACKWARD
SIZES = [(p, m) for p in range(1, 9) for m in range(1, 17)]
CLOSED_FORMS = ("1f1b", "gpipe", "interleaved")
FORWARD_S, BACKWARD_S = 3.0, 7.0


def run(schedule: Schedule, shape: PipelineShape) -> Times:
    stage_s = {stage: FORWARD_S if stage.phase is F else BACKWARD_S for stage in all_stages(shape)}
    send_s = {(stage, chunk): 0.0 for stage in stage_s for chunk in sends(shape, stage)}
    return simulate(schedule, shape, stage_s, send_s, overlapped_sends=True)


def in_flight(schedule: Schedule, rank: int) -> int:
    """Most microbatches whose activations a rank holds at once."""
    held = most = 0
    for stage in schedule.orders[rank]:
        held += 1 if stage.phase is F else -1
        most = max(most, held)
    assert held == 0
    return most


@pytest.mark.parametrize("name", SCHEDULES)
def test_legal_for_every_number_of_ranks_and_microbatches(name: str) -> None:
    for p, m in SIZES:
        shape = PipelineShape.chain(p, m)
        schedule = SCHEDULES[name](shape)
        schedule.validate(shape)
        assert schedule.name == name
        assert Schedule.from_text(schedule.to_text(), name) == schedule


@pytest.mark.sampled(2)
@pytest.mark.paper
@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_makespan_and_bubble_of_equal_stages(name: str) -> None:
    """2104.04473 §2.2: makespan (m + p - 1)(f + b), bubble ratio (p - 1) / (m + p - 1), for both."""
    for p, m in SIZES:
        shape = PipelineShape.chain(p, m)
        times = run(SCHEDULES[name](shape), shape)
        makespan = max(end for _, end in times.stages.values())
        assert makespan == (m + p - 1) * (FORWARD_S + BACKWARD_S)
        busy = sum(end - start for start, end in times.stages.values())
        assert 1 - Fraction(busy) / (p * Fraction(makespan)) == Fraction(p - 1, m + p - 1)


@pytest.mark.paper
def test_1f1b_holds_few_and_gpipe_all_microbatches() -> None:
    """2006.09503 §3: rank r of p holds min(m, p - r) microbatches; under GPipe each holds all m."""
    for p, m in SIZES:
        shape = PipelineShape.chain(p, m)
        ahead, together = SCHEDULES["1f1b"](shape), SCHEDULES["gpipe"](shape)
        assert [in_flight(ahead, rank) for rank in range(p)] == [min(m, p - rank) for rank in range(p)]
        assert [in_flight(together, rank) for rank in range(p)] == [m] * p


def test_1f1b_of_four_ranks_as_it_is_always_drawn() -> None:
    assert SCHEDULES["1f1b"](PipelineShape.chain(4, 5)).to_text().splitlines() == [
        "0F0 0F1 0F2 0F3 0B0 0F4 0B1 0B2 0B3 0B4",
        "1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1B3 1B4",
        "2F0 2F1 2B0 2F2 2B1 2F3 2B2 2F4 2B3 2B4",
        "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4",
    ]


def test_gpipe_of_two_ranks() -> None:
    assert SCHEDULES["gpipe"](PipelineShape.chain(2, 3)).to_text().splitlines() == [
        "0F0 0F1 0F2 0B2 0B1 0B0",
        "1F0 1F1 1F2 1B2 1B1 1B0",
    ]


@st.composite
def pipelines(draw: st.DrawFn) -> PipelineShape:
    """Modules one after another over the ranks, as ``place_chunks`` makes them: ranks never decrease along the flow,
    several chunks may share one; a frozen beginning has no backward."""
    num_ranks = draw(st.integers(1, 5))
    extra = draw(st.lists(st.integers(0, num_ranks - 1), max_size=3))
    chunk_rank = tuple(sorted([*range(num_ranks), *extra]))
    frozen = draw(st.integers(0, len(chunk_rank)))
    return PipelineShape(
        num_ranks,
        draw(st.integers(1, 8)),
        chunk_rank,
        tuple((chunk - 1,) if chunk else () for chunk in range(len(chunk_rank))),
        tuple(chunk >= frozen for chunk in range(len(chunk_rank))),
    )


@pytest.mark.parametrize("name", CLOSED_FORMS)
@given(shape=pipelines())
def test_legal_with_several_chunks_on_a_rank_and_frozen_ones(name: str, shape: PipelineShape) -> None:
    schedule = SCHEDULES[name](shape)
    schedule.validate(shape)
    planned = [stage for order in schedule.orders for stage in order]
    assert sorted(map(str, planned)) == sorted(map(str, all_stages(shape)))


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_frozen_chunks_run_forward_only(name: str) -> None:
    """A frozen encoder on rank 0: no stage of chunk 0 goes back, and the makespan shrinks by its backwards."""
    frozen = PipelineShape(2, 3, (0, 1), ((), (0,)), (False, True))
    schedule = SCHEDULES[name](frozen)
    schedule.validate(frozen)
    assert [str(stage) for stage in schedule.orders[0]] == ["0F0", "0F1", "0F2"]
    assert max(end for _, end in run(schedule, frozen).stages.values()) == FORWARD_S + 3 * (FORWARD_S + BACKWARD_S)


@pytest.mark.parametrize("name", CLOSED_FORMS)
@given(shape=shapes())
def test_every_stage_is_on_its_rank_once_whatever_the_shape(name: str, shape: PipelineShape) -> None:
    for rank, order in enumerate(SCHEDULES[name](shape).orders):
        mine = [stage for stage in all_stages(shape) if shape.chunk_rank[stage.chunk] == rank]
        assert sorted(map(str, order)) == sorted(map(str, mine))


@pytest.mark.parametrize("sizes", [(0, 4, 2), (4, -1, 2), (4, 4, 0), (2.5, 4, 2)])
def test_comparisons_without_a_size_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="not a size") as caught:
        compare_schedules(sizes[0], sizes[1], num_slots=sizes[2])
    assert (caught.value.expected, caught.value.nearest) == ("an integer >= 1", 1)


@pytest.mark.parametrize("text", ["99999999999999999999F0", "0F99999999999999999999", "\u0663F0", "0F\u00b2"])
def test_numbers_that_no_stage_has(text: str) -> None:
    with pytest.raises(ScheduleError, match="not a stage"):
        Schedule.from_text(text)


def test_bounds_of_automatic_zero_bubble_schedules_of_equal_stages() -> None:
    """The last rank waits for p - 1 forwards and then never; of stages that are not equal nothing is said."""
    for name in ("zb-auto", "zb-auto-2p"):
        makespan = ALL_SCHEDULES[name].makespan
        assert makespan is not None
        assert makespan(4, 8, 1, 1.0, 1.0, 1.0) == 3 * 1.0 + 8 * 3.0
        assert makespan(4, 8, 1, 1.0, 1.0, 2.0) is None
