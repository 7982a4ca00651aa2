"""Several virtual stages per rank: Megatron's order told anew, closed forms, PyTorch's schedules token by token."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule.shapes import all_stages, sends, simulate

from semu.errors import ScheduleError
from semu.graph.operator import Phase
from semu.schedule import SCHEDULES
from semu.schedule.schedule import PipelineShape, Schedule, StageKey

F, B = Phase.FORWARD, Phase.BACKWARD
SIZES = [(p, m, v) for p in range(1, 6) for m in range(p, 13, p) for v in range(1, 5)]
FORWARD_S, BACKWARD_S = 3.0, 7.0


# -- Megatron's rule, told anew --------------------------------------------------------------------------------------
def megatron_order(p: int, m: int, v: int, rank: int) -> list[str]:
    """Megatron-LM's forward_backward_pipelining_with_interleaving, as a table of (microbatch, model chunk) per step.

    The table goes through p microbatches on the first model chunk, the same ones on the second and so on, then to the
    next p. Forward k takes row k; backward k takes row k with the model chunks counted from the last. There are
    2 (p - rank - 1) + (v - 1) p forwards before the first backward's own forward, or as many as there are.
    """
    table = []
    for first in range(0, m, p):
        for model_chunk in range(v):
            table += [(microbatch, model_chunk) for microbatch in range(first, first + p)]
    forwards = [f"{model_chunk * p + rank}F{microbatch}" for microbatch, model_chunk in table]
    backwards = [f"{(v - 1 - model_chunk) * p + rank}B{microbatch}" for microbatch, model_chunk in table]
    warm_up = min((p - rank - 1) * 2 + (v - 1) * p, len(table))
    steady = [word for pair in zip(forwards[warm_up:], backwards, strict=False) for word in pair]
    return forwards[:warm_up] + steady + backwards[len(table) - warm_up :]


@pytest.mark.parametrize("name", ["1f1b", "interleaved"])
def test_the_order_is_megatrons(name: str) -> None:
    for p, m, v in SIZES:
        if v > 1:
            schedule = SCHEDULES[name](PipelineShape.chain(p, m, v))
            assert [[str(s) for s in order] for order in schedule.orders] == [
                megatron_order(p, m, v, rank) for rank in range(p)
            ]


def test_the_case_of_the_papers_figure_4() -> None:
    """4 devices with 2 chunks each, 8 microbatches (2104.04473 Fig. 4), first and last device written out."""
    first, *_, last = SCHEDULES["interleaved"](PipelineShape.chain(4, 8, 2)).to_text().splitlines()
    assert first == (
        "0F0 0F1 0F2 0F3 4F0 4F1 4F2 4F3 0F4 0F5 0F6 4B0 0F7 4B1 4F4 4B2 4F5 4B3 4F6 0B0 4F7 0B1 "
        "0B2 0B3 4B4 4B5 4B6 4B7 0B4 0B5 0B6 0B7"
    )
    assert last == (
        "3F0 3F1 3F2 3F3 7F0 7B0 7F1 7B1 7F2 7B2 7F3 7B3 3F4 3B0 3F5 3B1 3F6 3B2 3F7 3B3 "
        "7F4 7B4 7F5 7B5 7F6 7B6 7F7 7B7 3B4 3B5 3B6 3B7"
    )


def test_one_virtual_stage_is_plain_1f1b() -> None:
    for p, m, v in SIZES:
        if v == 1:
            shape = PipelineShape.chain(p, m)
            assert SCHEDULES["interleaved"](shape).orders == SCHEDULES["1f1b"](shape).orders


def test_microbatches_come_in_groups_of_ranks() -> None:
    with pytest.raises(ScheduleError, match="groups of as many as there are ranks") as caught:
        SCHEDULES["1f1b"](PipelineShape.chain(4, 6, 2))
    assert (caught.value.got, caught.value.nearest) == (6, 4)


# -- closed forms ----------------------------------------------------------------------------------------------------
@pytest.mark.paper
@pytest.mark.parametrize("name", SCHEDULES)
def test_makespan_and_bubble_of_equal_stages(name: str) -> None:
    """2104.04473 §2.2.2: the bubble is v times smaller: (p - 1) / (m v + p - 1) of the time."""
    for p, m, v in SIZES:
        shape = PipelineShape.chain(p, m, v)
        schedule = SCHEDULES[name](shape)
        schedule.validate(shape)
        stage_s = {stage: FORWARD_S if stage.phase is F else BACKWARD_S for stage in all_stages(shape)}
        send_s = {(stage, chunk): 0.0 for stage in stage_s for chunk in sends(shape, stage)}
        times = simulate(schedule, shape, stage_s, send_s, overlapped_sends=True)
        makespan = max(end for _, end in times.stages.values())
        assert makespan == (m * v + p - 1) * (FORWARD_S + BACKWARD_S)
        busy = sum(end - start for start, end in times.stages.values())
        assert 1 - Fraction(busy) / (p * Fraction(makespan)) == Fraction(p - 1, m * v + p - 1)


@pytest.mark.paper
def test_activations_in_flight() -> None:
    """A rank holds one virtual stage more than it warms up with; breadth first, all. 2205.05198 §4.2.3: the first rank
    holds L (1 + (p - 1) / (p v)) layers."""
    for p, m, v in SIZES:
        shape = PipelineShape.chain(p, m, v)
        for rank in range(p):
            warm_up = 2 * (p - rank - 1) + (v - 1) * p if v > 1 else p - rank - 1
            assert most_held(SCHEDULES["interleaved"](shape), rank) == min(m * v, warm_up + 1)
            assert most_held(SCHEDULES["gpipe"](shape), rank) == m * v
        if v > 1 and m > p:
            layers = Fraction(most_held(SCHEDULES["interleaved"](shape), 0), p * v)
            assert layers == 1 + Fraction(p - 1, p * v)


def most_held(schedule: Schedule, rank: int) -> int:
    held = most = 0
    for stage in schedule.orders[rank]:
        held += 1 if stage.phase is F else -1
        most = max(most, held)
    return most


# -- any model ---------------------------------------------------------------------------------------------------------
@st.composite
def models(draw: st.DrawFn) -> PipelineShape:
    """Groups dealt to the ranks in turn; some hold several chunks; edges may skip groups; a frozen beginning."""
    p, v = draw(st.integers(2, 4)), draw(st.integers(2, 3))
    group = sorted([*range(p * v), *draw(st.lists(st.integers(0, p * v - 1), max_size=3))])
    frozen = draw(st.integers(0, len(group)))
    skips = [draw(st.sets(st.integers(0, chunk - 1), max_size=1)) if chunk else set() for chunk in range(len(group))]
    return PipelineShape(
        p,
        p * draw(st.integers(1, 3)),
        tuple(g % p for g in group),
        tuple(tuple(sorted({chunk - 1} | skips[chunk])) if chunk else () for chunk in range(len(group))),
        tuple(chunk >= frozen for chunk in range(len(group))),
        tuple(g // p for g in group),
    )


@pytest.mark.parametrize("name", SCHEDULES)
@given(shape=models())
def test_legal_with_several_chunks_in_a_virtual_stage_and_frozen_ones(name: str, shape: PipelineShape) -> None:
    schedule = SCHEDULES[name](shape)
    schedule.validate(shape)
    planned = [stage for order in schedule.orders for stage in order]
    assert sorted(map(str, planned)) == sorted(map(str, all_stages(shape)))


@given(shape=models())
def test_the_chunks_of_a_virtual_stage_run_together(shape: PipelineShape) -> None:
    for rank, order in enumerate(SCHEDULES["1f1b"](shape).orders):
        forwards = [stage for stage in order if stage.phase is F]
        while forwards:
            head = forwards[0]
            together = [
                StageKey(chunk, F, head.microbatch)
                for chunk in range(shape.num_chunks)
                if (shape.chunk_rank[chunk], shape.chunk_slot[chunk]) == (rank, shape.chunk_slot[head.chunk])
            ]
            assert forwards[: len(together)] == together
            forwards = forwards[len(together) :]


def test_slots_are_checked_and_default_to_one() -> None:
    shape = PipelineShape(2, 1, (0, 1), ((), (0,)), (True, True))
    assert (shape.chunk_slot, shape.num_slots) == ((0, 0), 1)
    assert PipelineShape.chain(2, 1, 3).chunks_of(1, 2) == [5]
    assert PipelineShape.chain(2, 1, 3).chunks_of(1) == [1, 3, 5]
    for slots in ((0,), (0, -1)):
        with pytest.raises(ScheduleError, match="not a slot for every chunk"):
            PipelineShape(2, 1, (0, 1), ((), (0,)), (True, True), slots)


# -- PyTorch -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("theirs", "name"), [("ScheduleInterleaved1F1B", "1f1b"), ("ScheduleLoopedBFS", "gpipe")])
def test_orders_are_pytorchs(theirs: str, name: str) -> None:
    """``torch.distributed.pipelining``'s tables of actions, without their idle steps."""
    pipelining = pytest.importorskip("torch.distributed.pipelining", reason="PyTorch is not installed")
    for p, m, v in SIZES:
        if min(p, v) < 2:
            continue
        schedule = object.__new__(getattr(pipelining, theirs))  # a real one asks for processes
        schedule.pp_group_size, schedule.n_local_stages, schedule._stages = p, v, [None] * v
        schedule._n_microbatches, schedule.number_of_rounds, schedule.microbatches_per_round = m, m // p, p
        actions = [schedule._calculate_single_rank_operations(rank) for rank in range(p)]
        text = "\n".join(" ".join(str(action) for action in row if action is not None) for row in actions)
        assert text == SCHEDULES[name](PipelineShape.chain(p, m, v)).to_text()
