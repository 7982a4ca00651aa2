"""Simulated annealing of a schedule: a chain of moves on its critical path, each kept or taken back.

Groups of arrays are plain tuples where Python calls: ``flow``, ``candidates``, ``costs`` are ``Flow``, ``Candidates``
and ``Costs`` of ``times``; ``needs`` is pred_ptr, pred, pred_s: CSR of the edges by consumer, and the time of the send
[s].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from semu.compiled import kernel, part, zeros
from semu.searcher.kernels.moves import (
    U64,
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
from semu.searcher.problem.problem_arrays import F64, I16, I32, I64

_MOST_CHANGES = 64
"""Pairs that one step of annealing gives other candidates at most."""


@part
def longest_through(
    flow: Group,
    needs: Group,
    order: I32,
    r: int,
    first: Any,
    last: Any,
    latency: F64,
    end: F64,
    tail: F64,
    head: F64,
) -> float:
    """The longest way through a stretch of a rank whose stages have changed places, were all others as before
    (Taillard's estimate, of several stages). ``head``: scratch."""
    ptr, _, succ_ptr, succ, succ_s, _, _, _ = flow
    pred_ptr, pred, pred_s = needs
    free = end[order[first - 1]] if first > ptr[r] else 0.0
    for at in range(first, last + 1):
        stage = order[at]
        head[at] = max(free, arrival(stage, pred_ptr, pred, pred_s, end))
        free = head[at] + latency[stage]
    longest, behind = 0.0, 0.0
    if last + 1 < ptr[r + 1]:
        behind = tail[order[last + 1]]
    for at in range(last, first - 1, -1):
        stage = order[at]
        behind = latency[stage] + max(behind, leaving(stage, succ_ptr, succ, succ_s, tail))
        longest = max(longest, head[at] + behind)
    return longest


@part
def _put(pair: Any, to: Any, candidates: Group, choice: I16, costs: Group) -> None:
    """Give a pair a candidate."""
    forward_s, backward_s, held_bytes, forward_peak, backward_peak, _, _ = candidates
    latency, held, peak = costs
    choice[pair] = to
    latency[2 * pair], latency[2 * pair + 1] = forward_s[pair, to], backward_s[pair, to]
    held[pair] = held_bytes[pair, to]
    peak[2 * pair], peak[2 * pair + 1] = forward_peak[pair, to], backward_peak[pair, to]


@part
def _copy(order: I32, choice: I16, to_order: I32, to_choice: I16) -> None:
    """Write down a schedule."""
    for at in range(len(order)):
        to_order[at] = order[at]
    for pair in range(len(choice)):
        to_choice[pair] = choice[pair]


@part
def _lean(
    ptr: I64,
    order: I32,
    position: I64,
    r: int,
    kept: Any,
    candidates: Group,
    room: int,
    before: Group,
    choice: I16,
    costs: Group,
    changed: I64,
    was: I64,
    count: int,
    state: U64,
) -> int:
    """Give pairs of a rank leaner candidates until its order stays within its memory.

    Where it first does not, that of the pairs there which costs least per byte, at random among nearly equal ones: what
    a stage gets longer counts beyond its slack, and a little of it anyway.

    Args:
        kept: a pair that stays as it is. before: start, tail and makespan of the schedule before.
        changed, was, count: pairs that changed, what they had, how many there are; written.
    Returns:
        the new count; where nothing helps, -1 less the count.
    """
    forward_s, backward_s, held_bytes, forward_peak, backward_peak, has_backward, num_candidates = candidates
    latency, held, peak = costs
    start, tail, makespan = before
    while True:
        level, at, over = np.int64(0), ptr[r], np.int64(0)
        while at < ptr[r + 1]:
            stage = order[at]
            over = level + peak[stage] - room
            if over > 0:
                break
            level += -held[stage >> 1] if stage & 1 else held[stage >> 1]
            at += 1
        if at == ptr[r + 1]:
            return count
        here = order[at]
        least = np.inf
        which: Any = np.int64(-1)
        to: Any = np.int64(-1)
        for earlier in range(ptr[r], at + 1):
            stage = order[earlier]
            pair = stage >> 1
            if pair == kept:
                continue
            if pair != here >> 1 and (stage & 1 or not has_backward[pair] or position[2 * pair + 1] < at):
                continue
            own = choice[pair]
            for j in range(num_candidates[pair]):
                if stage == here and stage & 1 == 0:
                    freed = forward_peak[pair, own] - forward_peak[pair, j]
                else:
                    freed = held_bytes[pair, own] - held_bytes[pair, j]
                    if here == 2 * pair + 1:
                        freed += backward_peak[pair, own] - backward_peak[pair, j]
                if freed <= 0:
                    continue
                cost = 0.0
                for phase in range(2):
                    other = 2 * pair + phase
                    more = (backward_s[pair, j] if phase else forward_s[pair, j]) - latency[other]
                    cost += 0.05 * max(more, 0.0) + max(more - max(makespan - start[other] - tail[other], 0.0), 0.0)
                cost *= (1.0 + 2.0 * draw(state)) / min(freed, over)
                if cost < least:
                    least, which, to = cost, pair, j
        if which < 0 or count == len(changed):
            return -1 - count
        changed[count], was[count] = which, choice[which]
        count += 1
        _put(which, to, candidates, choice, costs)


@kernel
def anneal(
    flow: Group,
    needs: Group,
    candidates: Group,
    order: I32,
    choice: I16,
    room: I64,
    steps: int,
    hot: float,
    cold: float,
    share_order: float,
    share_faster: float,
    here_order: I32,
    here_choice: I16,
    seed: int,
) -> float:
    """Simulated annealing over the orders of all ranks and the candidates of all pairs, on the critical path.

    A step does one of three things at random. It swaps two stages that follow one another on a rank without a pause on
    the critical path, or takes one of a block of such stages elsewhere in the block (Nowicki and Smutnicki's and Balas
    and Vazacopoulos' neighbourhoods of the job shop). Or it makes a pair with a stage on the critical path faster. Or
    it does that and takes a stage that runs between the pair's two elsewhere. Where memory does not suffice, other
    pairs of the rank get leaner candidates, first those with slack. The result is kept if it is not worse, or with the
    usual probability if it is; what an estimate says will not be kept is not timed.

    Args:
        flow, needs, candidates: see the top of the file.
        order, choice: int32[num stages] rank after rank, int16[n]: the schedule to begin with, and the best one found,
            written.
        room: int64[P] [bytes].
        steps: to try. hot, cold: temperatures of the first and the last one [s]. share_order, share_faster: parts of
            the steps that only move stages, only make pairs faster.
        here_order, here_choice: written: the last schedule. seed: > 0.
    Returns:
        the best makespan [s].
    """
    ptr, rank = flow[0], flow[1]
    forward_s, backward_s, _, _, _, has_backward, num_candidates = candidates
    num_stages = len(rank)
    total, num_pairs = len(order), num_stages // 2
    scratch, times = new_times(flow, total)
    _, others = new_times(flow, total)
    tail, head = zeros(num_stages, np.float64), zeros(total, np.float64)
    position = zeros(num_stages, np.int64)
    chain, path = zeros(num_stages, np.int64), zeros(num_stages, np.int64)
    latency, peak = zeros(num_stages, np.float64), zeros(num_stages, np.int64)
    held = zeros(num_pairs, np.int64)
    costs = (latency, held, peak)
    changed, was = zeros(_MOST_CHANGES, np.int64), zeros(_MOST_CHANGES, np.int64)
    for pair in range(num_pairs):
        _put(pair, np.int64(choice[pair]), candidates, choice, costs)
    for at in range(total):
        position[order[at]] = at
    state = zeros(1, np.uint64)
    state[0] = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1)
    best_order, best_choice = order.copy(), choice.copy()
    here = time_orders(flow, order, latency, np.inf, scratch, times)
    start, end = times.start, times.end
    best, is_known = here, False
    pairs, length = 0, 0
    for step in range(steps):
        if not is_known:
            pairs, length = critical_path(flow, order, position, times, here, state, path, chain)
            measure_tails(flow, order, position, latency, times.run, tail)
            is_known = True
        kind = draw(state)
        count, kept = 0, np.int64(-1)
        source, target = np.int64(-1), np.int64(-1)
        if kind < share_order:
            if pairs == 0:
                if share_order >= 1.0:
                    break
                continue
            at = chain[np.int64(draw(state) * pairs)]
            r = rank[order[at]]
            first, last = at - 1, at
            while first > ptr[r] and end[order[first - 1]] == start[order[first]]:
                first -= 1
            while last + 1 < ptr[r + 1] and end[order[last]] == start[order[last + 1]]:
                last += 1
            source, target = at - 1, at
            way = draw(state)
            if way < 0.2:
                source, target = at, max(first, at - 1 - np.int64(draw(state) * 8))
            elif way < 0.4:
                source, target = at - 1, min(last, at + np.int64(draw(state) * 8))
        else:
            stage = path[np.int64(draw(state) * length)]
            kept, r = stage >> 1, rank[stage]
            own, more = choice[kept], num_candidates[kept] - 1 - choice[kept]
            if kind > share_order + share_faster and has_backward[kept]:
                first, last = position[2 * kept], position[2 * kept + 1]
                source = first + np.int64(draw(state) * (last - first + 1))
                far = np.int64(draw(state) * draw(state) * 12) + 1
                if order[source] >> 1 == kept:
                    far = far if draw(state) < 0.5 else -far
                elif order[source] & 1:
                    far = -far
                target = min(max(source + far, ptr[r]), ptr[r + 1] - 1)
                if target == source:
                    continue
            elif more == 0:
                continue
            if more > 0:
                changed[0], was[0], count = kept, own, 1
                _put(kept, own + 1 + np.int64(draw(state) * more), candidates, choice, costs)
        temperature = hot * (cold / hot) ** (step / steps)
        limit = here - temperature * np.log(max(draw(state), 1e-300))
        is_open = True
        if source >= 0:
            shift(order, position, source, target)
            first, last = min(source, target), max(source, target)
            if count == 0:
                longest = longest_through(flow, needs, order, r, first, last, latency, end, tail, head)
                is_open = longest <= limit
        if is_open and not fits(ptr, order, r, held, peak, room):
            basis = (start, tail, here)
            count = _lean(
                ptr, order, position, r, kept, candidates, room[r], basis, choice, costs, changed, was, count, state
            )
            if count < 0:
                count, is_open = -1 - count, False
        if is_open and count > 0:  # what one stage gets longer beyond its slack, less all that others get shorter
            gain, loss = 0.0, 0.0
            for i in range(count):
                for phase in range(2):
                    stage = 2 * changed[i] + phase
                    before_s = backward_s[changed[i], was[i]] if phase else forward_s[changed[i], was[i]]
                    longer = latency[stage] - before_s
                    gain += max(-longer, 0.0)
                    loss = max(loss, longer - max(here - start[stage] - tail[stage], 0.0))
            is_open = here + loss - gain <= limit
        found = np.inf
        if is_open:
            found = time_orders(flow, order, latency, limit, scratch, others)
        if found < np.inf:
            here, is_known = found, False
            times, others = others, times
            start, end = times.start, times.end
            if found < best:
                best = found
                _copy(order, choice, best_order, best_choice)
        else:
            if source >= 0:
                shift(order, position, target, source)
            for i in range(count - 1, -1, -1):
                _put(changed[i], was[i], candidates, choice, costs)
    _copy(order, choice, here_order, here_choice)
    _copy(best_order, best_choice, order, choice)
    return best
