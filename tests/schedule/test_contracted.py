"""Schedules drawn for one chunk per rank and slot, on pipelines whose slots hold ends of several modules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semu.errors import ScheduleError
from semu.graph.operator import Phase
from semu.schedule.contracted import Contracted
from semu.schedule.placement import FlowModule, stage_flow
from semu.schedule.registry import ALL_SCHEDULES
from semu.schedule.shape import PipelineShape, StageKey
from semu.schedule.study import PipelineStudy

FIXED = [name for name, family in ALL_SCHEDULES.items() if family.is_fixed]


def doubled(shape: PipelineShape, at: int) -> PipelineShape:
    """The pipeline with a chunk cut in two, on one rank and in one slot."""

    def new(chunk: int) -> int:
        return chunk + (chunk > at)

    order = [*range(at + 1), *range(at, shape.num_chunks)]
    sources = [tuple(at + 1 if s == at else new(s) for s in shape.sources[chunk]) for chunk in order]
    sources[at] = tuple(new(s) for s in shape.sources[at])
    sources[at + 1] = (at,)
    return PipelineShape(
        shape.num_ranks,
        shape.num_microbatches,
        tuple(shape.chunk_rank[chunk] for chunk in order),
        tuple(sources),
        (True,) * len(order),
        tuple(shape.chunk_slot[chunk] for chunk in order),
        chunk_flow=tuple(shape.chunk_flow[chunk] for chunk in order),
        microbatch_flow=shape.microbatch_flow,
    )


@pytest.mark.parametrize(
    ("name", "p"), [(name, p) for name in FIXED for p in (1, 2, 4) if ALL_SCHEDULES[name].misfit(p, 8, 2) is None]
)
def test_a_chunk_in_two_halves_takes_as_long_as_whole(name: str, p: int) -> None:
    family, m = ALL_SCHEDULES[name], 8
    plain = family.shape(p, m, 2)
    for at in range(plain.num_chunks):
        shape = doubled(plain, at)
        schedule = family(shape)
        schedule.validate(shape)
        half = [0.5 if chunk in (at, at + 1) else 1.0 for chunk in range(shape.num_chunks)]
        found = PipelineStudy.of(shape, forward_s=half, input_s=half, weight_s=half, held_bytes=[h * 2 for h in half])
        whole = PipelineStudy.of(plain, held_bytes=2).evaluate(family(plain))
        if family.adapt is None:
            assert found.evaluate(schedule).makespan_s == whole.makespan_s
            assert max(found.evaluate(schedule).peak_bytes) == max(whole.peak_bytes)


def test_by_hand() -> None:
    """Two ranks in a V, the first chunk in two: backwards of 1 and 0 in a row, 1 first."""
    shape = doubled(ALL_SCHEDULES["zb-v"].shape(2, 1, 2), 0)
    assert (shape.chunk_rank, shape.sources) == ((0, 0, 1, 1, 0), ((), (0,), (1,), (2,), (3,)))
    assert ALL_SCHEDULES["zb-v"](shape).to_text().splitlines() == [
        "0F0 1F0 4F0 4I0 4W0 1I0 0I0 1W0 0W0",
        "2F0 3F0 3I0 3W0 2I0 2W0",
    ]


def test_modules_side_by_side_and_in_sub_microbatches() -> None:
    """Two encoders that do not read one another, into a backbone; the first cuts a microbatch in three."""
    shape = PipelineShape(
        2,
        4,
        (0, 0, 0, 1, 1, 0),
        ((), (), (0, 1), (2,), (3,), (4,)),
        (True,) * 6,
        (0, 0, 0, 0, 1, 1),
        ("ear", "eye", *("llm",) * 4),
        (3, 1, 1, 1, 1, 1),
        joins=True,
    )
    contracted = Contracted.of(shape)
    assert contracted.chunks == ((0, 1, 2), (3,), (4,), (5,))
    assert not contracted.is_whole
    for name in ("zb-v", "v-half", "v-min", "dualpipe-v", "hanayo"):
        schedule = ALL_SCHEDULES[name](shape)
        schedule.validate(shape)
        stages = [stage for order in schedule.orders for stage in order]
        assert sum(stage.chunk == 0 and stage.phase is Phase.FORWARD for stage in stages) == 12
    assert [*contracted.write_out([StageKey(0, Phase.BACKWARD, 1)])] == [
        StageKey(chunk, Phase.BACKWARD, part) for chunk, part in ((2, 1), (1, 1), (0, 3), (0, 4), (0, 5))
    ]


def test_a_module_that_begins_on_another_rank_is_still_refused() -> None:
    chain = ALL_SCHEDULES["zb-v"].shape(2, 4, 2)
    shape = PipelineShape(2, 4, (0, 1, 1, 0, 1), (*chain.sources, (3,)), (True,) * 5, (0, 0, 1, 1, 1))
    with pytest.raises(ScheduleError, match="needs a chain of chunks") as caught:
        ALL_SCHEDULES["zb-v"](shape)
    assert caught.value.got == [0, 1, 1, 0, 1]


def test_chunks_that_read_later_ones_are_left_alone() -> None:
    shape = PipelineShape(1, 1, (0, 0), ((1,), ()), (True, True), (0, 0))
    contracted = Contracted.of(shape)
    assert (contracted.shape, contracted.chunks, contracted.is_whole) == (shape, ((0,), (1,)), True)


def test_optimus_counts_the_virtual_stages_that_hold_some_of_the_backbone() -> None:
    """Five microbatches on two ranks: a backbone of two virtual stages cannot; of one it can."""
    optimus = ALL_SCHEDULES["optimus"]
    for begins, ends, fits in ((1, 1, True), (2, 1, True), (1, 2, False), (0, 2, False)):
        modules = [FlowModule("vit", (0, 1) * begins)] if begins else []
        shape = stage_flow(2, 5, [*modules, FlowModule("llm", (0, 1) * ends, tuple(m.name for m in modules))])
        if fits:
            optimus(shape).validate(shape)
            continue
        with pytest.raises(ScheduleError, match="groups of as many as there are ranks") as caught:
            optimus(shape)
        assert (caught.value.got, caught.value.nearest) == (5, 4)


def test_a_virtual_stage_goes_back_where_all_of_it_does() -> None:
    """The first half of rank 0's chunk is frozen: the whole has no backward of its own."""
    shape = doubled(PipelineShape.chain(2, 1), 0)
    assert Contracted.of(shape).shape.has_backward == (True, True)
    frozen = replace(shape, has_backward=(False, True, True))
    assert Contracted.of(frozen).shape.has_backward == (False, True)
