"""Which clock and power a device keeps under load, read from its driver every tenth of a second; nothing is set."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from calibration.table import Value, with_remarks

if TYPE_CHECKING:
    from calibration.bench import Bench

LOADS = ("gemm", "gemm zeros", "attention", "memory", "idle")
QUERY = "clocks.sm,clocks.mem,power.draw,temperature.gpu"


@dataclass(frozen=True)
class ClockCase:
    """A load, ``seconds`` long."""

    load: str
    seconds: float

    def row(self, phase: str) -> dict[str, Value]:
        """Key columns of ``clocks.csv``, without ``device``. phase: ``first 20 ms`` or ``sustained``."""
        return {"load": self.load, "phase": phase, "note": "nvidia-smi"}

    def label(self) -> str:
        """For people."""
        return f"{self.load} for {self.seconds:g} s"


def clock_cases(*, quick: bool = False) -> list[ClockCase]:
    """What is measured."""
    return [ClockCase(load, 0.05 if quick else 5.0 if load != "idle" else 1.5) for load in LOADS]


class Sampler:
    """Reads clocks and power while a load runs; without a driver it reads nothing."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, list[float]]] = []

    def __enter__(self) -> Sampler:
        command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits", "-lms", "100"]
        try:
            self._process: Any = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            self._process = None
            return self
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def _read(self) -> None:
        for line in self._process.stdout:
            try:
                values = [float(word) for word in line.split(",")]
            except ValueError:
                continue
            self.samples.append((time.perf_counter(), values))

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._reader.join()
            self._process.stdout.close()


def measure_clock(bench: Bench, case: ClockCase) -> list[dict[str, Value]]:
    """Rows of ``clocks.csv`` without ``source``: the first 20 ms from an idle device, and the second half of the load.

    ``tflops`` counts products and attention, ``gbps`` bytes read and written.
    """
    call, flop, moved = _load(bench, case.load)
    call()
    stopwatch = bench.stopwatch
    if bench.is_cuda:
        time.sleep(1.0)
    once = stopwatch.round_s([call], 0, 1)
    if bench.is_cuda:
        time.sleep(1.0)
    rows = []
    with Sampler() as sampler:
        if bench.is_cuda:
            time.sleep(0.3)  # the sampler starts
        burst_calls = max(1, int(0.02 / max(once, 1e-6)))
        burst = stopwatch.round_s([call], 0, burst_calls) / burst_calls
        begin = time.perf_counter()
        rounds = []
        count = max(1, int(0.1 / max(once, 1e-6)))
        while time.perf_counter() - begin < case.seconds:
            rounds.append(stopwatch.round_s([call], 0, count) / count)
        end = time.perf_counter()
    late = [values for at, values in sampler.samples if (begin + end) / 2 <= at <= end]
    for phase, elapsed, seen in (
        ("first 20 ms", burst, []),
        ("sustained", median(rounds[len(rounds) // 2 :]), late),
    ):
        middle: list[float | None] = [median(column) for column in zip(*seen, strict=True)] if seen else [None] * 4
        spans: list[Value] = [min(v[0] for v in seen), max(v[0] for v in seen)] if seen else [None, None]
        rows.append(
            {
                "device": bench.name,
                **case.row(phase),
                "time_us": elapsed * 1e6,
                "tflops": flop / elapsed / 1e12 if flop else None,
                "gbps": moved / elapsed / 1e9 if moved else None,
                "sm_mhz": middle[0],
                "sm_mhz_min": spans[0],
                "sm_mhz_max": spans[1],
                "mem_mhz": middle[1],
                "power_w": middle[2],
                "temperature_c": middle[3],
                "note": with_remarks("nvidia-smi", bench.policy.label),
            }
        )
    return rows


def _load(bench: Bench, load: str) -> tuple[Callable[[], object], float, float]:
    """A call, its FLOP, its bytes."""
    import torch
    import torch.nn.functional as F

    big = bench.is_cuda
    if load.startswith("gemm"):
        size = 8192 if big else 64
        a, b = bench.random(size, size), bench.random(size, size)
        if load == "gemm zeros":
            a.zero_()
            b.zero_()
        out = torch.empty_like(a)
        return lambda: torch.mm(a, b, out=out), 2.0 * size**3, 0.0
    if load == "attention":
        tokens = 8192 if big else 64
        q, k, v = (bench.random(2, 32, tokens, 128) for _ in range(3))
        flop = 4.0 * 2 * 32 * tokens * tokens * 128 / 2
        return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), flop, 0.0
    if load == "memory":
        x = bench.random(1 << 30 if big else 1 << 12)
        target = torch.empty_like(x)
        return lambda: target.copy_(x), 0.0, 4.0 * x.numel()
    return lambda: time.sleep(0.01), 0.0, 0.0
