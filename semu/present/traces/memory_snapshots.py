"""A rank's memory over the iteration as a memory snapshot of PyTorch, for its viewer: ``write_memory_snapshot``.

The file is what ``torch.cuda.memory._dump_snapshot`` writes: a pickle of plain tables with a list of allocations and
frees, and the segments as they are at the end. pytorch.org/memory_viz draws it, as do the commands of ``python -m
torch.cuda._memory_viz``.

The simulated curve says how many bytes of each role there are, not which. So every role has a segment of its own, as
large as the role ever gets, and is a stack in it: what comes is put on top, what goes is taken from the top, and a
block that goes in pieces is allocated in these pieces. All sums are exact, of every role at every moment; addresses,
and which block of a role outlives which, are made up. Frames name the role and the stage that ran when a block came.
"""

from __future__ import annotations

import os
import pickle
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from semu.engine.timeline import IterationTimeline, StageSlice
from semu.files import write_file
from semu.present.traces.columns import rank_of
from semu.records import dataclass

_BASE = 1 << 40
"""Address of the first segment."""
_GRAIN = 1 << 21
"""Segments begin at multiples of this."""
_PROTOCOL = 4
"""Of pickles; the viewer reads no later one."""


@dataclass(frozen=True)
class _Block:
    """Bytes of one role that come and go together.

    Attributes:
        low, high: within its segment [bytes]. first, last: points of the curve at which it comes, and goes (None:
            never).
    """

    low: int
    high: int
    first: int
    last: int | None


def write_memory_snapshot(path: str | os.PathLike[str], timeline: IterationTimeline, rank: int) -> Path:
    """Write one rank's memory as a snapshot of PyTorch.

    Args:
        path: file to make (``.pickle``). timeline: of a report. rank: pipeline rank.
    Returns:
        The file.
    Raises:
        ConfigError: there is no such rank, or the file cannot be written.
    """
    data = pickle.dumps(memory_snapshot(timeline, rank), protocol=_PROTOCOL)
    return write_file(Path(path), lambda temporary: temporary.write_bytes(data))


def memory_snapshot(timeline: IterationTimeline, rank: int) -> dict[str, Any]:
    """The snapshot as plain tables: ``device_traces``, of one device, and ``segments``.

    Args:
        timeline: of a report. rank: pipeline rank.
    Raises:
        ConfigError: there is no such rank.
    """
    stages, memory = rank_of(timeline, rank).stages, rank_of(timeline, rank).memory
    times_us = [round(time * 1e6) for time in memory.times_s.tolist()]
    segments: list[dict[str, Any]] = []
    opened: list[dict[str, Any]] = []
    events: list[tuple[int, int, int, dict[str, Any]]] = []  # point, frees first, order, event
    address = _BASE
    for role, levels in zip(memory.roles, memory.by_role.tolist(), strict=True):
        size = max(levels)
        if size <= 0:
            continue
        frames = [{"filename": "", "line": 0, "name": role.value}]
        opened.append(_event("segment_alloc", address, size, times_us[0], frames))
        left: list[dict[str, Any]] = []
        for block in _blocks(levels):
            at, extent = address + block.low, block.high - block.low
            own = [{"filename": _stage_at(stages, memory.times_s[block.first]), "line": 0, "name": role.value}]
            come = {**_event("alloc", at, extent, times_us[block.first], own), "category": role.value}
            events.append((block.first, 1, len(events), come))
            if block.last is None:
                left.append({"address": at, "size": extent, "requested_size": extent, "frames": own})
                continue
            for action in ("free_requested", "free_completed"):
                gone = _event(action, at, extent, times_us[block.last], own)
                events.append((block.last, 0, len(events), gone))
        segments.append(_segment(address, size, left))
        address += -(-(size + 1) // _GRAIN) * _GRAIN
    events.sort(key=lambda event: event[:3])
    return {
        "segments": segments,
        "device_traces": [[*opened, *(event for _, _, _, event in events)]],
        "allocator_settings": {},
        "external_annotations": [],
    }


def _stage_at(stages: Sequence[StageSlice], time_s: float) -> str:
    """The stage of a rank that ran, or began, at a moment."""
    place = bisect_right(stages, time_s, key=lambda stage: stage.start_s) - 1
    if place < 0 or stages[place].end_s < time_s:
        return "between stages"
    return f"{stages[place].label} {stages[place].module}".rstrip()


def _blocks(levels: Sequence[int]) -> list[_Block]:
    """A step function as blocks of a stack. ``levels``: after each point [bytes]."""
    stack: list[tuple[int, int, int]] = []  # low, high, first
    found: list[_Block] = []
    before = 0
    for point, level in enumerate(levels):
        if level > before:
            stack.append((before, level, point))
        while stack and stack[-1][1] > level:
            low, high, first = stack.pop()
            found.append(_Block(max(low, level), high, first, point))
            if low < level:
                stack.append((low, level, first))
        before = level
    found += [_Block(low, high, first, None) for low, high, first in stack]
    return sorted(found, key=lambda block: (block.first, block.low))


def _event(action: str, address: int, size: int, time_us: int, frames: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": time_us, "frames": list(frames)}


def _segment(address: int, size: int, left: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A segment at the end. ``left``: its blocks that are still there, lowest first, without gaps."""
    active = sum(int(block["size"]) for block in left)
    blocks: list[dict[str, Any]] = [{**block, "state": "active_allocated"} for block in left]
    if size > active:
        rest = {"address": address + active, "size": size - active, "requested_size": size - active, "frames": []}
        blocks.append({**rest, "state": "inactive"})
    return {
        "device": 0,
        "address": address,
        "total_size": size,
        "allocated_size": active,
        "active_size": active,
        "requested_size": active,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }
