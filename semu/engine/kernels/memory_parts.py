"""Kernel for a rank's memory over time: the highest moment of each part of an iteration, without the whole curve."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.compiled import empty, kernel, zeros

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@kernel
def highest_of_parts(
    time: F64,
    role: I64,
    size: I64,
    start: F64,
    kind: I64,
    inner_ptr: I64,
    inner: F64,
    change: I64,
    edges: F64,
    moments: F64,
    levels: I64,
) -> None:
    """What is allocated where each part of an iteration has the most, as ``compress_steps`` and then
    ``pool_step_function`` have it.

    Args:
        time, role, size: float64, int64, int64[num_events] [s], [bytes], changes outside stages, sorted; those that
            free come before the stages' changes at equal times, the others behind.
        start: float64[num_stages] [s], stages in order; none has changes before the last of the stage before it.
        kind: int64[num_stages], which changes each has.
        inner_ptr: int64[num_kinds + 1], where the changes of each kind begin.
        inner: float64[num_inner] [s], since the stage's beginning, of each kind sorted.
        change: int64[num_inner, num_roles] [bytes].
        edges: float64[num_parts + 1] [s], increasing, the first at or behind the first event.
        moments: float64[num_parts] [s], written: since when that is allocated.
        levels: int64[num_roles, num_parts] [bytes], written; the first of equally high moments.
    """
    roles, parts = levels.shape
    level, passed = zeros(roles, np.int64), zeros(roles, np.int64)
    best = empty(parts, np.int64)
    total, event, stage, at = np.int64(0), 0, 0, np.int64(0)
    if len(start):
        at = inner_ptr[kind[0]]
    part, since = -1, 0.0  # the part that is being filled, since when the last level holds
    while True:
        while stage < len(start) and at == inner_ptr[kind[stage] + 1]:
            stage += 1
            if stage < len(start):
                at = inner_ptr[kind[stage]]
        now = np.inf
        if event < len(time):
            now = time[event]
        if stage < len(start):
            now = min(now, start[stage] + inner[at])
        held = total
        while part + 1 < parts and edges[part + 1] <= now:  # parts that begin by now
            part += 1
            best[part] = -(2**62)
            if edges[part] < now:
                best[part], moments[part], levels[:, part] = held, since, level
        if now == np.inf or (part == parts - 1 and now >= edges[parts]):
            return
        highest = np.int64(-(2**62))
        while True:  # every change at this moment
            if event < len(time) and time[event] == now and size[event] < 0:
                level[role[event]] += size[event]
                total += size[event]
                event += 1
            elif stage < len(start) and at < inner_ptr[kind[stage] + 1] and start[stage] + inner[at] == now:
                for k in range(roles):
                    level[k] += change[at, k]
                    total += change[at, k]
                at += 1
            elif stage < len(start) and at == inner_ptr[kind[stage] + 1]:
                stage += 1
                if stage < len(start):
                    at = inner_ptr[kind[stage]]
                continue
            elif event < len(time) and time[event] == now:
                level[role[event]] += size[event]
                total += size[event]
                event += 1
            else:
                break
            if total > highest:
                highest = total
                passed[:] = level
        if part >= 0 and highest > max(total, held) and highest > best[part]:
            best[part], moments[part], levels[:, part] = highest, now, passed
        if part >= 0 and total > best[part]:
            best[part], moments[part], levels[:, part] = total, now, level
        since = now
