"""Kernel for the pipeline level: bounds of a rank's memory during each of its stages, for many replicas at once."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


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
