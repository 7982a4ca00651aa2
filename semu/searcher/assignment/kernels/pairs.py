"""Kernels of deferral: sums of subsets, matching, and the pairs of all replicas.

They trust their input (``semu.searcher.assignment.deferral`` makes it), hold no state and release the GIL. Loads are
whole ticks, so that sums do not depend on an order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.compiled import empty, kernel, part, zeros

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]


@kernel
def subset_sums(weights: I64, ticks: int, reached: I32) -> None:
    """Sums of subsets, in ticks: which item reaches every sum first.

    Args:
        weights: int64[n], in ticks. ticks: of the largest sum asked for.
        reached: int32[n + 1, ticks + 1], written: 1 where the first i items have a subset of that sum, else 0.
    Source:
        The discretised table of 001 §4.5.2, O(n x ticks).
    """
    for tick in range(ticks + 1):
        reached[0, tick] = 0
    reached[0, 0] = 1
    for item in range(len(weights)):
        weight = weights[item]
        for tick in range(ticks + 1):
            reached[item + 1, tick] = reached[item, tick]
        for tick in range(weight, ticks + 1):
            if reached[item, tick - weight] != 0:
                reached[item + 1, tick] = 1


@kernel
def match(cost: I64, alone: I64, bound: int, partner: I64) -> bool:
    """Give every row whose cost alone is above a bound a column of its own with a cost within it (Kuhn's algorithm).

    Args:
        cost: int64[rows, columns]. alone: int64[rows]. bound: of all costs.
        partner: int64[rows], written: the column of a row; -1: none.
    Returns:
        Whether every such row has one.
    """
    rows, columns = cost.shape
    row_of = empty(columns, np.int64)
    row_of[:] = -1
    seen, queue, came = empty(columns, np.int64), empty(rows, np.int64), empty(columns, np.int64)
    for start in range(rows):
        partner[start] = -1
    for start in range(rows):
        if alone[start] <= bound:
            continue
        for column in range(columns):
            seen[column] = 0
        queue[0] = start
        head, tail, free = 0, 1, -1
        while head < tail and free < 0:
            row = queue[head]
            head += 1
            for column in range(columns):
                if seen[column] == 0 and cost[row, column] <= bound:
                    seen[column] = 1
                    came[column] = row
                    if row_of[column] < 0:
                        free = column
                        break
                    queue[tail] = row_of[column]
                    tail += 1
        if free < 0:
            return False
        while free >= 0:
            row = came[free]
            before = partner[row]
            partner[row] = free
            row_of[free] = row
            free = before
    return True


@part
def _small_subsets(weight: I64, tokens: I64, most: int, sums: I64, held: I64, masks: I64) -> tuple[int, int]:
    """Subsets of some samples with sums up to ``most``: sums ascending, of equal ones that with the lower bits first.

    Args:
        weight, tokens: int64[count], of samples. sums, held, masks: int64[2, >= 2^count], written: sums of weights and
            of tokens, and bits of the samples.
    Returns:
        The row that holds them, and how many they are.
    """
    now, reach = 0, 1
    sums[0, 0], held[0, 0], masks[0, 0] = 0, 0, 0
    for bit in range(len(weight)):
        then, plain, more, found = 1 - now, 0, 0, 0
        while plain < reach or more < reach:  # two sorted halves: without the sample, and with it
            if more == reach or (plain < reach and sums[now, plain] <= sums[now, more] + weight[bit]):
                sums[then, found], held[then, found] = sums[now, plain], held[now, plain]
                masks[then, found] = masks[now, plain]
                plain += 1
            elif sums[now, more] + weight[bit] > most:
                more = reach
                continue
            else:
                sums[then, found] = sums[now, more] + weight[bit]
                held[then, found] = held[now, more] + tokens[bit]
                masks[then, found] = masks[now, more] | (1 << bit)
                more += 1
            found += 1
        now, reach = then, found
    return now, reach


@part
def _closest(sums: I64, held: I64, reach: int, twice: int, room: int) -> int:
    """Where the sum is that is closest to half of ``twice`` and fits, of two the smaller, of equal ones the first.

    Args:
        sums, held: int64[>= reach], of ``_small_subsets``; the first is of no sample. room: tokens; < 0: any number.
    """
    low, high = 0, reach
    while low < high:  # the first sum of at least half of twice
        middle = (low + high) // 2
        if 2 * sums[middle] < twice:
            low = middle + 1
        else:
            high = middle
    below, above = low - 1, low
    while below >= 0 or above < reach:
        if above == reach or (below >= 0 and twice - 2 * sums[below] <= 2 * sums[above] - twice):
            first = below
            while first > 0 and sums[first - 1] == sums[below]:
                first -= 1
            for place in range(first, below + 1):
                if room < 0 or held[place] <= room:
                    return place
            below = first - 1
        else:
            if room < 0 or held[above] <= room:
                return above
            above += 1
    return 0


@kernel
def pair_costs(
    ptr: I64, weight: I64, tokens: I64, rooms: I64, upper: I64, lower: I64, most: int, cost: I64, subset: I64
) -> None:
    """What every pair of microbatches of a replica can make of deferral, by listing all subsets.

    Args:
        ptr: int64[num_microbatches + 1], samples of each. weight, tokens: int64[n], of samples.
        rooms: int64[num_microbatches], tokens that fit into each; < 0: any number.
        upper, lower: int64[half], microbatches that defer, and that take. most: samples of which subsets are listed.
        cost: int64[half, half], written: the larger load after deferral (001 eq. 4.3).
        subset: int64[half, half], written: bits of the samples whose load is closest to half of the difference, of
            two the smaller load; -1: more samples than ``most``.
    """
    largest = 0
    for over in upper:
        largest = max(largest, min(most, ptr[over + 1] - ptr[over]))
    sums, held = empty((2, 1 << largest), np.int64), empty((2, 1 << largest), np.int64)
    masks = empty((2, 1 << largest), np.int64)
    total = zeros(len(ptr) - 1, np.int64)
    for number in range(len(ptr) - 1):
        for place in range(ptr[number], ptr[number + 1]):
            total[number] += weight[place]
    for row in range(len(upper)):
        over = upper[row]
        first, last = ptr[over], ptr[over + 1]
        if last - first > most:
            for column in range(len(lower)):
                subset[row, column] = -1
            continue
        widest = 0  # more than the difference is never closer to half of it than nothing is
        for under in lower:
            widest = max(widest, total[over] - total[under])
        now, reach = _small_subsets(weight[first:last], tokens[first:last], widest, sums, held, masks)
        for column in range(len(lower)):
            under = lower[column]
            chosen = _closest(sums[now], held[now], reach, total[over] - total[under], rooms[under])
            moved = sums[now, chosen]
            cost[row, column] = max(total[over] - moved, total[under] + moved)
            subset[row, column] = masks[now, chosen]


@kernel
def pair_replicas(
    ptr: I64, weight: I64, tokens: I64, rooms: I64, most: int, place: I64, waits: I64, is_left: I64
) -> None:
    """``deferral.pair_up`` of all replicas, those apart that hold a microbatch of more than ``most`` samples.

    Args:
        ptr: int64[num_replicas x num_microbatches + 1], samples of each microbatch. weight, tokens: int64[n].
        rooms: int64[num_replicas, num_microbatches], as ``pair_costs``. most: samples of which subsets are listed.
        place: int64[num_replicas, num_microbatches], written: where each microbatch runs.
        waits: int64[num_replicas, num_microbatches], written: bits of its samples that wait for the next one.
        is_left: int64[num_replicas], written: 1 where nothing was done.
    """
    replicas, count = place.shape
    half = count // 2
    cost, subset = empty((half, half), np.int64), empty((half, half), np.int64)
    alone, partner = empty(half, np.int64), empty(half, np.int64)
    total = empty(count, np.int64)
    for replica in range(replicas):
        own = ptr[replica * count : (replica + 1) * count + 1]
        is_left[replica] = 0
        for number in range(count):
            waits[replica, number] = 0
            total[number] = 0
            for sample in range(own[number], own[number + 1]):
                total[number] -= weight[sample]  # negative, for a stable descending order
        order = np.argsort(total, kind="mergesort")
        upper, lower = order[:half], order[half : 2 * half]
        for row in range(half):
            alone[row] = -total[upper[row]]
            if own[upper[row] + 1] - own[upper[row]] > most:
                is_left[replica] = 1
        if is_left[replica] == 1:
            continue
        if count % 2 == 1:
            place[replica, order[count - 1]] = count - 1
        if half == 0:
            continue
        pair_costs(own, weight, tokens, rooms[replica], upper, lower, most, cost, subset)
        values = np.sort(np.concatenate((cost.ravel(), alone)))
        low, high = 0, len(values) - 1
        while low < high:
            middle = (low + high) // 2
            if match(cost, alone, values[middle], partner):
                high = middle
            else:
                low = middle + 1
        match(cost, alone, values[low], partner)
        free = 0
        for row in range(half):
            column = partner[row]
            if column < 0:  # within the bottleneck alone: the first column that nobody needs
                is_taken = True
                while is_taken:
                    is_taken = False
                    for other in range(half):
                        is_taken = is_taken or partner[other] == free
                    free += 1
                column = free - 1
            else:
                waits[replica, upper[row]] = subset[row, column]
            place[replica, upper[row]], place[replica, lower[column]] = 2 * row, 2 * row + 1
