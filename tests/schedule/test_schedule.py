"""Schedules as data: text form, the dry run, and what it refuses."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule.shapes import all_stages, legal_schedules, needs, predecessors, shapes

from semu.errors import ScheduleError
from semu.graph.operator import Phase
from semu.schedule.generators.one_f_one_b import one_f_one_b
from semu.schedule.schedule import PipelineShape, Schedule, StageKey

F, B = Phase.FORWARD, Phase.BACKWARD
stages = st.builds(
    StageKey,
    st.integers(0, 99),
    st.sampled_from([F, B, Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT]),
    st.integers(0, 99),
)


# -- text --------------------------------------------------------------------------------------------------------
def test_a_stage_reads_as_in_the_papers() -> None:
    assert str(StageKey(2, F, 0)) == "2F0"
    assert StageKey.parse("13B7") == StageKey(13, B, 7)


@given(stages)
def test_stage_round_trip(stage: StageKey) -> None:
    assert StageKey.parse(str(stage)) == stage


@given(st.lists(st.lists(stages, max_size=6), min_size=1, max_size=5))
def test_schedule_round_trip(orders: list[list[StageKey]]) -> None:
    schedule = Schedule.build("text", orders)
    assert Schedule.from_text(schedule.to_text()) == schedule


@pytest.mark.parametrize("text", ["F0", "2F", "2G0", "2f0", "-1F0", "2F0x", "2 F0"])
def test_what_is_no_stage(text: str) -> None:
    with pytest.raises(ScheduleError, match="not a stage"):
        StageKey.parse(text)


def test_an_unreadable_word_is_located() -> None:
    with pytest.raises(ScheduleError) as caught:
        Schedule.from_text("0F0 0B0\n1F0 oops 1B0", name="mine")
    assert caught.value.where == "mine: rank 1, position 1"
    assert caught.value.got == "oops"


# -- shapes ------------------------------------------------------------------------------------------------------
def test_a_chain_has_a_chunk_per_rank() -> None:
    shape = PipelineShape.chain(3, 2)
    assert shape.chunk_rank == (0, 1, 2)
    assert shape.sources == ((), (0,), (1,))
    assert predecessors(shape, StageKey(0, F, 1)) == []
    assert predecessors(shape, StageKey(1, F, 1)) == [StageKey(0, F, 1)]
    assert predecessors(shape, StageKey(2, B, 1)) == [StageKey(2, F, 1)]
    assert predecessors(shape, StageKey(0, B, 1)) == [StageKey(0, F, 1), StageKey(1, B, 1)]


@given(shapes())
def test_predecessors_are_those_of_the_definition(shape: PipelineShape) -> None:
    for stage in all_stages(shape):
        before = predecessors(shape, stage)
        assert set(before) == needs(shape, stage)
        assert len(before) == len(set(before))


@given(shapes())
def test_the_stages_of_a_rank_are_those_of_its_chunks(shape: PipelineShape) -> None:
    listed = [
        stage
        for microbatch in range(shape.num_microbatches)
        for rank in range(shape.num_ranks)
        for stage in (*shape.forward(rank, microbatch), *shape.backward(rank, microbatch))
    ]
    assert sorted(map(str, listed)) == sorted(map(str, all_stages(shape)))
    for rank in range(shape.num_ranks):
        chunks = [stage.chunk for stage in shape.forward(rank, 0)]
        assert chunks == sorted(chunks)
        assert [stage.chunk for stage in shape.backward(rank, 0)] == [
            chunk for chunk in reversed(chunks) if shape.has_backward[chunk]
        ]


# -- validation --------------------------------------------------------------------------------------------------
@given(shapes(), st.data())
def test_every_possible_order_is_legal(shape: PipelineShape, data: st.DataObject) -> None:
    data.draw(legal_schedules(shape)).validate(shape)


@given(shapes(), st.data())
def test_a_missing_a_doubled_or_a_misplaced_stage_is_found(shape: PipelineShape, data: st.DataObject) -> None:
    schedule = data.draw(legal_schedules(shape))
    orders = [list(order) for order in schedule.orders]
    rank = data.draw(st.sampled_from([r for r, order in enumerate(orders) if order]))
    position = data.draw(st.integers(0, len(orders[rank]) - 1))
    stage = orders[rank][position]

    without = [list(order) for order in orders]
    del without[rank][position]
    with pytest.raises(ScheduleError, match="a stage is missing") as caught:
        Schedule.build("s", without).validate(shape)
    assert (caught.value.where, caught.value.expected) == (f"s: rank {rank}", str(stage))

    doubled = [list(order) for order in orders]
    doubled[rank].append(stage)
    with pytest.raises(ScheduleError, match="a stage runs twice") as caught:
        Schedule.build("s", doubled).validate(shape)
    assert (caught.value.where, caught.value.got) == (f"s: rank {rank}, position {len(orders[rank])}", stage)

    if shape.num_ranks > 1:
        other = (rank + 1) % shape.num_ranks
        without[other].append(stage)
        with pytest.raises(ScheduleError, match="a stage on the wrong rank") as caught:
            Schedule.build("s", without).validate(shape)
        assert caught.value.expected == f"rank {rank}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0 0B0", "wrong number of ranks"),
        ("0F0 0B0\n1F0 1B0\n2F0", "wrong number of ranks"),
        ("0F0 0B0\n1F0 1B0 2F0", "no such stage"),
        ("0F0 0B0 0F1\n1F0 1B0", "no such stage"),
        ("0F0 0I0\n1F0 1B0", "a stage is missing"),
        ("0F0 0W0\n1F0 1B0", "a stage is missing"),
    ],
)
def test_stages_that_do_not_exist(text: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        Schedule.from_text(text).validate(PipelineShape.chain(2, 1))


@pytest.mark.parametrize("stage", [StageKey(-1, F, 0), StageKey(0, F, -1)], ids=str)
def test_negative_numbers_are_no_stages(stage: StageKey) -> None:
    good = one_f_one_b(PipelineShape.chain(1, 1))
    with pytest.raises(ScheduleError, match="no such stage"):
        Schedule.build("s", [[stage, *good.orders[0]]]).validate(PipelineShape.chain(1, 1))


def test_a_frozen_chunk_has_no_backward_stage() -> None:
    shape = PipelineShape(2, 1, (0, 1), ((), (0,)), (False, True))
    Schedule.from_text("0F0\n1F0 1B0").validate(shape)
    with pytest.raises(ScheduleError, match="the chunk has no backward stage"):
        Schedule.from_text("0F0 0B0\n1F0 1B0").validate(shape)


def test_a_rank_may_have_nothing_to_do() -> None:
    shape = PipelineShape(3, 1, (0, 2), ((), (0,)), (True, True))
    Schedule.from_text("0F0 0B0\n-\n1F0 1B0\n").validate(shape)


# -- deadlock ----------------------------------------------------------------------------------------------------
def test_a_deadlock_is_shown_as_a_grid_with_an_arrow_at_each_stuck_rank() -> None:
    """Rank 0 wants its backward before the forward that rank 1 waits for."""
    schedule = Schedule.from_text("0F0 0B1 0F1 0B0\n1F0 1B0 1F1 1B1", name="mine")
    with pytest.raises(ScheduleError, match="the schedule deadlocks") as caught:
        schedule.validate(PipelineShape.chain(2, 2))
    assert caught.value.where == "mine"
    assert caught.value.message.splitlines()[1:] == [
        "  rank 0: 0F0 -> 0B1 waits for 0F1, 1B1",
        "  rank 1: 1F0 1B0 -> 1F1 waits for 0F1",
        "  cycle: 0B1 -> 0F1, which rank 0 runs after 0B1",
    ]


def test_a_finished_rank_has_no_arrow() -> None:
    shape = PipelineShape(2, 1, (0, 1), ((), ()), (True, True))
    with pytest.raises(ScheduleError) as caught:
        Schedule.from_text("0F0 0B0\n1B0 1F0").validate(shape)
    assert caught.value.message.splitlines()[1:] == [
        "  rank 0: 0F0 0B0 (finished)",
        "  rank 1:  -> 1B0 waits for 1F0",
        "  cycle: 1B0 -> 1F0, which rank 1 runs after 1B0",
    ]


@given(shapes(), st.data())
def test_an_order_deadlocks_exactly_if_dependencies_and_orders_have_a_cycle(
    shape: PipelineShape, data: st.DataObject
) -> None:
    """Against a search for a cycle in the graph of dependencies and neighbours in the order."""
    everything = all_stages(shape)
    orders = [
        data.draw(st.permutations([stage for stage in everything if shape.chunk_rank[stage.chunk] == rank]))
        for rank in range(shape.num_ranks)
    ]
    before = {stage: set(needs(shape, stage)) for stage in everything}
    for order in orders:
        for early, late in pairwise(order):
            before[late].add(early)
    left = set(everything)
    while free := {stage for stage in left if not before[stage] & left}:
        left -= free
    schedule = Schedule.build("permuted", orders)
    if left:
        with pytest.raises(ScheduleError, match="deadlocks"):
            schedule.validate(shape)
    else:
        schedule.validate(shape)
