"""The papers' whole loop: a planner plans batch after batch, plans reach the ranks through a store, the ranks run them,
step an optimizer between, and train exactly as the model in one piece does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is the executor extra")

import torch
import torch.distributed as dist
from searcher.planner_jobs import MODELS
from torch import nn

import semu
from semu.executor import FakeWorld, PipelineModel, Runner, run_threads, split_model
from semu.executor.delivery import publish_plans, received_plans
from semu.executor.demo.model import DemoModel, run_unpipelined
from semu.plan.compile import compile_plan
from semu.plan.plan import ExecutionPlan

torch.set_num_threads(1)
RATE = 0.05


def small(plan: ExecutionPlan) -> DemoModel:
    """One model for all plans, whatever they cut: images, captions and clips run one by one."""
    names = {chunk.module for chunk in plan.chunks}
    return DemoModel(plan, width=8, rows=2, may_cut=frozenset(names if "dit" in names else names - {"llm"}))


def step(parameters: list[nn.Parameter]) -> None:
    with torch.no_grad():
        for parameter in parameters:
            if parameter.grad is not None:
                parameter -= RATE * parameter.grad
                parameter.grad = None


@pytest.mark.slow
@pytest.mark.parametrize(("make", "stream"), MODELS)
def test_training_by_a_new_plan_every_iteration(make: Any, stream: Any) -> None:
    count = 3
    seen: list[ExecutionPlan] = []
    with semu.Planner(make(), stream(count), rollouts=10, patience_s=None) as planner:

        def plans() -> Iterator[ExecutionPlan]:
            for planned in planner:
                assert planned.problem is not None
                seen.append(compile_plan(planned.problem.simulated(planned.plan)))
                yield seen[-1]

        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        first = compile_plan(semu.search(make(), rollouts=10))
        ranks = first.num_ranks * first.num_replicas
        connections = [dist.TCPStore("127.0.0.1", store.port, is_master=False) for _ in range(ranks)]
        publisher = threading.Thread(target=publish_plans, args=(store, plans(), ranks), daemon=True)
        publisher.start()

        def work(mine: Any) -> list[float]:
            place = mine.rank * mine.num_replicas + mine.replica
            losses, own = [], None
            for plan in received_plans(connections[place], ranks, timeout_s=300):
                with lock:  # another batch: data of other sizes for the same layers
                    modules = small(plan).modules(mine.replica)
                if own is None:
                    own = split_model(plan, modules, mine.rank)
                model = PipelineModel(modules, own.chunks, None, plan.model_hash, own.skeletons)
                losses.append(Runner(model, mine, timeout_s=300).run(plan).loss())
                step(own.parameters())
            return losses

        lock = threading.Lock()
        found = run_threads(FakeWorld(first.num_ranks, first.num_replicas), work)
        publisher.join(300)
    assert len(seen) == count
    assert len({plan.model_hash for plan in seen}) == 1
    assert len({plan.pairs.items.tobytes() for plan in seen}) > 1
    losses = [sum(own[i] for own in found) for i in range(count)]
    assert losses == pytest.approx(in_one_piece(seen), rel=1e-9)


def in_one_piece(plans: list[ExecutionPlan]) -> list[float]:
    """Losses of the same training without a pipeline."""
    losses = []
    trained: dict[str, torch.Tensor] = {}
    for plan in plans:
        reference = run_unpipelined(small(plan), trained)
        losses.append(reference.loss)
        for name, parameter in reference.parameters.items():
            gradient = reference.gradients.get(name)
            trained[name] = parameter if gradient is None else parameter - RATE * gradient
    return losses
