"""One rank of torch's own pipeline runtime, on a schedule read from a CSV; runs in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WIDTH, ROWS = 6, 2


def build(num_stages: int) -> Any:
    """The stages of a small model in float64, the same in every process."""
    import torch

    torch.manual_seed(3)
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(num_stages)]
    return [layer.double() for layer in layers]


def data(num_microbatches: int) -> Any:
    import torch

    torch.manual_seed(4)
    shape = (ROWS * num_microbatches, WIDTH)
    return torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)


def run_rank(rank: int, world: int, folder: str) -> None:
    """Execute the schedules of a folder, one after another, and write the gradients of this rank's stages.

    Args:
        folder: with ``jobs.json``, a list of (CSV, its form, ranks of the stages, microbatches); for the results.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    torch.set_num_threads(1)
    place = Path(folder)
    dist.init_process_group("gloo", init_method=f"file://{place / 'store'}", rank=rank, world_size=world)
    try:
        for number, (text, form, ranks, num_microbatches) in enumerate(json.loads((place / "jobs.json").read_text())):
            layers, (inputs, targets) = build(len(ranks)), data(num_microbatches)
            mine = [stage for stage, owner in enumerate(ranks) if owner == rank]
            stages = [PipelineStage(layers[stage], stage, len(ranks), torch.device("cpu")) for stage in mine]
            schedule = _PipelineScheduleRuntime(stages, num_microbatches, loss_fn=torch.nn.functional.mse_loss)
            file = place / f"{number}-{rank}.csv"
            file.write_text(text)
            schedule._load_csv(str(file), form)
            losses: list[Any] = []
            is_last = len(ranks) - 1 in mine
            arguments = (inputs,) if 0 in mine else ()
            schedule.step(*arguments, target=targets if is_last else None, losses=losses if is_last else None)
            found = {f"{stage}.{name}": p.grad for stage in mine for name, p in layers[stage].named_parameters()}
            torch.save({"gradients": found, "losses": losses}, place / f"{number}-{rank}.pt")
    finally:
        dist.destroy_process_group()
