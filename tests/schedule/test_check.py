"""What ``validate`` says of split backwards, copies of a model and sub-microbatches; and of cycles."""

from __future__ import annotations

from dataclasses import replace

import pytest
from schedule.shapes import predecessors

from semu.errors import ScheduleError
from semu.graph.operator import Phase
from semu.schedule.placement import FlowModule, Placement, stage_flow
from semu.schedule.problem import lower
from semu.schedule.registry import ALL_SCHEDULES
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape, StageKey
from semu.schedule.study import PipelineStudy
from semu.schedule.units import units_of

PAIR = PipelineShape.chain(2, 1)


@pytest.mark.parametrize(
    ("text", "message", "where", "expected"),
    [
        ("0F0 0I0 0W0 0B0\n1F0 1B0", "both whole and split", "s: rank 0, position 3", "one B, or one I and one W"),
        ("0F0 0B0\n1F0 1I0", "a stage is missing", "s: rank 1", "1W0"),
        ("0F0 0B0\n1F0 1W0", "a stage is missing", "s: rank 1", "1I0"),
        ("0F0 0B0\n1F0", "a stage is missing", "s: rank 1", "1B0"),
        ("0F0 0I0 0W0 0I0\n1F0 1B0", "a stage runs twice", "s: rank 0, position 3", "once"),
        ("0F0 0B0 1F0\n1B0", "a stage on the wrong rank", "s: rank 0, position 2", "rank 1"),
    ],
)
def test_split_backwards_are_checked(text: str, message: str, where: str, expected: str) -> None:
    with pytest.raises(ScheduleError, match=message) as caught:
        Schedule.from_text(text, "s").validate(PAIR)
    assert (caught.value.exit_code, caught.value.where, caught.value.expected) == (4, where, expected)


def test_each_stage_may_be_split_or_not() -> None:
    for text in ("0F0 0I0 0W0\n1F0 1B0", "0F0 0B0\n1F0 1I0 1W0", "0F0 0I0 0W0\n1F0 1I0 1W0"):
        Schedule.from_text(text).validate(PAIR)


def test_a_phase_that_is_no_stage() -> None:
    with pytest.raises(ScheduleError, match="no such stage") as caught:
        Schedule.build("s", [[StageKey(0, Phase.RECOMPUTE, 0)], []]).validate(PAIR)
    assert caught.value.expected == "phase F, B, I or W"


def test_a_weight_gradient_before_its_input_gradient_is_a_cycle() -> None:
    with pytest.raises(ScheduleError) as caught:
        Schedule.from_text("0F0 0W0 0I0\n1F0 1B0").validate(PAIR)
    assert caught.value.message.splitlines()[1:] == [
        "  rank 0: 0F0 -> 0W0 waits for 0I0",
        "  rank 1: 1F0 1B0 (finished)",
        "  cycle: 0W0 -> 0I0, which rank 0 runs after 0W0",
    ]


def test_a_cycle_over_three_ranks_is_followed_from_rank_to_rank() -> None:
    """Rank 0 holds back the forward that rank 1 needs before the one that rank 2 needs before what rank 0 needs."""
    with pytest.raises(ScheduleError) as caught:
        Schedule.from_text("0F0 0B0 0F1 0B1\n1F0 1F1 1I0 1W0 1B1\n2F0 2B0 2F1 2B1").validate(PipelineShape.chain(3, 2))
    assert caught.value.message.splitlines()[1:] == [
        "  rank 0: 0F0 -> 0B0 waits for 1I0",
        "  rank 1: 1F0 -> 1F1 waits for 0F1",
        "  rank 2: 2F0 2B0 -> 2F1 waits for 1F1",
        "  cycle: 0B0 -> 1I0, which rank 1 runs after 1F1; 1F1 -> 0F1, which rank 0 runs after 0B0",
    ]


def test_a_microbatch_runs_through_one_copy_of_the_model() -> None:
    shape = Placement.BIDIRECTIONAL.shape(2, 2, 2)
    assert shape.microbatch_flow == (0, 1)
    assert shape.chunk_rank == (0, 1, 1, 0)
    good = ALL_SCHEDULES["chimera"](shape)
    good.validate(shape)
    with pytest.raises(ScheduleError, match="no such stage") as caught:
        Schedule.build("s", [(*good.orders[0], StageKey(0, Phase.FORWARD, 1)), good.orders[1]]).validate(shape)
    assert caught.value.expected == "a microbatch that runs through copy 0 of the model"


def test_sub_microbatches_are_numbered_within_their_module() -> None:
    shape = stage_flow(1, 2, [FlowModule("a", (0,), sub_microbatches=3), FlowModule("b", (0,), ("a",))])
    assert [str(s) for s in shape.forward(0, 1)] == ["0F3", "0F4", "0F5", "1F1"]
    assert [str(s) for s in predecessors(shape, StageKey(1, Phase.FORWARD, 1))] == ["0F3", "0F4", "0F5"]
    with pytest.raises(ScheduleError, match="no such stage") as caught:
        Schedule.from_text("0F6").validate(shape)
    assert caught.value.expected == "0 <= chunk < 2, 0 <= microbatch < 6"


def test_microbatches_with_more_items_are_cut_into_more() -> None:
    """DIP §4: M_i = ceil(N_i / B_i) sub-microbatches of a microbatch with N_i images; text alone has none."""
    modules = [FlowModule("vit", (0, 1), sub_microbatches=(3, 0, 1)), FlowModule("llm", (0, 1), ("vit",))]
    shape = stage_flow(2, 3, modules)
    assert (shape.chunk_split, shape.part_counts) == ((3, 3, 1, 1), ((3, 0, 1), (3, 0, 1), (1, 1, 1), (1, 1, 1)))
    assert [[str(s) for s in shape.forward(0, i)] for i in range(3)] == [
        ["0F0", "0F1", "0F2", "2F0"],
        ["2F1"],
        ["0F6", "2F2"],
    ]
    needs = [[str(s) for s in predecessors(shape, StageKey(2, Phase.FORWARD, i))] for i in range(3)]
    assert needs == [["1F0", "1F1", "1F2"], [], ["1F6"]]
    study = PipelineStudy.of(shape)
    for name in ("greedy", "looped-bfs"):
        schedule = ALL_SCHEDULES[name](shape)
        schedule.validate(shape)
        found = study.evaluate(schedule)
        assert found.busy_s.tolist() == [3 * (4 + 3)] * 2  # 4 stages of the vit and 3 of the llm on every rank
        assert study.lower_bound_s() <= found.makespan_s
    with pytest.raises(ScheduleError, match="no such stage") as caught:
        Schedule.from_text("0F3\n-").validate(shape)
    assert caught.value.expected == "of microbatch 1, which its module cuts into 0, no part 0"
    with pytest.raises(ScheduleError, match="missing"):
        Schedule.from_text("0F0 0F1 0B0 0B1").validate(stage_flow(1, 1, [FlowModule("a", (0,), sub_microbatches=(3,))]))
    with pytest.raises(ScheduleError, match="not executed yet"):
        units_of(stage_flow(1, 2, [FlowModule("a", (0,), sub_microbatches=(1, 0))]), None)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"chunk_split": (1, 0)}, "chunk_split"),
        ({"chunk_split": (1,)}, "chunk_split"),
        ({"chunk_flow": (0, -1)}, "chunk_flow"),
        ({"part_counts": ((1, 2), (1, 1))}, "part_counts"),
        ({"part_counts": ((1, 1),)}, "part_counts"),
        ({"part_counts": ((1,), (1,))}, "part_counts"),
        ({"microbatch_flow": (0, 0, 0)}, "microbatch_flow"),
    ],
)
def test_shapes_that_cannot_be(changes: dict[str, tuple[int, ...]], where: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        PipelineShape(2, 2, (0, 1), ((), (0,)), (True, True), **changes)  # type: ignore[arg-type]
    assert caught.value.where == where


# -- what jobs do not execute yet --------------------------------------------------------------------------------
def test_units_are_of_whole_or_of_split_backwards_and_shapes_are_plain() -> None:
    schedule = Schedule.from_text("0F0 0B0\n1F0 1I0 1W0", "mine")
    schedule.validate(PAIR)
    problem = lower(schedule, PAIR, overlapped_sends=True)
    assert [str(stage) for stage in problem.stages] == ["0F0", "0B0", "0W0", "1F0", "1I0", "1W0"]
    assert problem.phase.tolist() == [0, 1, 4, 0, 2, 3]  # where a backward is whole, its W is nothing
    assert problem.units.merged == {(0, 0)}
    with pytest.raises(ScheduleError, match="splits backwards that these units have whole") as caught:
        units_of(PAIR, None).orders(schedule)
    assert (caught.value.where, caught.value.expected) == ("mine", "whole backwards")
    with pytest.raises(ScheduleError, match="not executed yet"):
        units_of(stage_flow(1, 1, [FlowModule("a", (0,), sub_microbatches=2)]), None)


def test_units_of_two_copies_of_the_model() -> None:
    shape = Placement.BIDIRECTIONAL.shape(2, 2, 2)
    units = units_of(shape, None)
    assert (len(units.chunk), units.num_stages, units.num_transfers) == (2, 4, 2)
    assert units.chunk.tolist() == [[0, 0, 1, 1], [2, 2, 3, 3]]
    assert units.stream.tolist() == [0, 0, 1, 1, 2, 3, 1, 1, 0, 0, 3, 2]  # pairs 0 -> 1 and 1 -> 0 are streams 2 and 3
    assert [units.name(unit) for unit in (0, 4, 6, 10)] == ["0F0", "send 0F0 to rank 1", "2F1", "send 2F1 to rank 0"]
    for other in (replace(shape, microbatch_flow=(0, 2)), replace(shape, chunk_rank=(0, 1, 0, 0))):
        with pytest.raises(ScheduleError, match="copies of the model that are not cut alike"):
            units_of(other, None)
