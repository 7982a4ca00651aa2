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
def _earliest(head: I32, stop: I32, order: I32, time: F64) -> int:
    """The stream whose next operator comes first; -1: none has one left. The lower stream wins a tie."""
    best = -1
    for s in range(len(head)):
        if head[s] < stop[s] and (best < 0 or time[order[head[s]]] < time[order[head[best]]]):
            best = s
    return best


@kernel
def memory_of_stage(
    start: F64, end: F64, storages: Group, size: I64, group: I32, event_time: F64, event_bytes: I64
) -> tuple[int, int, int, int]:
    """Memory of one stage relative to its beginning; frees come before allocations at equal times.

    What exists before, does not survive and is touched by nobody goes at the end.

    Args:
        start, end: float64[num_ops] [s].
        storages: see the top of the file. size: int64[num_storages] [bytes].
        group: int32[num_storages], row of ``event_bytes`` (role).
        event_time: float64[max_events] [s], written; length 0: do not record.
        event_bytes: int64[num_groups, max_events] [bytes], change at each event, written.
    Returns:
        (peak above the beginning [bytes], net change [bytes], operator at the peak or -1, number of events).
    """
    order_ptr, order, touch_ptr, touch, touches, alive_before, alive_after = storages
    head_start = order_ptr[:-1].copy()
    head_end = order_ptr[:-1].copy()
    left = touches.copy()
    alive = alive_before.copy()
    live = np.int64(0)
    peak = np.int64(0)
    peak_op = -1
    num_events = 0
    record = len(event_time) > 0
    for _ in range(2 * len(start)):
        best_start = _earliest(head_start, order_ptr[1:], order, start)
        best_end = _earliest(head_end, head_start, order, end)
        if best_end >= 0 and (best_start < 0 or end[order[head_end[best_end]]] <= start[order[head_start[best_start]]]):
            op = order[head_end[best_end]]
            head_end[best_end] += 1
            for e in range(touch_ptr[op], touch_ptr[op + 1]):
                storage = touch[e]
                left[storage] -= 1
                if left[storage] == 0 and not alive_after[storage]:
                    alive[storage] = False
                    live -= size[storage]
                    if record:
                        event_time[num_events] = end[op]
                        event_bytes[group[storage], num_events] = -size[storage]
                        num_events += 1
        else:
            op = order[head_start[best_start]]
            head_start[best_start] += 1
            for e in range(touch_ptr[op], touch_ptr[op + 1]):
                storage = touch[e]
                if not alive[storage]:
                    alive[storage] = True
                    live += size[storage]
                    if record:
                        event_time[num_events] = start[op]
                        event_bytes[group[storage], num_events] = size[storage]
                        num_events += 1
            if live > peak:
                peak = live
                peak_op = op
    last = 0.0
    for op in range(len(end)):
        last = max(last, end[op])
    for storage in range(len(left)):
        if touches[storage] == 0 and alive_before[storage] and not alive_after[storage]:
            live -= size[storage]
            if record:
                event_time[num_events] = last
                event_bytes[group[storage], num_events] = -size[storage]
                num_events += 1
    return int(peak), int(live), int(peak_op), num_events


@kernel
def run_stage(latency: F64, row: I32, program: Group, storages: Group, size: I64, size_row: I32, costs: Group) -> None:
    """Run one stage for many shapes.

    Args:
        latency: float64[num_shapes, num_rows] [s]. row: int32[num_ops], which column is an operator's latency.
        size: int64[num_shapes, num_size_rows] [bytes]. size_row: int32[num_storages].
        program, storages: see the top of the file.
        costs: stage_latency: float64[num_shapes] [s], written. exposed: float64[num_shapes, num_streams] [s], written.
            peak, net: int64[num_shapes] [bytes], written. peak_op: int32[num_shapes], written.
    """
    stage_latency, exposed, peak, net, peak_op = costs
    num_ops, num_storages = len(row), len(size_row)
    start, end, op_latency = empty(num_ops, np.float64), empty(num_ops, np.float64), empty(num_ops, np.float64)
    op_size = empty(num_storages, np.int64)
    group = zeros(0, np.int32)
    event_time = empty(0, np.float64)
    event_bytes = empty((0, 0), np.int64)
    release = empty(0, np.float64)
    for b in range(latency.shape[0]):
        for op in range(num_ops):
            op_latency[op] = latency[b, row[op]]
        for storage in range(num_storages):
            op_size[storage] = size[b, size_row[storage]]
        stage_latency[b] = time_stage(op_latency, release, program, start, end, exposed[b])
        peak[b], net[b], peak_op[b], _ = memory_of_stage(start, end, storages, op_size, group, event_time, event_bytes)


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
