"""Kernels of assignment: greedy dealing to bins, local search between bins, sums of subsets.

They trust their input (``semu.searcher.assignment.dealing`` makes it), hold no state and release the GIL. A bin's
*height* is the largest of its loads. Loads are whole ticks, so that sums do not depend on an order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.compiled import empty, kernel, part, zeros

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
F64 = NDArray[np.float64]

_FULL = np.iinfo(np.int64).max
"""Height of a bin without room."""


@part
def _height(bins: I64, number: int, load: I64, item: int, sign: int) -> int:
    """Height of a bin with an item more (sign 1), less (-1), or as it is (0)."""
    height = 0
    for column in range(load.shape[1]):
        height = max(height, bins[number, column] + sign * load[item, column])
    return height


@part
def _swapped(bins: I64, number: int, load: I64, gone: int, come: int) -> int:
    """Height of a bin that gives one item for another."""
    height = 0
    for column in range(load.shape[1]):
        height = max(height, bins[number, column] - load[gone, column] + load[come, column])
    return height


@part
def _begun(count: int, base: I64) -> I64:
    """Bins that hold nothing but the base."""
    bins = empty((count, len(base)), np.int64)
    for number in range(count):
        for column in range(len(base)):
            bins[number, column] = base[column]
    return bins


@kernel
def deal(
    order: I64,
    first_bin: I64,
    num_bins: int,
    load: I64,
    base: I64,
    tokens: I64,
    limit: int,
    slowness: I64,
    bin_of: I64,
) -> int:
    """Give every item, in order, to the bin of its group that is lowest with it; ties to the one with fewer items.

    Args:
        order: int64[n], items. first_bin: int64[num_items], of an item's group, which has ``num_bins``.
        load: int64[num_items, num_columns] [ticks]. base: int64[num_columns] [ticks], of a bin without items.
        tokens: int64[num_items]. limit: tokens of a bin; < 0: any number.
        slowness: int64[num_bins], what a bin's height is multiplied by; none: all are alike.
        bin_of: int64[num_items], written: -1 where an item finds no room.
    Returns:
        Items without room.
    """
    total, columns = 0, len(base)
    for item in order:
        total = max(total, first_bin[item] + num_bins)
    bins, heights = empty((columns, total), np.int64), empty(num_bins, np.int64)
    for column in range(columns):
        bins[column, :] = base[column]
    held, count = zeros(total, np.int64), zeros(total, np.int64)
    lost = 0
    for item in order:
        first, best, lowest = first_bin[item], -1, _FULL
        heights[:] = 0
        for column in range(columns):  # column after column, so that bins are looked at several at a time
            own, more = bins[column, first : first + num_bins], load[item, column]
            for number in range(num_bins):
                heights[number] = max(heights[number], own[number] + more)
        for number in range(len(slowness)):
            heights[number] *= slowness[number]
        if limit >= 0:
            room = limit - tokens[item]
            for number in range(num_bins):
                heights[number] = _FULL if held[first + number] > room else heights[number]
        for number in range(num_bins):
            lowest = min(lowest, heights[number])
        if lowest < _FULL:
            for number in range(first, first + num_bins):
                if heights[number - first] == lowest and (best < 0 or count[number] < count[best]):
                    best = number
        bin_of[item] = best
        if best < 0:
            lost += 1
            continue
        held[best] += tokens[item]
        count[best] += 1
        for column in range(columns):
            bins[column, best] += load[item, column]
    return lost


@kernel
def improve(
    ptr: I64, items: I64, num_bins: int, load: I64, base: I64, tokens: I64, limit: int, rounds: int, bin_of: I64
) -> int:
    """Lower the highest bin of every group by moving one of its items, or swapping it for one of another bin.

    Args:
        ptr: int64[num_groups + 1], items: int64[n], of every group. num_bins: of a group; those of group g are
            numbered from g x num_bins. load, base, tokens, limit: as ``deal``. rounds: most changes of a group.
        bin_of: int64[num_items], read and written; no bin becomes empty.
    Returns:
        Changes.
    """
    changes = 0
    for group in range(len(ptr) - 1):
        own, first = items[ptr[group] : ptr[group + 1]], group * num_bins
        bins, heights = _begun(num_bins, base), zeros(num_bins, np.int64)
        held, count = zeros(num_bins, np.int64), zeros(num_bins, np.int64)
        for item in own:
            number = bin_of[item] - first
            held[number] += tokens[item]
            count[number] += 1
            for column in range(len(base)):
                bins[number, column] += load[item, column]
        for number in range(num_bins):
            heights[number] = _height(bins, number, load, own[0], 0)
        for _ in range(rounds):
            top = 0
            for number in range(1, num_bins):
                if heights[number] > heights[top]:
                    top = number
            best, moved, swapped, target = heights[top], -1, -1, -1
            for item in own:
                if bin_of[item] - first != top:
                    continue
                if count[top] > 1:
                    rest = _height(bins, top, load, item, -1)
                    if rest < best:
                        for number in range(num_bins):
                            if number == top or (limit >= 0 and held[number] + tokens[item] > limit):
                                continue
                            height = max(rest, _height(bins, number, load, item, 1))
                            if height < best:
                                best, moved, swapped, target = height, item, -1, number
                for other in own:
                    number = bin_of[other] - first
                    if number == top or heights[number] >= best:
                        continue
                    more = tokens[item] - tokens[other]
                    if limit >= 0 and (held[number] + more > limit or held[top] - more > limit):
                        continue
                    height = _swapped(bins, top, load, item, other)
                    if height < best:
                        height = max(height, _swapped(bins, number, load, other, item))
                        if height < best:
                            best, moved, swapped, target = height, item, other, number
            if moved < 0:
                break
            changes += 1
            for item, origin, goal in ((moved, top, target), (swapped, target, top)):
                if item < 0:
                    continue
                bin_of[item] = first + goal
                held[origin] -= tokens[item]
                held[goal] += tokens[item]
                count[origin] -= 1
                count[goal] += 1
                for column in range(len(base)):
                    bins[origin, column] -= load[item, column]
                    bins[goal, column] += load[item, column]
            heights[top] = _height(bins, top, load, moved, 0)
            heights[target] = _height(bins, target, load, moved, 0)
    return changes


@kernel
def reorder(encoder: F64, backbone: F64, num_ranks: int, place: I64) -> None:
    """DistTrain's order of the microbatches of every replica (``methods.disttrain``).

    Args:
        encoder, backbone: float64[num_replicas, num_microbatches], loads. num_ranks: of the pipeline.
        place: int64[num_replicas, num_microbatches], written: where each microbatch runs.
    """
    replicas, count = encoder.shape
    for replica in range(replicas):
        left = np.argsort(encoder[replica] + backbone[replica], kind="mergesort")
        rear = max(0, min(num_ranks - 1, count - 2))
        last = left[0]
        place[replica, last] = 0
        for number in range(rear):
            place[replica, left[1 + number]] = count - 1 - number
        for position in range(1, count - rear):
            best, closest = -1, 0.0
            for number in left[1 + rear :]:
                if number < 0:
                    continue
                apart = abs(encoder[replica, number] - backbone[replica, last])
                if best < 0 or apart < closest or (apart == closest and number < best):
                    best, closest = number, apart
            for number in range(1 + rear, count):
                if left[number] == best:
                    left[number] = -1
            place[replica, best] = position
            last = best


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
    sums, held = empty(1 << most, np.int64), empty(1 << most, np.int64)
    total = zeros(len(ptr) - 1, np.int64)
    for number in range(len(ptr) - 1):
        for place in range(ptr[number], ptr[number + 1]):
            total[number] += weight[place]
    for row in range(len(upper)):
        over = upper[row]
        first, count = ptr[over], ptr[over + 1] - ptr[over]
        if count > most:
            for column in range(len(lower)):
                subset[row, column] = -1
            continue
        sums[0], held[0], reach = 0, 0, 1
        for bit in range(count):
            for mask in range(reach):
                sums[reach + mask] = sums[mask] + weight[first + bit]
                held[reach + mask] = held[mask] + tokens[first + bit]
            reach *= 2
        for column in range(len(lower)):
            under = lower[column]
            twice, room = total[over] - total[under], rooms[under]
            best, chosen = twice, 0
            for mask in range(1, reach):
                apart = abs(twice - 2 * sums[mask])
                if (apart < best or (apart == best and sums[mask] < sums[chosen])) and (room < 0 or held[mask] <= room):
                    best, chosen = apart, mask
            cost[row, column] = max(total[over] - sums[chosen], total[under] + sums[chosen])
            subset[row, column] = chosen


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
