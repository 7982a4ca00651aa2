"""Kernels of assignment: greedy dealing to bins, local search between bins, sums over bins, latencies of units.

They trust their input (``semu.searcher.assignment.dealing`` makes it), hold no state and release the GIL. A bin's
*height* is the largest of its loads. Loads are whole ticks, so that sums do not depend on an order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.compiled import empty, kernel, part, zeros

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

_FULL = np.iinfo(np.int64).max
"""Height of a bin without room."""
_NO_BIN = _FULL // 4
"""Load of what stands in a block and is no bin."""
_BLOCK = 16
"""Bins that ``deal`` looks at together."""


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

    Groups do not depend on one another: items that come group after group are dealt alike, and faster.

    Args:
        order: int64[n], items. first_bin: int64[num_items], of an item's group, which has ``num_bins``; a multiple of
            it.
        load: int64[num_items, num_columns] [ticks]. base: int64[num_columns] [ticks], of a bin without items.
        tokens: int64[num_items]. limit: tokens of a bin; < 0: any number.
        slowness: int64[num_bins], what a bin's height is multiplied by; none: all are alike.
        bin_of: int64[num_items], written: -1 where an item finds no room.
    Returns:
        Items without room.
    """
    groups = 0
    for item in order:
        groups = max(groups, first_bin[item] // num_bins + 1)
    if len(base) == 1 and len(slowness) == 0:
        return _deal_one_load(order, first_bin, groups, num_bins, load, base[0], tokens, limit, bin_of)
    return _deal_loads(order, first_bin, groups, num_bins, load, base, tokens, limit, slowness, bin_of)


@part
def _is_before(height: I64, count: I64, one: int, other: int) -> bool:
    """Whether a bin is lower than another; of equal ones that with fewer items, then the first."""
    if height[one] != height[other]:
        return height[one] < height[other]  # type: ignore[no-any-return]
    return count[one] < count[other] or (count[one] == count[other] and one < other)


@part
def _sink(heap: I64, size: int, item: int, height: I64, count: I64) -> None:
    """Put a bin in place of the lowest one of a heap of ``size`` bins."""
    at, child = 0, 1
    while child < size:
        if child + 1 < size and _is_before(height, count, heap[child + 1], heap[child]):
            child += 1
        if not _is_before(height, count, heap[child], item):
            break
        heap[at] = heap[child]
        at = child
        child = 2 * at + 1
    heap[at] = item


@part
def _rise(heap: I64, size: int, item: int, height: I64, count: I64) -> None:
    """Add a bin to a heap of ``size`` bins."""
    at = size
    while at > 0:
        parent = (at - 1) // 2
        if not _is_before(height, count, item, heap[parent]):
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = item


@part
def _deal_one_load(
    order: I64,
    first_bin: I64,
    groups: int,
    num_bins: int,
    load: I64,
    base: int,
    tokens: I64,
    limit: int,
    bin_of: I64,
) -> int:
    """``deal`` by one load: the lowest bin without an item is the lowest one with it, so that a heap knows it."""
    height, heap = empty(groups * num_bins, np.int64), empty((groups, num_bins), np.int64)
    held, count = zeros(groups * num_bins, np.int64), zeros(groups * num_bins, np.int64)
    full = empty(num_bins, np.int64)
    for number in range(groups * num_bins):
        height[number] = base
        heap[number // num_bins, number % num_bins] = number
    lost = 0
    for item in order:
        own, size, without_room = heap[first_bin[item] // num_bins], num_bins, 0
        while limit >= 0 and size > 0 and held[own[0]] + tokens[item] > limit:
            full[without_room] = own[0]
            without_room += 1
            size -= 1
            _sink(own, size, own[size], height, count)
        best = own[0] if size > 0 else -1
        bin_of[item] = best
        if best < 0:
            lost += 1
        else:
            height[best] += load[item, 0]
            held[best] += tokens[item]
            count[best] += 1
            _sink(own, size, best, height, count)
        for number in range(without_room):
            _rise(own, size + number, full[number], height, count)
    return lost


@part
def _deal_loads(
    order: I64,
    first_bin: I64,
    groups: int,
    num_bins: int,
    load: I64,
    base: I64,
    tokens: I64,
    limit: int,
    slowness: I64,
    bin_of: I64,
) -> int:
    """``deal`` by several loads: bins are looked at in blocks, of which those are left out whose lowest loads are above
    the best bin."""
    columns, blocks = len(base), -(-num_bins // _BLOCK)
    width, is_slow = blocks * _BLOCK, len(slowness) > 0
    bins, low = empty((groups, columns, width), np.int64), empty((groups, columns, blocks), np.int64)
    held, count = zeros((groups, width), np.int64), zeros((groups, width), np.int64)
    slow, least_slow = empty(width, np.int64), empty(blocks, np.int64)
    bounds, heights = empty(blocks, np.int64), empty(_BLOCK, np.int64)
    for group in range(groups):
        for column in range(columns):
            for number in range(width):
                bins[group, column, number] = base[column] if number < num_bins else _NO_BIN
            for block in range(blocks):
                low[group, column, block] = base[column]
    for number in range(width):
        slow[number] = slowness[number] if is_slow and number < num_bins else 1
    for block in range(blocks):
        least_slow[block] = slow[block * _BLOCK]
        for number in range(block * _BLOCK, min(num_bins, (block + 1) * _BLOCK)):
            least_slow[block] = min(least_slow[block], slow[number])
    lost = 0
    for item in order:
        group = first_bin[item] // num_bins
        loads, lows, tokens_of, items_of = bins[group], low[group], held[group], count[group]
        best, lowest, start = -1, _FULL, 0
        bounds[:] = 0
        if blocks > 1:
            for column in range(columns):
                more = load[item, column]
                for block in range(blocks):
                    bounds[block] = max(bounds[block], lows[column, block] + more)
            for block in range(blocks if is_slow else 0):
                bounds[block] *= least_slow[block]
            for block in range(1, blocks):
                start = block if bounds[block] < bounds[start] else start
        for step in range(blocks):  # the most promising block, then all others
            block = start if step == 0 else (step - 1 if step <= start else step)
            if bounds[block] > lowest:
                continue
            begin = block * _BLOCK
            heights[:] = 0
            for column in range(columns):  # column after column, so that bins are looked at several at a time
                more = load[item, column]
                for number in range(_BLOCK):
                    heights[number] = max(heights[number], loads[column, begin + number] + more)
            for number in range(_BLOCK if is_slow else 0):
                heights[number] *= slow[begin + number]
            if limit >= 0:
                room = limit - tokens[item]
                for number in range(_BLOCK):
                    heights[number] = _FULL if tokens_of[begin + number] > room else heights[number]
            least = _FULL
            for number in range(_BLOCK):
                least = min(least, heights[number])
            if least > lowest or least >= _NO_BIN:
                continue
            if least < lowest:
                best, lowest = -1, least
            for number in range(begin, begin + _BLOCK):
                if heights[number - begin] == lowest and (
                    best < 0
                    or items_of[number] < items_of[best]
                    or (items_of[number] == items_of[best] and number < best)
                ):
                    best = number
        bin_of[item] = -1 if best < 0 else group * num_bins + best
        if best < 0:
            lost += 1
            continue
        tokens_of[best] += tokens[item]
        items_of[best] += 1
        block = best // _BLOCK
        for column in range(columns):
            loads[column, best] += load[item, column]
            least = loads[column, block * _BLOCK]
            for number in range(block * _BLOCK + 1, (block + 1) * _BLOCK):
                least = min(least, loads[column, number])
            lows[column, block] = least
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
def sum_by_bin(values: I64, bins: I64, total: F64) -> None:
    """Sums of columns of items by bin, exact below 2^53.

    Args:
        values: int64[n, num_columns]. bins: int64[n]. total: float64[num_bins, num_columns], added to.
    """
    for item in range(len(bins)):
        for column in range(values.shape[1]):
            total[bins[item], column] += values[item, column]


@kernel
def weigh(features: F64, slope: F64, total: F64) -> None:
    """Sums of features times slopes, feature after feature, so that every machine rounds alike.

    Args:
        features: float64[n, num_names]. slope: float64[num_groups, num_names]. total: float64[n, num_groups], written.
    """
    for row in range(len(features)):
        for group in range(len(slope)):
            found = 0.0
            for name in range(features.shape[1]):
                if slope[group, name] != 0:
                    found += features[row, name] * slope[group, name]
            total[row, group] = found


@kernel
def unit_latencies(
    table: F64, column: I64, row: I64, fixed: F64, slope: F64, first: int, slowdown: F64, is_stage: I64, latency: F64
) -> None:
    """What units take under fitted costs, feature after feature, so that every machine rounds alike.

    Args:
        table: float64[num_replicas, num_columns, num_names], features. column, row: int64[num_units], of the table,
            and of costs. fixed: float64[num_rows] [s]. slope: float64[num_rows, num_names] [s].
        first: column from which on nothing runs where all features are zero. slowdown: float64[num_replicas].
        is_stage: int64[num_units], 1 where the replica's slowdown counts.
        latency: float64[num_replicas, num_units], written [s], >= 0.
    """
    for replica in range(len(table)):
        for unit in range(len(column)):
            own, kind, total, runs = table[replica, column[unit]], row[unit], 0.0, column[unit] < first
            for name in range(len(own)):
                if slope[kind, name] != 0:
                    total += own[name] * slope[kind, name]
            for name in range(0 if runs else len(own)):
                runs = runs or own[name] != 0
            total = max(total + fixed[kind], 0.0) if runs else 0.0
            latency[replica, unit] = total * slowdown[replica] if is_stage[unit] else total
