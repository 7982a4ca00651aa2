"""``Estimate``: the figures of a ``Report`` that a search looks at, without tables and timeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property


class MemoryFigures:
    """What follows from the memory of a job's pipeline ranks; for results that have these attributes."""

    peak_memory_bytes: tuple[int, ...]
    capacity_bytes: int
    reserve: Callable[[], tuple[int, ...]] | None

    @cached_property
    def reserved_memory_bytes(self) -> tuple[int, ...] | None:
        """What the caching allocator holds of each pipeline rank's device, an estimate; made when it is asked for."""
        return None if self.reserve is None else self.reserve()

    @property
    def fits(self) -> bool:
        """Whether every rank's peak is within the device's memory."""
        return max(self.peak_memory_bytes) <= self.capacity_bytes


@dataclass(frozen=True)
class Estimate(MemoryFigures):
    """Result of ``semu.evaluate``; every figure is the one that ``semu.simulate`` gives for the same job.

    Attributes:
        iteration_time_s: [s]. makespan_s: end of the pipeline [s]. mfu, hfu, bubble_ratio: as in ``Report``.
        peak_memory_bytes, static_memory_bytes: per pipeline rank. capacity_bytes: device memory.
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
    reserve: Callable[[], tuple[int, ...]] | None = field(default=None, repr=False, compare=False)
