"""Kernels for the pipeline level: bounds of a rank's memory during each of its stages, for many replicas at once, and
its exact summit during one, or during whichever of many holds the highest."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.compiled import kernel

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@kernel
def sort_events(ptr: I64, time: F64, size: I64) -> None:
    """Sort the events of every rank by time, then size, by insertion: they are almost in order.

    Args:
        ptr: int64[num_ranks + 1], first event of each rank.
        time, size: float64 [s], int64 [bytes], [num_rows, num_events]; sorted in place.
    """
    for row in range(time.shape[0]):
        for rank in range(len(ptr) - 1):
            for place in range(ptr[rank] + 1, ptr[rank + 1]):
                now, change, there = time[row, place], size[row, place], place
                while there > ptr[rank] and (
                    time[row, there - 1] > now or (time[row, there - 1] == now and size[row, there - 1] > change)
                ):
                    time[row, there], size[row, there] = time[row, there - 1], size[row, there - 1]
                    there -= 1
                time[row, there], size[row, there] = now, change


@kernel
def pipeline_summits(
    stage_ptr: I64,
    start: F64,
    end: F64,
    net: I64,
    peak: I64,
    event_ptr: I64,
    time: F64,
    size: I64,
    low: I64,
    high: I64,
    between: I64,
    best: I64,
) -> None:
    """Bounds of every rank's highest memory during each stage, and its highest memory between stages.

    Args:
        stage_ptr: int64[num_ranks + 1], first stage of each rank.
        start, end: float64[num_rows, num_nodes] [s], stages of each rank in order, then others.
        net, peak: int64[num_rows, num_stages] [bytes], change by the stage, and its summit above its beginning.
        event_ptr: int64[num_ranks + 1], first event of each rank.
        time, size: float64, int64[num_rows, num_events], changes outside stages, of each rank sorted by time, then
            size.
        low: int64[num_rows, num_stages] [bytes], written: summit on the lowest ground during the stage.
        high: int64[num_rows, num_stages] [bytes], written: summit on the highest ground during the stage.
        between: int64[num_rows, num_ranks] [bytes], written; at least 0.
        best: int64[num_ranks, 3], written: the highest of 0, ``low`` and ``between`` [bytes], the first row that
            reaches it, the first stage there (-1: between stages).
    """
    for rank in range(len(stage_ptr) - 1):
        first, stop, last_event = stage_ptr[rank], stage_ptr[rank + 1], event_ptr[rank + 1]
        top, top_row, top_stage = np.int64(-(2**62)), 0, -1
        for row in range(start.shape[0]):
            level = np.int64(0)
            below = np.int64(0)
            idle = np.int64(0)
            event = event_ptr[rank]
            for stage in range(first, stop):
                while event < last_event and time[row, event] <= start[row, stage]:
                    level += size[row, event]
                    is_idle = stage == first or time[row, event] >= end[row, stage - 1]
                    if is_idle and time[row, event] < start[row, stage]:
                        idle = max(idle, below + level)
                    event += 1
                highest, lowest = level, level
                ahead, there = event, level
                while ahead < last_event and time[row, ahead] < end[row, stage]:
                    there += size[row, ahead]
                    highest, lowest = max(highest, there), min(lowest, there)
                    ahead += 1
                low[row, stage] = below + lowest + peak[row, stage]
                high[row, stage] = below + highest + peak[row, stage]
                below += net[row, stage]
                if low[row, stage] > top:
                    top, top_row, top_stage = low[row, stage], row, stage
            while event < last_event:
                level += size[row, event]
                if stop == first or time[row, event] >= end[row, stop - 1]:
                    idle = max(idle, below + level)
                event += 1
            between[row, rank] = idle
        if stop == first:
            best[rank, 0], best[rank, 1], best[rank, 2] = 0, 0, -1
            continue
        top = max(top, np.int64(0))
        for row in range(start.shape[0]):
            if between[row, rank] > top:
                top, top_row, top_stage = between[row, rank], row, -1
        best[rank, 0], best[rank, 1], best[rank, 2] = top, top_row, top_stage


@kernel
def exact_summit(
    begin: float, stop: float, position: int, ends: F64, net: I64, time: F64, size: I64, inner: F64, change: I64
) -> int:
    """Highest dynamic allocation of a rank during one of its stages, event by event.

    At equal times first what is freed outside stages counts, then stages in order, then the rest outside. What is
    passed through at the very first moment counts only where it lies above the level before.

    Args:
        begin, stop: of the stage [s]. position: its number on the rank.
        ends: float64[num_stages] [s], of the rank's stages, non-decreasing. net: int64[num_stages] [bytes].
        time, size: float64, int64[num_events], changes outside stages, sorted by time, then size.
        inner: float64[num_inner] [s], changes inside the stage, after its beginning, sorted.
        change: int64[num_inner] [bytes].
    Returns:
        [bytes], at least 0.
    """
    num_events, num_stages, num_inner = len(time), len(ends), len(inner)
    level = np.int64(0)
    event, before, after, at = 0, 0, position + 1, 0
    while event < num_events and time[event] < begin:
        level += size[event]
        event += 1
    while before < num_stages and ends[before] < begin:
        level += net[before]
        before += 1
    total, result, is_first = level, np.int64(0), True
    while True:
        now = np.inf
        if event < num_events and time[event] <= stop:
            now = time[event]
        if before < position:
            now = min(now, ends[before])
        if at < num_inner:
            now = min(now, begin + inner[at])
        if after < num_stages and ends[after] <= stop:
            now = min(now, ends[after])
        if now == np.inf:
            return result  # type: ignore[return-value]
        highest = np.int64(-(2**62))
        while event < num_events and time[event] == now and size[event] < 0:
            total += size[event]
            highest = max(highest, total)
            event += 1
        while before < position and ends[before] == now:
            total += net[before]
            highest = max(highest, total)
            before += 1
        while at < num_inner and begin + inner[at] == now:
            total += change[at]
            highest = max(highest, total)
            at += 1
        while after < num_stages and ends[after] == now:
            total += net[after]
            highest = max(highest, total)
            after += 1
        while event < num_events and time[event] == now:
            total += size[event]
            highest = max(highest, total)
            event += 1
        if is_first and highest <= level:
            highest = total
        is_first = False
        result = max(result, highest)


@kernel
def raise_to_summits(
    best: I64,
    stages: I64,
    bound: I64,
    resident: I64,
    stage_ptr: I64,
    start: F64,
    end: F64,
    net: I64,
    ptr: I64,
    time: F64,
    size: I64,
    inner_ptr: I64,
    inner: F64,
    change: I64,
) -> None:
    """Raise the highest known allocations to those during some stages, as ``exact_summit`` has them.

    Args:
        best: int64[num_groups, 3], written: the highest allocation [bytes], its replica, its node.
        stages: int64[n, 5], replica, node, rank, kind and group of each; the first of equal ones counts.
        bound: int64[n] [bytes], what is resident included; a stage whose bound is not above ``best`` is not looked at.
        resident: int64[num_ranks] [bytes].
        stage_ptr: where each rank's stages begin. start, end: float64[num_replicas, num_nodes] [s].
        net: int64[num_replicas, num_stages] [bytes].
        ptr, time, size: changes outside stages, by rank: as ``pipeline_summits``.
        inner_ptr, inner, change: changes inside the stages of each kind [s], [bytes].
    """
    for number in range(len(stages)):
        row, node, rank, kind, group = stages[number]
        if bound[number] <= best[group, 0]:
            continue
        first, stop = stage_ptr[rank], stage_ptr[rank + 1]
        a, b = ptr[rank], ptr[rank + 1]
        c, d = inner_ptr[kind], inner_ptr[kind + 1]
        highest = resident[rank] + exact_summit(
            start[row, node],
            end[row, node],
            node - first,
            end[row, first:stop],
            net[row, first:stop],
            time[row, a:b],
            size[row, a:b],
            inner[c:d],
            change[c:d],
        )
        if highest > best[group, 0]:
            best[group, 0], best[group, 1], best[group, 2] = highest, row, node
