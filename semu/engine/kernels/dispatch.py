"""Kernels that dispatch units whose order on their streams is not given: what can start first runs first (DESIGN §3.3).

Objects: ``dispatch_units`` (finds order and times), ``replay_units`` (times of many variants in a given order). Units
hold streams from their start to their end. Kernels trust their input and index with ``np.uint64`` as in ``kernels``;
kernels that call each other are in this file.

Groups of arrays that these kernels share, as plain tuples at the door (numba types a plain tuple three times as fast as
a named one); n units, e edges, k new edges, s slots:
    streams: hold_ptr, hold: CSR int32[n + 1], int32[..], the streams that each unit holds, each once; none, one or
        several. num_streams: int.
    edges: CSR by source. edge_ptr: int32[n + 1]. edge_target: int32[e].
        edge_lag: float64[e] [s], end of that operator after the source's start when nothing binds inside the source;
        not read where ``edge_op`` is -1.
        edge_op: int32[e], the operator of the source whose end the edge reads; -1: the edge reads the source's end.
        edge_slot: int32[e], -1: the edge bounds the target's start; else the slot that it releases.
    added: new_source, new_target, new_lag, new_op, new_slot: [k], further edges, as above, in any order.
    slots: the fields of ``semu.engine.unit_graph.Slots``, in order.
    times: start, end: written: float64[n] [s]. release: written: float64[s] [s], absolute; 0 where nothing came.
        touched: written: bool[n], a release bound inside, so that the unit's operators were timed again.
All times are >= 0, finite and on the time grid.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.compiled import empty, kernel_ieee, part_ieee, zeros

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
Group = tuple[Any, ...]

_ZERO = np.uint64(0)
_ONE = np.uint64(1)


# --------------------------------------------------------------------------------------------- heaps


@part_ieee
def _push(heap: I32, base: np.uint64, size: int, item: int) -> None:
    """Put ``item`` into the heap of ``size`` items that begins at ``base``."""
    at = np.uint64(size)
    while at > _ZERO:
        parent = (at - _ONE) >> _ONE
        if heap[base + parent] <= item:
            break
        heap[base + at] = heap[base + parent]
        at = parent
    heap[base + at] = item


@part_ieee
def _pop(heap: I32, base: np.uint64, size: int) -> int:
    """Take the least item from the heap of ``size`` items that begins at ``base``."""
    least = heap[base]
    stop = np.uint64(size - 1)
    item = heap[base + stop]
    at, child = _ZERO, _ONE
    while child < stop:
        child += np.uint64(heap[base + child + _ONE] < heap[base + child])
        if heap[base + child] >= item:
            break
        heap[base + at] = heap[base + child]
        at = child
        child = at + at + _ONE
    heap[base + at] = item
    return least  # type: ignore[no-any-return]


@part_ieee
def _push_timed(time: F64, item: I32, size: int, new_time: float, new_item: int) -> None:
    """``_push`` for a heap of (time, item)."""
    at = np.uint64(size)
    while at > _ZERO:
        parent = (at - _ONE) >> _ONE
        if time[parent] < new_time or (time[parent] == new_time and item[parent] <= new_item):
            break
        time[at], item[at] = time[parent], item[parent]
        at = parent
    time[at], item[at] = new_time, new_item


@part_ieee
def _pop_timed(time: F64, item: I32, size: int) -> int:
    """Take the item of the least (time, item)."""
    least = item[0]
    stop = np.uint64(size - 1)
    last_time, last_item = time[stop], item[stop]
    at, child = _ZERO, _ONE
    while child < stop:
        other = child + _ONE
        is_equal = time[other] == time[child]
        child += np.uint64((time[other] < time[child]) | (is_equal & (item[other] < item[child])))
        if time[child] > last_time or (time[child] == last_time and item[child] >= last_item):
            break
        time[at], item[at] = time[child], item[child]
        at = child
        child = at + at + _ONE
    time[at], item[at] = last_time, last_item
    return least  # type: ignore[no-any-return]


# --------------------------------------------------------------------------------------------- inside a unit


@part_ieee
def _largest_step(ptr: I32) -> int:
    largest = 0
    for i in range(len(ptr) - 1):
        largest = max(largest, ptr[i + 1] - ptr[i])
    return largest


@part_ieee
def _largest(values: I32) -> int:
    largest = 0
    for i in range(len(values)):
        largest = max(largest, values[i])
    return largest


@part_ieee
def _time_inside(
    begin: float, unit: np.uint64, slots: Group, op_latency: F64, release: F64, op_release: F64, op_end: F64, free: F64
) -> float:
    """Latency [s] of a unit that starts at ``begin`` and whose operators wait for their releases.

    Args:
        slots: all slots, whatever the variant. op_latency, release: of the variant, as at the top of the file.
        op_release: scratch float64[>= number of operators], 0 before and after.
        op_end: written: ends after ``begin`` [s]. free: scratch float64[>= number of the program's streams].
    """
    slot_ptr, slot_op, _, prog, prog_ptr, op_pred_ptr, op_pred, op_stream, _, cost_ptr, _ = slots
    for slot in range(slot_ptr[unit], slot_ptr[unit + _ONE]):
        op_release[slot_op[slot]] = max(op_release[slot_op[slot]], release[slot] - begin)
    free[:] = 0.0
    program, cost = prog[unit], cost_ptr[unit]
    first = prog_ptr[program]
    last_end = 0.0
    for op in range(prog_ptr[program + 1] - first):
        stream = op_stream[first + op]
        time = max(op_release[op], free[stream])
        for i in range(op_pred_ptr[first + op], op_pred_ptr[first + op + 1]):
            time = max(time, op_end[op_pred[i]])
        time += op_latency[cost + op]
        op_end[op] = time
        free[stream] = time
        last_end = max(last_end, time)
    for slot in range(slot_ptr[unit], slot_ptr[unit + _ONE]):
        op_release[slot_op[slot]] = 0.0
    return last_end


# --------------------------------------------------------------------------------------------- edges and streams


@part_ieee
def _count_missing(num_units: int, edge_target: I32, new_target: I32) -> I32:
    """Number of edges into each unit."""
    count = zeros(num_units, np.int32)
    for edge in range(len(edge_target)):
        count[np.uint64(edge_target[edge])] += 1
    for edge in range(len(new_target)):
        count[np.uint64(new_target[edge])] += 1
    return count


@part_ieee
def _edges_by_source(num_units: int, source: I32) -> tuple[I32, I32]:
    """Linked lists of the new edges: (first of each unit or -1, the following one of each edge or -1)."""
    head = np.full(num_units if len(source) > 0 else 0, -1, np.int32)
    following = empty(len(source), np.int32)
    for edge in range(len(source)):
        following[edge] = head[source[edge]]
        head[source[edge]] = edge
    return head, following


@part_ieee
def _reads_inside(op: I32) -> bool:
    """Whether an edge reads the end of an operator."""
    found = False
    for edge in range(len(op)):
        found |= op[edge] >= 0
    return found


@part_ieee
def _holds_one_each(hold_ptr: I32) -> bool:
    """Whether every unit holds one stream; then a unit's number is its place in ``hold``."""
    found = True
    for unit in range(len(hold_ptr)):
        found &= hold_ptr[unit] == unit
    return found


@part_ieee
def _rooms(number: int, owner: I32) -> I64:
    """CSR pointer: room for everything that each of ``number`` owners has; -1 has no owner."""
    ptr = zeros(number + 1, np.int64)
    for i in range(len(owner)):
        if owner[i] >= 0:
            ptr[owner[i] + 1] += 1
    for i in range(number):
        ptr[i + 1] += ptr[i]
    return ptr


@part_ieee
def _holds_same(hold_ptr: I32, hold: I32, one: int, other: int) -> bool:
    """Whether two units hold the same streams, named in the same order."""
    first, second = hold_ptr[one], hold_ptr[other]
    count = hold_ptr[one + 1] - first
    same = hold_ptr[other + 1] - second == count
    for i in range(count if same else 0):
        same &= hold[first + i] == hold[second + i]
    return bool(same)


@part_ieee
def _kinds(hold_ptr: I32, hold: I32) -> tuple[I32, int]:
    """Units of several streams by what they hold: (int32[n] kind or -1, number of kinds), by a hash table."""
    num_units, num_kinds, num_places = len(hold_ptr) - 1, 0, 2
    while num_places < 2 * num_units:
        num_places *= 2
    kind = np.full(num_units, -1, np.int32)
    table = np.full(num_places, -1, np.int32)
    for unit in range(num_units):
        if hold_ptr[unit + 1] - hold_ptr[unit] > 1:
            key = 0
            for i in range(hold_ptr[unit], hold_ptr[unit + 1]):
                key = (key * 1000003 + int(hold[i])) & 0x7FFFFFFF
            place = key & (num_places - 1)
            while table[place] >= 0 and not _holds_same(hold_ptr, hold, unit, table[place]):
                place = (place + 1) & (num_places - 1)
            if table[place] < 0:
                table[place] = unit
                kind[unit] = num_kinds
                num_kinds += 1
            else:
                kind[unit] = kind[table[place]]
    return kind, num_kinds


# --------------------------------------------------------------------------------------------- units


@kernel_ieee
def dispatch_units(
    streams: Group, rank: I32, latency: F64, edges: Group, added: Group, slots: Group, times: Group, order: I32
) -> int:
    """Again and again start the ready unit with the least (possible start, rank), until none is ready.

    A unit is ready when the sources of all its edges have been dispatched; its possible start is the latest of the
    edges that bound its start, the times at which its streams become free, and 0. Where ready units wait:

    - in the heap of a stream, by rank: the stream is busy until after now and is the last of the unit's streams to
      become free, at or after its last edge. One event stands for all that wait for a stream.
    - behind the leader of its kind, by rank: a unit with the same streams and a lower rank waits for nothing else, so
      it goes first whatever happens. Otherwise crowds of units would move from stream to stream at each event.
    - as an event of its own: its last edge comes later than now and than its streams become free.
    - among the candidates, by rank: it may start now. One that finds a stream taken goes to the heap of a stream.
    - among the late ones, by (possible start, rank): it may start before now. Only an edge into a slot, which does not
      bound the start, makes a unit ready so late.

    Args:
        rank: int32[n], a permutation, position by (priority, id).
        latency: float64[n] [s], of each unit when nothing binds inside.
        order: written: int32[n], the units in the order of dispatch.
        others: see the top of the file.
    Returns:
        Number of units dispatched; less than n when the rest waits in a circle (then ``start`` and ``end`` of the rest
        are undefined).
    """
    hold_ptr, hold, num_streams = streams
    edge_ptr, edge_target, edge_lag, edge_op, edge_slot = edges
    new_source, new_target, new_lag, new_op, new_slot = added
    slot_ptr, slot_op, slot_start, _, prog_ptr, _, _, _, prog_streams, _, op_latency = slots
    start, end, release, touched = times
    num_units = len(latency)
    has_new, has_slots = len(new_source) > 0, len(slot_op) > 0
    holds_one, reads_inside = _holds_one_each(hold_ptr), _reads_inside(edge_op)
    start[:] = 0.0  # until a unit is dispatched: the latest of its edges that have come
    release[:] = 0.0
    touched[:] = False
    unit_of = empty(num_units, np.int32)
    for i in range(num_units):
        unit_of[np.uint64(rank[i])] = i
    num_missing = _count_missing(num_units, edge_target, new_target)
    new_head, new_following = _edges_by_source(num_units, new_source)
    longest = _largest_step(prog_ptr) if has_slots else 0
    op_release, op_end = zeros(longest, np.float64), empty(longest, np.float64)
    inner_free = empty(_largest(prog_streams) if has_slots else 0, np.float64)

    free = zeros(num_streams, np.float64)
    has_event = zeros(num_streams, np.bool_)
    waiting_ptr = _rooms(num_streams, hold)
    waiting, num_waiting = empty(len(hold), np.int32), zeros(num_streams, np.int64)
    candidate, num_candidates = empty(num_units, np.int32), 0
    late_time, late, num_late = empty(num_units, np.float64), empty(num_units, np.int32), 0
    # An event is a rank (the unit's last edge comes) or -1 - stream (the stream becomes free).
    event_time, event = empty(num_units + num_streams, np.float64), empty(num_units + num_streams, np.int32)
    num_events = 0

    has_kinds = not holds_one
    kind, num_kinds = _kinds(hold_ptr if has_kinds else hold_ptr[:1], hold)
    queue_ptr = _rooms(num_kinds, kind)
    queue, num_queued = empty(queue_ptr[num_kinds], np.int32), zeros(num_kinds, np.int64)
    leader = np.full(num_kinds, num_units, np.int32)

    fresh, num_fresh = empty(num_units, np.int32), 0
    for place in range(num_units):
        if num_missing[np.uint64(unit_of[place])] == 0:
            fresh[num_fresh] = unit_of[place]
            num_fresh += 1
    now = 0.0
    num_dispatched = 0
    while True:
        for f in range(num_fresh):
            unit = np.uint64(fresh[f])
            item = rank[unit]
            bound, blocker = -1.0, -1
            first_hold, stop_hold = unit, unit + _ONE
            if not holds_one:
                first_hold, stop_hold = np.uint64(hold_ptr[unit]), np.uint64(hold_ptr[unit + _ONE])
            for i in range(first_hold, stop_hold):
                s = np.uint64(hold[i])
                if free[s] > bound:
                    bound, blocker = free[s], hold[i]
            is_stream = bound >= start[unit]
            if not is_stream:
                bound = start[unit]
            elif has_kinds and kind[unit] >= 0:
                k = kind[unit]
                if leader[k] < item:
                    _push(queue, np.uint64(queue_ptr[k]), num_queued[k], item)
                    num_queued[k] += 1
                    continue
                leader[k] = item
            if bound == now:
                _push(candidate, _ZERO, num_candidates, item)
                num_candidates += 1
            elif bound < now:
                _push_timed(late_time, late, num_late, bound, item)
                num_late += 1
            elif is_stream:
                s = np.uint64(blocker)
                _push(waiting, np.uint64(waiting_ptr[s]), num_waiting[s], item)
                num_waiting[s] += 1
                if not has_event[s]:
                    _push_timed(event_time, event, num_events, bound, -1 - blocker)
                    num_events += 1
                    has_event[s] = True
            else:
                _push_timed(event_time, event, num_events, bound, item)
                num_events += 1
        num_fresh = 0
        time = now
        if num_late > 0:
            time = late_time[0]
            unit = np.uint64(unit_of[np.uint64(_pop_timed(late_time, late, num_late))])
            num_late -= 1
        elif num_candidates > 0:
            unit = np.uint64(unit_of[np.uint64(_pop(candidate, _ZERO, num_candidates))])
            num_candidates -= 1
        elif num_events > 0:
            now = event_time[0]
            while num_events > 0 and event_time[0] == now:
                item = _pop_timed(event_time, event, num_events)
                num_events -= 1
                if item < 0:
                    s = np.uint64(-1 - item)
                    has_event[s] = False
                    item = _pop(waiting, np.uint64(waiting_ptr[s]), num_waiting[s])
                    num_waiting[s] -= 1
                _push(candidate, _ZERO, num_candidates, item)
                num_candidates += 1
            continue
        else:
            break
        first_hold, stop_hold = unit, unit + _ONE
        if not holds_one:
            first_hold, stop_hold = np.uint64(hold_ptr[unit]), np.uint64(hold_ptr[unit + _ONE])
        is_free = True
        for i in range(first_hold, stop_hold):
            if free[np.uint64(hold[i])] > time:
                is_free = False
        if is_free:
            order[num_dispatched] = unit
            num_dispatched += 1
            start[unit] = time
            last = time + latency[unit]
            binds = False
            if has_slots:
                for slot in range(slot_ptr[unit], slot_ptr[unit + _ONE]):
                    if release[slot] - time > slot_start[slot]:
                        binds = True
            if binds:
                last = time + _time_inside(time, unit, slots, op_latency, release, op_release, op_end, inner_free)
                touched[unit] = True
            end[unit] = last
            for i in range(first_hold, stop_hold):
                free[np.uint64(hold[i])] = last
            e, stop_edge = np.uint64(edge_ptr[unit]), np.uint64(edge_ptr[unit + _ONE])
            new = new_head[unit] if has_new else -1
            while e < stop_edge or new >= 0:
                bound = last
                if e < stop_edge:
                    target = np.uint64(edge_target[e])
                    slot = edge_slot[e] if has_slots else -1
                    if reads_inside and edge_op[e] >= 0:
                        bound = time + (op_end[edge_op[e]] if binds else edge_lag[e])
                    e += _ONE
                else:
                    target, slot = np.uint64(new_target[new]), new_slot[new]
                    if new_op[new] >= 0:
                        bound = time + (op_end[new_op[new]] if binds else new_lag[new])
                    new = new_following[new]
                if slot >= 0:
                    release[slot] = max(release[slot], bound)
                elif bound > start[target]:
                    start[target] = bound
                num_missing[target] -= 1
                if num_missing[target] == 0:
                    fresh[num_fresh] = target
                    num_fresh += 1
            if has_kinds and kind[unit] >= 0 and leader[kind[unit]] == rank[unit]:
                k = kind[unit]
                leader[k] = num_units
                if num_queued[k] > 0:
                    fresh[num_fresh] = unit_of[_pop(queue, np.uint64(queue_ptr[k]), num_queued[k])]
                    num_fresh += 1
                    num_queued[k] -= 1
        else:
            fresh[0] = unit
            num_fresh = 1
        # A stream that becomes free now, or stays so because its unit cannot start, lets the next one try.
        for i in range(first_hold, stop_hold):
            s = np.uint64(hold[i])
            if num_waiting[s] > 0 and not has_event[s]:
                if free[s] > now:
                    _push_timed(event_time, event, num_events, free[s], -1 - hold[i])
                    num_events += 1
                    has_event[s] = True
                else:
                    item = _pop(waiting, np.uint64(waiting_ptr[s]), num_waiting[s])
                    num_waiting[s] -= 1
                    _push(candidate, _ZERO, num_candidates, item)
                    num_candidates += 1
    return num_dispatched


@kernel_ieee
def replay_units(
    order: I32, streams: Group, latency: F64, edges: Group, added: Group, slots: Group, times: Group
) -> None:
    """Time many variants of the same units, dispatched in the same order.

    Args:
        order: int32[n], all units, the sources of a unit's edges before it.
        latency: float64[num_variants, n] [s], of each unit when nothing binds inside.
        others: see the top of the file; lags, ``slots.start``, ``slots.op_latency`` and ``times`` with one row per
            variant.
    """
    hold_ptr, hold, num_streams = streams
    edge_ptr, edge_target, edge_lag, edge_op, edge_slot = edges
    new_source, new_target, new_lag, new_op, new_slot = added
    slot_ptr, slot_op, slot_start, _, prog_ptr, _, _, _, prog_streams, _, op_latency = slots
    start, end, release, touched = times
    num_variants, num_units = latency.shape
    has_new, has_slots = len(new_source) > 0, len(slot_op) > 0
    new_head, new_following = _edges_by_source(num_units, new_source)
    longest = _largest_step(prog_ptr) if has_slots else 0
    op_release, op_end = zeros(longest, np.float64), empty(longest, np.float64)
    inner_free = empty(_largest(prog_streams) if has_slots else 0, np.float64)
    free = empty(num_streams, np.float64)
    start[:] = 0.0
    release[:] = 0.0
    touched[:] = False
    for variant in range(num_variants):
        starts, ends, releases = start[variant], end[variant], release[variant]
        latencies, edge_lags, new_lags = latency[variant], edge_lag[variant], new_lag[variant]
        slot_starts, op_latencies = slot_start[variant], op_latency[variant]
        free[:] = 0.0
        for place in range(num_units):
            unit = np.uint64(order[place])
            first_hold, stop_hold = np.uint64(hold_ptr[unit]), np.uint64(hold_ptr[unit + _ONE])
            time = starts[unit]
            for i in range(first_hold, stop_hold):
                time = max(time, free[np.uint64(hold[i])])
            starts[unit] = time
            last = time + latencies[unit]
            binds = False
            if has_slots:
                for slot in range(slot_ptr[unit], slot_ptr[unit + _ONE]):
                    if releases[slot] - time > slot_starts[slot]:
                        binds = True
            if binds:
                last = time + _time_inside(time, unit, slots, op_latencies, releases, op_release, op_end, inner_free)
                touched[variant, unit] = True
            ends[unit] = last
            for i in range(first_hold, stop_hold):
                free[np.uint64(hold[i])] = last
            e, stop_edge = np.uint64(edge_ptr[unit]), np.uint64(edge_ptr[unit + _ONE])
            # As in ``dispatch_units``; one function for both, given the arrays, made this kernel six times as slow.
            new = new_head[unit] if has_new else -1
            while e < stop_edge or new >= 0:
                bound = last
                if e < stop_edge:
                    target, slot = np.uint64(edge_target[e]), edge_slot[e]
                    if edge_op[e] >= 0:
                        bound = time + (op_end[edge_op[e]] if binds else edge_lags[e])
                    e += _ONE
                else:
                    target, slot = np.uint64(new_target[new]), new_slot[new]
                    if new_op[new] >= 0:
                        bound = time + (op_end[new_op[new]] if binds else new_lags[new])
                    new = new_following[new]
                if slot >= 0:
                    releases[slot] = max(releases[slot], bound)
                elif bound > starts[target]:
                    starts[target] = bound
