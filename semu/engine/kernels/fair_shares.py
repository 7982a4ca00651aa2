"""Kernels of transfers that share ports: who moves how fast, and when everything ends (DESIGN §3.4).

Objects: ``share_speeds`` (one moment), ``share_links`` (all of it). A *unit* lasts a fixed time and then, where it has
*work*, moves bytes: its work is what that takes at full speed, speed 1, which it has alone. While it moves it takes
``share`` x speed of every port that it uses; a port has 1 to give.

Rates are max-min fair: what units take of the port of which they take most rises together, until a unit is at full
speed or a port is full; who uses that port stays there and the others go on (progressive filling: Bertsekas & Gallager,
Data Networks, 1992, §6.5.2; with several ports in unequal parts it is fairness of the dominant share: Ghodsi et al.,
NSDI 2011).

Arguments that these kernels share; n units, e edges, u uses, p ports:
    use_ptr, use_port: CSR int32[n + 1], int32[u], the ports that each unit uses, each once. use_share: float64[u], of
        the port at full speed, > 0 and at most 1. most: float64[n], the largest of them; 1 where there are none.
    edge_ptr, edge_target: CSR by source, int32[n + 1], int32[e]: the target starts after the source. edge_lag:
        float64[e] [s], so long after the source's start; less than 0: at its end.
All times are >= 0, finite and on the time grid.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.compiled import empty, kernel_ieee, part_ieee, zeros
from semu.units import TIME_GRID_PER_S

F64 = NDArray[np.float64]
I32 = NDArray[np.int32]

_WAITING, _DUE, _FIXED, _MOVING, _DONE = 0, 1, 2, 3, 4


# --------------------------------------------------------------------------------------------- speeds


@kernel_ieee
def share_speeds(
    members: I32,
    num_members: int,
    ports: I32,
    num_ports: int,
    use_ptr: I32,
    use_port: I32,
    use_share: F64,
    most: F64,
    room: F64,
    weight: F64,
    left: I32,
    speed: F64,
) -> None:
    """Max-min fair speeds of units that move at the same time.

    Args:
        members, num_members: the units. ports, num_ports: all the ports that they use; nobody else moves over them.
        room, weight, left: scratch, float64[p], float64[p], int32[p].
        speed: written at the members: float64[n].
        others: see the top of the file.
    """
    for i in range(num_ports):
        room[ports[i]], weight[ports[i]], left[ports[i]] = 1.0, 0.0, 0
    for i in range(num_members):
        unit = members[i]
        speed[unit] = -1.0  # still rising
        for use in range(use_ptr[unit], use_ptr[unit + 1]):
            weight[use_port[use]] += use_share[use] / most[unit]
            left[use_port[use]] += 1
    num_open = num_members
    while num_open > 0:
        level = 1.0
        for i in range(num_members):
            if speed[members[i]] < 0.0:
                level = min(level, most[members[i]])
        for i in range(num_ports):
            if left[ports[i]] > 0:
                level = min(level, room[ports[i]] / weight[ports[i]])
        for i in range(num_members):
            unit = members[i]
            if speed[unit] >= 0.0:
                continue
            if most[unit] <= level:
                speed[unit] = -2.0  # at full speed; taken out when all that stay here are known
                continue
            for use in range(use_ptr[unit], use_ptr[unit + 1]):
                if room[use_port[use]] / weight[use_port[use]] <= level:
                    speed[unit] = -3.0  # a full port
        for i in range(num_members):
            unit = members[i]
            if speed[unit] <= -2.0:
                speed[unit] = 1.0 if speed[unit] == -2.0 else level / most[unit]
                num_open -= 1
                for use in range(use_ptr[unit], use_ptr[unit + 1]):
                    port = use_port[use]
                    room[port] -= use_share[use] * speed[unit]
                    weight[port] -= use_share[use] / most[unit]
                    left[port] -= 1


# --------------------------------------------------------------------------------------------- one event per unit


@part_ieee
def _is_before(time: F64, one: int, other: int) -> bool:
    return bool(time[one] < time[other] or (time[one] == time[other] and one < other))


@part_ieee
def _settle(heap: I32, place: I32, time: F64, size: int, at: int) -> None:
    """Move the unit at a place of the heap to where its time belongs."""
    item = heap[at]
    while at > 0 and _is_before(time, item, heap[(at - 1) // 2]):
        heap[at] = heap[(at - 1) // 2]
        place[heap[at]] = at
        at = (at - 1) // 2
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and _is_before(time, heap[child + 1], heap[child]):
            child += 1
        if not _is_before(time, heap[child], item):
            break
        heap[at] = heap[child]
        place[heap[at]] = at
        at = child
    heap[at] = item
    place[item] = at


@part_ieee
def _on_grid(seconds: float) -> float:
    return float(np.rint(seconds * TIME_GRID_PER_S) / TIME_GRID_PER_S)


# --------------------------------------------------------------------------------------------- all of it


@kernel_ieee
def share_links(
    fixed: F64,
    work: F64,
    use_ptr: I32,
    use_port: I32,
    use_share: F64,
    most: F64,
    num_ports: int,
    edge_ptr: I32,
    edge_target: I32,
    edge_lag: F64,
    start: F64,
    end: F64,
) -> int:
    """Start every unit when all its edges let it; whoever moves bytes shares the ports.

    Speeds change only when a unit begins or ceases to move, when all that happens at that moment has happened, and
    only of those that full ports join to it. What a unit whose speed changes has left, and how long that takes now, are
    rounded to the time grid.

    Args:
        fixed, work: float64[n] [s]. num_ports: p. start, end: written: float64[n] [s].
        others: see the top of the file.
    Returns:
        Number of units that ended; less than n when the rest waits in a circle.
    """
    n = len(fixed)
    missing, state = zeros(n, np.int32), zeros(n, np.int8)
    for edge in range(len(edge_target)):
        missing[edge_target[edge]] += 1
    start[:], end[:] = 0.0, 0.0
    time = zeros(n, np.float64)
    heap, place, size = empty(n, np.int32), empty(n, np.int32), 0
    speed, rest, since = np.ones(n), work.copy(), zeros(n, np.float64)
    before = np.ones(n)
    # Who moves over each port: linked lists of uses.
    owner = empty(len(use_port), np.int32)
    for unit in range(n):
        owner[use_ptr[unit] : use_ptr[unit + 1]] = unit
    head = np.full(num_ports, -1, np.int32)
    following, previous = empty(len(use_port), np.int32), empty(len(use_port), np.int32)
    load, count = zeros(num_ports, np.float64), zeros(num_ports, np.int32)
    members, ports = empty(n, np.int32), empty(num_ports, np.int32)
    is_member, is_seen = zeros(n, np.bool_), zeros(num_ports, np.bool_)
    room, weight, left = empty(num_ports, np.float64), empty(num_ports, np.float64), empty(num_ports, np.int32)
    for unit in range(n):
        if missing[unit] == 0:
            state[unit] = _DUE
            heap[size], place[unit] = unit, size
            size += 1
            _settle(heap, place, time, size, size - 1)
    num_done, num_near = 0, 0
    while size > 0:
        unit = heap[0]
        now = time[unit]
        first_use, stop_use = use_ptr[unit], use_ptr[unit + 1]
        was_due, was_moving = state[unit] == _DUE, state[unit] == _MOVING
        starts_to_move = False
        if was_due:
            start[unit] = now
            end[unit] = now + fixed[unit]
            if work[unit] == 0.0:
                state[unit] = _DONE
            else:
                state[unit] = _FIXED
                time[unit] = end[unit]
                _settle(heap, place, time, size, 0)
        elif was_moving:
            state[unit] = _DONE
            end[unit] = now
        else:
            starts_to_move = True
            state[unit] = _MOVING
            since[unit], speed[unit] = now, 1.0
            time[unit] = now + work[unit]
            _settle(heap, place, time, size, 0)
        if starts_to_move or was_moving:
            for use in range(first_use, stop_use):
                port = use_port[use]
                was_tight = load[port] > 1.0
                if starts_to_move:
                    following[use], previous[use] = head[port], -1
                    if head[port] >= 0:
                        previous[head[port]] = use
                    head[port] = use
                    load[port] += use_share[use]
                    count[port] += 1
                else:
                    if previous[use] >= 0:
                        following[previous[use]] = following[use]
                    else:
                        head[port] = following[use]
                    if following[use] >= 0:
                        previous[following[use]] = previous[use]
                    load[port] -= use_share[use]
                    count[port] -= 1
                    if count[port] == 0:
                        load[port] = 0.0
                if (was_tight or load[port] > 1.0) and not is_seen[port]:
                    is_seen[port] = True
                    ports[num_near] = port
                    num_near += 1
        if was_due or was_moving:
            is_done = state[unit] == _DONE
            if is_done:
                num_done += 1
                at = place[unit]  # others may have moved past it
                size -= 1
                if at < size:
                    heap[at] = heap[size]
                    place[heap[at]] = at
                    _settle(heap, place, time, size, at)
            for edge in range(edge_ptr[unit], edge_ptr[unit + 1]):
                reads_end = edge_lag[edge] < 0.0
                if (reads_end and not is_done) or (not reads_end and not was_due):
                    continue
                target = edge_target[edge]
                bound = end[unit] if reads_end else now + edge_lag[edge]
                start[target] = max(start[target], bound)
                missing[target] -= 1
                if missing[target] == 0:
                    state[target] = _DUE
                    time[target] = start[target]
                    heap[size], place[target] = target, size
                    size += 1
                    _settle(heap, place, time, size, size - 1)
        if num_near > 0 and (size == 0 or time[heap[0]] > now):  # all that happens now has happened
            num_members, looked = 0, 0
            while looked < num_near:
                use = head[ports[looked]]
                looked += 1
                while use >= 0:
                    other = owner[use]
                    if not is_member[other]:
                        is_member[other] = True
                        members[num_members] = other
                        num_members += 1
                        for also in range(use_ptr[other], use_ptr[other + 1]):
                            if not is_seen[use_port[also]]:
                                is_seen[use_port[also]] = True
                                ports[num_near] = use_port[also]
                                num_near += 1
                    use = following[use]
            for i in range(num_members):
                before[members[i]] = speed[members[i]]
            share_speeds(
                members, num_members, ports, num_near, use_ptr, use_port, use_share, most, room, weight, left, speed
            )  # fmt: skip
            for i in range(num_members):
                other = members[i]
                is_member[other] = False
                if speed[other] != before[other]:
                    moved = (now - since[other]) * before[other]
                    rest[other] = max(_on_grid(rest[other] - moved), 0.0)
                    since[other] = now
                    time[other] = now + _on_grid(rest[other] / speed[other])
                    _settle(heap, place, time, size, place[other])
            for i in range(num_near):
                is_seen[ports[i]] = False
            num_near = 0
    return num_done
