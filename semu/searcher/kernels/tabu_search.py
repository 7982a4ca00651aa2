"""Tabu search over the orders of all ranks.

Groups of arrays are plain tuples where Python calls: ``flow``, ``candidates``, ``costs`` are ``Flow``, ``Candidates``
and ``Costs`` of ``times``; ``needs`` is pred_ptr, pred, pred_s: CSR of the edges by consumer, and the time of the send
[s].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from semu.compiled import kernel, part, zeros
from semu.searcher.kernels.moves import (
    arrival,
    critical_path,
    draw,
    fits,
    leaving,
    measure_tails,
    new_times,
    shift,
    time_orders,
)
from semu.searcher.kernels.times import Group
from semu.searcher.problem.problem_arrays import I32, I64


@part
def _slot(first: Any, second: Any, size: int) -> Any:
    """Where the table of forbidden swaps remembers that one stage shall not come before another."""
    mixed = np.uint64(first) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(second) * np.uint64(0xC2B2AE3D27D4EB4F)
    return np.int64((mixed >> np.uint64(20)) & np.uint64(size - 1))


@kernel
def tabu(
    flow: Group,
    needs: Group,
    costs: Group,
    order: I32,
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
        flow, needs, costs: see the top of the file. others: as ``anneal``. steps: to take.
    Returns:
        the best makespan [s]; ``order`` is its order.
    """
    ptr, rank, succ_ptr, succ, succ_s, _, _, _ = flow
    pred_ptr, pred, pred_s = needs
    latency, held, peak = costs
    num_stages, total = len(rank), len(order)
    scratch, times = new_times(flow, total)
    end = times.end
    tail, merit = zeros(num_stages, np.float64), zeros(num_stages, np.float64)
    position = zeros(num_stages, np.int64)
    chain, path = zeros(num_stages, np.int64), zeros(num_stages, np.int64)
    size = 1 << 16
    free_at = zeros(size, np.int64)
    for at in range(total):
        position[order[at]] = at
    state = zeros(1, np.uint64)
    state[0] = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1)
    best_order = order.copy()
    best, stale, kicks = np.inf, 0, 0
    undo_at = np.int64(-1)
    for step in range(steps):
        here = time_orders(flow, order, latency, np.inf, scratch, times)
        if here == np.inf:  # the last swap closed a circle over a link: take it back
            shift(order, position, undo_at, undo_at - 1)
            continue
        if here < best:
            best, stale = here, 0
            for at in range(total):
                best_order[at] = order[at]
        else:
            stale += 1
            if stale > patience:
                stale, kicks = 0, kick
                for at in range(total):
                    order[at] = best_order[at]
                    position[order[at]] = at
                continue
        measure_tails(flow, order, position, latency, times.run, tail)
        pairs, _ = critical_path(flow, order, position, times, here, state, path, chain)
        if pairs == 0:
            break
        for i in range(pairs):
            at = chain[i]
            u, v = order[at - 1], order[at]
            r = rank[u]
            is_needed = False
            for e in range(pred_ptr[v], pred_ptr[v + 1]):
                is_needed |= pred[e] == u
            merit[i] = np.inf
            if is_needed:
                continue
            earlier = end[order[at - 2]] if at - 1 > ptr[r] else 0.0
            later = tail[order[at + 1]] if at + 1 < ptr[r + 1] else 0.0
            head_v = max(earlier, arrival(v, pred_ptr, pred, pred_s, end))
            head_u = max(head_v + latency[v], arrival(u, pred_ptr, pred, pred_s, end))
            tail_u = latency[u] + max(later, leaving(u, succ_ptr, succ, succ_s, tail))
            tail_v = latency[v] + max(tail_u, leaving(v, succ_ptr, succ, succ_s, tail))
            merit[i] = max(head_v + tail_v, head_u + tail_u)
            if free_at[_slot(v, u, size)] > step and merit[i] >= best:
                merit[i] += here
            if kicks > 0:
                merit[i] = draw(state)
        kicks = max(kicks - 1, 0)
        done = False
        for _attempt in range(pairs):
            pick = 0
            for i in range(1, pairs):
                if merit[i] < merit[pick]:
                    pick = i
            if merit[pick] == np.inf:
                break
            at = chain[pick]
            u, v, r = order[at - 1], order[at], rank[order[at]]
            shift(order, position, at, at - 1)
            if fits(ptr, order, r, held, peak, room):
                free_at[_slot(u, v, size)] = step + 8 + np.int64(draw(state) * 12)
                undo_at = at
                done = True
                break
            shift(order, position, at, at - 1)
            merit[pick] = np.inf
        if not done:
            stale = patience + 1
    for at in range(total):
        order[at] = best_order[at]
    return best
