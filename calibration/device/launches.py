"""What launching kernels costs a host: tiny kernels, and steps whose kernels are shorter than their launches.

A row is wall time from an idle device to an idle device, in eager mode or as one CUDA graph, over the kernels that ran.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from calibration.steps import LAYER_1B, VIT_B, StepCase
from calibration.table import Value, with_remarks

if TYPE_CHECKING:
    from calibration.bench import Bench

MODES = ("eager", "graph")


@dataclass(frozen=True)
class LaunchCase:
    """What is launched.

    Attributes:
        what: ``add`` (tiny additions in place), or part of a step: ``forward``, ``backward``, ``adam foreach`` ....
        mode: of ``MODES``. repeats: of ``add``. step: of the others.
    """

    what: str
    mode: str
    repeats: int = 0
    step: StepCase | None = None

    def row(self) -> dict[str, Value]:
        """Key columns of ``launches.csv``, without ``device``."""
        case = self.step
        return {
            "what": self.what,
            "mode": self.mode,
            "scope": case.scope if case else "",
            "layers": case.layers if case else None,
            "note": "torch",
        }

    def label(self) -> str:
        """For people."""
        return f"{self.what} {self.step.scope if self.step else ''} {self.mode}"


def launch_cases(*, quick: bool = False) -> list[LaunchCase]:
    """What is measured. ``quick``: little of it."""
    decoder = replace(LAYER_1B, hidden=256, ffn=688, heads=4, kv_heads=4, seq_len=128, micro_batch=1, layers=8)
    tower = replace(VIT_B, hidden=256, ffn=1024, heads=4, kv_heads=4, seq_len=64, micro_batch=1, layers=8)
    cases = [LaunchCase("add", mode, 10 if quick else 1000) for mode in MODES]
    for step in (decoder, tower):
        used = replace(step, layers=1) if quick else step
        cases += [LaunchCase(what, mode, step=used) for what in ("forward", "step") for mode in MODES]
        cases += [
            LaunchCase(f"adam {name}", "eager", step=replace(used, optimizer=name)) for name in ("fused", "foreach")
        ]
    return cases


def measure_launches(bench: Bench, case: LaunchCase) -> dict[str, Value]:
    """A row of ``launches.csv`` without ``source``."""
    call = _call(bench, case)
    for _ in range(3):
        call()
    kernels = count_kernels(bench, call)
    if case.mode == "graph":
        call = _captured(bench, call)
    rounds = 20 if bench.is_cuda else 2
    whole, issue = [], []
    for _ in range(rounds):
        _wait(bench)
        begin = time.perf_counter()
        call()
        issued = time.perf_counter()
        _wait(bench)
        whole.append(time.perf_counter() - begin)
        issue.append(issued - begin)
    return {
        "device": bench.name,
        **case.row(),
        "kernels": kernels,
        "time_us": median(whole) * 1e6,
        "issue_us": median(issue) * 1e6,
        "us_per_kernel": median(whole) * 1e6 / kernels,
        "note": with_remarks("torch", bench.policy.label),
    }


def _wait(bench: Bench) -> None:
    import torch

    if bench.is_cuda:
        torch.cuda.synchronize(bench.device)


def _call(bench: Bench, case: LaunchCase) -> Callable[[], object]:
    if case.step is None:
        x = bench.random(1024)

        def _add() -> None:
            for _ in range(case.repeats):
                x.add_(1.0)

        return _add
    from calibration.step.model_step import Step

    step = Step(bench, case.step)
    if case.what == "forward":
        return step.forward
    if case.what == "step":
        return lambda: step.backward(step.forward())
    step.backward(step.forward())
    return step.optimizer.step


def count_kernels(bench: Bench, call: Callable[[], object]) -> int:
    """Kernels that a call launches, by torch's profiler; on a CPU operators, for a dry run."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    activity = ProfilerActivity.CUDA if bench.is_cuda else ProfilerActivity.CPU
    with profile(activities=[activity]) as seen:
        call()
        _wait(bench)
    events: list[Any] = list(seen.events())
    if bench.is_cuda:
        events = [event for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
    return max(1, len(events))


def _captured(bench: Bench, call: Callable[[], object]) -> Callable[[], object]:
    """The call as a graph; on a CPU the call itself."""
    import torch

    if not bench.is_cuda:
        return call
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    replay: Callable[[], object] = graph.replay
    return replay
