"""Gradient separation: a given order with its weight gradients put off."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.compiled import kernel, zeros
from semu.schedule.rules.kernels.race import line_up, set_time

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
Group = tuple[Any, ...]


@kernel
def separate_orders(given: Group, flow: Group, costs: Group, limit: I64, way: Group, order: I32) -> int:
    """Run forwards and input gradients in the order given, weight gradients in the bubbles (FlexPipe §5.2, Fig. 10).

    Args:
        given: ptr: int64[num_ranks + 1], stages: int32, forwards and input gradients of each rank.
        flow: succ_ptr, succ: int32, CSR of forwards and input gradients that wait for a stage; waits:
            int32[num_stages], for how many each waits; pred_ptr, pred: the same from the other side; rank:
            int32[num_pairs]; pred_delay, succ_delay: float64 [s].
        costs: latency: float64[num_stages] [s]; delta, internal: int64[num_stages] [bytes], see ``memory_of_orders``.
        limit: int64[num_ranks] [bytes].
        way: window: of so many stages to come, one that is ready may run before those that are not. slack: how much of
            its time a weight gradient may delay what comes next, in parts of its time. is_eager: weight gradients fill
            every gap. is_patient: a stage that moves up must not delay what it moves before.
        order: int32[num_stages], written: stages in the order in which they start.
    Returns:
        how many stages are in ``order``.
    """
    ptr, stages = given
    succ_ptr, succ, waits_given, pred_ptr, pred, rank, pred_delay, succ_delay = flow
    latency, delta, internal = costs
    window, slack, is_eager, is_patient = way
    num_ranks = len(limit)
    waits, end, ready = waits_given.copy(), np.full(len(latency), np.nan), zeros(len(latency), np.float64)
    is_done = zeros(len(latency), np.bool_)
    cursor, level, free = ptr[:-1].copy(), zeros(num_ranks, np.int64), zeros(num_ranks, np.float64)
    late = zeros(len(stages), np.int32)  # weight gradients that are due, in the order of their input gradients
    late_head, late_tail = ptr[:-1].copy(), ptr[:-1].copy()
    leaves = 1
    while leaves < num_ranks:
        leaves *= 2
    at, winner = np.full(leaves, np.inf), zeros(2 * leaves, np.int32)
    line_up(num_ranks, at, winner)
    looked, stood = zeros(num_ranks, np.int64), zeros(num_ranks, np.int64)
    count, least = 0, 0.0
    for stage in stages:
        least += 0.05 * latency[stage] / len(stages)
    while True:
        r = winner[1]
        time = at[r]
        if time == np.inf:
            return count
        while cursor[r] < ptr[r + 1] and is_done[stages[cursor[r]]]:
            cursor[r] += 1
        chosen, first, soonest = -1, -1, np.inf
        bound, is_full, declined = np.inf, False, 0.0
        seen, place = 0, cursor[r]
        while seen < window and place < ptr[r + 1]:
            stage = stages[place]
            place += 1
            if is_done[stage]:
                continue
            seen += 1
            fits = level[r] + internal[stage] <= limit[r] or stage & 3 != 0
            if waits[stage] == 0 and ready[stage] <= time:
                if fits and (first < 0 or not is_patient or is_full or time + latency[stage] <= bound):
                    chosen = stage
                    break
                if fits:
                    declined = max(declined, latency[stage])
            elif waits[stage] == 0:
                soonest = min(soonest, ready[stage])
            if first < 0:
                first, is_full = stage, not fits and waits[stage] == 0 and ready[stage] <= time
                if not is_full:
                    bound = time  # no earlier can what it needs be there
                    for e in range(pred_ptr[stage], pred_ptr[stage + 1]):
                        before = pred[e]
                        known = end[before]
                        if np.isnan(known):
                            known = max(time, free[rank[before >> 2]]) + latency[before]
                        bound = max(bound, known + pred_delay[e])
        if chosen < 0 and late_head[r] < late_tail[r]:
            stage = late[late_head[r]]
            if first < 0 or is_full or is_eager or time + (1.0 - slack) * latency[stage] <= bound:
                chosen = stage
                late_head[r] += 1
            else:
                declined = max(declined, latency[stage])
        if chosen < 0:
            looked[r] = looked[r] + 1 if stood[r] == count else 0
            stood[r] = count
            if declined > 0.0 and least > 0.0 and bound < np.inf and looked[r] < 8:  # it may come later: look again
                soonest = min(soonest, max(bound, time + max(0.25 * declined, least)))
            set_time(r, soonest, at, winner)
            continue
        order[count] = chosen
        count += 1
        is_done[chosen] = True
        level[r] += delta[chosen]
        free[r] = time + latency[chosen]
        end[chosen] = free[r]
        if chosen & 3 == 2:
            late[late_tail[r]] = chosen + 1
            late_tail[r] += 1
        for e in range(succ_ptr[chosen], succ_ptr[chosen + 1]):
            after = succ[e]
            ready[after] = max(ready[after], free[r] + succ_delay[e])
            waits[after] -= 1
            q = rank[after >> 2]
            if waits[after] == 0 and q != r:
                when = max(ready[after], free[q])
                if when < at[q]:
                    set_time(q, when, at, winner)
        set_time(r, free[r], at, winner)
