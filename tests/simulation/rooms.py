"""Devices that have room for so many bytes and no more: the way back from ``device_room``, written out."""

from __future__ import annotations

import math

from semu.parallel.config import Parallel

MIB = 1 << 20


def outside(parallel: Parallel) -> int:
    """Context and communicators [bytes]."""
    return (512 + 128 * sum(size > 1 for size in (parallel.tp, parallel.pp, parallel.dp))) * MIB


def capacity_for(held_bytes: int, parallel: Parallel, margin: float = 0.005) -> int:
    """The least memory of a device on which the allocator may hold so much, beside context, communicators and the
    share that stays free [bytes]."""
    needed = held_bytes + outside(parallel)
    capacity = math.floor(needed / (1 - margin)) - 2
    while capacity - math.ceil(capacity * margin) < needed:
        capacity += 1
    return capacity
