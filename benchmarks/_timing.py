"""How the benchmarks take time: contenders in turns, the fastest turn of each; a process of its own with its memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]

_REPORT = """
import json, sys, time
try:
    status = open("/proc/self/status").read()
    peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
except OSError:
    import resource
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps([time.process_time(), peak, result]))
"""
"""Peak resident memory is Linux' own count: ``ru_maxrss`` begins with what the parent process had."""


@dataclass(frozen=True)
class Process:
    """What a process took.

    Attributes:
        wall_s: from its start to its end [s]. cpu_s: of that on processors [s]. peak_bytes: resident memory [bytes].
        result: what it found.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int
    result: object


def turns(contenders: dict[str, Callable[[], object]], seconds: float, least: int = 3) -> dict[str, list[float]]:
    """Times [s] of each contender, which take turns: as many as fit in ``seconds``, at least ``least``."""
    times_s: dict[str, list[float]] = {name: [] for name in contenders}
    begun, turn = time.perf_counter(), 0
    while turn < least or time.perf_counter() - begun < seconds:
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            times_s[name].append(time.perf_counter() - start)
        turn += 1
    return times_s


def fastest(contenders: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Shortest time [s] of each contender; arguments as ``turns``."""
    return {name: min(times_s) for name, times_s in turns(contenders, seconds).items()}


def fastest_cpu(contenders: dict[str, Callable[[], object]], seconds: float, least: int = 3) -> dict[str, float]:
    """Shortest processor time [s] of this thread in each contender: what a core takes, whoever else uses it."""
    times_s = dict.fromkeys(contenders, float("inf"))
    begun, turn = time.perf_counter(), 0
    while turn < least or time.perf_counter() - begun < seconds:
        for name, run in contenders.items():
            start = time.thread_time()
            run()
            times_s[name] = min(times_s[name], time.thread_time() - start)
        turn += 1
    return times_s


def run_process(code: str) -> Process:
    """Run Python code in a fresh process.

    Args:
        code: binds ``result`` to something that JSON can hold.
    """
    paths = [str(_ROOT), str(_ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code + _REPORT],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    return Process(time.perf_counter() - start, *json.loads(done.stdout))
