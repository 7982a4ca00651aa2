"""Kernel of the refinement: a chain of moves on the critical path of a schedule, each kept or taken back."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
U64 = NDArray[np.uint64]


@njit(nogil=True, inline="always")
def _next(state: U64) -> float:
    """A number in [0, 1): xorshift64* (Vigna, 2016)."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return np.float64((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0


@njit(cache=True, nogil=True)
def _times(
    ptr: I64,
    order: I32,
    rank: I32,
    succ_ptr: I32,
    succ: I32,
    succ_s: F64,
    succ_link: I32,
    num_pred: I32,
    latency: F64,
    limit: float,
    cursor: I64,
    waiting: I32,
    stack: I64,
    link_free: F64,
    start: F64,
    end: F64,
    by: I32,
) -> float:
    """Start and end of every stage, and by whom its start was decided: a stage, or -1 for the one before it on its
    rank (-2: nobody); returns the makespan [s], infinite where the orders deadlock or it exceeds ``limit``."""
    num_ranks = len(ptr) - 1
    waiting[:] = num_pred
    start[:] = 0.0
    by[:] = -2
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


@njit(nogil=True, inline="always")
def _fits(ptr: I64, order: I32, r: int, held: I64, peak: I64, room: I64) -> bool:
    """Whether a rank's order stays within its memory."""
    level = np.int64(0)
    for at in range(ptr[r], ptr[r + 1]):
        stage = order[at]
        if level + peak[stage] > room[r]:
            return False
        level += -held[stage >> 1] if stage & 1 else held[stage >> 1]
    return True


@njit(nogil=True, inline="always")
def _shift(order: I32, position: I64, source: int, target: int) -> None:
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


@njit(cache=True, nogil=True)
def refine(
    ptr: I64,
    order: I32,
    rank: I32,
    succ_ptr: I32,
    succ: I32,
    succ_s: F64,
    succ_link: I32,
    num_links: int,
    num_pred: I32,
    latency: F64,
    held: I64,
    peak: I64,
    room: I64,
    steps: int,
    warmth: float,
    seed: int,
) -> float:
    """Simulated annealing over the orders of all ranks, on the critical path.

    A step picks at random a pair of stages that follow one another on a rank without a pause on the critical path,
    swaps them, or takes one of a block of such stages to the block's end (Nowicki and Smutnicki's and Balas and
    Vazacopoulos' neighbourhoods of the job shop), and keeps the result if it is not worse, or with the usual
    probability if it is. Only such moves can shorten the schedule.

    Args:
        ptr to num_pred: as ``kernels.interleave``, with ``order`` int32[num stages] rank after rank: the schedule to
            begin with, and the best one found, written.
        latency: float64[2n] [s]. held: int64[n]. peak: int64[2n]. room: int64[P] [bytes].
        steps: moves to try. warmth: initial temperature as a part of the makespan; falls to nothing. seed: > 0.
    Returns:
        the best makespan [s].
    """
    num_ranks, num_stages = len(ptr) - 1, len(rank)
    cursor, stack = np.zeros(num_ranks, dtype=np.int64), np.zeros(num_stages + num_ranks, dtype=np.int64)
    waiting, link_free = np.zeros(num_stages, dtype=np.int32), np.zeros(num_links)
    start, end = np.zeros(num_stages), np.zeros(num_stages)
    next_start, next_end = np.zeros(num_stages), np.zeros(num_stages)
    by, next_by = np.zeros(num_stages, dtype=np.int32), np.zeros(num_stages, dtype=np.int32)
    position = np.zeros(num_stages, dtype=np.int64)
    chain = np.zeros(num_stages, dtype=np.int64)
    for at in range(ptr[num_ranks]):
        position[order[at]] = at
    state = np.array([np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1)])
    best_order = order.copy()
    here = _times(
        ptr,
        order,
        rank,
        succ_ptr,
        succ,
        succ_s,
        succ_link,
        num_pred,
        latency,
        np.inf,
        cursor,
        waiting,
        stack,
        link_free,
        start,
        end,
        by,
    )
    best, is_known = here, True
    pairs = 0
    for step in range(steps):
        if is_known:
            pairs = 0
            stage = -1
            for at in range(ptr[num_ranks]):
                if end[order[at]] == here and (stage < 0 or _next(state) < 0.5):
                    stage = order[at]
            while stage >= 0:
                at = position[stage]
                own = by[stage]
                r = rank[stage]
                before = order[at - 1] if at > ptr[r] else -1
                if before >= 0 and end[before] == start[stage]:
                    chain[pairs] = at  # stages at - 1 and at follow without a pause
                    pairs += 1
                    if own == -1 or _next(state) < 0.5:
                        stage = before
                        continue
                stage = own if own >= 0 else (before if own == -1 else -1)
            is_known = False
        if pairs == 0:
            break
        pick = np.int64(_next(state) * pairs)
        at = chain[pick]
        r = rank[order[at]]
        first, last = at - 1, at
        while first > ptr[r] and end[order[first - 1]] == start[order[first]]:
            first -= 1
        while last + 1 < ptr[r + 1] and end[order[last]] == start[order[last + 1]]:
            last += 1
        source, target = at - 1, at
        way = _next(state)
        if way < 0.2:
            source, target = at, max(first, at - 1 - np.int64(_next(state) * 8))
        elif way < 0.4:
            source, target = at - 1, min(last, at + np.int64(_next(state) * 8))
        _shift(order, position, source, target)
        temperature = warmth * best * (1.0 - step / steps)
        limit = here - temperature * np.log(max(_next(state), 1e-300))
        found = np.inf
        if _fits(ptr, order, r, held, peak, room):
            found = _times(
                ptr,
                order,
                rank,
                succ_ptr,
                succ,
                succ_s,
                succ_link,
                num_pred,
                latency,
                limit,
                cursor,
                waiting,
                stack,
                link_free,
                next_start,
                next_end,
                next_by,
            )
        if found <= limit and found < np.inf:
            here, is_known = found, True
            start, next_start = next_start, start
            end, next_end = next_end, end
            by, next_by = next_by, by
            if found < best:
                best = found
                best_order[:] = order
        else:
            _shift(order, position, target, source)
    order[:] = best_order
    return best
