"""``Estimate``: the figures of a ``Report`` that a search looks at, without tables and timeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from functools import cached_property
from typing import Any, NamedTuple

from semu.frames import Tabular, scalars
from semu.records import dataclass

FRAGMENTED = 1.25
KEPT_BYTES = 5 << 30
"""What an allocator may hold of its device beyond ``FRAGMENTED`` x what is allocated [bytes]: cuBLAS's workspaces, and
the cached blocks of microbatches of other sizes. Where so much has room, nothing is replayed: of 454 of the frozen
jobs, one with small parameters held the most, 14.61 GiB for 8.36 GiB, and those with more than 30 GiB at most 1.198 x.
"""


class DeviceRoom(NamedTuple):
    """How a device's memory is shared out.

    Attributes:
        capacity_bytes: all of it. other_bytes: what the framework's allocator never sees: context, communicators.
        margin_bytes: what must stay free.
    """

    capacity_bytes: int
    other_bytes: int = 0
    margin_bytes: int = 0

    @property
    def usable_bytes(self) -> int:
        """What the allocator may hold."""
        return self.capacity_bytes - self.other_bytes - self.margin_bytes

    def is_tight(self, peak_bytes: int) -> bool:
        """Whether it takes the allocator's own holdings to say if so much allocated memory fits."""
        return peak_bytes <= self.usable_bytes < FRAGMENTED * peak_bytes + KEPT_BYTES


class RankMemoryKinds(NamedTuple):
    """A pipeline rank's memory at its peak, by what it is for [bytes]; all but ``capacity`` must add up to no more.

    Attributes:
        parameters, gradients, optimizer, activations, workspace, communication: what is allocated.
        reserved: what the allocator holds beyond that. other: outside the allocator: context, communicators.
        margin: what must stay free. capacity: the device's memory.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    workspace: int
    communication: int
    reserved: int
    other: int
    margin: int
    capacity: int


class Deferred(Mapping[str, object]):
    """A mapping that is made when it is first read."""

    def __init__(self, make: Callable[[], Mapping[str, object]]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> dict[str, object]:
        return dict(self._make())

    def __getitem__(self, key: str) -> object:
        return self._made[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    def __repr__(self) -> str:
        return repr(self._made)

    def __reduce__(self) -> tuple[type, tuple[dict[str, object]]]:
        return dict, (self._made,)


class MemoryFigures:
    """What follows from the memory of a job's pipeline ranks; for results that have these attributes."""

    peak_memory_bytes: tuple[int, ...]
    capacity_bytes: int
    other_memory_bytes: int
    memory_margin_bytes: int
    reserve: Callable[[int], int] | None

    def held_by(self, rank: int) -> int:
        """What the allocator holds of a rank's device [bytes]; where nothing can be replayed, what is allocated."""
        return self.peak_memory_bytes[rank] if self.reserve is None else self.reserve(rank)

    @property
    def reserved_memory_bytes(self) -> tuple[int, ...] | None:
        """What the caching allocator holds of each pipeline rank's device, an estimate; made when it is asked for."""
        return None if self.reserve is None else self.held_memory_bytes

    @property
    def room(self) -> DeviceRoom:
        """How the memory of a device is shared out."""
        return DeviceRoom(self.capacity_bytes, self.other_memory_bytes, self.memory_margin_bytes)

    @property
    def held_memory_bytes(self) -> tuple[int, ...]:
        """What the allocator holds of each rank's device; where nothing can be replayed, what is allocated."""
        return tuple(map(self.held_by, range(len(self.peak_memory_bytes))))

    @cached_property
    def deciding_bytes(self) -> tuple[int, ...]:
        """What decides whether each rank fits: what the allocator holds of its device, where that takes a replay to
        say; else what is allocated."""
        return tuple(
            self.held_by(rank) if self.room.is_tight(peak) else peak for rank, peak in enumerate(self.peak_memory_bytes)
        )

    @cached_property
    def judged_bytes(self) -> int | None:
        """What the allocator holds of the fullest device [bytes], or of the first, by falling allocation, that does not
        fit; None: what is allocated decides, nothing has to be replayed."""
        room, peaks = self.room, self.peak_memory_bytes
        held = None
        if room.is_tight(max(peaks)):
            for rank in sorted(range(len(peaks)), key=lambda rank: -peaks[rank]):
                if not room.is_tight(peaks[rank]) or (held or 0) > room.usable_bytes:
                    break
                held = max(held or 0, self.held_by(rank))
        return held

    @cached_property
    def fits(self) -> bool:
        """Whether every rank's device holds what the allocator reserves, the context and communicators, and leaves the
        margin free."""
        judged = max(self.peak_memory_bytes) if self.judged_bytes is None else self.judged_bytes
        return judged <= self.room.usable_bytes


@dataclass(frozen=True)
class Estimate(MemoryFigures, Tabular):
    """Result of ``semu.evaluate``; every figure is the one that ``semu.simulate`` gives for the same job.

    Attributes:
        iteration_time_s: [s]. makespan_s: end of the pipeline [s]. mfu, hfu, bubble_ratio: as in ``Report``.
        peak_memory_bytes, static_memory_bytes: per pipeline rank, allocated. capacity_bytes: device memory; of it
            ``other_memory_bytes`` outside the allocator and ``memory_margin_bytes`` that must stay free.
        breakdown_s: where the time goes, as in ``Report``. reserve: finds ``reserved_memory_bytes``.
    """

    iteration_time_s: float
    makespan_s: float
    mfu: float
    hfu: float
    bubble_ratio: float
    peak_memory_bytes: tuple[int, ...]
    static_memory_bytes: tuple[int, ...]
    capacity_bytes: int
    breakdown_s: Mapping[str, object]
    other_memory_bytes: int = 0
    memory_margin_bytes: int = 0
    reserve: Callable[[int], int] | None = field(default=None, repr=False, compare=False)

    def to_dicts(self) -> list[dict[str, Any]]:
        """The figures as one flat record; ``peak_memory_bytes`` of the rank that allocates most."""
        return [{**scalars(vars(self)), "peak_memory_bytes": max(self.peak_memory_bytes), "fits": self.fits}]
