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
