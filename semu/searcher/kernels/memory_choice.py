"""Which candidate each stage pair of a rank takes, within the rank's memory (002 §5.3)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from semu.compiled import kernel, part, zeros
from semu.searcher.kernels.times import Group
from semu.searcher.problem.problem_arrays import F64, I16, I32, I64

_FEW_PAIRS = 48
"""Pairs of a rank up to which a choice of candidates is improved one by one: that takes their number squared."""


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
