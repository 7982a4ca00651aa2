"""A model of PyTorch's caching allocator: what stays reserved on the device while a program allocates and frees.

``reserve`` is the door; the loop over allocations is ``semu.engine.kernels.allocator``.

Requests are rounded up to 512 bytes. Those of at most 1 MiB are cut from segments of 2 MiB (the small pool), larger
ones from segments of 20 MiB, and from 10 MiB on from segments of their own size rounded up to 2 MiB (the large pool).
Of the free blocks that are large enough the smallest is taken; what is left over is split off where it is at least
512 bytes in the small pool, more than 1 MiB in the large one. Free neighbours join. Segments are given back only where
the device has no more.

Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp (kMinBlockSize, kSmallSize, kSmallBuffer, kLargeBuffer,
kMinLargeAlloc, kRoundLarge; get_free_block, should_split, try_merge_blocks), with its default settings and one stream.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.records import dataclass

RULES = {
    "kMinBlockSize": 512,
    "kSmallSize": 1 << 20,
    "kSmallBuffer": 2 << 20,
    "kLargeBuffer": 20 << 20,
    "kMinLargeAlloc": 10 << 20,
    "kRoundLarge": 2 << 20,
}
"""Sizes [bytes] by their names in PyTorch, in the order that the kernel takes."""
MOST_REPEATS = 4
"""An iteration is replayed until it reserves nothing more, but not more often than this."""


@dataclass(frozen=True)
class AllocationTrace:
    """What a program allocates and frees, in the order in which it says so.

    Attributes:
        slot: int64[num_events], what, numbers from 0 with few gaps.
        size: int64[num_events] [bytes], > 0: allocate so much; 0: free.
        first: event at which an iteration begins; those before happen once.
    """

    slot: NDArray[np.int64]
    size: NDArray[np.int64]
    first: int


@dataclass(frozen=True)
class Reserved:
    """What a replay came to [bytes].

    Attributes:
        peak_bytes: highest reserved. final_bytes: reserved in the end. blocks_bytes: highest sum of blocks in use.
        releases: how often segments were given back for want of memory.
    """

    peak_bytes: int
    final_bytes: int
    blocks_bytes: int
    releases: int


def reserve(trace: AllocationTrace, *, capacity_bytes: int, repeats: int = MOST_REPEATS) -> Reserved:
    """Replay a trace in the caching allocator.

    Args:
        trace: the program. capacity_bytes: what the allocator may reserve. repeats: iterations at most.
    """
    from semu.engine.kernels.allocator import replay

    out = np.zeros(4, dtype=np.int64)
    replay(
        np.ascontiguousarray(trace.slot),
        np.ascontiguousarray(trace.size),
        trace.first,
        repeats,
        1 + int(trace.slot.max(initial=-1)),
        np.array([*RULES.values()], dtype=np.int64),
        capacity_bytes,
        out,
    )
    return Reserved(*(int(value) for value in out))
