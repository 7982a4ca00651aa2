"""Schedules of torch.distributed.pipelining: out and in again, and the rule that fails where one does not fit."""

from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.legal_plans import Module, build_plan, chain_in_order, chain_plan, has_losses_in_order, spelled

from semu.errors import ScheduleError
from semu.plan.plan import ExecutionPlan
from semu.plan.torch_schedule import (
    TorchRule,
    plan_to_torch_csv,
    schedule_from_torch_csv,
    schedule_to_torch_csv,
)
from semu.schedule.registry import ALL_SCHEDULES
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape

FITTING = [
    "gpipe",
    "1f1b",
    "interleaved",
    "looped-bfs",
    "zb-h1",
    "zb-h2",
    "zb-v",
    "interleaved-zb",
    "dualpipe-v",
    "v-half",
]


@pytest.mark.parametrize("name", FITTING)
def test_schedules_come_back_as_they_were(name: str) -> None:
    family = ALL_SCHEDULES[name]
    sizes = [(p, m, v) for p in (2, 4) for m in (4, 8) for v in (1, 2) if family.misfit(p, m, v) is None]
    assert sizes
    for p, m, v in sizes:
        shape = family.shape(p, m, v)
        schedule = family(shape)
        found, its = schedule_from_torch_csv(schedule_to_torch_csv(schedule, shape), schedule.name)
        assert found == schedule
        assert (its.chunk_rank, its.sources, its.num_microbatches) == (shape.chunk_rank, shape.sources, m)


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 4), st.integers(1, 2))
def test_plans_come_back_with_their_order(seed: int, ranks: int, microbatches: int, slots: int) -> None:
    plan = chain_in_order(ranks, microbatches, seed, slots)
    short = schedule_from_torch_csv(plan_to_torch_csv(plan))
    long = schedule_from_torch_csv(plan_to_torch_csv(plan, communication=True))
    assert short == long
    assert [len(order) for order in short[0].orders] == [int((own.kind < 4).sum()) for own in plan.actions]


def test_launches_are_written_where_they_are() -> None:
    plan = spelled(chain_plan(2, 1), ["F0 s0 S0 r1 R1 B0", "r0 R0 F1 I1 s1 W1 S1"])
    assert plan_to_torch_csv(plan) == "0F0,0B0\n1F0,1I0,1W0\n"
    assert plan_to_torch_csv(plan, communication=True) == (
        "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,1I0,1SEND_B0,1W0,1REDUCE_GRAD\n"
    )


def modules_plan(*modules: Module) -> ExecutionPlan:
    return build_plan(Random(0), modules, 2)


def in_order(*modules: Module) -> ExecutionPlan:
    """Such a plan with the last chunk's forwards in the order of the microbatches."""
    return next(plan for seed in range(999) if has_losses_in_order(plan := build_plan(Random(seed), modules, 2)))


def test_an_encoder_before_a_backbone_fits_as_a_chain() -> None:
    plan = in_order(Module("vit", [0], [1, 1], True), Module("lm", [1, 0], [1, 1], True, ["vit"]))
    schedule, shape = schedule_from_torch_csv(plan_to_torch_csv(plan))
    assert shape.chunk_rank == (0, 1, 0)
    assert sum(map(len, schedule.orders)) >= 12


@pytest.mark.parametrize(
    ("modules", "rule", "where", "got"),
    [
        (
            [Module("a", [0], [1], True), Module("b", [1], [1], True), Module("lm", [0], [1], True, ["a", "b"])],
            TorchRule.CHAIN,
            "random: chunk 1 (b)",
            "it reads none",
        ),
        (
            [Module("vit", [0], [1, 1], False), Module("lm", [1], [1, 1], True, ["vit"])],
            TorchRule.BACKWARD,
            "random: chunk 0 (vit)",
            "it has none",
        ),
        (
            [Module("vit", [0], [1, 3], True), Module("lm", [1], [1, 1], True, ["vit"])],
            TorchRule.EQUAL_COUNTS,
            "random: chunk 0 (vit), microbatch 1",
            "3 parts",
        ),
        (
            [Module("vit", [0], [1, 0], True), Module("lm", [1], [1, 1], True, ["vit"])],
            TorchRule.EQUAL_COUNTS,
            "random: chunk 0 (vit), microbatch 1",
            "0 parts",
        ),
        ([Module("lm", [0, 0], [1], True)], TorchRule.EVERY_RANK, "random: rank 1", "none"),
    ],
)
def test_the_rule_that_fails_is_named(modules: list[Module], rule: TorchRule, where: str, got: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        plan_to_torch_csv(modules_plan(*modules))
    assert rule in caught.value.message
    assert (caught.value.where, caught.value.got, caught.value.exit_code) == (where, got, 4)


def test_two_copies_of_a_model_are_no_chain() -> None:
    family = ALL_SCHEDULES["chimera"]
    shape = family.shape(4, 4, 1) if family.misfit(4, 4, 1) is None else family.shape(4, 4, 2)
    with pytest.raises(ScheduleError) as caught:
        schedule_to_torch_csv(family(shape), shape)
    assert any(rule in caught.value.message for rule in (TorchRule.CHAIN, TorchRule.EQUAL_COUNTS))


@pytest.mark.parametrize(
    ("text", "message", "where"),
    [
        ("0F0,0B0\n0F1,0B1\n", TorchRule.ONE_COPY, "csv: rank 1, position 0"),
        ("0F0,0B0\n2F0,2B0\n", TorchRule.EQUAL_COUNTS, "csv"),
        ("0F0,0F1,0B0,0B1\n1F0,1B0\n", TorchRule.EQUAL_COUNTS, "csv: rank 1"),
        ("0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n", TorchRule.BACKWARD, "csv: rank 0"),
        ("0F0,0B0,1F0,1B0\n", "deadlocks", "csv"),
        ("0F0,0F1,0B0,0B1\n1F1,1B1,1F0,1B0\n", TorchRule.LOSS_ORDER, "csv: rank 1, chunk 1"),
        ("0F0,1F0,1B0,0B0\n,\n", TorchRule.EVERY_RANK, "csv: rank 1"),
        ("", TorchRule.EQUAL_COUNTS, "csv"),
        ("0F0,0X0\n", "not a stage", "csv: rank 0, position 1"),
        ("0F0,0I0\n", "a stage is missing", "csv: rank 0"),
    ],
)
def test_what_is_no_schedule_of_torch_is_refused(text: str, message: str, where: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        schedule_from_torch_csv(text)
    assert message in caught.value.message
    assert caught.value.where == where


def test_losses_are_kept_in_the_order_of_microbatches() -> None:
    plan = spelled(chain_plan(1, 2), ["F1 B1 F0 B0"])
    with pytest.raises(ScheduleError, match=re.escape(TorchRule.LOSS_ORDER)):
        plan_to_torch_csv(plan)
    shape = PipelineShape.chain(1, 2)
    with pytest.raises(ScheduleError, match=re.escape(TorchRule.LOSS_ORDER)) as caught:
        schedule_to_torch_csv(Schedule.from_text("0F1 0B1 0F0 0B0", "back"), shape)
    assert (caught.value.expected, caught.value.got) == ("0F0", "0F1")


def test_an_illegal_schedule_is_not_exported() -> None:
    shape = PipelineShape.chain(2, 1)
    with pytest.raises(ScheduleError, match="deadlocks"):
        schedule_to_torch_csv(Schedule.from_text("0B0 0F0\n1F0 1B0"), shape)
