"""Pairwise deferral (001 §4.5.2): what an overloaded microbatch of a replica leaves to the one behind it.

Microbatches are sorted by the backbone's load; each of the upper half is paired with one of the lower half and defers
the subset of its samples whose load is closest to half of the difference. A bottleneck matching picks the pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semu.searcher.assignment.kernels import match, subset_sums

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]

CELLS = 1 << 13
"""Cells of the table of subset sums; loads that do not fit are rounded to the total over this."""
_FEW = 12
"""Up to so many samples all subsets are listed, which is exact."""


class Subsets:
    """Sums of all subsets of some loads, asked for the one closest to a target.

    Args:
        weights: int64[n], >= 0, at least one.
    """

    def __init__(self, weights: I64) -> None:
        self._weights = weights
        n = len(weights)
        if n <= _FEW:
            masks = np.arange(1 << n)
            sums = ((masks[:, None] >> np.arange(n)) & 1) @ weights
            self._order = np.argsort(sums, kind="stable")
            self._sums = sums[self._order]
            return
        total = int(weights.sum())
        self._tick = max(1, -(-total // CELLS))
        ticks = np.rint(weights / self._tick).astype(np.int64)
        self._ticks = ticks
        self._reached: I32 = np.empty((n + 1, int(ticks.sum()) + 1), np.int32)
        subset_sums(ticks, self._reached.shape[1] - 1, self._reached)
        self._sums = np.flatnonzero(self._reached[n])

    def closest(self, target: float) -> NDArray[np.bool_]:
        """The subset whose sum is closest to a target; of two the smaller sum: bool[n].

        Where sums are rounded, the five nearest of the table on each side are summed again as they are.
        """
        n = len(self._weights)
        if n <= _FEW:
            place = int(np.searchsorted(self._sums, target))
            near = [number for number in (place - 1, place) if 0 <= number < len(self._sums)]
            best = min(near, key=lambda number: (abs(float(self._sums[number]) - target), self._sums[number]))
            first = int(np.searchsorted(self._sums, self._sums[best]))  # of equal sums the first subset
            found: NDArray[np.bool_] = ((int(self._order[first]) >> np.arange(n)) & 1).astype(np.bool_)
            return found
        place = int(np.searchsorted(self._sums, target / self._tick))
        near = self._sums[max(0, place - 5) : place + 5].tolist()
        picked = [self._subset(int(total)) for total in near]
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


def pair_up(loads: Sequence[I64], room: Sequence[tuple[I64, int]] | None = None) -> Pairing:
    """Pair the microbatches of a replica.

    Args:
        loads: per microbatch, the backbone's load of each of its samples, int64 [ticks].
        room: per microbatch, tokens of each of its samples, and tokens that still fit into it; None: any number fits.
    Source:
        001 §4.5.2, eq. 4.3, algorithm 4 lines 7 to 14. Ties of microbatches by number.
    """
    total = np.array([int(own.sum()) for own in loads], np.int64)
    order = np.argsort(-total, kind="stable")
    half = len(loads) // 2
    unpaired = int(order[-1]) if len(loads) % 2 else None
    upper, lower = order[:half], order[half : 2 * half]
    cost = np.empty((half, half), np.int64)
    sets: list[list[NDArray[np.bool_]]] = []
    for row, over in enumerate(upper.tolist()):
        subsets = Subsets(loads[over])
        own = []
        for column, under in enumerate(lower.tolist()):
            chosen = subsets.closest((total[over] - total[under]) / 2)
            if room is not None and int(room[over][0][chosen].sum()) > room[under][1]:
                chosen = np.zeros_like(chosen)
            moved = int(loads[over][chosen].sum())
            cost[row, column] = max(total[over] - moved, total[under] + moved)
            own.append(chosen)
        sets.append(own)
    partner, bottleneck = bottleneck_match(cost, total[upper])
    taken = set(partner[partner >= 0].tolist())
    free = iter(column for column in range(half) if column not in taken)
    pairs, deferred = [], []
    for row, over in enumerate(upper.tolist()):
        column = int(partner[row])
        keeps = column < 0
        column = next(free) if keeps else column
        pairs.append((over, int(lower[column])))
        deferred.append(np.zeros_like(sets[row][column]) if keeps else sets[row][column])
    return Pairing(tuple(pairs), unpaired, tuple(deferred), bottleneck)


def bottleneck_match(cost: I64, alone: I64) -> tuple[I64, int]:
    """The smallest T of all costs such that every row is within T alone or with a column of its own.

    Args:
        cost: int64[rows, columns], columns >= rows. alone: int64[rows].
    Returns:
        Per row its column, -1 where it stays alone, and T; int64[rows]. Without rows: T = 0.
    """
    partner = np.full(len(alone), -1, np.int64)
    if not len(alone):
        return partner, 0
    values = np.unique(np.concatenate((cost.ravel(), alone)))
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        if match(cost, alone, int(values[middle]), partner):
            high = middle
        else:
            low = middle + 1
    match(cost, alone, int(values[low]), partner)
    return partner, int(values[low])
