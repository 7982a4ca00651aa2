"""Rows of search.py about speed: interleaving, the choice of candidates, whole rollouts, bounds.

One instance of 4096 stages: 8 ranks, 64 microbatches of two images each, a vision encoder of one chunk per rank (two
sub-microbatches) and a language model of two chunks per rank, ten candidates per pair, sends that take time. Times are
processor times of one thread, but for two threads against one.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from _compiled import bind, compiled
from _rows import Row
from _timing import fastest, fastest_cpu
from searcher.exact import best_choice
from searcher.instances import vlm
from searcher.reference import heap_interleave

from semu.searcher import NO_LIMIT, SearchProblem
from semu.searcher.bounds import lower_bounds
from semu.searcher.kernels.interleaving import interleave
from semu.searcher.kernels.memory_choice import choose_memory
from semu.searcher.orders.interleave import MEMORY_GOAL, MEMORY_ROUNDS, Interleaver, candidates, evaluate
from semu.searcher.problem.tables import tables_of

SIZE = "4096 stages, P=8, m=64"
BATCH = 8
"""Sequences per call: enough to hide the call, few enough for a turn that is not interrupted."""


def instance(limit_bytes: Any = NO_LIMIT, *, peaks: bool = False) -> SearchProblem:
    """The instance of the module's docstring."""
    sizes = {"images": (2, 2), "vision_slots": 1, "language_slots": 2, "candidates": 10}
    return vlm(8, 64, transfer_s=(0.01, 0.05), limit_bytes=limit_bytes, peaks=peaks, **sizes)


def sequences(problem: SearchProblem, count: int) -> np.ndarray:
    """Random sequences of groups."""
    rng = np.random.default_rng(0)
    return np.array([rng.permutation(problem.num_groups) for _ in range(count)], dtype=np.int32)


def share(problem: SearchProblem, part: float) -> np.ndarray:
    """Limits between what the leanest and the fastest candidates need in the order of the first microbatches first."""
    order = Interleaver(problem, choice=np.zeros(problem.num_pairs)).solution(np.arange(problem.num_groups)).order
    lean, fast = (
        evaluate(problem, order, c).peak_bytes for c in (problem.num_candidates * 0, problem.num_candidates - 1)
    )
    return (lean + part * (fast - lean)).astype(np.int64)


def measure_interleaving(seconds: float) -> Iterator[Row]:
    """Schedules per second on one core, against C and plain Python."""
    problem = instance()
    tables, rows = tables_of(problem), sequences(problem, BATCH)
    total, n = int(problem.rank_ptr[-1]), problem.num_stages

    def buffers() -> tuple[Any, ...]:
        places = (np.zeros((1, total), dtype=np.int32), np.zeros((1, total), dtype=np.int32))
        times = (np.zeros((1, n)), np.zeros((1, n)), np.zeros(BATCH))
        return places, times, np.zeros(BATCH, dtype=np.int64)

    mine, theirs, missing = buffers(), buffers(), np.zeros((BATCH, 2), dtype=np.int64)
    costs = problem.costs_of()
    given = (tables.flow, tables.queues, tables.limits(), costs, tables.room)
    contenders: dict[str, Any] = {"semu": partial(interleave, *given, rows, rows, *mine, missing)}
    contenders["semu"]()
    plain = heap_interleave(problem, rows[-1], rows[-1])
    assert plain[0] == mine[0][1][0].tolist(), "plain Python finds another schedule"
    contenders["python"] = partial(heap_interleave, problem, rows[-1], rows[-1])
    with compiled("search.c") as c:
        if c is not None:
            counts = (problem.num_ranks, n, problem.num_groups, len(tables.links), BATCH, 1)
            flow = (problem.rank_ptr, tables.rank, tables.succ_ptr, tables.succ, tables.succ_s, tables.succ_link)
            written = (*theirs[0], *theirs[1], theirs[2])
            arrays = (*flow, tables.num_pred, *tables.queues[:4], costs[0], rows, rows, *written)
            contenders["C"] = bind(c[1].interleave, *counts, *arrays)
            contenders["C"]()
            for a, b in zip((*mine[0], *mine[1], mine[2]), written, strict=True):
                assert np.array_equal(a, b), "C finds another schedule"
        times_s = fastest_cpu(contenders, seconds)
        each = times_s["semu"] / BATCH
        yield Row("interleaving", 1 / each, "schedules/s", f"{SIZE}, one core", ">= 3000", each <= 1 / 3000)
        yield Row("interleaving, per stage", each / total * 1e9, "ns", SIZE)
        if c is None:
            yield Row("interleaving against C", None, "x the time", "no C compiler found", "<= 1.3")
        else:
            value = times_s["semu"] / times_s["C"]
            yield Row("interleaving against C", value, "x the time", c[0], "<= 1.3", value <= 1.3)
    value = times_s["python"] / each
    yield Row("interleaving against plain Python", value, "x faster", "heapq, the same rule", ">= 30", value >= 30)
    limited = instance(int(tables.limits()[1].max()) * 9)
    worker = Interleaver(limited, choice=np.zeros(limited.num_pairs))
    worker.run(rows)
    each = fastest_cpu({"semu": partial(worker.run, rows)}, seconds)["semu"] / BATCH
    yield Row("interleaving, memory binds", 1 / each, "schedules/s", f"{SIZE}, nine microbatches fit on a rank")

    workers = [Interleaver(problem, choice=problem.slot * 0) for _ in range(2)]
    many = sequences(problem, 10 * BATCH)

    def both() -> None:
        threads = [threading.Thread(target=worker.run, args=(many,)) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    times_s = fastest({"one": partial(workers[0].run, many), "two": both}, seconds)
    value = 2 * times_s["one"] / times_s["two"]
    yield Row("interleaving, two threads", value, "x one", "one thread", None, None)


def measure_choice(quick: bool, seconds: float) -> Iterator[Row]:
    """Choice of one rank's candidates, n pairs x 10; a 1F1B-like order in which 16 pairs are there at once."""
    for n in (64, 512) if quick else (64, 128, 256, 512):
        problem = vlm(1, n, images=(0, 0), language_slots=1, candidates=10, seed=n)
        order = np.array(
            [2 * i for i in range(16)] + [s for i in range(n - 16) for s in (2 * i + 1, 2 * i + 32)]
            + [2 * i + 1 for i in range(n - 16, n)],
            dtype=np.int32,
        )  # fmt: skip
        lean, fast = (evaluate(problem, order, problem.num_candidates * 0 + j).peak_bytes[0] for j in (0, 9))
        local, choice, found = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int16), []
        for part in (0.25, 0.5, 0.75):
            room = int(lean + part * (fast - lean))
            given = (order, candidates(problem), room)
            call = partial(choose_memory, *given, MEMORY_GOAL, MEMORY_ROUNDS, local, choice)
            value, bound = call()
            found.append((fastest_cpu({"semu": call}, seconds / 3)["semu"], 1 - bound / value, room))
        worst_s, gap = max(f[0] for f in found), max(f[1] for f in found)
        goal = ("<= 2", worst_s <= 2e-3) if n == 512 else (None, None)
        yield Row(f"choice of candidates, n={n}", worst_s * 1e3, "ms", "slowest of three limits", *goal)
        yield Row(f"choice of candidates, n={n}: certified gap", gap * 100, "%", "widest", "<= 1", gap <= 0.01)
        if n == 64:
            exact = partial(best_choice, problem, order.tolist(), found[1][2], gap=MEMORY_GOAL)
            value = (
                fastest_cpu(
                    {"cp-sat": exact},
                    0.0,
                )["cp-sat"]
                / found[1][0]
            )
            yield Row(f"choice of candidates, n={n}: against CP-SAT", value, "x faster", "OR-Tools, 1 % gap, wall time")


def measure_rollouts(seconds: float) -> Iterator[Row]:
    """Interleaving, the choice on all ranks, and the times of what was chosen."""
    for peaks in (False, True):
        free = instance(peaks=peaks)
        for part in (0.3, 0.6):
            problem = dataclasses.replace(free, limit_bytes=share(free, part))
            worker, rows = Interleaver(problem), sequences(problem, 4)
            calls = {str(i): partial(worker.run, row) for i, row in enumerate(rows)}
            worst = max(fastest_cpu(calls, seconds).values())
            name = f"rollout, limit {part:.0%} from leanest to fastest{', with peaks' if peaks else ''}"
            yield Row(name, worst * 1e3, "ms", f"{SIZE}, 10 candidates", "<= 5", worst <= 5e-3)


def measure_bounds(seconds: float) -> Iterator[Row]:
    """Lower bounds of the instance, and of a small one."""
    for name, problem in ((SIZE, instance()), ("P=4, m=4", vlm(4, 4, images=(2, 2), transfer_s=(0.01, 0.05)))):
        found = lower_bounds(problem)
        time_s = fastest_cpu({"semu": partial(lower_bounds, problem)}, seconds)["semu"]
        yield Row(f"lower bounds, {name}", time_s * 1e3, "ms", f"the highest: {found.name}")


def measure_speed(quick: bool) -> Iterator[Row]:
    """All rows about speed."""
    seconds = 0.5 if quick else 4.0
    yield from measure_interleaving(seconds)
    yield from measure_choice(quick, seconds)
    yield from measure_rollouts(seconds)
    yield from measure_bounds(seconds)
