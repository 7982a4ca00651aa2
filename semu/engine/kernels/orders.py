"""``time_orders``: times of the same nodes in many given orders, in one call; a search asks for thousands of them.
``topological_order`` and ``is_order_forced``: whether edges leave any choice.

``kernels.fixed_order_times`` times one order whose nodes are numbered by stream. Here orders are indirect: only a row
of node numbers differs from one to the next. The kernel trusts its input, holds no state and releases the GIL.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]

_INFINITY = np.inf
_ONE = np.uint64(1)


@njit(cache=True, nogil=True, error_model="numpy")
def time_orders(
    stream_ptr: I64,
    orders: I32,
    pred_ptr: I32,
    pred: I32,
    drain_ptr: I32,
    drain: I32,
    latency: F64,
    start: F64,
    end: F64,
    timed: I64,
) -> None:
    """Start and end times under every order (DESIGN §3.3).

    A node starts at the latest of: the ends of its predecessors, the end of the node before it on its stream, the ends
    of what that node drains into, 0. As in ``fixed_order_times`` a stream runs ahead until something has no end yet
    (infinity), then waits for the stream of that node.

    Args:
        stream_ptr: int64[num_streams + 1], first place of each stream, non-decreasing from 0 to num_nodes.
        orders: int32[num_orders, num_nodes], every row a permutation of the nodes: stream ``s`` runs what stands at the
            places ``stream_ptr[s]`` to ``stream_ptr[s + 1] - 1``, one after the other.
        pred_ptr, pred: CSR predecessors, int32[num_nodes + 1], int32[num_preds], in any order, duplicates allowed.
        drain_ptr, drain: CSR, int32[num_nodes + 1], int32[num_drains]: nodes that must have ended before the node after
            this one on its stream starts, e.g. a transfer that its rank waits for.
        latency: float64[num_nodes] [s], >= 0, finite, on the time grid.
        start: written: float64[num_orders, num_nodes] [s]; undefined for nodes that are not timed.
        end: written: float64[num_orders, num_nodes] [s]; infinity for nodes that are not timed.
        timed: written: int64[num_orders], number of nodes timed; less than num_nodes when the rest waits in a circle.
    """
    num_streams, num_nodes = len(stream_ptr) - 1, len(latency)
    has_drains = len(drain) > 0
    stream_of = np.empty(num_nodes, np.int32)
    cursor = np.empty(num_streams, np.int64)
    runnable = np.empty(num_streams, np.int64)
    awaited = np.empty(num_streams, np.int64)
    first_waiter = np.empty(num_streams, np.int64)
    next_waiter = np.empty(num_streams, np.int64)
    for row in range(len(orders)):
        order, starts, ends = orders[row], start[row], end[row]
        for stream in range(num_streams):
            cursor[stream] = stream_ptr[stream]
            runnable[stream] = num_streams - 1 - stream
            first_waiter[stream] = -1
            for place in range(np.uint64(stream_ptr[stream]), np.uint64(stream_ptr[stream + 1])):
                stream_of[np.uint64(order[place])] = stream
                ends[place] = _INFINITY
        num_runnable, num_timed = num_streams, 0
        while num_runnable > 0:
            num_runnable -= 1
            stream = runnable[num_runnable]
            at, stop = np.uint64(cursor[stream]), np.uint64(stream_ptr[stream + 1])
            if at == stop:
                continue
            has_previous = cursor[stream] > stream_ptr[stream]
            previous = np.uint64(order[at - _ONE]) if has_previous else np.uint64(0)
            free = ends[previous] if has_previous else 0.0
            while at < stop:
                node = np.uint64(order[at])
                time = free
                for i in range(np.uint64(pred_ptr[node]), np.uint64(pred_ptr[node + _ONE])):
                    other_end = ends[np.uint64(pred[i])]
                    if other_end > time:
                        time = other_end
                if has_drains and has_previous:
                    for i in range(np.uint64(drain_ptr[previous]), np.uint64(drain_ptr[previous + _ONE])):
                        other_end = ends[np.uint64(drain[i])]
                        if other_end > time:
                            time = other_end
                if time == _INFINITY:
                    break
                starts[node] = time
                free = time + latency[node]
                ends[node] = free
                previous, has_previous = node, True
                at += _ONE
            num_timed += np.int64(at) - cursor[stream]
            if at < stop:
                node = np.uint64(order[at])
                blocker = -1
                for i in range(pred_ptr[node], pred_ptr[node + _ONE]):
                    if ends[pred[i]] == _INFINITY:
                        blocker = pred[i]
                if blocker < 0:
                    for i in range(drain_ptr[previous], drain_ptr[previous + _ONE]):
                        if ends[drain[i]] == _INFINITY:
                            blocker = drain[i]
                owner = stream_of[blocker]
                awaited[stream] = blocker
                next_waiter[stream] = first_waiter[owner]
                first_waiter[owner] = stream
            if np.int64(at) > cursor[stream]:
                cursor[stream] = np.int64(at)
                waiter, kept = first_waiter[stream], -1
                while waiter >= 0:
                    following = next_waiter[waiter]
                    if ends[awaited[waiter]] < _INFINITY:
                        runnable[num_runnable] = waiter
                        num_runnable += 1
                    else:
                        next_waiter[waiter] = kept
                        kept = waiter
                    waiter = following
                first_waiter[stream] = kept
        timed[row] = num_timed


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
