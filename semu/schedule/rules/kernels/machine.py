"""The rule machine: FlexPipe's Algorithm 1 over stage arrays, one step of one rank at a time, in order of time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.compiled import inlined, kernel, part, zeros
from semu.schedule.rules.kernels.race import line_up, set_time

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
U64 = NDArray[np.uint64]
Group = tuple[Any, ...]

BACKWARD_FIRST, FORWARD_FIRST, ALTERNATE = 0, 1, 2
"""Codes of the computation type traversal priority (FlexPipe §5.2)."""
NOTHING_READY, LIMITED, RUN_WAITS = -1, -2, -3
"""Why a type of computation gives no stage."""
PREFER, WAITS, IS_PATIENT, UNIT, RUN, IS_OLDEST, IS_LAST = 0, 1, 2, 3, 5, 7, 9
"""Columns of a rank's rules; from ``UNIT`` on one for forwards, one for backwards."""
RULE_COLUMNS = 11
ASKS_NOTHING, ASKS_CHECKS, ASKS_CHOICE = 0, 1, 2
"""What ``run_rule`` comes back for: nothing, whether a stage may start, which stage starts."""
BEGUN, DONE, ALLOWED, ASKED, RANK = 0, 1, 2, 3, 4
"""Entries of the progress of a run: whether it has begun; how many stages have started; the stage that may start now
(``NOTHING_READY``: none yet, ``RUN_WAITS``: the rank waits); the stage and the rank that are asked about."""


@part
def _first_bit(word: np.uint64) -> int:
    """Number of the lowest bit that is set."""
    count = 0
    if word & np.uint64(0xFFFFFFFF) == np.uint64(0):
        word >>= np.uint64(32)
        count += 32
    if word & np.uint64(0xFFFF) == np.uint64(0):
        word >>= np.uint64(16)
        count += 16
    if word & np.uint64(0xFF) == np.uint64(0):
        word >>= np.uint64(8)
        count += 8
    if word & np.uint64(0xF) == np.uint64(0):
        word >>= np.uint64(4)
        count += 4
    if word & np.uint64(0x3) == np.uint64(0):
        word >>= np.uint64(2)
        count += 2
    if word & np.uint64(0x1) == np.uint64(0):
        count += 1
    return count


@part
def _begin(chunks: Group, flow: Group, state: Group) -> None:
    """What is ready at first, and who acts first."""
    _, _, bit_of, first, has_backward = chunks
    _, _, _, rank, _, _, _, _, _ = flow
    queue, _, before, mask, rest, _, at, winner, pend_ptr = state[:9]
    head, tail, waiting, _, _, left = queue
    for c in range(len(first) - 1):
        head[c, 0] = head[c, 1] = tail[c, 0] = tail[c, 1] = first[c]
        left[c, 0] = first[c + 1] - first[c]
        left[c, 1] = left[c, 0] if has_backward[c] else 0
        if first[c] < first[c + 1]:
            r = rank[first[c]]
            rest[r, 0] += left[c, 0]
            rest[r, 1] += left[c, 1]
            pend_ptr[r + 1] += 2 * left[c, 0]
            for pair in range(first[c], first[c + 1]):
                if before[2 * pair] == 0:
                    waiting[0, tail[c, 0]] = 2 * pair
                    tail[c, 0] += 1
            if tail[c, 0] > head[c, 0]:
                mask[r, 0] |= np.uint64(1) << np.uint64(bit_of[c, 0])
    num_ranks = len(rest)
    pend_head, pend_tail = state[1][4], state[1][5]
    for r in range(num_ranks):
        pend_head[r] = pend_tail[r] = pend_ptr[r]
        pend_ptr[r + 1] += pend_ptr[r]
    line_up(num_ranks, at, winner)


@inlined
def _take_arrivals(r: int, time: float, chunks: Group, flow: Group, queue: Group, flight: Group, mask: U64) -> int:
    """Move what has arrived at a rank into its reorder queues; where the first that has not stands in ``pending``."""
    bit_of, chunk = chunks[2], flow[4]
    head, tail, waiting = queue[:3]
    _, _, _, _, pend_head, pend_tail, pending, ready = flight
    n: int = pend_head[r]
    while n < pend_tail[r] and ready[pending[n]] <= time:
        stage = pending[n]
        c, kind = chunk[stage >> 1], stage & 1
        slot = tail[c, kind]
        while slot > head[c, kind] and waiting[kind, slot - 1] > stage:
            waiting[kind, slot] = waiting[kind, slot - 1]
            slot -= 1
        waiting[kind, slot] = stage
        tail[c, kind] += 1
        mask[r, kind] |= np.uint64(1) << np.uint64(bit_of[c, kind])
        n += 1
    pend_head[r] = n
    return n


@inlined
def _first_kind(r: int, rules: I64, rank_state: Group) -> int:
    """The type of computation that a rank looks for first: 0 forwards, 1 backwards."""
    latest, repeated = rank_state[:2]
    prefer = rules[r, PREFER]
    last: int = latest[r]
    if last >= 0 and repeated[r] < rules[r, UNIT + last]:
        return last
    if prefer == ALTERNATE and last >= 0:
        return 1 - last
    return 1 if prefer == BACKWARD_FIRST else 0


@inlined
def _turn(r: int, kind: int, begin: int, size: int, bits: np.uint64, rules: I64, order: I64, queue: Group) -> np.uint64:
    """The bit of the chunk whose turn it is in an interval of the traversal, of those that are ready; 0: none.

    Args:
        begin, size: the rank's chunks in ``order``.
    """
    _, _, _, place, stepped, left = queue
    one, none = np.uint64(1), np.uint64(0)
    spot = place[r, kind]
    if stepped[r, kind] >= rules[r, RUN + kind] or left[order[begin + spot], kind] == 0:
        for _ in range(size):
            spot = (spot + 1) % size
            if left[order[begin + spot], kind] > 0:
                break
        place[r, kind], stepped[r, kind] = spot, 0
    if (bits >> np.uint64(spot)) & one == none:
        if rules[r, WAITS] or bits == none:
            return none
        while (bits >> np.uint64(spot)) & one == none:
            spot = (spot + 1) % size
        place[r, kind], stepped[r, kind] = spot, 0
    return one << np.uint64(spot)


@inlined
def _has_room(i: Any, limits: Group, flight: Group) -> bool:
    """Whether a microbatch that has not entered finds room on all ranks."""
    _, limit, _, need, _, in_turn, _ = limits
    _, _, reserved, inside = flight[:4]
    for other in range(len(limit)):
        wanted = need[i, other]
        for early in range(i if in_turn else 0):
            if not inside[early]:
                wanted += need[early, other]
        if reserved[other] + wanted > limit[other]:
            return False
    return True


@inlined
def _backward_comes(r: int, n: int, until: float, flight: Group) -> bool:
    """Whether a backward arrives at a rank before some time."""
    _, _, _, _, _, pend_tail, pending, ready = flight
    for coming in range(n, pend_tail[r]):
        if ready[pending[coming]] >= until:
            return False
        if pending[coming] & 1:
            return True
    return False


@inlined
def _fetch(
    r: int, kind: int, n: int, time: float, chunks: Group, flow: Group, limits: Group, state: Group, entering: Group
) -> int:
    """``fetch_inst`` of Algorithm 1: the stage of one type that a rank runs next, or why there is none.

    Args:
        n: where what has not arrived begins in ``pending``. entering: int64[num_ranks], ranks that wait until there is
            room for a microbatch, and int64[1], how many; written.
    """
    chunk_ptr, chunk_order = chunks[:2]
    microbatch, latency = flow[5], flow[6]
    held, limit, chunk_limit, _, uses_need, _, rules = limits
    queue, flight, _, mask = state[:4]
    head, tail, waiting = queue[:3]
    level, count, _, inside = flight[:4]
    _, _, _, refused, vetoed = state[9]
    waits, num_waits = entering
    none, begin = np.uint64(0), chunk_ptr[2 * r + kind]
    is_last, is_oldest = rules[r, IS_LAST + kind], rules[r, IS_OLDEST + kind]
    bits = mask[r, kind] & ~vetoed[r, kind]
    chosen: int = NOTHING_READY
    if rules[r, RUN + kind] > 0:
        ready, size = bits, chunk_ptr[2 * r + kind + 1] - begin
        bits = _turn(r, kind, begin, size, ready, rules, chunk_order, queue)
        if bits == none and rules[r, WAITS]:
            return RUN_WAITS
    if bits != none:
        chosen = LIMITED
    lowest = np.int64(1) << 60
    while bits != none:
        c = chunk_order[begin + _first_bit(bits)]
        bits &= bits - np.uint64(1)
        stage: Any = np.int64(waiting[kind, tail[c, kind] - 1 if is_last else head[c, kind]])
        i = np.int64(microbatch[stage >> 1])
        if is_oldest and i >= lowest:
            continue
        if kind == 0:
            if level[r] + held[stage >> 1] > limit[r] or count[c] >= chunk_limit[c]:
                continue
            if uses_need and not inside[i] and not _has_room(i, limits, flight):
                if not refused[r]:
                    refused[r] = True
                    waits[num_waits[0]] = r
                    num_waits[0] += 1
                continue
            if rules[r, IS_PATIENT] and _backward_comes(r, n, time + latency[stage], flight):
                continue
        chosen, lowest = stage, i
        if not is_oldest:
            break
    return chosen


@inlined
def _choose(
    r: int, n: int, time: float, chunks: Group, flow: Group, limits: Group, state: Group, entering: Group
) -> int:
    """The stage that a rank runs next, or why there is none (Algorithm 1); see ``_fetch``."""
    rules, rest = limits[6], state[4]
    _, _, begun, refused, _ = state[9]
    waits, num_waits = entering
    if refused[r]:
        refused[r] = False
        num_waits[0] -= 1
        for n_th in range(num_waits[0]):
            if waits[n_th] == r:
                waits[n_th] = waits[num_waits[0]]
    kind = _first_kind(r, rules, state[9])
    chosen: int = NOTHING_READY
    for _ in range(2):
        if rest[r, kind] > 0:
            chosen = _fetch(r, kind, n, time, chunks, flow, limits, state, entering)
            if chosen >= 0:
                break
            is_turn = chosen == RUN_WAITS or rules[r, PREFER] == ALTERNATE
            if chosen != LIMITED and rules[r, WAITS] and begun[r] and is_turn:
                break
        kind = 1 - kind
    return chosen


@inlined
def _start(
    stage: int, r: int, time: float, chunks: Group, flow: Group, limits: Group, state: Group, entering: Group
) -> None:
    """A stage leaves its reorder queue, and what is in flight changes."""
    bit_of, chunk, microbatch = chunks[2], flow[4], flow[5]
    held, _, _, need, uses_need, in_turn, rules = limits
    queue, flight, _, mask, rest, free, at, winner = state[:8]
    head, tail, _, _, stepped, left = queue
    level, count, reserved, inside = flight[:4]
    latest, repeated, begun, _, vetoed = state[9]
    waits, num_waits = entering
    pair, kind = stage >> 1, stage & 1
    c, i = chunk[pair], microbatch[pair]
    vetoed[r, 0] = vetoed[r, 1] = np.uint64(0)
    if rules[r, IS_LAST + kind]:
        tail[c, kind] -= 1
    else:
        head[c, kind] += 1
    if head[c, kind] == tail[c, kind]:
        mask[r, kind] &= ~(np.uint64(1) << np.uint64(bit_of[c, kind]))
    left[c, kind] -= 1
    rest[r, kind] -= 1
    stepped[r, kind] += 1
    repeated[r] = repeated[r] + 1 if latest[r] == kind else 1
    latest[r] = kind
    if kind == 0:
        level[r] += held[pair]
        count[c] += 1
        if uses_need and not inside[i]:
            for early in range(0 if in_turn else i, i + 1):
                if not inside[early]:
                    inside[early] = True
                    for other in range(len(need[early])):
                        reserved[other] += need[early, other]
        return
    begun[r] = True
    level[r] -= held[pair]
    count[c] -= 1
    if uses_need:
        reserved[r] -= held[pair]
        for n_th in range(num_waits[0]):
            other = waits[n_th]
            if other != r and free[other] <= time:
                set_time(other, time, at, winner)


@inlined
def _hand_on(stage: int, r: int, flow: Group, state: Group) -> None:
    """What waits for a stage alone arrives at its rank when the stage has ended and its result has been sent."""
    succ_ptr, succ, _, rank, _, _, _, delay, _ = flow
    flight, before, free, at, winner = state[1], state[2], state[5], state[6], state[7]
    _, _, _, _, pend_head, pend_tail, pending, ready = flight
    for e in range(succ_ptr[stage], succ_ptr[stage + 1]):
        after = succ[e]
        ready[after] = max(ready[after], free[r] + delay[e])
        before[after] -= 1
        if before[after] == 0:
            q = rank[after >> 1]
            slot = pend_tail[q]
            while slot > pend_head[q] and ready[pending[slot - 1]] > ready[after]:
                pending[slot] = pending[slot - 1]
                slot -= 1
            pending[slot] = after
            pend_tail[q] += 1
            soonest = max(ready[after], free[q])
            if q != r and soonest < at[q]:
                set_time(q, soonest, at, winner)


@kernel
def run_rule(chunks: Group, flow: Group, limits: Group, state: Group, asks: int, order: I32) -> int:
    """Run a pipeline under a rule: at every step, the rank that is free first takes a stage or waits (FlexPipe §5).

    Args:
        chunks: chunk_ptr: int64[2 num_ranks + 1], CSR of each rank's chunks for forwards and for backwards.
            chunk_order: int64, chunks in the order of traversal. bit_of: int64[num_chunks, 2], the place of a chunk in
            it. first: int64[num_chunks + 1], first pair of each chunk. has_backward: bool[num_chunks].
        flow: succ_ptr, succ: int32, CSR of what waits for a stage ``2 x pair + (0 forward, 1 backward)``; before:
            int32[num_stages], how many stages each waits for; rank, chunk, microbatch: int32[num_pairs]; latency:
            float64[num_stages] [s]; delay: float64[len(succ)] [s]; 0: num_pairs.
        limits: held: int64[num_pairs] [bytes], what a forward leaves; limit: int64[num_ranks] [bytes]; chunk_limit:
            int64[num_chunks], microbatches in flight; need: int64[num_microbatches, num_ranks] [bytes], room that a
            microbatch must find on all ranks before it enters, where uses_need; in_turn: an entering microbatch leaves
            room for all earlier ones; rules: int64[num_ranks, RULE_COLUMNS].
        state: of ``machine.new_state``, written: queues, what is in flight, the places of the ranks' rules, times.
        asks: what the run comes back for; it goes on when it is called again.
        order: int32[num_stages], written: stages in the order in which they start.
    Returns:
        how many stages are in ``order``: all, or fewer: it asks (``ASKED``), or the ranks wait for ever.
    """
    queue, flight, _, mask, _, free, at, winner, _, rank_state, progress = state
    _, _, _, refused, vetoed = rank_state
    _, _, _, _, _, pend_tail, pending, ready = flight
    latency, num_ranks, none = flow[6], len(limits[1]), np.uint64(0)
    waits, num_waits = zeros(num_ranks, np.int64), zeros(1, np.int64)  # for room for a microbatch
    entering = (waits, num_waits)
    for r in range(num_ranks):
        if refused[r]:
            waits[num_waits[0]] = r
            num_waits[0] += 1
    if progress[BEGUN] == 0:
        progress[BEGUN] = 1
        _begin(chunks, flow, state)
    done: int = progress[DONE]
    while True:
        r = winner[1]
        time = at[r]
        if time == np.inf:
            progress[DONE], progress[ASKED] = done, NOTHING_READY
            return done
        n = _take_arrivals(r, time, chunks, flow, queue, flight, mask)
        chosen = _choose(r, n, time, chunks, flow, limits, state, entering)
        if asks == ASKS_CHOICE and (mask[r, 0] | mask[r, 1]) != none:
            chosen = 0
        if asks != ASKS_NOTHING and chosen >= 0:
            allowed = progress[ALLOWED]
            if allowed == NOTHING_READY or (asks == ASKS_CHECKS and allowed >= 0 and allowed != chosen):
                progress[DONE], progress[ASKED], progress[RANK] = done, chosen, r
                return done
            progress[ALLOWED], chosen = NOTHING_READY, allowed
        if chosen < 0:
            vetoed[r, 0] = vetoed[r, 1] = none
            set_time(r, ready[pending[n]] if n < pend_tail[r] else np.inf, at, winner)
            continue
        order[done] = chosen
        done += 1
        _start(chosen, r, time, chunks, flow, limits, state, entering)
        free[r] = time + latency[chosen]
        _hand_on(chosen, r, flow, state)
        set_time(r, free[r], at, winner)
        if asks != ASKS_NOTHING:  # checks may think otherwise now
            for other in range(num_ranks):
                vetoed[other, 0] = vetoed[other, 1] = none
                if other != r and max(free[r], free[other]) < at[other]:
                    set_time(other, max(free[r], free[other]), at, winner)
