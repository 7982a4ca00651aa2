"""The dual queue of 002 §5.2: an order from priorities, with its times."""

from __future__ import annotations

from typing import Any

import numpy as np

from semu.compiled import kernel, part, trailing_zeros, zeros
from semu.searcher.kernels.times import Flow, Group, time_run
from semu.searcher.problem.problem_arrays import I32, I64, U8


@part
def _leaves_room(
    mine: int,
    lowest: int,
    entered: Any,
    more: int,
    room: int,
    turns: I32,
    allocated: I64,
    wanted: I64,
    most_at_once: I64,
    num_left: I32,
) -> bool:
    """Whether a forward leaves every microbatch with an earlier turn what it may still want on one rank.

    Args:
        mine: turn of the forward's microbatch. lowest: no microbatch with a lower turn has anything left here.
        entered: microbatches that have turns. more: what the forward leaves [bytes]. room: [bytes].
        turns, allocated, wanted, most_at_once, num_left: as in ``interleave``, save the first of the rank.
    """
    later = np.int64(0)
    for at in range(entered - 1, lowest - 1, -1):
        m = turns[at]
        if num_left[m] > 0:
            if at < mine and later + min(wanted[m], most_at_once[m]) + more > room:
                return False
            later += allocated[m]
    return True


@kernel
def hold_at_once(
    ptr: I64, stages: I32, pred_ptr: I32, pred: I32, rank: I32, has_backward: U8, held: I64, peak: I64, most: I64
) -> None:
    """What each microbatch holds at most on each rank while it runs, in any order that its edges allow.

    While a stage runs, a pair of its microbatch and rank is there unless it must begin later or has ended.

    Args:
        ptr, stages: CSR of stages by microbatch, each after those that it needs. pred_ptr, pred: CSR of the edges by
            consumer. rank: int32[2n]. held: int64[n]. peak: int64[2n] [bytes]. has_backward: bool[n].
        most: int64[P, num_microbatches] [bytes], written.
    """
    place = np.full(len(rank), -1, dtype=np.int64)
    for m in range(len(ptr) - 1):
        own = stages[ptr[m] : ptr[m + 1]]
        needs = zeros((len(own), len(own)), np.bool_)
        for at in range(len(own)):
            place[own[at]] = at
            for e in range(pred_ptr[own[at]], pred_ptr[own[at] + 1]):
                before = place[pred[e]]
                if before >= 0 and own[before] == pred[e]:
                    needs[at, before] = True
                    for further in range(before):
                        needs[at, further] |= needs[before, further]
        for at in range(len(own)):
            stage = own[at]
            level = peak[stage] + (held[stage >> 1] if stage & 1 else 0)
            for other in range(len(own)):
                pair = own[other] >> 1
                if own[other] & 1 or pair == stage >> 1 or not has_backward[pair] or rank[own[other]] != rank[stage]:
                    continue
                if not needs[other, at] and not needs[at, place[2 * pair + 1]]:
                    level += held[pair]
            most[rank[stage], m] = max(most[rank[stage], m], level)
        for stage in own:
            place[stage] = -1


@part
def run_dual_queue(
    flow: Group,
    queues: Group,
    limits: Group,
    costs: Group,
    room: I64,
    sequences: I32,
    back_sequences: I32,
    places: Group,
    times: Group,
    count: I64,
    missing: I64,
) -> None:
    """See ``interleave``."""
    graph = Flow(*flow)
    ptr, rank, succ_ptr, succ, succ_s, succ_link, num_links, num_pred = flow
    forward_ptr, forward_pairs, backward_ptr, backward_pairs, microbatch = queues
    is_limited, need, most_at_once, num_of = limits
    latency, held, peak = costs
    order, run = places
    start, end, makespan = times
    num_ranks, num_stages, num_groups = len(ptr) - 1, len(rank), sequences.shape[1]
    num_pairs, num_microbatches = num_stages // 2, need.shape[1]
    total = ptr[num_ranks]
    words = 1
    for r in range(num_ranks):
        words = max(words, (forward_ptr[(r + 1) * num_groups] - forward_ptr[r * num_groups] + 63) // 64)
    bits = zeros((num_ranks, 2, words), np.uint64)
    low = zeros((num_ranks, 2), np.int64)
    num_ready = zeros((num_ranks, 2), np.int64)
    place = zeros(num_stages, np.int32)
    stage_at = zeros((num_ranks, 2, words * 64), np.int32)
    ready, waiting = zeros(num_stages, np.float64), zeros(num_stages, np.int32)
    link_free, key, now_of = zeros(num_links, np.float64), zeros(num_ranks, np.float64), zeros(num_ranks, np.float64)
    pending = zeros(total, np.int32)
    head, tail = zeros(num_ranks, np.int64), zeros(num_ranks, np.int64)
    done, last = zeros(num_ranks, np.int64), zeros(num_ranks, np.int64)
    level, most = zeros(num_ranks, np.int64), zeros(num_ranks, np.int64)
    lowest, forced = zeros(num_ranks, np.int32), zeros(num_ranks, np.int32)
    allocated, wanted = zeros(need.shape, np.int64), zeros(need.shape, np.int64)
    num_left = zeros(need.shape, np.int32)
    turn, turns = zeros(num_microbatches, np.int32), zeros(num_microbatches, np.int32)
    any_limit = False
    for r in range(num_ranks):
        any_limit |= is_limited[r]
        for m in range(num_microbatches):
            most[r] = max(most[r], min(need[r, m], most_at_once[r, m]))
    for b in range(len(sequences)):
        row, longest = min(b, len(order) - 1), 0.0
        for r in range(num_ranks):
            at = 0
            for g in sequences[b]:
                for e in range(forward_ptr[r * num_groups + g], forward_ptr[r * num_groups + g + 1]):
                    stage = 2 * forward_pairs[e]
                    place[stage] = at
                    stage_at[r, 0, at] = stage
                    at += 1
            at = 0
            for g in back_sequences[b]:
                for e in range(backward_ptr[r * num_groups + g], backward_ptr[r * num_groups + g + 1]):
                    stage = 2 * backward_pairs[e] + 1
                    place[stage] = at
                    stage_at[r, 1, at] = stage
                    at += 1
            head[r] = tail[r] = ptr[r]
            done[r], last[r], key[r], now_of[r], level[r], lowest[r], forced[r] = 0, 1, np.inf, 0.0, 0, 0, -1
            num_ready[r, :] = 0
            low[r, :] = words
            for w in range(words):
                bits[r, 0, w] = bits[r, 1, w] = 0
        for stage in range(num_stages):
            ready[stage], waiting[stage] = 0.0, num_pred[stage]
        link_free[:] = 0.0
        entered, is_late = np.int64(0), False
        if any_limit:
            turn[:] = num_microbatches
            for r in range(num_ranks):
                for m in range(num_microbatches):
                    allocated[r, m], wanted[r, m], num_left[r, m] = 0, need[r, m], num_of[r, m]
        for i in range(num_pairs):
            if num_pred[2 * i] == 0:
                r, spot = rank[2 * i], place[2 * i]
                bits[r, 0, spot >> 6] |= np.uint64(1) << np.uint64(spot & 63)
                low[r, 0] = min(low[r, 0], spot >> 6)
                num_ready[r, 0] += 1
                key[r] = 0.0
        ran = 0
        while ran < total:
            r, now = 0, key[0]
            for other in range(1, num_ranks):
                if key[other] < now:
                    r, now = other, key[other]
            if now == np.inf:
                break
            while head[r] < tail[r] and ready[pending[head[r]]] <= now:
                stage = pending[head[r]]
                head[r] += 1
                kind, spot = stage & 1, place[stage]
                word = spot >> 6
                bits[r, kind, word] |= np.uint64(1) << np.uint64(spot & 63)
                low[r, kind] = min(low[r, kind], word)
                num_ready[r, kind] += 1
            chosen, closing = forced[r], -1
            wish = 1 - last[r]
            for attempt in range(2):
                if chosen >= 0:
                    break
                kind = wish if attempt == 0 else 1 - wish
                if num_ready[r, kind] == 0:
                    continue
                word = low[r, kind]
                while bits[r, kind, word] == 0:
                    word += 1
                low[r, kind] = word
                mask = bits[r, kind, word]
                stage = stage_at[r, kind, (word << 6) + np.int64(trailing_zeros(mask))]
                if not is_limited[r]:
                    chosen = stage
                    break
                before = num_microbatches + 1
                while True:
                    own = turn[microbatch[stage >> 1]]
                    if own < before:
                        fits = level[r] + peak[stage] <= room[r]
                        if fits and kind == 0 and level[r] + held[stage >> 1] + most[r] > room[r]:
                            while lowest[r] < entered and num_left[r, turns[lowest[r]]] == 0:
                                lowest[r] += 1
                            more = held[stage >> 1]
                            fits = _leaves_room(
                                own,
                                lowest[r],
                                entered,
                                more,
                                room[r],
                                turns,
                                allocated[r],
                                wanted[r],
                                most_at_once[r],
                                num_left[r],
                            )
                            if not fits and num_pred[stage + 1] == 1 and level[r] + more + peak[stage + 1] <= room[r]:
                                fits, closing = True, stage + 1
                        if fits:
                            chosen = stage
                            break
                        if kind == 0:
                            before = own
                    mask &= mask - np.uint64(1)
                    while mask == 0 and word < words - 1:
                        word += 1
                        mask = bits[r, kind, word]
                    if mask == 0:
                        break
                    stage = stage_at[r, kind, (word << 6) + np.int64(trailing_zeros(mask))]
            if chosen < 0:
                key[r] = ready[pending[head[r]]] if head[r] < tail[r] else np.inf
                continue
            stage = chosen
            forced[r] = closing
            kind, spot = stage & 1, place[stage]
            bits[r, kind, spot >> 6] &= ~(np.uint64(1) << np.uint64(spot & 63))
            num_ready[r, kind] -= 1
            if num_ready[r, kind] == 0:
                low[r, kind] = words
            finish = now + latency[stage]
            start[row, stage] = now
            end[row, stage] = finish
            order[row, ptr[r] + done[r]] = stage
            done[r] += 1
            run[row, ran] = stage
            ran += 1
            last[r] = kind
            now_of[r] = finish
            longest = max(longest, finish)
            if any_limit:
                pair = stage >> 1
                m = microbatch[pair]
                if turn[m] == num_microbatches:
                    turn[m] = entered
                    turns[entered] = m
                    entered += 1
                    for other in range(num_ranks):  # a forward of m that was behind one that waits may go now
                        if is_limited[other] and num_ready[other, 0] > 0 and max(now_of[other], now) < key[other]:
                            key[other] = max(now_of[other], now)
                            is_late |= now_of[other] < now
                num_left[r, m] -= 1
                if kind == 0:
                    level[r] += held[pair]
                    allocated[r, m] += held[pair]
                else:
                    level[r] -= held[pair]
                    allocated[r, m] -= held[pair]
                    wanted[r, m] -= held[pair]
            for e in range(succ_ptr[stage], succ_ptr[stage + 1]):
                target, link, arrival = succ[e], succ_link[e], finish
                if link >= 0:
                    arrival = max(finish, link_free[link]) + succ_s[e]
                    link_free[link] = arrival
                if arrival > ready[target]:
                    ready[target] = arrival
                waiting[target] -= 1
                if waiting[target] == 0:
                    there, when = rank[target], ready[target]
                    at = tail[there]
                    tail[there] += 1
                    while at > head[there] and ready[pending[at - 1]] > when:
                        pending[at] = pending[at - 1]
                        at -= 1
                    pending[at] = target
                    key[there] = min(key[there], max(now_of[there], when))
            if num_ready[r, 0] + num_ready[r, 1] > 0:
                key[r] = finish
            elif head[r] < tail[r]:
                key[r] = max(finish, ready[pending[head[r]]])
            else:
                key[r] = np.inf
        count[b] = ran
        if is_late and ran == total:
            longest = time_run(run[row], graph, latency, ready, now_of, link_free, start[row], end[row])
        makespan[b] = longest if ran == total else np.inf
        missing[b, 0], missing[b, 1] = -1, 0
        if ran < total:
            for r in range(num_ranks):
                for kind in range(2):
                    for word in range(words):
                        mask = bits[r, kind, word]
                        while mask != 0:
                            stage = stage_at[r, kind, (word << 6) + np.int64(trailing_zeros(mask))]
                            mask &= mask - np.uint64(1)
                            excess = level[r] + peak[stage] - room[r]
                            if excess > 0 and (missing[b, 0] < 0 or excess < missing[b, 1]):
                                missing[b, 0], missing[b, 1] = r, excess


@kernel
def interleave(
    flow: Group,
    queues: Group,
    limits: Group,
    costs: Group,
    room: I64,
    sequences: I32,
    back_sequences: I32,
    places: Group,
    times: Group,
    count: I64,
    missing: I64,
) -> None:
    """Orders by the dual queue of 002 §5.2, one per row of ``sequences``.

    Events are in order of time. The rank that could start something first (the lower one of equals) goes next; it
    looks at what could start then. If that is forwards and backwards, it takes the other kind than its last one (a
    forward first), else what there is; within a kind the group that comes first in the sequence, within a group the
    fixed order.

    Memory: microbatches have turns by their first forward anywhere. A stage runs only if its peak fits, a forward only
    if after it every microbatch with an earlier turn that is not done on the rank could hold all that it may still
    hold there, its peaks included, beside what later ones hold: those may then end one after another. A forward whose
    backward needs nothing else also runs where both fit one right after the other, as then they do. A forward that
    must wait disables the rank's queue of forwards, save microbatches with an earlier turn. So no rank waits for ever
    where every microbatch alone fits with everything that it holds on a rank at once.

    Times are the earliest ones that the orders found allow, as ``evaluate_orders`` gives them.

    Args:
        flow: of ``Flow``. costs: of ``Costs``. room: int64[P] [bytes], without static ones.
        queues: forward_ptr, forward_pairs, backward_ptr, backward_pairs: CSR by rank x num_groups + group: pairs in the
            fixed order of their forwards; of their backwards. microbatch: int32[n], numbered from 0 on.
        limits: is_limited: bool[P], whether memory can bind at all. need: int64[P, num_microbatches] [bytes], what a
            microbatch holds in all and its highest peak above that. most_at_once: int64[P, num_microbatches] [bytes],
            what it holds at most in any order that its edges allow. num_of: int32[P, num_microbatches], its stages.
        sequences, back_sequences: int32[B, num_groups], groups by falling priority, of forwards and of backwards.
        places: order: int32[k, num stages], written: rank after rank. run: the same, in the order in which they were
            chosen.
        times: start, end: float64[k, 2n] [s], written where a stage runs. Row b of these, or the last one: with k = 1
            they stay in cache and hold the last schedule. makespan: float64[B] [s], written; infinite where not all has
            run.
        count: int64[B], written: stages that ran; fewer than all: no memory for the rest.
        missing: int64[B, 2], written where that is so: the rank and the bytes without which nothing can run on it.
    """
    run_dual_queue(flow, queues, limits, costs, room, sequences, back_sequences, places, times, count, missing)
