"""The rule machine: FlexPipe's Algorithm 1 over stage arrays, one step of one rank at a time, in order of time; and
gradient separation, which runs a given order with its weight gradients put off."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.compiled import kernel, part, zeros

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
Group = tuple[Any, ...]

BACKWARD_FIRST, FORWARD_FIRST, ALTERNATE = 0, 1, 2
"""Codes of the computation type traversal priority (FlexPipe §5.2)."""
NOTHING_READY, LIMITED, RUN_WAITS = -1, -2, -3
"""Why a type of computation gives no stage."""
PREFER, WAITS, IS_PATIENT, UNIT, RUN, IS_OLDEST, IS_LAST = 0, 1, 2, 3, 5, 7, 9
"""Columns of a rank's rules; from ``UNIT`` on one for forwards, one for backwards."""
RULE_COLUMNS = 11


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
def _set_time(rank: int, time: float, at: F64, winner: I32) -> None:
    """Write when a rank acts next, and who acts first: of equals the lower rank."""
    at[rank] = time
    node = (len(at) + rank) >> 1
    while node >= 1:
        one, other = winner[2 * node], winner[2 * node + 1]
        winner[node] = one if at[one] <= at[other] else other
        node >>= 1


ASKS_NOTHING, ASKS_CHECKS, ASKS_CHOICE = 0, 1, 2
"""What ``run_rule`` comes back for: nothing, whether a stage may start, which stage starts."""
BEGUN, DONE, ALLOWED, ASKED, RANK = 0, 1, 2, 3, 4
"""Entries of the progress of a run: whether it has begun; how many stages have started; the stage that may start now
(``NOTHING_READY``: none yet, ``RUN_WAITS``: the rank waits); the stage and the rank that are asked about."""


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
    for r in range(len(at)):
        winner[len(at) + r] = r
    for r in range(len(at)):
        _set_time(r, 0.0 if r < num_ranks else np.inf, at, winner)


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
    chunk_ptr, chunk_order, bit_of = chunks[:3]
    succ_ptr, succ, _, rank, chunk, microbatch, latency, delay, _ = flow
    held, limit, chunk_limit, need, uses_need, in_turn, rules = limits
    queue, flight, before, mask, rest, free, at, winner, _, rank_state, progress = state
    head, tail, waiting, place, stepped, left = queue
    level, count, reserved, inside, pend_head, pend_tail, pending, ready = flight
    latest, repeated, begun, refused, vetoed = rank_state
    num_ranks, one, none = len(limit), np.uint64(1), np.uint64(0)
    entering, num_refused = zeros(num_ranks, np.int64), 0  # ranks that wait until there is room for a microbatch
    for r in range(num_ranks):
        if refused[r]:
            entering[num_refused] = r
            num_refused += 1
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
        # what has arrived goes into the reorder queues
        n = pend_head[r]
        while n < pend_tail[r] and ready[pending[n]] <= time:
            stage = pending[n]
            c, kind = chunk[stage >> 1], stage & 1
            slot = tail[c, kind]
            while slot > head[c, kind] and waiting[kind, slot - 1] > stage:
                waiting[kind, slot] = waiting[kind, slot - 1]
                slot -= 1
            waiting[kind, slot] = stage
            tail[c, kind] += 1
            mask[r, kind] |= one << np.uint64(bit_of[c, kind])
            n += 1
        pend_head[r] = n
        # Algorithm 1
        prefer, last = rules[r, PREFER], latest[r]
        is_unit_over = last < 0 or repeated[r] >= rules[r, UNIT + last]
        kind = 1 if prefer == BACKWARD_FIRST else 0
        if last >= 0 and not is_unit_over:
            kind = last
        elif prefer == ALTERNATE and last >= 0:
            kind = 1 - last
        chosen: Any = NOTHING_READY
        if refused[r]:
            refused[r] = False
            num_refused -= 1
            for n_th in range(num_refused):
                if entering[n_th] == r:
                    entering[n_th] = entering[num_refused]
        for _ in range(2):
            if rest[r, kind] > 0:
                # fetch_inst: the chunks whose bits are set have a stage that is ready; written out here, as handing the
                # groups of arrays to a part takes longer than what it does
                chosen = NOTHING_READY
                begin, run = chunk_ptr[2 * r + kind], rules[r, RUN + kind]
                is_last, is_oldest = rules[r, IS_LAST + kind], rules[r, IS_OLDEST + kind]
                bits = mask[r, kind] & ~vetoed[r, kind]
                if run > 0:
                    size, spot = chunk_ptr[2 * r + kind + 1] - begin, place[r, kind]
                    if stepped[r, kind] >= run or left[chunk_order[begin + spot], kind] == 0:
                        for _ in range(size):
                            spot = (spot + 1) % size
                            if left[chunk_order[begin + spot], kind] > 0:
                                break
                        place[r, kind], stepped[r, kind] = spot, 0
                    if (bits >> np.uint64(spot)) & one == none:
                        if rules[r, WAITS]:
                            chosen, bits = RUN_WAITS, none
                        elif bits != none:
                            while (bits >> np.uint64(spot)) & one == none:
                                spot = (spot + 1) % size
                            place[r, kind], stepped[r, kind] = spot, 0
                    if bits != none:
                        bits = one << np.uint64(spot)
                if bits != none:
                    chosen = LIMITED
                lowest = np.int64(1) << 60
                while bits != none:
                    c = chunk_order[begin + _first_bit(bits)]
                    bits &= bits - one
                    stage = np.int64(waiting[kind, tail[c, kind] - 1 if is_last else head[c, kind]])
                    i = np.int64(microbatch[stage >> 1])
                    if is_oldest and i >= lowest:
                        continue
                    if kind == 0:
                        is_limited = level[r] + held[stage >> 1] > limit[r] or count[c] >= chunk_limit[c]
                        if uses_need and not is_limited and not inside[i]:
                            for other in range(num_ranks):
                                wanted = need[i, other]
                                for early in range(i if in_turn else 0):
                                    if not inside[early]:
                                        wanted += need[early, other]
                                if reserved[other] + wanted > limit[other]:
                                    is_limited = True
                                    if not refused[r]:
                                        refused[r] = True
                                        entering[num_refused] = r
                                        num_refused += 1
                                    break
                        if rules[r, IS_PATIENT] and not is_limited:
                            for coming in range(n, pend_tail[r]):
                                if ready[pending[coming]] >= time + latency[stage]:
                                    break
                                if pending[coming] & 1:
                                    is_limited = True
                                    break
                        if is_limited:
                            continue
                    chosen, lowest = stage, i
                    if not is_oldest:
                        break
                if chosen >= 0:
                    break
                if chosen != LIMITED and rules[r, WAITS] and begun[r] and (chosen == RUN_WAITS or prefer == ALTERNATE):
                    break
            kind = 1 - kind
        if asks == ASKS_CHOICE and (mask[r, 0] | mask[r, 1]) != none:
            chosen = 0
        if asks != ASKS_NOTHING and chosen >= 0:
            allowed = progress[ALLOWED]
            if allowed == NOTHING_READY or (asks == ASKS_CHECKS and allowed >= 0 and allowed != chosen):
                progress[DONE], progress[ASKED], progress[RANK] = done, chosen, r
                return done
            progress[ALLOWED], chosen = NOTHING_READY, allowed
            kind = chosen & 1
        if chosen < 0:
            vetoed[r, 0] = vetoed[r, 1] = none
            _set_time(r, ready[pending[n]] if n < pend_tail[r] else np.inf, at, winner)
            continue
        # the stage runs
        vetoed[r, 0] = vetoed[r, 1] = none
        stage, pair = chosen, chosen >> 1
        c, i = chunk[pair], microbatch[pair]
        order[done] = stage
        done += 1
        if rules[r, IS_LAST + kind]:
            tail[c, kind] -= 1
        else:
            head[c, kind] += 1
        if head[c, kind] == tail[c, kind]:
            mask[r, kind] &= ~(one << np.uint64(bit_of[c, kind]))
        left[c, kind] -= 1
        rest[r, kind] -= 1
        stepped[r, kind] += 1
        repeated[r] = repeated[r] + 1 if last == kind else 1
        latest[r] = kind
        if kind == 0:
            level[r] += held[pair]
            count[c] += 1
            if uses_need and not inside[i]:
                for early in range(0 if in_turn else i, i + 1):
                    if not inside[early]:
                        inside[early] = True
                        for other in range(num_ranks):
                            reserved[other] += need[early, other]
        else:
            begun[r] = True
            level[r] -= held[pair]
            count[c] -= 1
            if uses_need:
                reserved[r] -= held[pair]
                for n_th in range(num_refused):
                    other = entering[n_th]
                    if other != r and free[other] <= time:
                        _set_time(other, time, at, winner)
        free[r] = time + latency[stage]
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
                    _set_time(q, soonest, at, winner)
        _set_time(r, free[r], at, winner)
        if asks != ASKS_NOTHING:  # checks may think otherwise now
            for other in range(num_ranks):
                vetoed[other, 0] = vetoed[other, 1] = none
                if other != r and max(free[r], free[other]) < at[other]:
                    _set_time(other, max(free[r], free[other]), at, winner)


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
    for r in range(leaves):
        winner[leaves + r] = r
    for r in range(leaves):
        _set_time(r, 0.0 if r < num_ranks else np.inf, at, winner)
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
            _set_time(r, soonest, at, winner)
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
                    _set_time(q, when, at, winner)
        _set_time(r, free[r], at, winner)
