"""Exchanges: the ranks of a gang meet before each of its stages, in compiled plans and under the verifier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from plan.legal_plans import EXCHANGE, EXCHANGE_GRADIENT, Act, B, F, listed, with_actions

import semu
from semu.errors import PlanError, ScheduleError
from semu.plan.compile import compile_plan
from semu.plan.plan import ExecutionPlan
from semu.plan.verification.fault import Fault
from semu.plan.verification.rules import verify
from semu_models.text.decoder import decoder_model
from semu_models.text.gpt import GPT, GPTConfig


def job(schedule: str = "1f1b", receives: int = 16, **sizes: object) -> semu.TrainingJob:
    parallel = semu.Parallel(**{"dp": 2, "pp": 4, "vocabulary": "pipeline", **sizes})  # type: ignore[arg-type]
    training = semu.Training(global_batch=12, seq_len=256, micro_batch=1, schedule=schedule)
    model = decoder_model("gpt", GPT(GPTConfig(8, 256, 8, vocab=4096, positions=256)))
    return semu.TrainingJob(model, semu.Cluster("a800", 1, parallel.num_gpus), parallel, training)


SCHEDULES = [("1f1b", {}), ("eager-1f1b", {}), ("zb-h1", {}), ("zb-v", {"vpp": 2, "placement": "v-shape"})]


@pytest.mark.parametrize("receives", [0, 16])
@pytest.mark.parametrize(("schedule", "sizes"), SCHEDULES)
def test_compiled_plans_meet_before_every_stage_of_a_gang(
    schedule: str, sizes: dict[str, object], receives: int
) -> None:
    own = job(schedule, **sizes)
    plan = compile_plan(own, receives_ahead=receives)
    verify(plan)
    pairs = plan.pairs.chunk.tolist()
    meetings: dict[tuple[object, int, int], set[float]] = {}
    assert plan.estimates is not None
    for rank, actions in enumerate(listed(plan)):
        kinds = [(kind, target) for kind, target, _ in actions]
        for before, (kind, target) in pairwise(kinds):
            if plan.chunks[pairs[target]].gang >= 0 and kind in (F, B):
                assert before == (EXCHANGE if kind is F else EXCHANGE_GRADIENT, target)
        for at, (kind, target) in enumerate(kinds):
            if kind in (F, B) and plan.chunks[pairs[target]].gang >= 0:
                key = kind, plan.chunks[pairs[target]].gang, int(plan.pairs.microbatch[target])
                meetings.setdefault(key, set()).add(plan.estimates.start_s[rank][at])
    assert len(meetings) == 2 * 2 * own.num_microbatches
    assert all(len(starts) == 1 for starts in meetings.values()), "members begin together"
    again = ExecutionPlan.from_json(plan.to_json())
    assert again.to_json() == plan.to_json()
    assert "exchange_gradient" in plan.to_text(1)


def edited(edit: Callable[[list[list[Act]]], None]) -> ExecutionPlan:
    plan = compile_plan(job())
    actions = listed(plan)
    edit(actions)
    return with_actions(replace(plan, estimates=None), actions)


def place(actions: list[list[Act]], rank: int, kind: object, number: int = 0) -> int:
    return [at for at, act in enumerate(actions[rank]) if act[0] is kind][number]


def drop(actions: list[list[Act]]) -> None:
    actions[1].pop(place(actions, 1, EXCHANGE))


def repeat(actions: list[list[Act]]) -> None:
    at = place(actions, 1, EXCHANGE)
    actions[1].insert(at, actions[1][at])


def early(actions: list[list[Act]]) -> None:
    at = place(actions, 2, EXCHANGE_GRADIENT)
    actions[2].insert(0, actions[2].pop(at))


def of_a_layer(actions: list[list[Act]]) -> None:
    gangs = {act[1] for act in actions[0] if act[0] is EXCHANGE}
    layer = next(act[1] for act in actions[0] if act[0] is F and act[1] not in gangs)
    actions[0].insert(0, (EXCHANGE, layer, -1))


@pytest.mark.parametrize("change", [drop, repeat, early, of_a_layer])
def test_every_corruption_is_refused(change: Callable[[list[list[Act]]], None]) -> None:
    with pytest.raises(PlanError) as caught:
        verify(edited(change))
    assert caught.value.fault is Fault.EXCHANGE


def test_ranks_that_meet_in_other_orders_deadlock_and_the_cycle_is_told() -> None:
    def swap(actions: list[list[Act]]) -> None:
        a, b = (place(actions, 1, EXCHANGE, number) for number in (0, 1))
        for shift in (0, 1):
            actions[1][a + shift], actions[1][b + shift] = actions[1][b + shift], actions[1][a + shift]

    with pytest.raises(PlanError) as caught:
        verify(edited(swap))
    assert caught.value.fault is Fault.DEADLOCK
    assert "rank 1 has yet to come" in str(caught.value)


def test_members_on_one_rank_are_refused() -> None:
    plan = compile_plan(job())
    chunks = list(plan.chunks)
    chunks[1] = replace(chunks[1], rank=0)
    with pytest.raises(ScheduleError, match="ranks of their own"):
        replace(plan, chunks=tuple(chunks), estimates=None)
