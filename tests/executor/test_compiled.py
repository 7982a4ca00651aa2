"""Compiled plans, executed: what the simulator scheduled runs, and makes the gradients of the model in one piece."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is the executor extra")

import torch
from plan.test_compile import family_job
from simulation.jobs import job_of, vlm, vlm_items
from simulation.schedules.test_stage_plan import random_case

import semu
from semu.executor import FakeWorld, Runner, run_threads, split_model
from semu.executor.demo.model import DemoModel, gradients_of, run_unpipelined
from semu.executor.demo.scaled import with_fewer_layers
from semu.parallel.config import Parallel
from semu.plan.compile import compile_plan
from semu.plan.plan import ExecutionPlan
from semu.plan.verification.rules import verify
from semu.runfile import load_run
from semu.schedule.registry import ALL_SCHEDULES
from semu.simulation import prepare

torch.set_num_threads(1)


def demonstrate(plan: ExecutionPlan, fewer_layers: int = 1) -> ExecutionPlan:
    """Execute a plan on small layers and compare."""
    verify(plan)
    plan = with_fewer_layers(plan, fewer_layers)
    model = DemoModel(plan, width=8, rows=2)
    modules = [model.modules(replica) for replica in range(plan.num_replicas) for _ in range(plan.num_ranks)]

    def work(mine: Any) -> tuple[float, dict[str, torch.Tensor]]:
        own = modules[mine.replica * plan.num_ranks + mine.rank]
        part = split_model(plan, own, mine.rank)
        result = Runner(part, mine, timeout_s=180).run(plan)
        return result.loss(), gradients_of(plan, part.chunks)

    found = run_threads(FakeWorld(plan.num_ranks, plan.num_replicas), work)
    reference = run_unpipelined(model)
    assert abs(sum(loss for loss, _ in found) - reference.loss) < 1e-9 * max(1.0, abs(reference.loss))
    seen = set()
    for _, gradients in found:
        for name, gradient in gradients.items():
            expected = reference.gradients.get(name, torch.zeros_like(gradient))
            torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")
            seen.add(name)
    assert seen >= set(reference.gradients) and len(seen) > 5
    return plan


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ALL_SCHEDULES))
def test_every_schedule_family(name: str) -> None:
    demonstrate(compile_plan(prepare(family_job(name))))


@pytest.mark.parametrize("frozen", [(), ("vit",)])
def test_frozen_encoders_and_a_microbatch_without_images(frozen: tuple[str, ...]) -> None:
    job = job_of(vlm(layers=4, frozen=frozen), vlm_items(3, seed=4, empty=(1,)), Parallel(pp=2))
    plan = demonstrate(compile_plan(prepare(job)))
    assert any(not chunk.has_backward for chunk in plan.chunks) is bool(frozen)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(15))
def test_random_jobs_and_plans(seed: int) -> None:
    """Modules, chunks, sub-microbatches, variants, replicas and orders at random, as the simulation's own tests draw
    them."""
    job, stage_plan = random_case(Random(seed))
    demonstrate(compile_plan(prepare(job, plan=stage_plan)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vlm-s", "t2v-s"])
def test_searched_plans(name: str) -> None:
    """Unequal sub-microbatches and memory strategies of a search within a third of the memory."""
    found = semu.search(load_run(name), rollouts=20, seed=0, memory_limit_bytes=30 << 30)
    plan = demonstrate(compile_plan(found, memory_limit_bytes=31 << 30), fewer_layers=8)  # room for receive buffers
    parts = plan.pairs.part
    assert parts.max() > 0
    words = {word for chunk in plan.chunks for own in chunk.variants for word in own}
    assert len(words) > 1
