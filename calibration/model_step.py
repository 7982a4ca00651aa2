"""Measures whole training steps: time of forward, backward and optimizer, and peak memory."""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from calibration.bench import DTYPES, Bench, CpuStopwatch, CudaStopwatch
from calibration.steps import StepCase
from calibration.table import Value, with_remarks
from calibration.timing import time_calls
from calibration.torch_model import Decoder

PARTS = ("forward", "backward", "optimizer")


class Step:
    """One training step, again and again on the same data.

    Gradients stay allocated and are added to, as in frameworks with static gradient buffers.

    Args:
        bench: the device. case: what to train.
    """

    def __init__(self, bench: Bench, case: StepCase) -> None:
        with torch.device(bench.device):
            self.model = Decoder(case).to(DTYPES[case.dtype])
        self.data: tuple[Any, ...]
        shape = (case.micro_batch, case.seq_len)
        if case.vocab:
            self.data = (bench.integers(case.vocab, *shape), bench.integers(case.vocab, *shape))
            self.gradient = None
        else:
            self.data = (bench.random(*shape, case.hidden, dtype=case.dtype),)
            self.gradient = bench.random(*shape, case.hidden, dtype=case.dtype)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-5, **{case.optimizer: True})

    def forward(self) -> Any:
        """To the loss, or to the layer's output."""
        return self.model(*self.data)

    def backward(self, result: Any) -> None:
        """From the loss, or from a given gradient of the output."""
        result.backward(self.gradient)

    def update(self) -> None:
        """Adam, then gradients to zero."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)

    def whole(self) -> None:
        """All three."""
        self.backward(self.forward())
        self.update()


def _marks(bench: Bench) -> Any:
    """A point in time: an event on the device's stream, or the host's clock."""
    if not bench.is_cuda:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between(first: Any, second: Any) -> float:
    """Seconds between two points in time."""
    return float(second - first if isinstance(first, float) else first.elapsed_time(second) * 1e-3)


def _parts_s(bench: Bench, step: Step, count: int) -> dict[str, float]:
    """Median times of the parts over ``count`` steps, issued without a pause [s]."""
    marks = []
    for _ in range(count):
        begin = _marks(bench)
        result = step.forward()
        middle = _marks(bench)
        step.backward(result)
        del result
        late = _marks(bench)
        step.update()
        marks.append((begin, middle, late, _marks(bench)))
    if bench.is_cuda:
        torch.cuda.synchronize(bench.device)
    return {name: median(_between(row[i], row[i + 1]) for row in marks) for i, name in enumerate(PARTS)}


def measure_step(bench: Bench, case: StepCase) -> dict[str, Value]:
    """A row of ``model_steps.csv``.

    Args:
        bench: the device. case: what to train.
    Returns:
        The row without ``source``; memory is empty on a CPU.
    """
    step = Step(bench, case)
    longer = replace(bench.policy, round_s=60 * bench.policy.round_s, max_calls=50, rounds=5, window=2, max_warm_s=5.0)
    policy = longer if bench.is_cuda else bench.policy
    stopwatch = CudaStopwatch(leads=False) if bench.is_cuda else CpuStopwatch()
    timing = time_calls(stopwatch, [step.whole], policy)
    memory: dict[str, Value] = dict.fromkeys(("static_bytes", "peak_allocated_bytes", "peak_reserved_bytes"))
    if bench.is_cuda:
        torch.cuda.synchronize(bench.device)
        memory["static_bytes"] = torch.cuda.memory_allocated(bench.device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(bench.device)
    parts = _parts_s(bench, step, 10 if bench.is_cuda else 2)
    if bench.is_cuda:
        memory["peak_allocated_bytes"] = torch.cuda.max_memory_allocated(bench.device)
        memory["peak_reserved_bytes"] = torch.cuda.max_memory_reserved(bench.device)
    return {
        "device": bench.name,
        **case.row(),
        "parameters": sum(parameter.numel() for parameter in step.model.parameters()),
        **{f"{name}_us": value * 1e6 for name, value in parts.items()},
        "step_us": timing.median_s * 1e6,
        "step_us_min": timing.min_s * 1e6,
        "step_us_max": timing.max_s * 1e6,
        **memory,
        "note": with_remarks("torch eager", bench.policy.label, timing.note()),
    }
