"""Runs a plan over threads, and compares loss and every gradient with the unpipelined model's."""

from __future__ import annotations

from typing import Any

import torch
from executor.small_models import SmallModel, named_parameters, unpipelined

from semu.executor import FakeWorld, Runner, run_threads, split_model
from semu.executor.communicator import Communicator
from semu.plan.plan import ExecutionPlan


def run_rank(plan: ExecutionPlan, model: SmallModel, communicator: Communicator, **options: Any) -> dict[str, Any]:
    """Loss and gradients of a rank."""
    modules = model.modules(communicator.replica)
    part = split_model(plan, modules, communicator.rank)
    result = Runner(part, communicator, timeout_s=options.pop("timeout_s", 180.0), **options).run(plan)
    gradients: dict[str, torch.Tensor] = {}
    for number, chunk in part.chunks.items():
        place = plan.chunks[number]
        for key, parameter in chunk.named_parameters():
            if parameter.requires_grad:
                head, _, rest = key.partition(".")
                if head == "layers":
                    at, _, rest = rest.partition(".")
                    head = str(place.first_layer + int(at))
                found = gradients.setdefault(f"{place.module}.{head}.{rest}", parameter.grad)
                assert found is parameter.grad or torch.equal(found, parameter.grad)  # copies of a layer agree
    return {"loss": result.loss(), "gradients": gradients, "recording": result.recording}


def run_fake(plan: ExecutionPlan, model: SmallModel, *, is_eager: bool = False, **options: Any) -> list[dict[str, Any]]:
    world = FakeWorld(plan.num_ranks, plan.num_replicas, is_eager=is_eager)
    return run_threads(world, lambda communicator: run_rank(plan, model, communicator, **options))


def compare(plan: ExecutionPlan, model: SmallModel, ranks: list[dict[str, Any]], cuts: Any = None) -> None:
    """The sum of all losses, and every gradient on every rank that has it."""
    reference = unpipelined(model, plan.num_replicas, cuts)
    assert abs(sum(rank["loss"] for rank in ranks) - reference["loss"]) < 1e-10 * max(1.0, abs(reference["loss"]))
    seen = set()
    for rank in ranks:
        for name, gradient in rank["gradients"].items():
            expected = reference["gradients"][name]
            found = torch.zeros_like(expected) if gradient is None else gradient
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")
            seen.add(name)
    assert seen == set(reference["gradients"])
    assert any(float(gradient.abs().max()) > 1e-3 for gradient in reference["gradients"].values())
    assert len(named_parameters(model.modules(0))) >= len(seen)
