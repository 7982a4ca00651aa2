"""Kernel of the refinement: a chain of moves on the critical path of a schedule, each kept or taken back.

Groups of arrays that these kernels share, as plain tuples where Python calls: ``flow``, ``candidates`` and ``costs``
are ``Flow``, ``Candidates`` and ``Costs`` of ``interleaving``; ``needs`` is pred_ptr, pred, pred_s: CSR of the edges by
consumer, and the time of the send [s].
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semu.compiled import kernel, part, zeros
from semu.searcher.problem.problem_arrays import F64, I16, I32, I64

U64 = NDArray[np.uint64]
Group = tuple[Any, ...]

_MOST_CHANGES = 64
"""Pairs that one step of annealing gives other candidates at most."""


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
    """Work arrays of ``_times``."""

    cursor: I64
    waiting: I32
    stack: I64
    link_free: F64


@part
def _next(state: U64) -> float:
    """A number in [0, 1): xorshift64* (Vigna, 2016)."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return np.float64((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0


@part
def _times(flow: Group, order: I32, latency: F64, limit: float, scratch: Scratch, times: Timed) -> float:
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
def _fits(ptr: I64, order: I32, r: int, held: I64, peak: I64, room: I64) -> bool:
    """Whether a rank's order stays within its memory."""
    level = np.int64(0)
    for at in range(ptr[r], ptr[r + 1]):
        stage = order[at]
        if level + peak[stage] > room[r]:
            return False
        level += -held[stage >> 1] if stage & 1 else held[stage >> 1]
    return True


@part
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


@part
def _arrival(stage: int, pred_ptr: I32, pred: I32, pred_s: F64, end: F64) -> float:
    """When all that a stage needs has come, were links free."""
    latest = 0.0
    for e in range(pred_ptr[stage], pred_ptr[stage + 1]):
        latest = max(latest, end[pred[e]] + pred_s[e])
    return latest


@part
def _leaving(stage: int, succ_ptr: I32, succ: I32, succ_s: F64, tail: F64) -> float:
    """The longest way from a stage's end to the end of all, not over its own rank."""
    longest = 0.0
    for e in range(succ_ptr[stage], succ_ptr[stage + 1]):
        longest = max(longest, succ_s[e] + tail[succ[e]])
    return longest


@part
def _room_for(flow: Group, total: int) -> tuple[Scratch, Timed]:
    """Work arrays and room for the times of ``total`` stages."""
    num_ranks, num_stages = len(flow[0]) - 1, len(flow[1])
    stack = zeros(num_stages + num_ranks, np.int64)
    waiting, by = zeros(num_stages, np.int32), zeros(num_stages, np.int32)
    scratch = Scratch(zeros(num_ranks, np.int64), waiting, stack, zeros(flow[6], np.float64))
    return scratch, Timed(zeros(num_stages, np.float64), zeros(num_stages, np.float64), by, zeros(total, np.int32))


@part
def _critical(
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
        if end[order[at]] == makespan and (stage < 0 or _next(state) < 0.5):
            stage = order[at]
    while stage >= 0:
        path[length] = stage
        length += 1
        at, own = position[stage], by[stage]
        before = order[at - 1] if at > ptr[rank[stage]] else -1
        if before >= 0 and end[before] == start[stage]:
            chain[pairs] = at
            pairs += 1
            if own == -1 or _next(state) < 0.5:
                stage = before
                continue
        stage = own if own >= 0 else (before if own == -1 else -1)
    return pairs, length


@part
def _tails(flow: Group, order: I32, position: I64, latency: F64, run: I32, tail: F64) -> None:
    """The longest way from every stage's start to the end of all, over ranks and sends, written."""
    ptr, rank, succ_ptr, succ, succ_s, _, _, _ = flow
    for i in range(ptr[len(ptr) - 1] - 1, -1, -1):
        stage = run[i]
        at = position[stage]
        behind = tail[order[at + 1]] if at + 1 < ptr[rank[stage] + 1] else 0.0
        tail[stage] = latency[stage] + max(behind, _leaving(stage, succ_ptr, succ, succ_s, tail))


@part
def _through(
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
        head[at] = max(free, _arrival(stage, pred_ptr, pred, pred_s, end))
        free = head[at] + latency[stage]
    longest, behind = 0.0, 0.0
    if last + 1 < ptr[r + 1]:
        behind = tail[order[last + 1]]
    for at in range(last, first - 1, -1):
        stage = order[at]
        behind = latency[stage] + max(behind, _leaving(stage, succ_ptr, succ, succ_s, tail))
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
                cost *= (1.0 + 2.0 * _next(state)) / min(freed, over)
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
    scratch, times = _room_for(flow, total)
    _, others = _room_for(flow, total)
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
    here = _times(flow, order, latency, np.inf, scratch, times)
    start, end = times.start, times.end
    best, is_known = here, False
    pairs, length = 0, 0
    for step in range(steps):
        if not is_known:
            pairs, length = _critical(flow, order, position, times, here, state, path, chain)
            _tails(flow, order, position, latency, times.run, tail)
            is_known = True
        kind = _next(state)
        count, kept = 0, np.int64(-1)
        source, target = np.int64(-1), np.int64(-1)
        if kind < share_order:
            if pairs == 0:
                if share_order >= 1.0:
                    break
                continue
            at = chain[np.int64(_next(state) * pairs)]
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
        else:
            stage = path[np.int64(_next(state) * length)]
            kept, r = stage >> 1, rank[stage]
            own, more = choice[kept], num_candidates[kept] - 1 - choice[kept]
            if kind > share_order + share_faster and has_backward[kept]:
                first, last = position[2 * kept], position[2 * kept + 1]
                source = first + np.int64(_next(state) * (last - first + 1))
                far = np.int64(_next(state) * _next(state) * 12) + 1
                if order[source] >> 1 == kept:
                    far = far if _next(state) < 0.5 else -far
                elif order[source] & 1:
                    far = -far
                target = min(max(source + far, ptr[r]), ptr[r + 1] - 1)
                if target == source:
                    continue
            elif more == 0:
                continue
            if more > 0:
                changed[0], was[0], count = kept, own, 1
                _put(kept, own + 1 + np.int64(_next(state) * more), candidates, choice, costs)
        temperature = hot * (cold / hot) ** (step / steps)
        limit = here - temperature * np.log(max(_next(state), 1e-300))
        is_open = True
        if source >= 0:
            _shift(order, position, source, target)
            first, last = min(source, target), max(source, target)
            if count == 0:
                longest = _through(flow, needs, order, r, first, last, latency, end, tail, head)
                is_open = longest <= limit
        if is_open and not _fits(ptr, order, r, held, peak, room):
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
            found = _times(flow, order, latency, limit, scratch, others)
        if found < np.inf:
            here, is_known = found, False
            times, others = others, times
            start, end = times.start, times.end
            if found < best:
                best = found
                _copy(order, choice, best_order, best_choice)
        else:
            if source >= 0:
                _shift(order, position, target, source)
            for i in range(count - 1, -1, -1):
                _put(changed[i], was[i], candidates, choice, costs)
    _copy(order, choice, here_order, here_choice)
    _copy(best_order, best_choice, order, choice)
    return best


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
    scratch, times = _room_for(flow, total)
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
        here = _times(flow, order, latency, np.inf, scratch, times)
        if here == np.inf:  # the last swap closed a circle over a link: take it back
            _shift(order, position, undo_at, undo_at - 1)
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
        _tails(flow, order, position, latency, times.run, tail)
        pairs, _ = _critical(flow, order, position, times, here, state, path, chain)
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
            pick = 0
            for i in range(1, pairs):
                if merit[i] < merit[pick]:
                    pick = i
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
    for at in range(total):
        order[at] = best_order[at]
    return best
