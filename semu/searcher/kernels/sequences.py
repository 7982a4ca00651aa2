"""Kernels of sequences of segment groups: the legal sequence nearest to a wish, one move of an item, its window."""

from __future__ import annotations

import numpy as np

from semu.compiled import empty, kernel, part, zeros
from semu.searcher.problem.problem_arrays import F64, I32


@kernel
def nearest_sequences(
    num_needs: I32, follower_ptr: I32, followers: I32, kinds: I32, prefix: I32, wishes: F64, found: I32
) -> None:
    """Legal sequences that begin alike and then take, of the items of the kind due whose needs are met, the one with
    the least wish (ties by number).

    Args:
        num_needs: int32[num_all], needs of every item. follower_ptr, followers: CSR, items that need it.
        kinds: int32[num_items], kind due at every position: 0 forward, 1 backward; the first half of all items are
            forwards.
        prefix: int32[d], legal beginning. wishes: float64[k, num_all], infinite where an item does not exist.
        found: int32[k, num_items], written.
    """
    num_all, length = len(num_needs), len(kinds)
    half = num_all // 2
    heap = empty((2, num_all), np.int32)
    missing = empty(num_all, np.int32)
    placed = empty(num_all, np.bool_)
    for row in range(len(wishes)):
        wish = wishes[row]
        for item in range(num_all):
            missing[item], placed[item] = num_needs[item], False
        size = zeros(2, np.int64)
        for at in range(len(prefix)):
            item = prefix[at]
            found[row, at] = item
            placed[item] = True
            for edge in range(follower_ptr[item], follower_ptr[item + 1]):
                missing[followers[edge]] -= 1
        for item in range(num_all):
            if missing[item] == 0 and not placed[item] and wish[item] < np.inf:
                kind = 0 if item < half else 1
                _push(heap[kind], size[kind], wish, item)
                size[kind] += 1
        for at in range(len(prefix), length):
            kind = kinds[at]
            own = heap[kind]
            item = own[0]
            size[kind] -= 1
            own[0] = own[size[kind]]
            parent = 0
            while True:
                child = 2 * parent + 1
                if child >= size[kind]:
                    break
                if child + 1 < size[kind] and _before(wish, own[child + 1], own[child]):
                    child += 1
                if not _before(wish, own[child], own[parent]):
                    break
                own[child], own[parent] = own[parent], own[child]
                parent = child
            found[row, at] = item
            for edge in range(follower_ptr[item], follower_ptr[item + 1]):
                after = followers[edge]
                missing[after] -= 1
                if missing[after] == 0 and wish[after] < np.inf:
                    kind_after = 0 if after < half else 1
                    _push(heap[kind_after], size[kind_after], wish, after)
                    size[kind_after] += 1


@part
def _push(heap: I32, size: int, wish: F64, item: int) -> None:
    """Put an item into a heap of ``size`` items, the least wish on top."""
    heap[size] = item
    child = size
    while child > 0 and _before(wish, heap[child], heap[(child - 1) // 2]):
        up = (child - 1) // 2
        heap[child], heap[up] = heap[up], heap[child]
        child = up


@part
def _before(wish: F64, first: int, second: int) -> bool:
    return wish[first] < wish[second] or (wish[first] == wish[second] and first < second)
