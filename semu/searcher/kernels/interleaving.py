"""Kernels of the search: an order from priorities, its times and memory, the choice of candidates, all in one call.

Work arrays are made once per call and reused for every schedule of a batch. Stage numbers, edges and bytes are as in
``SearchProblem``; ``semu.searcher.problem.tables`` makes the other arrays.

Groups of arrays that these kernels share: the fields of the named tuples below, as plain tuples where Python calls
(numba types a plain tuple three times as fast as a named one).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from semu.compiled import kernel, part, zeros
from semu.searcher.problem.problem_arrays import F64, I16, I32, I64, U8

U64 = NDArray[np.uint64]
Group = tuple[Any, ...]

_FEW_PAIRS = 48
"""Pairs of a rank up to which a choice of candidates is improved one by one: that takes their number squared."""


class Flow(NamedTuple):
    """Stages of each rank, and the edges between them.

    Attributes:
        ptr: int64[P + 1], first stage of each rank in an order. rank: int32[2n].
        succ_ptr, succ, succ_s, succ_link: CSR of the edges by producer, sends in the order in which they leave; time
            of the send [s]; its directed pair of ranks, -1 within a rank. num_links: pairs of ranks.
        num_pred: int32[2n], edges into each stage.
    """

    ptr: I64
    rank: I32
    succ_ptr: I32
    succ: I32
    succ_s: F64
    succ_link: I32
    num_links: int
    num_pred: I32


class Candidates(NamedTuple):
    """What every candidate of every pair costs: columns of ``SearchProblem`` of the same names."""

    forward_s: F64
    backward_s: F64
    held_bytes: I64
    forward_peak: I64
    backward_peak: I64
    has_backward: U8
    num_candidates: I16


class Costs(NamedTuple):
    """What stages cost under a choice of candidates: float64[2n] [s], int64[n] and int64[2n] [bytes]."""

    latency: F64
    held: I64
    peak: I64


class Pairs(NamedTuple):
    """Pairs of one rank with their candidates.

    Attributes:
        first, final: int64[k], positions of each pair's forward and backward. num: int64[k], its candidates.
        lat: float64[k, width] [s]. hold, rise, fall: [k, width], held, a forward's and a backward's peak above that:
            int64 [bytes], or float64 parts of the room.
    """

    first: I64
    final: I64
    num: I64
    lat: F64
    hold: Any
    rise: Any
    fall: Any


def _generate_trailing_zeros(typing_context: Any, word: Any) -> Any:
    """Types and code of ``_trailing_zeros``."""

    def _generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], context.get_constant(types.boolean, True))

    return types.uint64(types.uint64), _generate


_trailing_zeros: Any = intrinsic(_generate_trailing_zeros)
"""Number of zeros below the lowest one of a word that is not zero."""


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
def _interleave(
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
                stage = stage_at[r, kind, (word << 6) + np.int64(_trailing_zeros(mask))]
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
                    stage = stage_at[r, kind, (word << 6) + np.int64(_trailing_zeros(mask))]
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
            longest = _time(run[row], graph, latency, ready, now_of, link_free, start[row], end[row])
        makespan[b] = longest if ran == total else np.inf
        missing[b, 0], missing[b, 1] = -1, 0
        if ran < total:
            for r in range(num_ranks):
                for kind in range(2):
                    for word in range(words):
                        mask = bits[r, kind, word]
                        while mask != 0:
                            stage = stage_at[r, kind, (word << 6) + np.int64(_trailing_zeros(mask))]
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
    _interleave(flow, queues, limits, costs, room, sequences, back_sequences, places, times, count, missing)


@part
def _follow(order: I32, flow: Flow, run: I32) -> int:
    """Stages in an order in which all can run one by one, written to ``run``; returns how many there are."""
    ptr, rank, succ_ptr, succ = flow.ptr, flow.rank, flow.succ_ptr, flow.succ
    num_ranks = len(ptr) - 1
    waiting, cursor = flow.num_pred.copy(), ptr[:-1].copy()
    stack, height, ran = zeros(num_ranks, np.int64), num_ranks, 0
    for r in range(num_ranks):
        stack[r] = r
    while height > 0:
        height -= 1
        r = stack[height]
        while cursor[r] < ptr[r + 1] and waiting[order[cursor[r]]] == 0:
            stage = order[cursor[r]]
            cursor[r] += 1
            run[ran] = stage
            ran += 1
            waiting[stage] = -1
            for e in range(succ_ptr[stage], succ_ptr[stage + 1]):
                target = succ[e]
                waiting[target] -= 1
                there = rank[target]
                if waiting[target] == 0 and there != r and order[cursor[there]] == target:
                    stack[height] = there
                    height += 1
    return ran


@part
def _time(
    run: I32, flow: Flow, latency: F64, ready: F64, rank_free: F64, link_free: F64, start: F64, end: F64
) -> float:
    """Times of stages in the order ``run``; returns the end of the last one [s]."""
    rank, succ_ptr, succ, succ_s, succ_link = flow.rank, flow.succ_ptr, flow.succ, flow.succ_s, flow.succ_link
    ready[:] = 0.0
    rank_free[:] = 0.0
    link_free[:] = 0.0
    longest = 0.0
    for stage in run:
        begun = max(ready[stage], rank_free[rank[stage]])
        finish = begun + latency[stage]
        start[stage] = begun
        end[stage] = finish
        rank_free[rank[stage]] = finish
        longest = max(longest, finish)
        for e in range(succ_ptr[stage], succ_ptr[stage + 1]):
            target, link, arrival = succ[e], succ_link[e], finish
            if link >= 0:
                arrival = max(finish, link_free[link]) + succ_s[e]
                link_free[link] = arrival
            ready[target] = max(ready[target], arrival)
    return longest


@part
def _measure(ptr: I64, order: I32, costs: Costs, top: I64) -> None:
    """Highest memory of every rank above its static one [bytes], written to ``top``."""
    _, held, peak = costs
    for r in range(len(ptr) - 1):
        level, highest = np.int64(0), np.int64(0)
        for at in range(ptr[r], ptr[r + 1]):
            stage = order[at]
            highest = max(highest, level + peak[stage])
            level += -held[stage >> 1] if stage & 1 else held[stage >> 1]
        top[r] = highest


@part
def _no_costs(num_stages: int) -> Costs:
    """Room for what stages cost."""
    held, peak = zeros(num_stages // 2, np.int64), zeros(num_stages, np.int64)
    return Costs(zeros(num_stages, np.float64), held, peak)


@part
def _cost(choice: I16, candidates: Candidates, costs: Costs) -> None:
    """What stages cost under a choice of candidates, written to ``costs``.

    What a forward without a backward holds ends with it: nothing.
    """
    forward_s, backward_s, held_bytes, forward_peak, backward_peak, has_backward, _ = candidates
    latency, held, peak = costs
    for i in range(len(choice)):
        j = choice[i]
        latency[2 * i], latency[2 * i + 1] = forward_s[i, j], backward_s[i, j]
        held[i] = held_bytes[i, j] if has_backward[i] else 0
        peak[2 * i], peak[2 * i + 1] = forward_peak[i, j], backward_peak[i, j]


@kernel
def evaluate_orders(flow: Group, candidates: Group, orders: I32, choices: I16, times: Group, top: I64) -> None:
    """Times and memory of given orders with given candidates: the truth.

    A stage starts when its rank is free and all that it needs has arrived.

    Args:
        flow: of ``Flow``. candidates: of ``Candidates``.
        orders: int32[B, num stages], rank after rank. choices: int16[B, n].
        times: start, end: float64[k, 2n] [s], written; row b or the last one. makespan: float64[B] [s], written;
            infinite where an order deadlocks.
        top: int64[B, P] [bytes], written: highest memory above the static one.
    """
    graph, columns = Flow(*flow), Candidates(*candidates)
    start, end, makespan = times
    num_stages, num_ranks = len(graph.rank), len(graph.ptr) - 1
    run = zeros(orders.shape[1], np.int32)
    ready, rank_free, link_free = (
        zeros(num_stages, np.float64),
        zeros(num_ranks, np.float64),
        zeros(graph.num_links, np.float64),
    )
    costs = _no_costs(num_stages)
    for b in range(len(orders)):
        row = min(b, len(start) - 1)
        _cost(choices[b], columns, costs)
        _measure(graph.ptr, orders[b], costs, top[b])
        if _follow(orders[b], graph, run) < len(run):
            makespan[b] = np.inf
            continue
        makespan[b] = _time(run, graph, costs.latency, ready, rank_free, link_free, start[row], end[row])


@part
def _relax(pairs: Pairs, price: F64, sums: F64, taken: I64, usage: F64) -> float:
    """Cheapest candidates at given prices of memory; the Lagrangian's value without its constant.

    Args:
        pairs: with parts of the room.
        price: [s] per room, by position. sums, usage: written, one longer. taken: written, the candidates.
    """
    first, final, num, lat, hold, rise, fall = pairs
    length, total = len(price), 0.0
    sums[0] = 0.0
    for t in range(length):
        sums[t + 1] = sums[t] + price[t]
    usage[:] = 0.0
    for k in range(len(first)):
        a, z = first[k], final[k]
        span, up, down = sums[z + 1] - sums[a], price[a], price[z]
        best, at = np.inf, 0
        for j in range(num[k]):
            cost = lat[k, j] + span * hold[k, j] + up * rise[k, j] + down * fall[k, j]
            if cost < best:
                best, at = cost, j
        total += best
        taken[k] = at
        h = hold[k, at]
        usage[a] += h + rise[k, at]
        usage[a + 1] -= rise[k, at]
        usage[z] += fall[k, at]
        usage[z + 1] -= h + fall[k, at]
    level = 0.0
    for t in range(length):
        level += usage[t]
        usage[t] = level
    return total


@part
def _exchange(k: int, to: Any, pairs: Pairs, chosen: I64, usage: I64) -> None:
    """Give a pair a candidate, and add to what is used during the pair's time what that holds more or less."""
    first, final, c = pairs.first[k], pairs.final[k], chosen[k]
    more = pairs.hold[k, to] - pairs.hold[k, c]
    for t in range(first, final + 1):
        usage[t] += more
    usage[first] += pairs.rise[k, to] - pairs.rise[k, c]
    usage[final] += pairs.fall[k, to] - pairs.fall[k, c]
    chosen[k] = to


@part
def _use(pairs: Pairs, chosen: I64, usage: I64) -> np.int64:
    """What all pairs use with their candidates, by position, written to ``usage``; the highest of it [bytes]."""
    first, final, _, _, hold, rise, fall = pairs
    usage[:] = 0
    length = len(usage)
    for k in range(len(first)):
        a, z, c = first[k], final[k], chosen[k]
        h = hold[k, c]
        usage[a] += h + rise[k, c]
        if a + 1 < length:
            usage[a + 1] -= rise[k, c]
        usage[z] += fall[k, c]
        if z + 1 < length:
            usage[z + 1] -= h + fall[k, c]
    level, highest = np.int64(0), np.int64(0)
    for t in range(length):
        level += usage[t]
        usage[t] = level
        highest = max(highest, level)
    return highest


@part
def _cheapest(k: int, pairs: Pairs, sums: F64, chosen: I64) -> tuple[float, int]:
    """The downgrade of a pair that costs least per byte held, at given prices: what it costs; the candidate or -1."""
    first, final, num, lat, hold, rise, _ = pairs
    c, best, at = chosen[k], np.inf, -1
    span = sums[final[k] + 1] - sums[first[k]]
    for j in range(num[k]):
        freed = hold[k, c] - hold[k, j]
        if freed > 0 and rise[k, j] - rise[k, c] <= freed:  # the forward's peak is behind us and must not grow
            worse = max(lat[k, j] - lat[k, c] - span * freed, 0.0) / freed
            if worse < best:
                best, at = worse, j
    return best, at


@part
def _repair(
    room: int,
    pairs: Pairs,
    owner: I64,
    sums: F64,
    chosen: I64,
    usage: I64,
    active: I64,
    score: F64,
    option: I64,
) -> bool:
    """Downgrade until everything fits: position by position, of all pairs that are there the downgrade that costs least
    per byte at the prices of memory. Writes ``chosen`` and ``usage``; returns whether it worked.

    Args:
        sums: [s per byte], of the prices before each position. active, score, option: scratch.
    """
    first, final, num, lat, hold, rise, fall = pairs
    num_active = 0
    for t in range(len(owner)):
        mine = owner[t]
        if first[mine] == t:
            active[num_active] = mine
            score[num_active], option[num_active] = _cheapest(mine, pairs, sums, chosen)
            num_active += 1
        while usage[t] > room:
            best, at = np.inf, -1
            to: Any = np.int64(-1)
            for i in range(num_active):
                if score[i] < best:
                    best, at, to = score[i], i, option[i]
            # The stage that runs now counts with its peak.
            c = chosen[mine]
            is_first, is_final = first[mine] == t, final[mine] == t
            for j in range(num[mine]):
                more = hold[mine, j] - hold[mine, c]
                change = more
                if is_first:
                    change += rise[mine, j] - rise[mine, c]
                elif more > 0 or more + rise[mine, j] - rise[mine, c] > 0:
                    continue
                if is_final:
                    change += fall[mine, j] - fall[mine, c]
                if change < 0:
                    worse = max(lat[mine, j] - lat[mine, c], 0.0) / -change
                    if worse < best:
                        best, to = worse, j
                        at = -2
            if to < 0:
                return False
            k = mine
            if at >= 0:
                k = active[at]
            else:
                for i in range(num_active):
                    if active[i] == mine:
                        at = i
            c = chosen[k]
            _exchange(k, to, pairs, chosen, usage)
            score[at], option[at] = _cheapest(k, pairs, sums, chosen)
        if final[mine] == t:
            for i in range(num_active):
                if active[i] == mine:
                    num_active -= 1
                    active[i], score[i], option[i] = active[num_active], score[num_active], option[num_active]
                    break
    return True


@part
def _sort_falling(score: F64, ranking: I64) -> None:
    """Numbers of scores, the highest score first, equals in a fixed order (Shell's sort); written to ``ranking``."""
    count, gap = len(score), 1
    for k in range(count):
        ranking[k] = k
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for at in range(gap, count):
            mine, spot = ranking[at], at
            while spot >= gap and score[ranking[spot - gap]] < score[mine]:
                ranking[spot] = ranking[spot - gap]
                spot -= gap
            ranking[spot] = mine
        gap //= 3


@part
def _upgrade(k: int, only: Any, room: int, pairs: Pairs, chosen: I64, usage: I64) -> None:
    """Give a pair the fastest candidate that fits, or the one that is named if it fits and is faster."""
    first, final, num, lat, hold, rise, fall = pairs
    a, z, c = first[k], final[k], chosen[k]
    inside = np.int64(0)
    for t in range(a + 1, z):
        inside = max(inside, usage[t])
    best = c
    for j in range(num[k]):
        more, up, down = hold[k, j] - hold[k, c], rise[k, j] - rise[k, c], fall[k, j] - fall[k, c]
        if (
            (only < 0 or j == only)
            and lat[k, j] < lat[k, best]
            and inside + more <= room
            and usage[a] + more + up + (down if a == z else 0) <= room
            and usage[z] + more + down + (up if a == z else 0) <= room
        ):
            best = j
    if best != c:
        _exchange(k, best, pairs, chosen, usage)


@part
def _fill(room: int, pairs: Pairs, chosen: I64, usage: I64, score: F64, ranking: I64) -> None:
    """Upgrade where there is room: pairs by what they gain per byte and position, each to the fastest that fits."""
    first, final, num, lat, hold, _, _ = pairs
    num_pairs = len(first)
    for k in range(num_pairs):
        c = chosen[k]
        score[k] = 0.0
        for j in range(num[k]):
            if lat[k, j] < lat[k, c]:
                bytes_more = max(hold[k, j] - hold[k, c], 1) * (final[k] - first[k] + 1)
                score[k] = max(score[k], (lat[k, c] - lat[k, j]) / bytes_more)
    _sort_falling(score, ranking)
    for at in range(num_pairs):
        if score[ranking[at]] <= 0.0:
            break
        _upgrade(ranking[at], np.int64(-1), room, pairs, chosen, usage)


@kernel
def choose_memory(
    order: I32, candidates: Group, room: int, goal: float, max_rounds: int, local: I64, choice: I16
) -> tuple[float, float]:
    """Candidates of one rank's pairs with the least time in sum that fit in its memory at every stage (002 §5.3).

    A pair holds memory from the start of its forward to the end of its backward, and each of its two stages has a peak
    above that. All of this is by position in the rank's order, so it does not depend on times. Lower bound: the
    Lagrangian over the positions, raised along its subgradients by Polyak's step towards less than half of
    the way to what was found; with prefix sums of the prices a
    pair's cheapest candidate takes a few operations. Schedules that fit: the Lagrangian's candidates, downgraded
    until they fit, then upgraded where there is room; of few pairs, exchanged one by one while the gap is too large.

    Args:
        order: int32[T], stages of one rank. candidates: of ``Candidates``. room: [bytes].
        goal: relative gap at which it ends. max_rounds: of the Lagrangian.
        local: int64[n], scratch. choice: int16[n], written for the pairs of the rank.
    Returns:
        time in sum [s], infinite where nothing was found that fits (``choice``: the leanest); its lower bound [s].
    """
    forward_s, backward_s, held_bytes, forward_peak, backward_peak, has_backward, num_candidates = candidates
    length, width = len(order), forward_s.shape[1]
    num_pairs = 0
    for t in range(length):
        if order[t] & 1 == 0:
            local[order[t] >> 1] = num_pairs
            num_pairs += 1
    first, final = zeros(num_pairs, np.int64), zeros(num_pairs, np.int64)
    num, pair = zeros(num_pairs, np.int64), zeros(num_pairs, np.int64)
    owner = zeros(length, np.int64)
    lat = zeros((num_pairs, width), np.float64)
    hold, rise = zeros((num_pairs, width), np.int64), zeros((num_pairs, width), np.int64)
    fall = zeros((num_pairs, width), np.int64)
    pairs = Pairs(first, final, num, lat, hold, rise, fall)
    chosen = zeros(num_pairs, np.int64)
    usage = zeros(length, np.int64)
    fastest, least = 0.0, 0.0
    for t in range(length):
        i = order[t] >> 1
        k = local[i]
        owner[t] = k
        final[k] = t
        if order[t] & 1:
            continue
        first[k], num[k], pair[k] = t, num_candidates[i], i
        for j in range(num[k]):
            lat[k, j] = forward_s[i, j] + backward_s[i, j]
            hold[k, j] = held_bytes[i, j] if has_backward[i] else 0
            rise[k, j] = forward_peak[i, j] - hold[k, j]
            fall[k, j] = backward_peak[i, j] if has_backward[i] else 0
            if lat[k, j] < lat[k, chosen[k]]:
                chosen[k] = j
        fastest += lat[k, chosen[k]]
    if _use(pairs, chosen, usage) <= room:
        for k in range(num_pairs):
            choice[pair[k]] = chosen[k]
        return fastest, fastest
    for k in range(num_pairs):
        choice[pair[k]] = 0
    # The leanest of all, and what it leaves to be gained.
    trial, trial_usage = zeros(num_pairs, np.int64), zeros(length, np.int64)
    for k in range(num_pairs):
        least += lat[k, 0]
    highest = _use(pairs, trial, trial_usage)
    best, bound = np.inf, fastest
    price, sums, slope = zeros(length, np.float64), zeros(length + 1, np.float64), zeros(length, np.float64)
    score, active = zeros(num_pairs, np.float64), zeros(num_pairs, np.int64)
    if highest <= room:
        best = least
    part = 1.0 / max(room, 1)
    hold_part, rise_part = zeros((num_pairs, width), np.float64), zeros((num_pairs, width), np.float64)
    fall_part = zeros((num_pairs, width), np.float64)
    for k in range(num_pairs):
        for j in range(num[k]):
            hold_part[k, j], rise_part[k, j], fall_part[k, j] = hold[k, j] * part, rise[k, j] * part, fall[k, j] * part
    parts = Pairs(first, final, num, lat, hold_part, rise_part, fall_part)
    taken, used = zeros(num_pairs, np.int64), zeros(length + 2, np.float64)
    byte_sums, option = zeros(length + 1, np.float64), zeros(num_pairs, np.int64)
    pace, stale = 1.0, 0
    for turn in range(max_rounds):
        value = _relax(parts, price, sums, taken, used)
        value -= sums[length]
        if value > bound or turn == 0:
            if value > bound + 1e-4 * abs(bound):
                stale = 0
            bound = max(bound, value)
        else:
            stale += 1
        norm = 0.0
        for t in range(length):
            slope[t] = used[t] - 1.0 + 0.4 * slope[t]
            if price[t] <= 0.0 and slope[t] < 0.0:
                slope[t] = 0.0
            norm += slope[t] * slope[t]
        if turn % 6 == 2 or norm <= 0.0:
            for k in range(num_pairs):
                trial[k] = taken[k]
            _use(pairs, trial, trial_usage)
            for t in range(length + 1):
                byte_sums[t] = sums[t] * part
            is_repaired = _repair(room, pairs, owner, byte_sums, trial, trial_usage, active, score, option)
            if not is_repaired and highest <= room:
                # From the leanest up to what the Lagrangian wants, where that fits.
                trial[:] = 0
                _use(pairs, trial, trial_usage)
                for k in range(num_pairs):
                    _upgrade(k, taken[k], room, pairs, trial, trial_usage)
                is_repaired = True
            if is_repaired:
                _fill(room, pairs, trial, trial_usage, score, active)
                time = 0.0
                for k in range(num_pairs):
                    time += lat[k, trial[k]]
                if time < best:
                    best = time
                    for k in range(num_pairs):
                        choice[pair[k]] = trial[k]
        if best - bound <= goal * best:
            break
        if stale >= 5:
            pace, stale = pace * 0.6, 0
            if pace < 0.02:
                break
        if norm <= 0.0:
            break
        target = best if best < np.inf else 1.05 * max(least, bound)
        step = pace * max(bound + 0.4 * (target - bound) - value, 1e-6 * abs(target)) / norm
        for t in range(length):
            price[t] = max(0.0, price[t] + step * slope[t])
    if best < np.inf and best - bound > goal * best and num_pairs <= _FEW_PAIRS:
        # Few pairs: give one of them less and the others what that leaves, as long as it helps.
        k, tried = 0, 0
        for pair_k in range(num_pairs):
            chosen[pair_k] = choice[pair[pair_k]]
        while tried < num_pairs:
            tried += 1
            for j in range(num[k]):
                if lat[k, j] <= lat[k, chosen[k]]:
                    continue
                for other in range(num_pairs):
                    trial[other] = chosen[other]
                trial[k] = j
                if _use(pairs, trial, trial_usage) > room:
                    continue
                kept, num[k] = num[k], 0
                _fill(room, pairs, trial, trial_usage, score, active)
                num[k] = kept
                time = 0.0
                for other in range(num_pairs):
                    time += lat[other, trial[other]]
                if time < best:
                    best, tried = time, 0
                    for other in range(num_pairs):
                        chosen[other] = trial[other]
            k = (k + 1) % num_pairs
        for other in range(num_pairs):
            choice[pair[other]] = chosen[other]
    return best, min(bound * (1.0 - 1e-12), best)  # prices are not on the grid of times


@kernel
def rollouts(
    flow: Group,
    queues: Group,
    limits: Group,
    candidates: Group,
    room: I64,
    sequences: I32,
    back_sequences: I32,
    goal: float,
    max_rounds: int,
    worth: float,
    order: I32,
    choice: I16,
    times: Group,
    lean: F64,
    count: I64,
    missing: I64,
) -> None:
    """Whole rollouts: ``interleave`` with the leanest candidates, ``choose_memory`` on every rank, and the times of the
    same order with what was chosen (002 §5.1, step 3).

    The choice still fits after times have moved: every rank runs the same stages one after another in the same order,
    so what is held when a stage begins is the pairs whose forward comes before it and whose backward does not. That
    is a matter of positions in the order, and positions are what the choice was made for. Where the chosen candidates
    do not end earlier than the leanest (a later stage may pay for what an earlier one saved), these stay.

    Args:
        flow, queues, limits, room, sequences, back_sequences: as ``interleave``. candidates: of ``Candidates``.
        goal, max_rounds: as ``choose_memory``. worth: orders whose leanest time is longer get no other candidates [s].
        order, count, missing: as ``interleave``; ``times`` too, its makespan with what was chosen.
        choice: int16[k, n], written as ``order``. lean: float64[B] [s], written: makespan with the leanest.
    """
    graph, columns = Flow(*flow), Candidates(*candidates)
    start, end, makespan = times
    ptr, num_links = graph.ptr, graph.num_links
    num_stages, num_ranks, num_pairs = len(graph.rank), len(ptr) - 1, len(graph.rank) // 2
    total, num_rows = ptr[num_ranks], len(order)
    run = zeros((1, total), np.int32)
    ready, rank_free, link_free = (
        zeros(num_stages, np.float64),
        zeros(num_ranks, np.float64),
        zeros(num_links, np.float64),
    )
    costs, lean_costs = _no_costs(num_stages), _no_costs(num_stages)
    local, leanest = zeros(num_pairs, np.int64), zeros(num_pairs, np.int16)
    late_start, late_end = zeros(num_stages, np.float64), zeros(num_stages, np.float64)
    _cost(leanest, columns, lean_costs)
    for b in range(len(sequences)):
        row = min(b, num_rows - 1)
        _interleave(
            flow,
            queues,
            limits,
            (lean_costs.latency, lean_costs.held, lean_costs.peak),
            room,
            sequences[b : b + 1],
            back_sequences[b : b + 1],
            (order[row : row + 1], run),
            (start[row : row + 1], end[row : row + 1], lean[b : b + 1]),
            count[b : b + 1],
            missing[b : b + 1],
        )
        makespan[b] = lean[b]
        choice[row] = 0
        if count[b] < total or columns.forward_s.shape[1] == 1 or lean[b] > worth:
            continue
        for r in range(num_ranks):
            stages = order[row, ptr[r] : ptr[r + 1]]
            choose_memory(stages, candidates, room[r], goal, max_rounds, local, choice[row])
        _cost(choice[row], columns, costs)
        time = _time(run[0], graph, costs.latency, ready, rank_free, link_free, late_start, late_end)
        if time < lean[b]:
            makespan[b] = time
            for stage in run[0]:
                start[row, stage], end[row, stage] = late_start[stage], late_end[stage]
        else:
            choice[row] = 0
