"""Memory of one rank over time: the curve, its peak, and what holds at a moment or between two."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.engine.sampling import pool_step_function
from semu.graph.tensor import Role
from semu.records import dataclass


@dataclass(frozen=True)
class PeakMemory:
    """The highest point of a memory curve: when, in which stage and operator, and what makes it up."""

    time_s: float
    size_bytes: int
    stage: str
    operator: str
    by_role: dict[Role, int]


@dataclass(frozen=True)
class MemoryCurve:
    """Allocated bytes of one rank as a step function of time.

    Attributes:
        times_s: float64[n], non-decreasing; value i holds from times_s[i] to times_s[i + 1].
        by_role: int64[num_roles, n] [bytes], rows in the order of ``roles``.
        roles: the rows' roles.
        capacity_bytes: size of the memory pool.
    """

    times_s: NDArray[np.float64]
    by_role: NDArray[np.int64]
    roles: tuple[Role, ...]
    capacity_bytes: int

    @cached_property
    def total(self) -> NDArray[np.int64]:
        """int64[n] [bytes], all roles together."""
        total: NDArray[np.int64] = self.by_role.sum(axis=0)
        return total

    @property
    def peak_bytes(self) -> int:
        """Highest total."""
        return int(self.total.max())

    def highest_within(self, start_s: float, end_s: float) -> int:
        """Highest total that holds between two moments, or is only passed through at one of them [bytes]."""
        times, total = self.times_s, self.total
        first = int(np.searchsorted(times, start_s, side="left"))
        if first == len(times) or (times[first] > start_s and first > 0):
            first -= 1
        at_end, after = (int(np.searchsorted(times, end_s, side=side)) for side in ("left", "right"))
        last = after - 1 if after > at_end else after  # the last point at the end holds from there on
        return int(total[first : max(last, first + 1)].max())

    def highest_of(self, edges: NDArray[np.float64]) -> MemoryCurve:
        """The points that have most between every two edges: one for each part, the first of equally high ones.

        Args:
            edges: float64[num_parts + 1] [s], increasing; a part contains its left edge.
        """
        kept = pool_step_function(self.times_s, self.total, edges)
        return MemoryCurve(self.times_s[kept], self.by_role[:, kept], self.roles, self.capacity_bytes)

    def between(self, time_s: float) -> int:
        """Total at a moment at which one piece ends and the next begins: the smaller of just before and just after.

        What the piece before has yet to free, or the piece after has just allocated, is left out. Before the first
        point the curve is where it ends (DESIGN §3.5).
        """
        before = int(np.searchsorted(self.times_s, time_s, side="left")) - 1
        after = int(np.searchsorted(self.times_s, time_s, side="right")) - 1
        return int(min(self.total[before], self.total[after]))


def compress_steps(
    time: NDArray[np.float64], level: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """A step function with at most two points per moment: the last, and the highest where it is only passed through
    (something lived for no time at all).

    Args:
        time: float64[n] [s], non-decreasing, n >= 1. level: int64[num_roles, n] [bytes], after each event.
    Returns:
        (times, levels) of the points kept.
    """
    total = level.sum(axis=0)
    last = np.append(time[1:] > time[:-1], True)
    moment = np.concatenate(([0], np.cumsum(last)[:-1]))
    ends = np.flatnonzero(last)
    highest = np.maximum.reduceat(total, np.concatenate(([0], ends[:-1] + 1)))
    around = np.maximum(total[ends], np.concatenate((total[:1] * 0, total[ends][:-1])))
    is_top = (total == highest[moment]) & (total > around[moment])
    passed = np.flatnonzero(is_top)
    first = passed[np.diff(moment[passed], prepend=-1) > 0]
    last[first] = True
    keep = np.flatnonzero(last)
    return time[keep], level[:, keep]
