"""Many searches over engines: two workers against one in this run, and a simulated study of larger clusters.

The study hands tasks to workers as the engine does: one dispatcher, whose time per task is measured here, and workers
that each do one task at a time. It leaves out what a network and a larger cluster add, so it says where the dispatcher
stops the scaling at the latest.
"""

from __future__ import annotations

import heapq
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ROOT), str(_ROOT / "tests")]

from _rows import Row, print_rows

from semu.searcher.engines import Engine, make_engine

SIZES = (64, 1024)
TASKS = 20_000
"""Of the simulated study: chunks of a grid of ten million points, or searches of a week of iterations."""


def busy(seconds: float, task: int) -> int:
    """A task of so much processor time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return task


def makespan(tasks: int, workers: int, task_s: float, dispatch_s: float) -> float:
    """When the last of equal tasks ends: one dispatcher hands them out one by one, to whoever is free first [s]."""
    free = [0.0] * workers
    now = 0.0
    for _ in range(tasks):
        now = max(now, free[0]) + dispatch_s
        heapq.heapreplace(free, now + task_s)
    return max(free)


def wall_s(engine: Engine, task_s: float, tasks: int) -> float:
    """Wall time of a run; workers are warm."""
    began = time.perf_counter()
    for _ in engine.run(partial(busy, task_s), range(tasks)):
        pass
    return time.perf_counter() - began


def measure_engine(name: str, tasks: int, task_s: float) -> Iterator[Row]:
    """Speedup of two workers and the dispatcher's time per task."""
    try:
        one = make_engine(name, workers=1) if name != "ray" else _ray(1)
        wall_s(one, 0.0, 4)
        start_s = wall_s(one, 0.0, 1)
        alone = wall_s(one, task_s, tasks)
        two = make_engine(name, workers=2) if name != "ray" else _ray(2)
        wall_s(two, 0.0, 4)
        both = wall_s(two, task_s, tasks)
        count = 400
        dispatch = (wall_s(two, 0.0, count) - wall_s(two, 0.0, 1)) / count
    except Exception as error:
        yield Row(f"{name}: two workers against one", None, "x", f"not run: {error}", ">= 1.4")
        return
    speedup = alone / both
    said = f"{tasks} tasks of {task_s:g} s processor time, {alone:.2f} s against {both:.2f} s"
    yield Row(f"{name}: two workers against one", speedup, "x", said, ">= 1.4", speedup >= 1.4)
    yield Row(f"{name}: start of a run", start_s, "s", "one empty task, one worker")
    yield Row(f"{name}: dispatcher's time per task", 1e3 * dispatch, "ms", f"{count} empty tasks, two workers")
    for workers in SIZES:
        found = makespan(TASKS, workers, task_s, dispatch)
        share = TASKS * task_s / found / workers
        where = (
            f"simulated: {TASKS} tasks of {task_s:g} s; the dispatcher feeds {task_s / dispatch:.0f} workers at most"
        )
        yield Row(f"{name}: efficiency of {workers} workers", 100 * share, "%", where)


def _ray(workers: int) -> Engine:
    import ray

    from semu.searcher.engines.cluster import RayEngine

    ray.shutdown()
    return RayEngine(workers=workers)


def measure(quick: bool) -> Iterator[Row]:
    """All rows."""
    for name in ("local", "ray"):
        yield from measure_engine(name, 8 if quick else 40, 0.25 if quick else 0.5)


if __name__ == "__main__":
    print_rows(__doc__, measure)
