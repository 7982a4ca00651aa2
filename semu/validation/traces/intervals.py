"""Sets of times as disjoint intervals: ``union``, ``overlap_s``, ``length_s``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Intervals = NDArray[np.float64]
"""float64[num_intervals, 2], starts and ends [s], in order and disjoint."""


def union(starts: NDArray[np.float64], ends: NDArray[np.float64]) -> Intervals:
    """Times that at least one interval covers.

    Args:
        starts, ends: float64[n] [s], in any order, overlapping or not.
    """
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    is_first = np.ones(len(starts), dtype=bool)
    is_first[1:] = starts[1:] > reach[:-1]
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts[1:], len(starts)) - 1 if len(starts) else firsts
    return np.stack((starts[firsts], reach[lasts]), axis=1)


def length_s(intervals: Intervals) -> float:
    """Total time [s]."""
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def overlap_s(a: Intervals, b: Intervals) -> float:
    """Time that both cover [s]."""
    if not len(a) or not len(b):
        return 0.0
    covered = np.concatenate(([0.0], np.cumsum(b[:, 1] - b[:, 0])))

    def before(times: NDArray[np.float64]) -> NDArray[np.float64]:
        """How much of b lies before each time."""
        number = np.searchsorted(b[:, 0], times, side="right")
        inside = np.minimum(times, b[np.maximum(number - 1, 0), 1]) - b[np.maximum(number - 1, 0), 0]
        found: NDArray[np.float64] = np.where(number == 0, 0.0, covered[np.maximum(number - 1, 0)] + inside)
        return found

    return float((before(a[:, 1]) - before(a[:, 0])).sum())
