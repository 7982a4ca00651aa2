"""Greedy packing: items, in order, into bins with limits that add up (tokens, images, seconds, clips)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError

IntArray = NDArray[np.int64]


def offsets(sizes: IntArray) -> IntArray:
    """Where each of several runs of ``sizes`` begins, and the end of the last: int64[len(sizes) + 1]."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))


def pack_in_order(weights: Sequence[IntArray], capacities: Sequence[int]) -> IntArray:
    """Fill a bin with the next items as long as all limits hold, then begin the next bin ("next fit").

    This is the greedy packing of a stream: an item is looked at once and the order is kept, so that the bins of a
    prefix of the items are a prefix of the bins (but for the last, which more items could still fill).

    Args:
        weights: one array int64[num_items], >= 0, per limit: what each item takes of it.
        capacities: what a bin holds of each limit.
    Returns:
        int64[num_bins + 1]: bin i holds the items [bounds[i], bounds[i + 1]).
    Raises:
        ConfigError: an item that fits into no bin (its number is ``where``).
    Source:
        DIP §2.2 (greedy packing up to the context length). O(n log n).
    """
    num_items = weights[0].size
    reach = np.full(num_items, num_items, np.int64)  # reach[i] = end of a bin that begins with item i
    for weight, capacity in zip(weights, capacities, strict=True):
        too_large = np.flatnonzero(weight > capacity)
        if too_large.size:
            item = int(too_large[0])
            raise ConfigError(
                "an item is larger than a bin", where=f"item {item}", expected=f"<= {capacity}", got=int(weight[item])
            )
        before = offsets(weight)
        reach = np.minimum(reach, np.searchsorted(before, before[:-1] + capacity, side="right") - 1)
    jump = reach.tolist()
    bounds = [0]
    while bounds[-1] < num_items:
        bounds.append(jump[bounds[-1]])
    return np.array(bounds, np.int64)


def pack_similar(
    key: IntArray, weights: Sequence[IntArray], capacities: Sequence[int], pool: int, seed: int
) -> tuple[IntArray, IntArray]:
    """Put items with similar keys into one bin: sort a pool of items by key, pack it in order, shuffle its bins.

    Pools are consecutive and treated one by one, so that the bins of complete pools do not depend on what follows.

    Args:
        key: int64[num_items], what must be similar within a bin.
        weights, capacities: as for ``pack_in_order``.
        pool: items per pool, >= 1; the last pool may hold fewer.
        seed: of the order of the bins within their pool, >= 0.
    Returns:
        ``order`` int64[num_items], a permutation of the items, and ``bounds`` int64[num_bins + 1]: bin i holds
        the items order[bounds[i]:bounds[i + 1]].
    Raises:
        ConfigError: an item that fits into no bin.
    """
    orders: list[IntArray] = []
    sizes: list[IntArray] = []
    for index, start in enumerate(range(0, key.size, pool)):
        ranked = start + np.argsort(key[start : start + pool], kind="stable")
        bounds = pack_in_order([weight[ranked] for weight in weights], capacities)
        shuffled = np.random.Generator(np.random.PCG64([seed, index])).permutation(bounds.size - 1)
        counts = np.diff(bounds)[shuffled]
        within = np.arange(ranked.size) - np.repeat(np.cumsum(counts) - counts, counts)
        orders.append(ranked[np.repeat(bounds[:-1][shuffled], counts) + within])
        sizes.append(counts)
    if not orders:
        return np.zeros(0, np.int64), np.zeros(1, np.int64)
    return np.concatenate(orders), offsets(np.concatenate(sizes))
