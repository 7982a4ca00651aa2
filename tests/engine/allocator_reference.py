"""The caching allocator, slow and obvious: a segment is a list of (size, owner), owner None where it is free."""

from __future__ import annotations

from semu.engine.allocator import AllocationTrace, Reserved

MIB = 1 << 20


class Allocator:
    """PyTorch's caching allocator on one stream.

    Args:
        capacity: [bytes] that may be reserved.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.segments: dict[int, tuple[bool, list[tuple[int, int | None]]]] = {}
        self.made = 0
        self.highest = self.most = self.releases = 0

    @property
    def reserved(self) -> int:
        return sum(size for _, blocks in self.segments.values() for size, _ in blocks)

    def allocate(self, owner: int, request: int) -> None:
        size = max(-(-request // 512) * 512, 512)
        is_small = size <= MIB
        fits = [
            (block[0], number, place)
            for number, (kind, blocks) in self.segments.items()
            if kind == is_small
            for place, block in enumerate(blocks)
            if block[1] is None and block[0] >= size
        ]
        if fits:
            have, number, place = min(fits)
        else:
            have = 2 * MIB if is_small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            if self.reserved + have > self.capacity:
                idle = [n for n, (_, blocks) in self.segments.items() if len(blocks) == 1 and blocks[0][1] is None]
                for n in idle:
                    del self.segments[n]
                self.releases += bool(idle)
            number, place = self.made, 0
            self.made += 1
            self.segments[number] = is_small, [(have, None)]
        blocks = self.segments[number][1]
        rest = have - size
        blocks[place : place + 1] = (
            [(size, owner), (rest, None)] if (rest >= 512 if is_small else rest > MIB) else [(have, owner)]
        )
        self.highest = max(self.highest, self.reserved)
        self.most = max(self.most, self.in_use)

    @property
    def in_use(self) -> int:
        return sum(size for _, blocks in self.segments.values() for size, owner in blocks if owner is not None)

    def free(self, owner: int) -> None:
        for _, blocks in self.segments.values():
            for place, (size, who) in enumerate(blocks):
                if who == owner:
                    blocks[place] = (size, None)
            merged: list[tuple[int, int | None]] = []
            for size, who in blocks:
                if merged and who is None and merged[-1][1] is None:
                    merged[-1] = (merged[-1][0] + size, None)
                else:
                    merged.append((size, who))
            blocks[:] = merged


def reserve_slowly(trace: AllocationTrace, *, capacity_bytes: int, repeats: int) -> Reserved:
    """As ``semu.engine.allocator.reserve``."""
    allocator = Allocator(capacity_bytes)
    events = list(zip(trace.slot.tolist(), trace.size.tolist(), strict=True))
    for turn in range(repeats):
        before = allocator.reserved
        for slot, size in events if turn == 0 else events[trace.first :]:
            if size > 0:
                allocator.allocate(slot, size)
            else:
                allocator.free(slot)
        if turn and allocator.reserved == before:
            break
    return Reserved(allocator.highest, allocator.reserved, allocator.most, allocator.releases)
