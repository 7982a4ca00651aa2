"""Kernels for one stage: its operators' times, latency, exposed communication and memory, for many shapes at once.

Operators are in issue order, which is a topological order; stream 0 is the compute stream. Storages live from the
start of the first operator that touches them to the end of the last one (DESIGN §3.5). All kernels release the GIL.

Groups of arrays that these kernels share:
    program: pred_ptr, pred: CSR predecessors, int32[num_ops + 1], int32[num_preds]. stream: int32[num_ops].
        num_streams: int.
    storages: order_ptr, order: operators of each stream in order, CSR: int32[num_streams + 1], int32[num_ops].
        touch_ptr, touch: storages that each operator touches, CSR, each at most once per operator.
        touches: int32[num_storages], operators that touch each storage.
        alive_before, alive_after: bool[num_storages], exists before the stage; survives it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.compiled import empty, kernel, part, zeros

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
B1 = NDArray[np.bool_]
Group = tuple[Any, ...]


@kernel
def time_stage(latency: F64, release: F64, program: Group, start: F64, end: F64, exposed: F64) -> float:
    """Start and end of every operator of one stage that begins at 0 (DESIGN §3.3).

    Args:
        latency: float64[num_ops] [s]. release: float64[num_ops] [s], earliest starts; float64[0]: none.
        program: see the top of the file.
        start, end: float64[num_ops] [s], written.
        exposed: float64[num_streams] [s], added to: time that the compute stream waited, by the stream of the operator
            waited for; the tail after the last compute operator belongs to the stream that ends last.
    Returns:
        Latency of the stage [s].
    """
    pred_ptr, pred, stream, num_streams = program
    free = zeros(num_streams, np.float64)
    for op in range(len(latency)):
        s = stream[op]
        begin = free[s]
        blocker = -1
        for e in range(pred_ptr[op], pred_ptr[op + 1]):
            if end[pred[e]] > begin:
                begin = end[pred[e]]
                blocker = pred[e]
        if s == 0 and blocker >= 0:
            exposed[stream[blocker]] += begin - free[0]
        if len(release) > 0 and release[op] > begin:
            begin = release[op]
        start[op] = begin
        end[op] = begin + latency[op]
        free[s] = end[op]
    last = 0
    for s in range(num_streams):
        if free[s] > free[last]:
            last = s
    if last != 0:
        exposed[last] += free[last] - free[0]
    return float(free[last])


@part
def _order_events(times: F64, storages: Group, event: I32, is_later: B1, change: I32, by: I32) -> int:
    """The order in which operators begin and end, and what storages come and go with it; frees come before allocations
    at equal times. What exists before, does not survive and is touched by nobody goes at the end.

    Args:
        times: float64[2, num_ops] [s], starts and ends, one after another. storages: see the top of the file.
        event: int32[2 num_ops], written: places in ``times`` in order.
        is_later: bool[2 num_ops], written: whether an event is later than the one before, not at the same time.
        change: int32[2 num_storages + 1], written: storages in the order in which they come, or go (``-1 - storage``).
        by: int32[2 num_storages + 1], written: the event of each, 2 num_ops: the end.
    Returns:
        Number of changes.
    """
    order_ptr, order, touch_ptr, touch, touches, alive_before, alive_after = storages
    num_streams, num_ops = len(order_ptr) - 1, len(order)
    head_start, head_end = empty(num_streams, np.int32), empty(num_streams, np.int32)
    next_start, next_end = empty(num_streams, np.float64), empty(num_streams, np.float64)  # of every stream; inf: none
    for s in range(num_streams):
        head_start[s] = head_end[s] = order_ptr[s]
        next_start[s] = times[order[order_ptr[s]]] if order_ptr[s] < order_ptr[s + 1] else np.inf
        next_end[s] = np.inf
    left = touches.copy()
    alive = alive_before.copy()
    num_changes = 0
    before = -np.inf
    for turn in range(2 * num_ops):
        first, done = 0, 0  # the lower stream wins a tie
        for s in range(1, num_streams):
            if next_start[s] < next_start[first]:
                first = s
            if next_end[s] < next_end[done]:
                done = s
        if next_end[done] <= next_start[first]:
            op = order[head_end[done]]
            event[turn] = num_ops + op
            is_later[turn] = next_end[done] > before
            before = next_end[done]
            head_end[done] += 1
            next_end[done] = times[num_ops + order[head_end[done]]] if head_end[done] < head_start[done] else np.inf
            for e in range(touch_ptr[op], touch_ptr[op + 1]):
                storage = touch[e]
                left[storage] -= 1
                if left[storage] == 0 and not alive_after[storage]:
                    alive[storage] = False
                    change[num_changes], by[num_changes] = -1 - storage, turn
                    num_changes += 1
        else:
            op = order[head_start[first]]
            event[turn] = op
            is_later[turn] = next_start[first] > before
            before = next_start[first]
            if head_end[first] == head_start[first]:
                next_end[first] = times[num_ops + op]
            head_start[first] += 1
            more = head_start[first] < order_ptr[first + 1]
            next_start[first] = times[order[head_start[first]]] if more else np.inf
            for e in range(touch_ptr[op], touch_ptr[op + 1]):
                storage = touch[e]
                if not alive[storage]:
                    alive[storage] = True
                    change[num_changes], by[num_changes] = storage, turn
                    num_changes += 1
    for storage in range(len(left)):
        if touches[storage] == 0 and alive_before[storage] and not alive_after[storage]:
            change[num_changes], by[num_changes] = -1 - storage, 2 * num_ops
            num_changes += 1
    return num_changes


@part
def _is_order(times: F64, event: I32, is_later: B1) -> bool:
    """Whether events are in the order of ``_order_events``, the same of them at equal times: then it is theirs."""
    before = -np.inf
    for turn in range(len(event)):
        time = times[event[turn]]
        if time < before or (time > before) != is_later[turn]:
            return False
        before = time
    return True


@part
def _follow(num_changes: int, change: I32, by: I32, event: I32, size: I64) -> tuple[int, int, int]:
    """Memory of storages that come and go in an order: peak above the beginning and net change [bytes], operator
    at the peak or -1."""
    live, peak, peak_turn = np.int64(0), np.int64(0), -1
    for number in range(num_changes):
        storage = change[number]
        if storage < 0:
            live -= size[-1 - storage]
        else:
            live += size[storage]
            if live > peak:
                peak, peak_turn = live, by[number]
    return int(peak), int(live), int(event[peak_turn]) if peak_turn >= 0 else -1


@kernel
def memory_of_stage(
    start: F64, end: F64, storages: Group, size: I64, group: I32, event_time: F64, event_bytes: I64
) -> tuple[int, int, int, int]:
    """Memory of one stage relative to its beginning, as ``_order_events`` has it.

    Args:
        start, end: float64[num_ops] [s].
        storages: see the top of the file. size: int64[num_storages] [bytes].
        group: int32[num_storages], row of ``event_bytes`` (role).
        event_time: float64[max_events] [s], written; length 0: do not record.
        event_bytes: int64[num_groups, max_events] [bytes], change at each event, written.
    Returns:
        (peak above the beginning [bytes], net change [bytes], operator at the peak or -1, number of events).
    """
    num_ops, num_storages = len(start), len(size)
    times = empty(2 * num_ops, np.float64)
    last = 0.0
    for op in range(num_ops):
        times[op], times[num_ops + op] = start[op], end[op]
        last = max(last, end[op])
    event, is_later = empty(2 * num_ops, np.int32), empty(2 * num_ops, np.bool_)
    change, by = empty(2 * num_storages + 1, np.int32), empty(2 * num_storages + 1, np.int32)
    num_changes = _order_events(times, storages, event, is_later, change, by)
    peak, live, peak_op = _follow(num_changes, change, by, event, size)
    num_events = 0
    if len(event_time) > 0:
        num_events = num_changes
        for number in range(num_changes):
            storage, turn = change[number], by[number]
            event_time[number] = times[event[turn]] if turn < 2 * num_ops else last
            if storage < 0:
                event_bytes[group[-1 - storage], number] = -size[-1 - storage]
            else:
                event_bytes[group[storage], number] = size[storage]
    return int(peak), int(live), int(peak_op), num_events


@kernel
def run_stage(latency: F64, row: I32, program: Group, storages: Group, size: I64, size_row: I32, costs: Group) -> None:
    """Run one stage for many shapes. In most of them operators begin and end in the order of the shape before.

    Args:
        latency: float64[num_shapes, num_rows] [s]. row: int32[num_ops], which column is an operator's latency.
        size: int64[num_shapes, num_size_rows] [bytes]. size_row: int32[num_storages].
        program, storages: see the top of the file.
        costs: stage_latency: float64[num_shapes] [s], written. exposed: float64[num_shapes, num_streams] [s], written.
            peak, net: int64[num_shapes] [bytes], written. peak_op: int32[num_shapes], written.
    """
    stage_latency, exposed, peak, net, peak_op = costs
    num_ops, num_storages = len(row), len(size_row)
    times, op_latency = empty(2 * num_ops, np.float64), empty(num_ops, np.float64)
    start, end = times[:num_ops], times[num_ops:]
    op_size = empty(num_storages, np.int64)
    event, is_later = empty(2 * num_ops, np.int32), empty(2 * num_ops, np.bool_)
    change, by = empty(2 * num_storages + 1, np.int32), empty(2 * num_storages + 1, np.int32)
    num_changes = 0
    release = empty(0, np.float64)
    for b in range(latency.shape[0]):
        for op in range(num_ops):
            op_latency[op] = latency[b, row[op]]
        for storage in range(num_storages):
            op_size[storage] = size[b, size_row[storage]]
        stage_latency[b] = time_stage(op_latency, release, program, start, end, exposed[b])
        if b == 0 or not _is_order(times, event, is_later):
            num_changes = _order_events(times, storages, event, is_later, change, by)
        peak[b], net[b], peak_op[b] = _follow(num_changes, change, by, event, op_size)


@kernel
def run_segment(
    latency: F64,
    row: I32,
    stream: I32,
    size: I64,
    event_row: I32,
    come: I32,
    gone: I32,
    total: F64,
    exposed: F64,
    peak: I64,
    net: I64,
    peak_op: I32,
) -> None:
    """Run operators one after another for many shapes: times are sums, the order of memory events is fixed.

    An operator allocates what is not there, then frees what nobody after it touches; that is the order of
    ``memory_of_stage`` too, because the next operator starts when it ends. Costs have the shapes last, and shapes go
    in blocks that stay in the cache.

    Args:
        latency: float64[num_rows, num_shapes] [s]. row: int32[num_ops], which row is an operator's latency.
        stream: int32[num_ops].
        size: int64[num_size_rows, num_shapes] [bytes]. event_row: int32[num_events], what comes or goes, in order.
        come, gone: int32[num_ops], events before the operator runs (its allocations included) and after it.
        total: float64[num_shapes] [s], zeros, written. exposed: float64[num_streams, num_shapes] [s], zeros, written.
        peak: int64[num_shapes] [bytes], written: highest allocation above the beginning while an operator runs.
        net: int64[num_shapes] [bytes], zeros, written. peak_op: int32[num_shapes], written: the first operator there.
    """
    for first in range(0, len(total), 1024):
        part = slice(first, min(first + 1024, len(total)))
        time, live, highest, at = total[part], net[part], peak[part], peak_op[part]
        event = 0
        for op in range(len(row)):
            lasts, waits = latency[row[op], part], exposed[stream[op], part]
            for b in range(len(time)):
                time[b] += lasts[b]
            if stream[op] != 0:
                for b in range(len(time)):
                    waits[b] += lasts[b]
            for e in range(event, come[op]):
                more = size[event_row[e], part]
                for b in range(len(time)):
                    live[b] += more[b]
            for b in range(len(time)):
                if op == 0 or live[b] > highest[b]:
                    highest[b] = live[b]
                    at[b] = op
            for e in range(come[op], gone[op]):
                less = size[event_row[e], part]
                for b in range(len(time)):
                    live[b] -= less[b]
            event = gone[op]
