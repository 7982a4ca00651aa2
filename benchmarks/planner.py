"""The online planner: how much of planning hides behind training, how long it takes, what it gains, what it holds.

Iterations are simulated, planning is real (``semu.searcher.planner.training_loop``): 100 of them each of vlm-s,
vlm-l and t2v-l with a second for every search. Planning holds the interpreter's lock at most while it
is outside compiled kernels: that time is told beside the iteration during which it is spent.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Self

from _rows import Row, print_rows

import semu
from semu.runfile import load_run
from semu.searcher.orders.loop import Budget
from semu.searcher.planner.batch_planner import BatchPlanner
from semu.searcher.planner.training_loop import IterationRow, train
from semu.searcher.planner.training_report import TrainingReport

SETUPS = ("vlm-s", "vlm-l", "t2v-l")
SEARCH_S = 1.0


def looped(name: str, iterations: int) -> Iterator[Row]:
    rows: list[IterationRow] = []
    with semu.Planner(load_run(name), time_s=SEARCH_S) as planner:
        train(planner, iterations, tell=rows.append)
        report = TrainingReport(name, rows, iterations, "iterations", False, planner.num_workers)
    said = f"{iterations} iterations, {SEARCH_S:g} s per search"
    hidden = report.hidden_share
    yield Row(f"{name}: hidden share", hidden, "", said, ">= 0.99", hidden is not None and hidden >= 0.99)
    yield Row(f"{name}: planned in time", report.hit_rate, "", said)
    yield Row(f"{name}: latency, median", report.latency(50), "s", said)
    yield Row(f"{name}: latency, 95th percentile", report.latency(95), "s", said)
    yield Row(f"{name}: processors, median", report.latency(50, "cpu_s"), "s", said)
    yield Row(f"{name}: processors, 95th percentile", report.latency(95, "cpu_s"), "s", said)
    yield Row(f"{name}: first plan", rows[0].stall_s, "s", "nothing trains before it")
    yield Row(f"{name}: iteration", report.mean("planned_s"), "s", "simulated, mean")
    yield Row(f"{name}: speed over Megatron-LM", report.gain("megatron_s"), "x", "same batches")
    yield Row(f"{name}: speed over the heuristic", report.gain("heuristic_s"), "x", "same batches")


class KernelTime:
    """Time of processors within compiled kernels, which let go of the interpreter's lock."""

    def __init__(self) -> None:
        self.total_s, self._lock = 0.0, threading.Lock()
        self._wrapped: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Self:
        modules = [module for name, module in sys.modules.items() if name.startswith("semu.") and "kernels" in name]
        for module in modules:
            for name, value in vars(module).items():
                if hasattr(value, "py_func"):
                    self._wrapped.append((module, name, value))
        for module, name, value in self._wrapped:
            setattr(module, name, self._timed(value))
        return self

    def __exit__(self, *_: object) -> None:
        for module, name, value in self._wrapped:
            setattr(module, name, value)

    def _timed(self, kernel: Any) -> Any:
        def run(*arguments: Any) -> Any:
            began = time.thread_time()
            try:
                return kernel(*arguments)
            finally:
                with self._lock:
                    self.total_s += time.thread_time() - began

        return run


def locked(name: str, batches: int) -> Iterator[Row]:
    job = load_run(name)
    planner = BatchPlanner(job)
    jobs = [planner.jobs_of(replace(job.batch, seed=seed))[1] for seed in range(1, 2 + batches)]  # type: ignore[call-arg]
    begun = [planner.heuristic(planner.prepared(own)) for own in jobs]
    steps: tuple[tuple[str, Callable[[], object]], ...] = (
        ("preparation", lambda: [planner.prepared(own) for own in jobs[1:]]),
        ("the heuristic", lambda: [planner.heuristic(own[0]) for own in begun[1:]]),
        ("the search", lambda: [planner.search(*own, Budget(time_s=SEARCH_S, workers=1)) for own in begun[1:]]),
    )
    held_s = 0.0
    for what, work in steps:
        with KernelTime() as kernels:
            before = time.process_time()
            work()
            spent = time.process_time() - before
        held_s += (spent - kernels.total_s) / batches
        said = "per iteration, processors"
        yield Row(f"{name}: {what}", spent / batches, "s", said)
        yield Row(f"{name}: {what}, outside kernels", (spent - kernels.total_s) / batches, "s", said)
    iteration_s = statistics.mean(own[1].makespan_s for own in begun[1:])
    yield Row(
        f"{name}: lock held at most", held_s / iteration_s, "", "of an iteration", "<= 0.1", held_s / iteration_s <= 0.1
    )


def measure(quick: bool) -> Iterator[Row]:
    for name in SETUPS[:1] if quick else SETUPS:
        yield from looped(name, 5 if quick else 100)
        yield from locked(name, 2 if quick else 5)


if __name__ == "__main__":
    print_rows(__doc__, measure)
