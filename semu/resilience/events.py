"""``NodeEvents``: when nodes go and come."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from semu.records import dataclass

US_PER_S = 1_000_000
LONGEST_S = 100 * 365.25 * 86400
"""Longest time that a run may last [s]: a century of a million GPUs is still a whole number of 64 bits."""


def to_us(time_s: float) -> int:
    """Seconds as whole microseconds."""
    return round(time_s * US_PER_S)


class NodeChange(Enum):
    """What happens to a node; the numbers are the kernel's."""

    FAIL = 0
    JOIN = 1


@dataclass(frozen=True, eq=False)
class NodeEvents:
    """What happens to the nodes of a cluster, in order of time.

    Attributes:
        rows: int64[num_events, 4], time [us], node, ``NodeChange``, notice before a failure [us].
    """

    rows: NDArray[np.int64]

    @classmethod
    def of(cls, events: Iterable[tuple[float, int, NodeChange, float]]) -> NodeEvents:
        """From (time_s, node, change, notice_s), sorted by time; what happens at one time stays in order."""
        rows = [(to_us(time), node, change.value, to_us(notice)) for time, node, change, notice in events]
        found = np.array(rows, dtype=np.int64).reshape(-1, 4)
        return cls(found[np.argsort(found[:, 0], kind="stable")])

    @property
    def num_failures(self) -> int:
        """How many nodes go."""
        return int((self.rows[:, 2] == NodeChange.FAIL.value).sum())

    def before(self, end_us: int) -> NodeEvents:
        """Those before a moment [us]."""
        return NodeEvents(self.rows[: int(np.searchsorted(self.rows[:, 0], end_us))])
