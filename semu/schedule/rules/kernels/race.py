"""Which rank acts next: the winners of a tournament, in a binary tree over the ranks' times."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.compiled import part

F64 = NDArray[np.float64]
I32 = NDArray[np.int32]


@part
def set_time(rank: int, time: float, at: F64, winner: I32) -> None:
    """Write when a rank acts next, and who acts first: of equals the lower rank."""
    at[rank] = time
    node, first, soonest = np.int64(len(at) + rank), np.int64(rank), time
    while node > 1:
        other = np.int64(winner[node ^ 1])
        when = at[other]
        if when < soonest or (when == soonest and other < first):
            first, soonest = other, when
        node >>= 1
        if winner[node] == first and first != rank:  # nothing changes above
            break
        winner[node] = first


@part
def line_up(num_ranks: int, at: F64, winner: I32) -> None:
    """All ranks act at 0, the lowest first."""
    for r in range(len(at)):
        winner[len(at) + r] = r
    for r in range(len(at)):
        set_time(r, 0.0 if r < num_ranks else np.inf, at, winner)
