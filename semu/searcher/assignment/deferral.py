"""Pairwise deferral (001 §4.5.2): what an overloaded microbatch of a replica leaves to the one behind it.

Microbatches are sorted by the backbone's load; each of the upper half is paired with one of the lower half and defers
the subset of its samples whose load is closest to half of the difference. A bottleneck matching picks the pairs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.distinct import sorted_distinct
from semu.records import dataclass

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]

CELLS = 1 << 13
"""Cells of the table of subset sums; loads that do not fit are rounded to the total over this."""
FEW = 12
"""Up to so many samples of a microbatch all subsets are listed, which is exact."""


class Subsets:
    """Sums of the subsets of many loads, rounded to a table; asked for the one closest to a target.

    Args:
        weights: int64[n], >= 0, at least one.
    """

    def __init__(self, weights: I64) -> None:
        from semu.searcher.assignment.kernels.pairs import subset_sums

        self._weights = weights
        self._tick = max(1, -(-int(weights.sum()) // CELLS))
        self._ticks = np.rint(weights / self._tick).astype(np.int64)
        self._reached: I32 = np.empty((len(weights) + 1, int(self._ticks.sum()) + 1), np.int32)
        subset_sums(self._ticks, self._reached.shape[1] - 1, self._reached)
        self._sums = np.flatnonzero(self._reached[-1])

    def closest(self, target: float) -> NDArray[np.bool_]:
        """A subset whose sum is closest to a target, of two the smaller sum: bool[n]. Of the table's nearest five sums
        on each side, the subsets are summed again as they are."""
        place = int(np.searchsorted(self._sums, target / self._tick))
        picked = [self._subset(int(total)) for total in self._sums[max(0, place - 5) : place + 5].tolist()]
        exact = [int(self._weights[own].sum()) for own in picked]
        return picked[min(range(len(picked)), key=lambda number: (abs(exact[number] - target), exact[number]))]

    def _subset(self, total: int) -> NDArray[np.bool_]:
        """A subset with a sum of the table, of the first items that have one."""
        picked = np.zeros(len(self._weights), np.bool_)
        for item in range(len(picked), 0, -1):
            if not self._reached[item - 1, total]:
                picked[item - 1] = True
                total -= int(self._ticks[item - 1])
        return picked


@dataclass(frozen=True, eq=False)
class Pairing:
    """What a replica's microbatches leave to one another.

    Attributes:
        pairs: (overloaded, underloaded) microbatches, heaviest pair's row first. unpaired: the lightest of an odd
            number.
        deferred: per pair, bool over the samples of the overloaded microbatch.
        bottleneck: T*, largest load of the backbone after deferral [ticks].
    """

    pairs: tuple[tuple[int, int], ...]
    unpaired: int | None
    deferred: tuple[NDArray[np.bool_], ...]
    bottleneck: int


def pair_up(ptr: I64, weight: I64, tokens: I64 | None = None, rooms: I64 | None = None) -> Pairing:
    """Pair the microbatches of a replica.

    Args:
        ptr: int64[num_microbatches + 1], samples of each microbatch, at least one. weight: int64[n] [ticks], the
            backbone's load of each sample. tokens: int64[n]. rooms: int64[num_microbatches], tokens that still fit into
            each; None: any number.
    Source:
        001 §4.5.2, eq. 4.3, algorithm 4 lines 7 to 14. Ties of microbatches by number. Where tokens limit, the subset
        is the closest of those that fit; of a table (many samples) it is left out where it does not fit.
    """
    from semu.searcher.assignment.kernels.pairs import pair_costs

    total = np.add.reduceat(weight, ptr[:-1])
    order = np.argsort(-total, kind="stable")
    half = len(total) // 2
    unpaired = int(order[-1]) if len(total) % 2 else None
    upper, lower = order[:half], order[half : 2 * half]
    cost, subset = np.empty((half, half), np.int64), np.empty((half, half), np.int64)
    tokens = np.zeros_like(weight) if tokens is None else tokens
    rooms = np.full(len(total), -1, np.int64) if rooms is None else rooms
    pair_costs(ptr, weight, tokens, rooms, upper, lower, FEW, cost, subset)
    tables = {}
    for row in np.flatnonzero((subset < 0).any(axis=1)).tolist():
        own = slice(ptr[upper[row]], ptr[upper[row] + 1])
        table = Subsets(weight[own])
        for column, under in enumerate(lower.tolist()):
            chosen = table.closest((total[upper[row]] - total[under]) / 2)
            if 0 <= rooms[under] < tokens[own][chosen].sum():
                chosen = np.zeros_like(chosen)
            moved = int(weight[own][chosen].sum())
            cost[row, column] = max(total[upper[row]] - moved, total[under] + moved)
            tables[row, column] = chosen
    partner, bottleneck = bottleneck_match(cost, total[upper])
    taken = set(partner[partner >= 0].tolist())
    free = iter(column for column in range(half) if column not in taken)
    pairs, deferred = [], []
    for row, over in enumerate(upper.tolist()):
        column = int(partner[row])
        bits = np.arange(ptr[over + 1] - ptr[over])
        chosen = np.zeros(len(bits), np.bool_)
        if column < 0:  # within the bottleneck alone
            column = next(free)
        else:
            chosen = tables.get((row, column), ((int(subset[row, column]) >> bits) & 1).astype(np.bool_))
        pairs.append((over, int(lower[column])))
        deferred.append(chosen)
    return Pairing(tuple(pairs), unpaired, tuple(deferred), bottleneck)


def bottleneck_match(cost: I64, alone: I64) -> tuple[I64, int]:
    """The smallest T of all costs such that every row is within T alone or with a column of its own.

    Args:
        cost: int64[rows, columns], columns >= rows. alone: int64[rows].
    Returns:
        Per row its column, -1 where it stays alone, and T; int64[rows]. Without rows: T = 0.
    """
    from semu.searcher.assignment.kernels.pairs import match

    partner = np.full(len(alone), -1, np.int64)
    if not len(alone):
        return partner, 0
    values = sorted_distinct(np.concatenate((cost.ravel(), alone)))
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        if match(cost, alone, int(values[middle]), partner):
            high = middle
        else:
            low = middle + 1
    match(cost, alone, int(values[low]), partner)
    return partner, int(values[low])
