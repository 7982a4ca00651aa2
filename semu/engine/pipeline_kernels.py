"""Kernel for the pipeline level: fixed-order times of one problem for many sets of latencies (data-parallel replicas).

Nodes are numbered by stream in the order of execution, so "predecessor done" is a comparison with a cursor: no heap,
no in-degrees, no successor lists.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
I32 = NDArray[np.int32]


@njit(cache=True, nogil=True)
def run_pipeline(latency: F64, floor: F64, stream_ptr: I64, pred_ptr: I32, pred: I32, start: F64, end: F64) -> int:
    """Start and end of every node, for each row of latencies.

    Args:
        latency: float64[num_rows, num_nodes] [s]. floor: float64[num_nodes] [s], earliest end of each node.
        stream_ptr: int64[num_streams + 1]. pred_ptr, pred: CSR predecessors, int32.
        start, end: float64[num_rows, num_nodes] [s], written.
    Returns:
        Nodes timed per row; fewer than num_nodes: the order deadlocks.
    """
    num_streams = len(stream_ptr) - 1
    num_nodes = latency.shape[1]
    stream_of = np.empty(num_nodes, dtype=np.int32)
    for s in range(num_streams):
        for node in range(stream_ptr[s], stream_ptr[s + 1]):
            stream_of[node] = s
    timed = num_nodes
    for row in range(latency.shape[0]):
        cursor = stream_ptr[:-1].copy()
        done = 0
        progress = True
        while progress:
            progress = False
            for s in range(num_streams):
                while cursor[s] < stream_ptr[s + 1]:
                    node = cursor[s]
                    begin = end[row, node - 1] if node > stream_ptr[s] else 0.0
                    is_ready = True
                    for e in range(pred_ptr[node], pred_ptr[node + 1]):
                        before = pred[e]
                        if cursor[stream_of[before]] <= before:
                            is_ready = False
                            break
                        begin = max(begin, end[row, before])
                    if not is_ready:
                        break
                    start[row, node] = begin
                    end[row, node] = max(begin + latency[row, node], floor[node])
                    cursor[s] = node + 1
                    done += 1
                    progress = True
        timed = min(timed, done)
    return int(timed)


@njit(cache=True, nogil=True)
def stage_summits(start: F64, end: F64, net: I64, peak: I64, time: F64, size: I64, low: I64, high: I64) -> None:
    """Bounds of one rank's highest memory during each stage.

    Args:
        start, end: float64[num_rows, num_stages] [s], stages of the rank in order.
        net, peak: int64[num_rows, num_stages] [bytes], change by the stage, and its summit above its beginning.
        time, size: float64, int64[num_rows, num_events], changes outside stages, sorted by time, then size.
        low: int64[num_rows, num_stages] [bytes], written: summit on the lowest ground during the stage: the stage
            reaches at least this.
        high: int64[num_rows, num_stages] [bytes], written: summit on the highest ground during the stage.
    """
    num_events = time.shape[1]
    for row in range(start.shape[0]):
        level = np.int64(0)
        below = np.int64(0)
        event = 0
        for stage in range(start.shape[1]):
            while event < num_events and time[row, event] <= start[row, stage]:
                level += size[row, event]
                event += 1
            highest, lowest = level, level
            ahead, there = event, level
            while ahead < num_events and time[row, ahead] < end[row, stage]:
                there += size[row, ahead]
                highest, lowest = max(highest, there), min(lowest, there)
                ahead += 1
            low[row, stage] = below + lowest + peak[row, stage]
            high[row, stage] = below + highest + peak[row, stage]
            below += net[row, stage]
