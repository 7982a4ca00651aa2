"""What kernels that improve a schedule move by move share: its times, its critical path, what a move would give.

Groups of arrays are plain tuples where Python calls: ``flow``, ``candidates``, ``costs`` are ``Flow``, ``Candidates``
and ``Costs`` of ``times``; ``needs`` is pred_ptr, pred, pred_s: CSR of the edges by consumer, and the time of the send
[s].
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semu.compiled import part, zeros
from semu.searcher.kernels.times import Group
from semu.searcher.problem.problem_arrays import F64, I32, I64

U64 = NDArray[np.uint64]


class Timed(NamedTuple):
    """A schedule's times.

    Attributes:
        start, end: float64[2n] [s].
        by: int32[2n], by whom a stage's start was decided: a stage, or -1 for the one before it on its rank (-2:
            nobody). run: int32[num stages], stages after all that they need.
    """

    start: F64
    end: F64
    by: I32
    run: I32


class Scratch(NamedTuple):
    """Work arrays of ``time_orders``."""

    cursor: I64
    waiting: I32
    stack: I64
    link_free: F64


@part
def draw(state: U64) -> float:
    """A number in [0, 1): xorshift64* (Vigna, 2016)."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return np.float64((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0


@part
def time_orders(flow: Group, order: I32, latency: F64, limit: float, scratch: Scratch, times: Timed) -> float:
    """Times of every stage, written; returns the makespan [s], infinite where the orders deadlock or it exceeds
    ``limit``."""
    ptr, rank, succ_ptr, succ, succ_s, succ_link, _, num_pred = flow
    cursor, waiting, stack, link_free = scratch
    start, end, by, run = times
    num_ranks = len(ptr) - 1
    for stage in range(len(rank)):
        waiting[stage], start[stage], by[stage] = num_pred[stage], 0.0, -2
    link_free[:] = 0.0
    height, ran, longest = num_ranks, 0, 0.0
    for r in range(num_ranks):
        cursor[r] = ptr[r]
        stack[r] = r
    while height > 0:
        height -= 1
        r = stack[height]
        free = end[order[cursor[r] - 1]] if cursor[r] > ptr[r] else 0.0
        while cursor[r] < ptr[r + 1] and waiting[order[cursor[r]]] == 0:
            stage = order[cursor[r]]
            if free >= start[stage] and cursor[r] > ptr[r]:
                start[stage] = free
                by[stage] = -1
            finish = start[stage] + latency[stage]
            end[stage] = finish
            free = finish
            longest = max(longest, finish)
            if longest > limit:
                return np.inf
            cursor[r] += 1
            run[ran] = stage
            ran += 1
            waiting[stage] = -1
            for e in range(succ_ptr[stage], succ_ptr[stage + 1]):
                target, link, arrival = succ[e], succ_link[e], finish
                if link >= 0:
                    arrival = max(finish, link_free[link]) + succ_s[e]
                    link_free[link] = arrival
                if arrival >= start[target]:
                    start[target] = arrival
                    by[target] = stage
                waiting[target] -= 1
                there = rank[target]
                if waiting[target] == 0 and there != r and order[cursor[there]] == target:
                    stack[height] = there
                    height += 1
    return longest if ran == ptr[num_ranks] else np.inf


@part
def fits(ptr: I64, order: I32, r: int, held: I64, peak: I64, room: I64) -> bool:
    """Whether a rank's order stays within its memory."""
    level = np.int64(0)
    for at in range(ptr[r], ptr[r + 1]):
        stage = order[at]
        if level + peak[stage] > room[r]:
            return False
        level += -held[stage >> 1] if stage & 1 else held[stage >> 1]
    return True


@part
def shift(order: I32, position: I64, source: Any, target: Any) -> None:
    """Take the stage at one place of its rank to another, the others closing up."""
    stage = order[source]
    step = 1 if target > source else -1
    at = source
    while at != target:
        order[at] = order[at + step]
        position[order[at]] = at
        at += step
    order[target] = stage
    position[stage] = target


@part
def arrival(stage: int, pred_ptr: I32, pred: I32, pred_s: F64, end: F64) -> float:
    """When all that a stage needs has come, were links free."""
    latest = 0.0
    for e in range(pred_ptr[stage], pred_ptr[stage + 1]):
        latest = max(latest, end[pred[e]] + pred_s[e])
    return latest


@part
def leaving(stage: int, succ_ptr: I32, succ: I32, succ_s: F64, tail: F64) -> float:
    """The longest way from a stage's end to the end of all, not over its own rank."""
    longest = 0.0
    for e in range(succ_ptr[stage], succ_ptr[stage + 1]):
        longest = max(longest, succ_s[e] + tail[succ[e]])
    return longest


@part
def new_times(flow: Group, total: int) -> tuple[Scratch, Timed]:
    """Work arrays and room for the times of ``total`` stages."""
    num_ranks, num_stages = len(flow[0]) - 1, len(flow[1])
    stack = zeros(num_stages + num_ranks, np.int64)
    waiting, by = zeros(num_stages, np.int32), zeros(num_stages, np.int32)
    scratch = Scratch(zeros(num_ranks, np.int64), waiting, stack, zeros(flow[6], np.float64))
    return scratch, Timed(zeros(num_stages, np.float64), zeros(num_stages, np.float64), by, zeros(total, np.int32))


@part
def critical_path(
    flow: Group, order: I32, position: I64, times: Timed, makespan: float, state: U64, path: I64, chain: I64
) -> tuple[int, int]:
    """A critical path, at random among several: its stages from the last one on, written to ``path``, and the places of
    those that follow the stage before them on their rank without a pause, written to ``chain``.

    Returns:
        number of places, number of stages.
    """
    ptr, rank = flow[0], flow[1]
    start, end, by, _ = times
    pairs, length, stage = 0, 0, -1
    for at in range(ptr[len(ptr) - 1]):
        if end[order[at]] == makespan and (stage < 0 or draw(state) < 0.5):
            stage = order[at]
    while stage >= 0:
        path[length] = stage
        length += 1
        at, own = position[stage], by[stage]
        before = order[at - 1] if at > ptr[rank[stage]] else -1
        if before >= 0 and end[before] == start[stage]:
            chain[pairs] = at
            pairs += 1
            if own == -1 or draw(state) < 0.5:
                stage = before
                continue
        stage = own if own >= 0 else (before if own == -1 else -1)
    return pairs, length


@part
def measure_tails(flow: Group, order: I32, position: I64, latency: F64, run: I32, tail: F64) -> None:
    """The longest way from every stage's start to the end of all, over ranks and sends, written."""
    ptr, rank, succ_ptr, succ, succ_s, _, _, _ = flow
    for i in range(ptr[len(ptr) - 1] - 1, -1, -1):
        stage = run[i]
        at = position[stage]
        behind = tail[order[at + 1]] if at + 1 < ptr[rank[stage] + 1] else 0.0
        tail[stage] = latency[stage] + max(behind, leaving(stage, succ_ptr, succ, succ_s, tail))
