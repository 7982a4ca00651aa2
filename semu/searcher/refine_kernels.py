"""Kernel of the refinement: a chain of moves on the critical path of a schedule, each kept or taken back."""

from __future__ import annotations

from typing import Any

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
def _shift(order: I32, position: I64, source: Any, target: Any) -> None:
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


@njit(nogil=True, inline="always")
def _arrival(stage: int, pred_ptr: I32, pred: I32, pred_s: F64, end: F64) -> float:
    """When all that a stage needs has come, were links free."""
    latest = 0.0
    for e in range(pred_ptr[stage], pred_ptr[stage + 1]):
        latest = max(latest, end[pred[e]] + pred_s[e])
    return latest


@njit(nogil=True, inline="always")
def _leaving(stage: int, succ_ptr: I32, succ: I32, succ_s: F64, tail: F64) -> float:
    """The longest way from a stage's end to the end of all, not over its own rank."""
    longest = 0.0
    for e in range(succ_ptr[stage], succ_ptr[stage + 1]):
        longest = max(longest, succ_s[e] + tail[succ[e]])
    return longest


@njit(nogil=True, inline="always")
def _slot(first: Any, second: Any, size: int) -> Any:
    """Where the table of forbidden swaps remembers that one stage shall not come before another."""
    mixed = np.uint64(first) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(second) * np.uint64(0xC2B2AE3D27D4EB4F)
    return np.int64((mixed >> np.uint64(20)) & np.uint64(size - 1))


@njit(cache=True, nogil=True)
def tabu(
    ptr: I64,
    order: I32,
    rank: I32,
    succ_ptr: I32,
    succ: I32,
    succ_s: F64,
    succ_link: I32,
    num_links: int,
    num_pred: I32,
    pred_ptr: I32,
    pred: I32,
    pred_s: F64,
    latency: F64,
    held: I64,
    peak: I64,
    room: I64,
    steps: int,
    patience: int,
    kick: int,
    seed: int,
) -> float:
    """Tabu search over the orders of all ranks (Nowicki and Smutnicki 1996, with Taillard's estimates).

    A step looks at all pairs of stages that follow one another on a critical path, estimates what swapping each would
    give from the longest ways before and behind, and swaps the best one that was not swapped lately, even where the
    schedule gets longer. After ``patience`` steps without a better schedule it goes back to the best one and swaps
    ``kick`` pairs at random.

    Args:
        pred_ptr, pred, pred_s: CSR of the edges by consumer, and the time of the send [s]. others: as ``refine``.
        steps: to take.
    Returns:
        the best makespan [s]; ``order`` is its order.
    """
    num_ranks, num_stages = len(ptr) - 1, len(rank)
    total = ptr[num_ranks]
    cursor, stack = np.zeros(num_ranks, dtype=np.int64), np.zeros(num_stages + num_ranks, dtype=np.int64)
    waiting, link_free = np.zeros(num_stages, dtype=np.int32), np.zeros(num_links)
    start, end, tail = np.zeros(num_stages), np.zeros(num_stages), np.zeros(num_stages)
    by, position = np.zeros(num_stages, dtype=np.int32), np.zeros(num_stages, dtype=np.int64)
    by_start = np.zeros(total, dtype=np.int64)
    chain, merit = np.zeros(num_stages, dtype=np.int64), np.zeros(num_stages)
    size = 1 << 16
    free_at = np.zeros(size, dtype=np.int64)
    for at in range(total):
        position[order[at]] = at
    state = np.array([np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1)])
    best_order = order.copy()
    best, stale, kicks = np.inf, 0, 0
    undo_at = np.int64(-1)
    for step in range(steps):
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
        if here == np.inf:  # the last swap closed a circle over a link: take it back
            _shift(order, position, undo_at, undo_at - 1)
            continue
        if here < best:
            best, stale = here, 0
            best_order[:] = order
        else:
            stale += 1
            if stale > patience:
                stale, kicks = 0, kick
                order[:] = best_order
                for at in range(total):
                    position[order[at]] = at
                continue
        by_start[:] = np.argsort(end[order])  # ends rise along every edge and every rank
        for i in range(total - 1, -1, -1):
            stage = order[by_start[i]]
            at = position[stage]
            behind = tail[order[at + 1]] if at + 1 < ptr[rank[stage] + 1] else 0.0
            tail[stage] = latency[stage] + max(behind, _leaving(stage, succ_ptr, succ, succ_s, tail))
        pairs, stage = 0, -1
        for at in range(total):
            if end[order[at]] == here and (stage < 0 or _next(state) < 0.5):
                stage = order[at]
        while stage >= 0:
            at, own = position[stage], by[stage]
            before = order[at - 1] if at > ptr[rank[stage]] else -1
            if before >= 0 and end[before] == start[stage]:
                chain[pairs] = at
                pairs += 1
                if own == -1 or _next(state) < 0.5:
                    stage = before
                    continue
            stage = own if own >= 0 else (before if own == -1 else -1)
        if pairs == 0:
            break
        for i in range(pairs):
            at = chain[i]
            u, v = order[at - 1], order[at]
            r = rank[u]
            needs = False
            for e in range(pred_ptr[v], pred_ptr[v + 1]):
                needs |= pred[e] == u
            merit[i] = np.inf
            if needs:
                continue
            earlier = end[order[at - 2]] if at - 1 > ptr[r] else 0.0
            later = tail[order[at + 1]] if at + 1 < ptr[r + 1] else 0.0
            head_v = max(earlier, _arrival(v, pred_ptr, pred, pred_s, end))
            head_u = max(head_v + latency[v], _arrival(u, pred_ptr, pred, pred_s, end))
            tail_u = latency[u] + max(later, _leaving(u, succ_ptr, succ, succ_s, tail))
            tail_v = latency[v] + max(tail_u, _leaving(v, succ_ptr, succ, succ_s, tail))
            merit[i] = max(head_v + tail_v, head_u + tail_u)
            if free_at[_slot(v, u, size)] > step and merit[i] >= best:
                merit[i] += here
            if kicks > 0:
                merit[i] = _next(state)
        kicks = max(kicks - 1, 0)
        done = False
        for _attempt in range(pairs):
            pick = np.argmin(merit[:pairs])
            if merit[pick] == np.inf:
                break
            at = chain[pick]
            u, v, r = order[at - 1], order[at], rank[order[at]]
            _shift(order, position, at, at - 1)
            if _fits(ptr, order, r, held, peak, room):
                free_at[_slot(u, v, size)] = step + 8 + np.int64(_next(state) * 12)
                undo_at = at
                done = True
                break
            _shift(order, position, at, at - 1)
            merit[pick] = np.inf
        if not done:
            stale = patience + 1
    order[:] = best_order
    return best
