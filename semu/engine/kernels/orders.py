"""``topological_order`` and ``is_order_forced``: an order of the units, and whether the edges leave any choice."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

I32 = NDArray[np.int32]


@njit(cache=True, nogil=True, error_model="numpy")
def topological_order(edge_ptr: I32, edge_target: I32, new_source: I32, new_target: I32, order: I32) -> int:
    """Some order of the units in which every edge leads forward (Kahn's algorithm, first come first served).

    Args:
        edge_ptr, edge_target, new_source, new_target: edges, see the top of ``dispatch_kernels``.
        order: written: int32[n].
    Returns:
        Number of units in the order; less than n when the others are on or behind a cycle.
    """
    n = len(order)
    waits = np.zeros(n, np.int32)
    head = np.full(n, -1, np.int32)
    following = np.empty(len(new_source), np.int32)
    for e in range(len(edge_target)):
        waits[edge_target[e]] += 1
    for e in range(len(new_source)):
        waits[new_target[e]] += 1
        following[e] = head[new_source[e]]
        head[new_source[e]] = e
    num_placed = 0
    for unit in range(n):
        if waits[unit] == 0:
            order[num_placed] = unit
            num_placed += 1
    at = 0
    while at < num_placed:
        unit = order[at]
        at += 1
        for e in range(edge_ptr[unit], edge_ptr[unit + 1]):
            waits[edge_target[e]] -= 1
            if waits[edge_target[e]] == 0:
                order[num_placed] = edge_target[e]
                num_placed += 1
        e = head[unit]
        while e >= 0:
            waits[new_target[e]] -= 1
            if waits[new_target[e]] == 0:
                order[num_placed] = new_target[e]
                num_placed += 1
            e = following[e]
    return num_placed


@njit(cache=True, nogil=True, error_model="numpy")
def is_order_forced(
    order: I32,
    hold_ptr: I32,
    hold: I32,
    num_streams: int,
    edge_ptr: I32,
    edge_target: I32,
    edge_op: I32,
    edge_slot: I32,
    new_source: I32,
    new_target: I32,
    new_op: I32,
    new_slot: I32,
) -> bool:
    """Whether edges alone give every stream its order, so that no latency can change it.

    That is: of every two units that follow one another on a stream, the second's start is bounded by an edge that reads
    the first's end.

    Args:
        order: int32[n], all units in an order in which every edge leads forward. num_streams: number of streams.
        others: see the top of ``dispatch_kernels``.
    """
    following = np.full(len(hold), -1, np.int32)
    last_hold = np.full(num_streams, -1, np.int64)
    for place in range(len(order)):
        unit = order[place]
        for i in range(hold_ptr[unit], hold_ptr[unit + 1]):
            if last_hold[hold[i]] >= 0:
                following[last_hold[hold[i]]] = unit
            last_hold[hold[i]] = i
    # Each edge takes away the steps that it forces.
    for unit in range(len(order)):
        for e in range(edge_ptr[unit], edge_ptr[unit + 1]):
            if edge_op[e] < 0 and edge_slot[e] < 0:
                for i in range(hold_ptr[unit], hold_ptr[unit + 1]):
                    if following[i] == edge_target[e]:
                        following[i] = -1
    for e in range(len(new_source)):
        if new_op[e] < 0 and new_slot[e] < 0:
            for i in range(hold_ptr[new_source[e]], hold_ptr[new_source[e] + 1]):
                if following[i] == new_target[e]:
                    following[i] = -1
    return bool(np.all(following < 0))
