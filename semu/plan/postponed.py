"""One order of all stages and messages of a simulated schedule, and messages that must come later in it.

A receive that is launched before a stage, because its message begins during that stage, takes its buffer early. Where
these are too many, or too large for what memory is left, the later ones are put off to the end of the stage; their
senders launch them as late, and the schedule is timed anew.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from semu.plan.timeline import SimulatedStages

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
F64 = NDArray[np.float64]


def put_off(
    stages: SimulatedStages, num_bytes: I64, receives_ahead: int, bytes_ahead: I64
) -> tuple[SimulatedStages, I64]:
    """Order a simulated schedule, and time it anew where receives must wait.

    Args:
        stages: the schedule. num_bytes: int64[num_messages], by transfer, of the replica with most.
        receives_ahead: receives launched before a stage during which their messages begin, at most.
        bytes_ahead: int64[num_ranks], what their buffers may have at most.
    Returns:
        The schedule as it runs then; int64[num_units], the positions of its units.
    """
    transfers = stages.transfers
    time = stages.start[transfers]
    behind = np.full(len(transfers), -1, dtype=np.int64)
    position = _sorted(stages, time, behind)
    while True:  # every round moves some messages behind one stage more, at most to those that take them
        late, stage = _too_early(stages, position, num_bytes, receives_ahead, bytes_ahead)
        if not len(late):
            return stages, position
        behind[late] = stage
        time = stages.start[transfers]
        time[late] = np.maximum(time[late], stages.end[stage])  # it may begin later still: its sender is busy
        stages = _timed(stages, _sorted(stages, time, behind))
        position = _sorted(stages, stages.start[transfers], behind)  # others may begin later than they did


def _too_early(
    stages: SimulatedStages, position: I64, num_bytes: I64, receives_ahead: int, bytes_ahead: I64
) -> tuple[I64, I64]:
    """Messages, by transfer, whose receives must wait for the end of a stage; the unit of that stage: int64[k] each."""
    time, at = stages.start[stages.transfers], position[stages.transfers]
    target = stages.rank[stages.consumer]
    found, behind = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for rank, order in enumerate(stages.orders):
        mine = np.flatnonzero(target == rank)
        gap = np.searchsorted(position[order], at[mine])
        ahead = np.flatnonzero(np.append(stages.start[order], np.inf)[gap] < time[mine])
        ahead = ahead[np.lexsort((at[mine[ahead]], gap[ahead]))]
        first = np.searchsorted(gap[ahead], gap[ahead])
        total = np.cumsum(np.append(0, num_bytes[mine[ahead]]))
        is_late = np.arange(len(ahead)) - first >= receives_ahead
        is_late |= total[1:] - total[first] > bytes_ahead[rank]
        found.append(mine[ahead[is_late]])
        behind.append(order[gap[ahead[is_late]]].astype(np.int64))
    return np.concatenate(found), np.concatenate(behind)


def _sorted(stages: SimulatedStages, time: F64, behind: I64) -> I64:
    """Positions of all units in one order: int64[num_units]. By time; where that is equal, what waits comes later.

    Args:
        time: float64[m] [s], of the messages. behind: int64[m], units behind which they come too; -1: none.
    """
    transfers = stages.transfers
    key = stages.end.copy()
    key[transfers] = time
    put_off = behind >= 0
    edges = [
        (stages.producer, transfers),
        (transfers, stages.consumer),
        (behind[put_off], transfers[put_off]),
        *((order[:-1], order[1:]) for order in stages.orders),
        stages.barriers,
    ]
    before = np.concatenate([edge[0] for edge in edges]).astype(np.int64)
    after = np.concatenate([edge[1] for edge in edges]).astype(np.int64)
    equal = key[before] == key[after]
    before, after = before[equal], after[equal]
    depth = np.zeros(len(key), dtype=np.int64)
    while True:
        deeper = depth[before] + 1
        late = deeper > depth[after]
        if not late.any():
            break
        np.maximum.at(depth, after[late], deeper[late])
    order = np.lexsort((depth, key))
    position = np.empty(len(key), dtype=np.int64)
    position[order] = np.arange(len(key))
    return position


def _timed(stages: SimulatedStages, position: I64) -> SimulatedStages:
    """The same stages where every message begins when both its ranks have come to it.

    Args:
        position: of the units; each rank launches in this order.
    """
    units, ranks = stages.units, stages.num_ranks
    lasts = (stages.end - stages.start).tolist()
    n, transfers = units.num_units, stages.transfers.tolist()
    ends = dict(zip(transfers, zip(stages.producer.tolist(), stages.consumer.tolist(), strict=True), strict=True))
    arriving: dict[int, list[int]] = {}
    for transfer, (_, consumer) in ends.items():
        arriving.setdefault(consumer, []).append(transfer)
    fellows: dict[int, list[int]] = {}
    for fellow, unit in zip(*(side.tolist() for side in stages.fellows), strict=True):
        fellows.setdefault(unit, []).append(fellow)
    come: dict[int, float] = {}
    rank = stages.rank.tolist()
    held = np.zeros(n, dtype=np.bool_)
    held[stages.transfers] = True
    held[np.concatenate(stages.orders)] = True
    every = np.argsort(position)
    overlapped = stages.checkpoint.job.overlaps_sends
    start, end = [0.0] * n, [0.0] * n
    clock, sent = [0.0] * ranks, [0.0] * ranks
    free: dict[int, float] = {}
    for unit in every[held[every]].tolist():
        if unit in ends:
            source, target = (rank[stage] for stage in ends[unit])
            begin = max(clock[source], clock[target], free.get(rank[unit], 0.0))
            end[unit] = free[rank[unit]] = begin + lasts[unit]
            sent[source] = max(sent[source], end[unit])
        else:
            own = rank[unit]
            begin = max([clock[own], *(end[transfer] for transfer in arriving.get(unit, ()))])
            begin = begin if overlapped else max(begin, sent[own])
            if unit in fellows:
                come[unit] = begin
                together = [unit, *fellows[unit]]
                if all(other in come for other in together):
                    begin = max(come[other] for other in together)
                    for other in together:
                        start[other], end[other] = begin, begin + lasts[other]
                        clock[rank[other]] = end[other]
                continue
            end[unit] = clock[own] = begin + lasts[unit]
        start[unit] = begin
    return replace(stages, start=np.array(start), end=np.array(end))
