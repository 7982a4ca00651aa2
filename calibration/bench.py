"""The device that is measured: a stopwatch on CUDA events or the CPU's clock, random operands, memory limits."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from calibration.timing import Call, Policy, Timing, is_cache_hot, num_copies, time_calls
from semu.errors import ConfigError, ExecutorError

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}
FREE_SHARE = 0.5
"""Of the free device memory, the share that operands may fill."""
CYCLES_PER_S = 2e9
"""Of a multiprocessor, at most."""
MAX_LEAD_CYCLES = 200_000_000
"""Longest wait that is put before a round, about 0.1 s: in it the host queues the round's kernels."""


class CudaStopwatch:
    """Times rounds with CUDA events on the current stream.

    Before the first event the device waits as long as the host needs to issue the round, so that launches cost nothing.

    Args:
        leads: whether it does. meet: called between that wait and the first event, e.g. a collective at which all ranks
            meet; None: nothing.
    """

    def __init__(self, *, leads: bool = True, meet: Callable[[], object] | None = None) -> None:
        self._leads = leads
        self._meet = meet
        self._begin = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)
        self._issue_s = 0.0  # of a round's call, as the host needed it last time

    def round_s(self, calls: Sequence[Call], start: int, count: int) -> float:
        """See ``timing.Stopwatch``."""
        lead = int(min(MAX_LEAD_CYCLES, CYCLES_PER_S * 1.2 * self._issue_s * count))
        if lead and self._leads:
            torch.cuda._sleep(lead)
        if self._meet is not None:
            self._meet()
        self._begin.record()
        begin = time.perf_counter()
        for number in range(start, start + count):
            calls[number % len(calls)]()
        self._issue_s = (time.perf_counter() - begin) / count
        self._end.record()
        self._end.synchronize()
        return self._begin.elapsed_time(self._end) * 1e-3


class CpuStopwatch:
    """Times rounds with the host's clock; ``meet`` as above."""

    def __init__(self, *, leads: bool = True, meet: Callable[[], object] | None = None) -> None:
        self._meet = meet

    def round_s(self, calls: Sequence[Call], start: int, count: int) -> float:
        """See ``timing.Stopwatch``."""
        if self._meet is not None:
            self._meet()
        begin = time.perf_counter()
        for number in range(start, start + count):
            calls[number % len(calls)]()
        return time.perf_counter() - begin


@dataclass
class Bench:
    """What the measurements share.

    Attributes:
        device: ``cuda:0`` or ``cpu``. name: as the tables' column ``device`` has it. policy: of all timings.
        compiled: measure fused element-wise kernels of torch.compile, too. seed: of all operands.
    """

    device: torch.device
    name: str
    policy: Policy
    compiled: bool = False
    seed: int = 0
    generator: torch.Generator = field(init=False)
    stopwatch: CudaStopwatch | CpuStopwatch = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator(device=self.device).manual_seed(self.seed)
        self.stopwatch = CudaStopwatch() if self.is_cuda else CpuStopwatch()

    @property
    def is_cuda(self) -> bool:
        """Whether the figures mean anything."""
        return str(self.device.type) == "cuda"

    @property
    def cache_bytes(self) -> int:
        """Of the L2 cache; 0 on a CPU, whose figures are a dry run."""
        if not self.is_cuda:
            return 0
        return int(getattr(torch.cuda.get_device_properties(self.device), "L2_cache_size", 0)) or 64 << 20

    @property
    def free_bytes(self) -> int:
        """Device memory that operands may fill."""
        return int(torch.cuda.mem_get_info(self.device)[0] * FREE_SHARE) if self.is_cuda else 1 << 28

    def random(self, *shape: int, dtype: str = "bf16", grad: bool = False) -> Any:
        """A tensor of normally distributed values (zeros draw less power)."""
        kind = DTYPES[dtype]
        values = torch.randn(*shape, device=self.device, dtype=kind, generator=self.generator)
        return values.requires_grad_(grad)

    def integers(self, below: int, *shape: int) -> Any:
        """A tensor of int64 values in 0..below - 1."""
        return torch.randint(below, shape, device=self.device, generator=self.generator)

    def time(self, build: Callable[[], Call], set_bytes: int, sets: int | None = None) -> tuple[Timing, str]:
        """Time a call over as many sets of operands as it takes to keep the L2 cache cold.

        Args:
            build: makes a set of operands and the call on it. set_bytes: what a call and its set touch.
            sets: so many instead, whatever the cache holds.
        Returns:
            The timing, and remarks for ``note``.
        Raises:
            ConfigError: the operands do not fit in memory.
        """
        if set_bytes > self.free_bytes:
            raise ConfigError(
                "too large for the device's free memory",
                where=self.name,
                expected=f"at most {self.free_bytes}",
                got=set_bytes,
            )
        copies = sets or num_copies(set_bytes, self.cache_bytes, self.free_bytes)
        timing = time_calls(self.stopwatch, [build() for _ in range(copies)], self.policy)
        hot = "l2=hot" if is_cache_hot(set_bytes, copies, self.cache_bytes) else ""
        return timing, ";".join(word for word in (hot, timing.note()) if word)

    def clean(self) -> None:
        """Give freed memory back to the device.

        Raises:
            ExecutorError: the device has failed; nothing more can be measured in this process.
        """
        gc.collect()
        if not self.is_cuda:
            return
        try:
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
        except RuntimeError as error:
            raise ExecutorError(
                f"the device has failed: {str(error).splitlines()[0]}",
                where=self.name,
                expected="the same command once more, which goes on behind the last row",
            ) from error


def pick_device(name: str) -> torch.device:
    """The device to measure.

    Raises:
        ConfigError: neither ``cpu`` nor ``cuda``, or a GPU that is not there.
    """
    if name not in ("cpu", "cuda"):
        raise ConfigError("no such device", where="--device", expected="cuda or cpu", got=name, nearest="cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "no CUDA device here",
            where="--device",
            expected="a CUDA device, or cpu with --quick for a dry run",
            got=name,
            nearest="--device cpu --quick",
        )
    if name == "cuda":
        return torch.device(name, torch.cuda.current_device())
    torch.set_num_threads(1)  # tiny operands
    return torch.device(name)


def settle(bench: Bench, progress: Callable[[str], None], seconds: float) -> None:
    """Heat the device with large products until their rate is constant.

    Args:
        bench: the device. progress: called with a line per step. seconds: most time to spend [s]; 0: none.
    """
    if not bench.is_cuda or seconds <= 0:
        return
    size = 8192
    a, b = bench.random(size, size), bench.random(size, size)
    policy = Policy(round_s=0.25, warm_s=min(5.0, seconds), window=6, tolerance=0.003, max_warm_s=seconds, rounds=3)
    timing = time_calls(bench.stopwatch, [lambda: torch.mm(a, b)], policy)
    rate = 2 * size**3 / timing.median_s / 1e12
    state = "settled" if timing.settled else "NOT settled"
    progress(f"{state} after {timing.load_s:.0f} s of load: {rate:.0f} TFLOP/s on {size}^3 in bf16")
