"""``forced_order``: an order of units in which every edge leads forward, and whether the edges leave any choice."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.compiled import empty, kernel_ieee, zeros

I32 = NDArray[np.int32]
Group = tuple[Any, ...]


@kernel_ieee
def forced_order(streams: Group, edges: Group, added: Group, order: I32) -> tuple[int, bool]:
    """Some order of the units in which every edge leads forward (Kahn's algorithm, first come first served), and
    whether edges alone give every stream its order, so that no latency can change it.

    They do where of every two units that follow one another on a stream, the second's start is bounded by an edge that
    reads the first's end.

    Args:
        streams, edges, added: see the top of ``dispatch``.
        order: written: int32[n].
    Returns:
        Number of units in the order, less than n when the others are on or behind a cycle; whether it is forced.
    """
    hold_ptr, hold, num_streams = streams
    edge_ptr, edge_target, _, edge_op, edge_slot = edges
    new_source, new_target, _, new_op, new_slot = added
    n = len(order)
    waits = zeros(n, np.int32)
    head = np.full(n, -1, np.int32)
    behind = empty(len(new_source), np.int32)
    for e in range(len(edge_target)):
        waits[edge_target[e]] += 1
    for e in range(len(new_source)):
        waits[new_target[e]] += 1
        behind[e] = head[new_source[e]]
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
            e = behind[e]
    if num_placed < n:
        return num_placed, False
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
    is_forced = True
    for i in range(len(following)):
        is_forced &= following[i] < 0
    return num_placed, is_forced
