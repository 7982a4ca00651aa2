"""Measures whole training steps: time of forward, backward and optimizer, and peak memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from calibration.bench import DTYPES, Bench, CpuStopwatch, CudaStopwatch
from calibration.step.torch_model import Decoder
from calibration.step.torch_towers import Diffusion, Tower, TwoTowers
from calibration.steps import CLIP_POSITIONS, CLIP_VOCAB, DIT_FEATURES, DIT_TIMESTEP, StepCase
from calibration.table import Value, with_remarks
from calibration.timing import time_calls

PARTS = ("forward", "backward", "optimizer")
MODELS: dict[str, Callable[[StepCase], Any]] = {"vit": Tower, "dit": Diffusion, "two_tower": TwoTowers}
"""Of scopes other than decoders'."""


class Step:
    """One training step, again and again on the same data.

    Gradients stay allocated and are added to, as in frameworks with static gradient buffers.

    Args:
        bench: the device. case: what to train.
    """

    def __init__(self, bench: Bench, case: StepCase) -> None:
        with torch.device(bench.device):
            self.model = MODELS.get(case.scope, Decoder)(case).to(DTYPES[case.dtype])
        self.call = torch.compile(self.model) if case.compiled else self.model
        self.data = _data(bench, case)
        given = case.scope in ("layer", "vit")
        shape = (case.micro_batch, case.seq_len, case.hidden)
        self.gradient = bench.random(*shape, dtype=case.dtype) if given else None
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-5, **{case.optimizer: True})

    def forward(self) -> Any:
        """To the loss, or to the layer's output."""
        return self.call(*self.data)

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


def _data(bench: Bench, case: StepCase) -> tuple[Any, ...]:
    """What a model of this scope reads."""
    shape = (case.micro_batch, case.seq_len)
    if case.vocab:
        return bench.integers(case.vocab, *shape), bench.integers(case.vocab, *shape)
    if case.scope == "dit":
        tokens = bench.random(*shape, DIT_FEATURES, dtype=case.dtype)
        noise = bench.random(*shape, 2 * DIT_FEATURES, dtype=case.dtype)
        return tokens, bench.random(case.micro_batch, DIT_TIMESTEP, dtype=case.dtype), noise
    if case.scope == "two_tower":
        patches = bench.random(*shape, case.patch_features, dtype=case.dtype)
        return patches, bench.integers(CLIP_VOCAB, case.micro_batch, CLIP_POSITIONS)
    return (bench.random(*shape, case.hidden, dtype=case.dtype),)


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
        "note": with_remarks(case.note, bench.policy.label, timing.note()),
    }
