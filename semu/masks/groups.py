"""The policy ``hybrid``: every stretch of text on as few context ranks as even loads allow.

A stretch is what attention does not leave: a document, or a sequence under masks that cross documents. It lies on a
group of neighbouring ranks, as many as a divisor of cp, in chunks from both its ends; keys travel within the group
alone. Weights are the same on all context ranks, so gradients do not change.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.masks.spans import IntArray


def deal_stretches(
    weight: IntArray, size: IntArray, num_ranks: int, slack: float
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The group of every stretch such that few tokens travel, and no rank has more than (1 + slack) times the mean work
    and tokens, if groups share their stretches evenly. There always is a way: everything on all ranks.

    Args:
        weight: int64[num_stretches], work >= 0. size: int64[num_stretches], tokens >= 1. num_ranks: >= 1. slack: >= 0.
    Returns:
        Ranks of the group, its first rank: int32[num_stretches] each; the first is a multiple of the ranks.
    """
    from semu.masks.group_kernels import place_stretches

    both = np.stack((weight * int(size.sum()), size * max(int(weight.sum()), 1)), axis=1)  # alike in sum
    limit = (both.sum(axis=0) * (1.0 + slack)).astype(np.int64)
    limit = np.maximum(limit, both.sum(axis=0))
    widths = np.array([n for n in range(1, num_ranks + 1) if num_ranks % n == 0], np.int64)
    ways = sum(num_ranks // int(width) for width in widths)
    pairs = 0 if len(weight) > _FEW_STRETCHES else 2 if len(weight) * ways <= _FEW_WAYS else 1

    def _placed(order: IntArray, pairs: int) -> tuple[tuple[int, int], tuple[NDArray[np.int32], NDArray[np.int32]]]:
        places = np.zeros(len(weight), np.int32), np.zeros(len(weight), np.int32)
        return place_stretches(both, size, order, widths, limit, num_ranks, pairs, places), places

    orders = _orders(both)
    found = [_placed(order, 0) for order in orders]
    if pairs:
        best = sorted(range(len(orders)), key=lambda number: found[number][0])[:_REFINED]
        found = [_placed(orders[number], pairs) for number in best]
    return min(found, key=lambda way: way[0])[1]


def _orders(weight: IntArray) -> list[IntArray]:
    """In which stretches are put on groups: the heaviest first in either way; as long as they are few also orders drawn
    near these; none, which is everything on all ranks."""
    count = len(weight)
    draw = np.random.Generator(np.random.PCG64(0))
    tries = min(_PUTS // max(count, 1), _MOST_ORDERS)
    noise = np.exp(draw.normal(0.0, 0.5, (tries, count)))
    heavy = [*weight.T, *(weight.max(axis=1) * one for one in noise)]
    return [*(np.argsort(-column, kind="stable") for column in heavy), np.zeros(0, np.int64)]


_FEW_STRETCHES = 512
"""Of so few, pairs are swapped."""
_FEW_WAYS = 512
"""Of so few stretches, times the groups that each may be on, pairs are moved anywhere."""
_PUTS, _MOST_ORDERS = 1024, 32
"""Stretches that drawn orders put on groups, all together, and how many orders at most."""
_REFINED = 4
"""Of the orders so many are gone on with, where two stretches are moved at once."""
