"""Memory of each rank as its actions run, from the plan's own numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.errors import PlanError
from semu.plan.action import ActionKind
from semu.plan.columns import ActionColumns
from semu.plan.verification.actions import backward_place
from semu.plan.verification.fault import Fault
from semu.records import dataclass
from semu.units import format_bytes

I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PlanPeaks:
    """Peaks of every rank.

    Attributes:
        buffer_bytes: int64[num_ranks], in buffers of messages. action: int64[num_ranks], at which the peak is reached.
        peak_bytes: int64[num_ranks], of all memory; None: the plan does not say what its stages hold.
    """

    buffer_bytes: I64
    action: I64
    peak_bytes: I64 | None


def replay_memory(columns: ActionColumns) -> PlanPeaks:
    """Memory of each rank over its actions, of the replica with the largest messages.

    A pair holds its bytes from its forward to its last backward; a stage has its peak on top, what arrives for it
    included. The buffer of a message lasts from its irecv to the stage that it is for, at its sender from the stage
    that makes it to the wait for its isend.
    """
    plan, num_actions = columns.plan, len(columns.kind)
    messages, place, stage = plan.messages, columns.message_place, columns.stage_place
    size = messages.num_bytes.max(axis=0, initial=0).astype(np.int64)
    back = backward_place(columns)
    made, used = (
        np.where(end % 2 == 1, back[end // 2], stage[0, end // 2]) for end in (messages.source, messages.target)
    )
    before, after = (np.zeros(num_actions, dtype=np.int64) for _ in range(2))
    np.add.at(after, made, size)
    np.add.at(after, place[1], -size)
    np.add.at(before, place[2], size)
    np.add.at(before, used, -size)
    buffers = _levels(before, after, columns.ptr)
    at = _highest(buffers, columns.ptr)
    memory = plan.estimates.memory if plan.estimates is not None else None
    if memory is None:
        return PlanPeaks(_at(buffers, at), at, None)
    held, own = np.zeros(num_actions, dtype=np.int64), np.zeros(num_actions, dtype=np.int64)
    last = np.maximum(stage[1], stage[3])
    trains = last >= 0
    np.add.at(held, stage[0], memory.held_bytes)
    np.add.at(held, last[trains], -memory.held_bytes[trains])
    forward = columns.kind == ActionKind.FORWARD_STAGE.code
    backward = columns.is_stage & ~forward
    own[forward] = memory.forward_peak_bytes[columns.target[forward]]
    own[backward] = memory.backward_peak_bytes[columns.target[backward]]
    total = buffers + _levels(held * 0, held, columns.ptr) + own + memory.static_bytes[columns.rank]
    top = _highest(total, columns.ptr)
    return PlanPeaks(_at(buffers, at), top, np.maximum(_at(total, top), memory.static_bytes))


def check_memory(columns: ActionColumns) -> PlanPeaks:
    """Check that every rank stays within its limit, where the plan has limits and memory of stages.

    Raises:
        PlanError: a rank needs more.
    """
    found = replay_memory(columns)
    limit = columns.plan.limit_bytes
    if found.peak_bytes is None:
        return found
    over = np.flatnonzero((limit > 0) & (found.peak_bytes > limit))
    if len(over):
        rank = int(over[0])
        action = int(found.action[rank])
        place = columns.locate(action)[1]
        raise PlanError(
            "more memory than the rank has",
            fault=Fault.MEMORY,
            rank=rank,
            action=place,
            where=f"{columns.plan.name}: rank {rank}, action {place}, {columns.words(action)}",
            expected=f"{format_bytes(int(limit[rank]))} at most",
            got=format_bytes(int(found.peak_bytes[rank])),
        )
    return found


def _levels(before: I64, after: I64, ptr: I64) -> I64:
    """Level during each action: int64[a]; it counts ``before`` of this and earlier actions, ``after`` of earlier."""
    total = np.cumsum(before + after)
    base = np.concatenate(([0], total))[ptr[:-1]]
    found: I64 = total - after - np.repeat(base, np.diff(ptr))
    return found


def _highest(values: I64, ptr: I64) -> I64:
    """The first action of each rank with the largest value: int64[num_ranks]; -1: the rank has none."""
    bounds = zip(ptr[:-1].tolist(), ptr[1:].tolist(), strict=True)
    return np.array([a + int(np.argmax(values[a:b])) if b > a else -1 for a, b in bounds], dtype=np.int64)


def _at(values: I64, place: I64) -> I64:
    """Values at places, 0 where there is none."""
    found: I64 = np.where(place >= 0, np.append(values, 0)[place], 0)
    return found
