"""Kernels over stage arrays: the times of a fixed order with its memory, and a list scheduler that finds an order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.compiled import kernel, zeros

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
Group = tuple[Any, ...]


@kernel
def run_orders(
    ptr: I64,
    stages: I32,
    pred_ptr: I32,
    pred: I32,
    latency: F64,
    delay: F64,
    done: F64,
    start: F64,
    end: F64,
    cursor: I64,
) -> int:
    """Run stages in fixed orders, each as soon as its rank is free and what it needs is there.

    Args:
        ptr: int64[num_ranks + 1], first stage of each rank. stages: int32[n], their numbers.
        pred_ptr, pred: CSR predecessors of stage numbers, int32.
        latency: float64[num_stages] [s], by stage number. delay: float64[num_preds] [s], of the result on its way.
        done: float64[num_stages] [s], NaN; written: ends by stage number, that of an I also as that of its B.
        start, end: float64[n] [s], written in the order of ``stages``.
        cursor: int64[num_ranks], written: how many stages of each rank have run.
    Returns:
        how many stages have run; fewer than n: the orders deadlock.
    """
    total = 0
    progress = True
    while progress:
        progress = False
        for rank in range(len(ptr) - 1):
            at, stop = ptr[rank] + cursor[rank], ptr[rank + 1]
            now = end[at - 1] if cursor[rank] > 0 else 0.0
            begun = at
            while at < stop:
                stage = stages[at]
                ready = now
                for e in range(pred_ptr[stage], pred_ptr[stage + 1]):
                    arrival = done[pred[e]] + delay[e]
                    if not arrival <= ready:  # NaN: not there yet
                        ready = arrival
                        if np.isnan(ready):
                            break
                if np.isnan(ready):
                    break
                start[at] = ready
                now = ready + latency[stage]
                end[at] = now
                done[stage] = now
                if stage & 3 == 2:
                    done[stage - 1] = now
                at += 1
            if at > begun:
                progress = True
                total += at - begun
                cursor[rank] += at - begun
    return total


@kernel
def memory_of_orders(ptr: I64, stages: I32, delta: I64, internal: I64, peak: I64) -> None:
    """Highest memory of every rank: during a stage, that before it and its internal peak.

    Args:
        ptr, stages: as ``run_orders``.
        delta: int64[num_stages] [bytes], what a stage leaves. internal: int64[num_stages] [bytes], at least
            max(delta, 0), its peak above its beginning.
        peak: int64[num_ranks] [bytes], written.
    """
    for rank in range(len(ptr) - 1):
        level, top = np.int64(0), np.int64(0)
        for at in range(ptr[rank], ptr[rank + 1]):
            stage = stages[at]
            top = max(top, level + internal[stage])
            level += delta[stage]
        peak[rank] = top


@kernel
def list_schedule(pipeline: Group, costs: Group, limit: I64, need: I64, policy: Group, order: I32) -> int:
    """Put stages in order by earliest start: of all stages that could run next, the one that could start first.

    Where several on a rank could start at once, an input gradient (or whole backward) goes before a forward, that
    before a weight gradient. Microbatches come in groups; of equal groups, forwards of the earlier chunk (the later one
    where a group is one microbatch) and backwards of the later chunk, then the lower microbatch.
    A weight gradient fills a gap that is known to be long enough, or makes room, or comes when nothing else is left.

    Args:
        pipeline: rank_ptr, rank_chunks: CSR of the chunks of each rank. first: int64[num_chunks + 1], first pair of
            each chunk. exists, has_backward: bool[num_pairs]. rank, microbatch: int32[num_pairs].
            pred_ptr, pred: as ``run_orders``.
        costs: latency, delay: as ``run_orders``. delta: int64[num_stages] [bytes].
        limit: int64[num_ranks] [bytes], of what forwards leave.
        need: int64[num_microbatches, num_ranks] [bytes], room that a microbatch must find on all ranks before it
            enters; zeros: none.
        policy: is_split: backwards are split. is_patient: a forward does not start where it would delay a backward that
            is on its way. group: microbatches that go through a chunk before they go through the next one. is_greedy:
            weight gradients fill every gap. slack: how much of its time a weight gradient may delay what comes next, in
            parts of its time. in_turn: a microbatch that enters leaves room for all earlier ones: some begin at other
            chunks than others.
        order: int32[num_stages], written: stage numbers in the order in which they were chosen.
    Returns:
        how many stages are in ``order``.
    """
    rank_ptr, rank_chunks, first, exists, has_backward, rank, microbatch, pred_ptr, pred = pipeline
    latency, delay, delta = costs
    is_split, is_patient, group, is_greedy, slack, in_turn = policy
    num_ranks, num_chunks = len(limit), len(first) - 1
    following = zeros((num_chunks, 3), np.int64)
    now, level = zeros(num_ranks, np.float64), zeros(num_ranks, np.int64)
    reserved = zeros(num_ranks, np.int64)
    done = np.full(len(latency), np.nan)
    inside = zeros(len(need), np.bool_)
    uses_need = False
    for i in range(need.shape[0]):
        for r in range(num_ranks):
            uses_need |= need[i, r] > 0
    must_go = False
    count, clock, back = 0, 0.0, (2 if is_split else 1)
    while True:
        best, best_kind, best_pair, best_chunk, best_score = np.inf, -1, -1, -1, np.inf
        for r in range(num_ranks):
            soonest, soonest_back, weight_chunk, weight_pair = np.inf, np.inf, -1, np.int64(-1)
            weight_ready = np.inf
            forward, forward_pair, forward_chunk, forward_score = np.inf, -1, -1, np.inf
            backward, backward_pair, backward_chunk, backward_score = np.inf, -1, -1, np.inf
            blocked = False
            for at in range(rank_ptr[r], rank_ptr[r + 1]):
                c = rank_chunks[at]
                for kind in range(3):
                    pair = first[c] + following[c, kind]
                    while pair < first[c + 1] and (not exists[pair] or (kind > 0 and not has_backward[pair])):
                        following[c, kind] += 1
                        pair += 1
                    if pair >= first[c + 1]:
                        continue
                    if kind == 2:
                        part = pair - first[c]
                        if is_split and following[c, 1] > part and done[4 * pair + 2] < weight_ready:
                            weight_chunk, weight_pair, weight_ready = c, pair, done[4 * pair + 2]
                        continue
                    stage = 4 * pair + (0 if kind == 0 else back)
                    ready, bound = now[r], now[r]
                    for e in range(pred_ptr[stage], pred_ptr[stage + 1]):
                        before = pred[e]
                        arrival = done[before] + delay[e]
                        if np.isnan(arrival):
                            ready = np.inf
                            cost = latency[before + (1 if is_split and before & 3 == 1 else 0)]
                            bound = max(bound, max(clock, now[rank[before // 4]]) + cost + delay[e])
                        else:
                            bound = max(bound, arrival)
                            if ready < np.inf:
                                ready = max(ready, arrival)
                    if kind == 0:
                        full = level[r] + delta[stage] > limit[r]
                        if uses_need and not inside[microbatch[pair]]:
                            for other in range(num_ranks):
                                wanted = need[microbatch[pair], other]
                                for early in range(microbatch[pair] if in_turn else 0):
                                    if not inside[early]:
                                        wanted += need[early, other]
                                if reserved[other] + wanted > limit[other]:
                                    full = True
                        if full:
                            blocked = True
                            continue
                        soonest = min(soonest, bound)
                        later = -c if group == 1 else c
                        score = (microbatch[pair] // group) * 1e12 + later * 1e6 + pair - first[c]
                        if ready < np.inf and (
                            max(ready, clock) < forward or (max(ready, clock) == forward and score < forward_score)
                        ):
                            forward, forward_pair, forward_chunk, forward_score = max(ready, clock), pair, c, score
                    else:
                        soonest = min(soonest, bound)
                        soonest_back = min(soonest_back, bound)
                        score = (microbatch[pair] // group) * 1e12 - c * 1e6 + pair - first[c]
                        if ready < np.inf and (
                            max(ready, clock) < backward or (max(ready, clock) == backward and score < backward_score)
                        ):
                            backward, backward_pair, backward_chunk, backward_score = max(ready, clock), pair, c, score
            start, kind, pair, chunk, score = backward, 1, backward_pair, backward_chunk, 0.0
            waits = (
                is_patient and not must_go and forward_pair >= 0 and soonest_back < forward + latency[4 * forward_pair]
            )
            if forward < start and not waits:
                start, kind, pair, chunk, score = forward, 0, forward_pair, forward_chunk, 1.0
            if weight_chunk >= 0:
                when, takes = max(now[r], clock), latency[4 * weight_pair + 3]
                room = max(slack, 0.5) if blocked else slack
                if when < start and (is_greedy or must_go or when + (1.0 - room) * takes <= soonest):
                    start, kind, pair, chunk, score = when, 2, weight_pair, weight_chunk, 2.0
            if start < best or (start == best and kind >= 0 and score < best_score):
                best, best_kind, best_pair, best_chunk, best_score = start, kind, pair, chunk, score
        if best == np.inf:
            if must_go:
                return count
            must_go = True  # ranks that are polite to one another would wait for ever
            continue
        must_go = False
        stage = 4 * best_pair + (0 if best_kind == 0 else back if best_kind == 1 else 3)
        r = rank[best_pair]
        i = microbatch[best_pair]
        if best_kind == 0 and not inside[i]:
            for early in range(0 if in_turn else i, i + 1):
                if not inside[early]:
                    inside[early] = True
                    for other in range(num_ranks):
                        reserved[other] += need[early, other]
        clock = best
        now[r] = best + latency[stage]
        done[stage] = now[r]
        if stage & 3 == 2:
            done[stage - 1] = now[r]
        level[r] += delta[stage]
        if uses_need and (stage & 3 == 3 or stage & 3 == 1):
            reserved[r] -= delta[4 * best_pair]
        following[best_chunk, best_kind] += 1
        order[count] = stage
        count += 1
