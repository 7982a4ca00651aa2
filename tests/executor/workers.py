"""What ranks do in processes of their own; at the top of a module, where a new process finds it."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from executor.proof import run_rank
from executor.small_models import SmallModel

from semu.executor import Runner, TorchCommunicator, split_model
from semu.executor.processes import Place
from semu.plan.action import KINDS, ActionKind
from semu.plan.plan import ExecutionPlan


def prove(
    place: Place,
    plan: ExecutionPlan,
    model: SmallModel,
    is_batched: bool | None = None,
    timeout_s: float | None = None,
) -> dict[str, Any]:
    messages = plan.messages
    pairs = zip(messages.source_rank.tolist(), messages.target_rank.tolist(), strict=True)
    communicator = TorchCommunicator(
        plan.num_replicas, timeout_s=place.timeout_s, is_batched=is_batched, pairs=pairs if is_batched else None
    )
    found = run_rank(plan, model, communicator, timeout_s=timeout_s or place.timeout_s)
    return {key: found[key] for key in ("loss", "gradients")}


def fail(place: Place, plan: ExecutionPlan, model: SmallModel, how: str) -> float:
    """Rank 1 goes wrong in its second microbatch."""
    communicator = TorchCommunicator(timeout_s=place.timeout_s)
    part = split_model(plan, model.modules(0), communicator.rank)
    if communicator.rank == 1:
        (chunk,) = part.chunks.values()
        part.chunks = {next(iter(part.chunks)): Faulty(chunk, how)}
    return Runner(part, communicator, timeout_s=place.timeout_s).run(plan).loss()


ERRORS = {"times out": TimeoutError, "loses its connection": ConnectionError}


class Faulty(torch.nn.Module):
    """Runs once, then never again."""

    def __init__(self, chunk: torch.nn.Module, how: str) -> None:
        super().__init__()
        self.chunk, self.how, self.count = chunk, how, 0

    def forward(self, *values: Any) -> Any:
        self.count += 1
        if self.count == 2 and self.how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.count == 2 and self.how == "raises":
            raise ValueError("two is too many")
        if self.count == 2 and self.how in ERRORS:
            raise ERRORS[self.how](f"it {self.how}")
        return self.chunk(*values)


def end_apart(place: Place) -> str:
    """Rank 1 fails when rank 0 has done all its work."""
    if place.world_rank == 1:
        raise ValueError("at the very end")
    return "done"


def without(plan: ExecutionPlan, rank: int, number: int) -> ExecutionPlan:
    """The plan with one message never sent."""
    own = plan.actions[rank]
    sends = (ActionKind.ISEND, ActionKind.WAIT_ISEND)
    kept = [
        not (KINDS[kind] in sends and target == number)
        for kind, target in zip(own.kind.tolist(), own.target.tolist(), strict=True)
    ]
    actions = list(plan.actions)
    actions[rank] = replace(own, kind=own.kind[kept], target=own.target[kept], batch=own.batch[kept])
    return replace(plan, actions=tuple(actions))


def linger(place: Place, folder: str) -> None:
    """Say who this is, and wait for longer than any test."""
    Path(folder, str(place.world_rank)).write_text(str(os.getpid()))
    time.sleep(600)


def die_at(place: Place, plan: ExecutionPlan, model: SmallModel, kind: ActionKind) -> float:
    """Rank 1 is killed when it begins its second action of a kind."""
    communicator = TorchCommunicator(timeout_s=place.timeout_s)
    runner = Runner(split_model(plan, model.modules(0), communicator.rank), communicator, timeout_s=place.timeout_s)
    do, count = runner._do[kind], 0

    def _counted(step: Any) -> None:
        nonlocal count
        count += 1
        if count == 2 and communicator.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        do(step)

    runner._do[kind] = _counted
    return runner.run(plan).loss()
