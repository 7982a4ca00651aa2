"""torch's own pipeline runtime executes exported schedules, with the gradients of the model that no pipeline runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plan.legal_plans import chain_in_order
from plan.torch_worker import build, data, run_rank

from semu.plan.torch_schedule import plan_to_torch_csv, schedule_to_torch_csv
from semu.plan.verification.rules import verify
from semu.schedule.registry import ALL_SCHEDULES

torch = pytest.importorskip("torch", reason="needs torch (the extra semu[executor])", exc_type=ImportError)
pytest.importorskip("torch.distributed.pipelining", reason="needs torch.distributed.pipelining", exc_type=ImportError)

Job = tuple[str, str, list[int], int]
"""CSV, its form, ranks of the stages, microbatches."""


def of_schedule(name: str, p: int, m: int, v: int) -> Job:
    family = ALL_SCHEDULES[name]
    shape = family.shape(p, m, v)
    return schedule_to_torch_csv(family(shape), shape), "compute_only", list(shape.chunk_rank), m


def of_plan(p: int, m: int, v: int, seed: int, *, communication: bool) -> Job:
    plan = chain_in_order(p, m, seed, v)
    assert verify(plan).num_messages
    form = "compute_comms" if communication else "compute_only"
    return plan_to_torch_csv(plan, communication=communication), form, [chunk.rank for chunk in plan.chunks], m


def execute(jobs: list[Job], num_ranks: int, folder: Path) -> None:
    """Run CSVs in torch's runtime on as many processes as they have ranks; compare losses and all gradients."""
    import torch.multiprocessing as processes

    (folder / "jobs.json").write_text(json.dumps(jobs))
    processes.spawn(run_rank, (num_ranks, str(folder)), nprocs=num_ranks)
    for number, (text, _, ranks, num_microbatches) in enumerate(jobs):
        layers, (inputs, targets) = build(len(ranks)), data(num_microbatches)
        loss = torch.nn.functional.mse_loss(torch.nn.Sequential(*layers)(inputs), targets)
        loss.backward()
        expected = {f"{i}.{name}": p.grad for i, layer in enumerate(layers) for name, p in layer.named_parameters()}
        found, losses = {}, []
        for rank in range(num_ranks):
            part = torch.load(folder / f"{number}-{rank}.pt")
            found.update(part["gradients"])
            losses += part["losses"]
        assert found.keys() == expected.keys(), text
        for name, gradient in expected.items():
            assert float(gradient.abs().max()) > 0
            torch.testing.assert_close(found[name], gradient, rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(torch.stack(losses).mean(), loss.detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_torch_executes_schedules_and_plans_on_two_ranks(tmp_path: Path) -> None:
    jobs = [of_schedule(*row) for row in (("gpipe", 2, 3, 1), ("interleaved", 2, 4, 2), ("zb-v", 2, 4, 2))]
    jobs += [of_plan(2, 3, v, seed, communication=c) for seed, v in ((1, 1), (2, 2), (3, 1)) for c in (False, True)]
    execute(jobs, 2, tmp_path)


@pytest.mark.slow
@pytest.mark.multiprocess
def test_torch_executes_schedules_on_three_ranks(tmp_path: Path) -> None:
    jobs = [of_schedule(*row) for row in (("1f1b", 3, 4, 1), ("zb-h1", 3, 4, 1))]
    execute([*jobs, of_plan(3, 2, 1, 4, communication=True)], 3, tmp_path)
