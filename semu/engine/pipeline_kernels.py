"""Kernel for the pipeline level: bounds of a rank's memory during each of its stages, for many replicas at once."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@njit(cache=True, nogil=True)
def stage_summits(
    start: F64, end: F64, net: I64, peak: I64, time: F64, size: I64, low: I64, high: I64, between: I64
) -> None:
    """Bounds of one rank's highest memory during each stage, and its highest memory between stages.

    Args:
        start, end: float64[num_rows, num_stages] [s], stages of the rank in order.
        net, peak: int64[num_rows, num_stages] [bytes], change by the stage, and its summit above its beginning.
        time, size: float64, int64[num_rows, num_events], changes outside stages, sorted by time, then size.
        low: int64[num_rows, num_stages] [bytes], written: summit on the lowest ground during the stage.
        high: int64[num_rows, num_stages] [bytes], written: summit on the highest ground during the stage.
        between: int64[num_rows] [bytes], written.
    """
    num_events, num_stages = time.shape[1], start.shape[1]
    for row in range(start.shape[0]):
        level = np.int64(0)
        below = np.int64(0)
        event = 0
        for stage in range(num_stages):
            while event < num_events and time[row, event] <= start[row, stage]:
                level += size[row, event]
                is_idle = stage == 0 or time[row, event] >= end[row, stage - 1]
                if is_idle and time[row, event] < start[row, stage]:
                    between[row] = max(between[row], below + level)
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
        while event < num_events:
            level += size[row, event]
            if num_stages == 0 or time[row, event] >= end[row, num_stages - 1]:
                between[row] = max(between[row], below + level)
            event += 1
