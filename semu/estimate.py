"""``Estimate``: the figures of a ``Report`` that a search looks at, without tables and timeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """Result of ``semu.evaluate``; every figure is the one that ``semu.simulate`` gives for the same job.

    Attributes:
        iteration_time_s: [s]. makespan_s: end of the pipeline [s]. mfu, hfu, bubble_ratio: as in ``Report``.
        peak_memory_bytes, static_memory_bytes, reserved_memory_bytes: per pipeline rank. capacity_bytes: device memory.
        breakdown_s: where the time goes, as in ``Report``.
    """

    iteration_time_s: float
    makespan_s: float
    mfu: float
    hfu: float
    bubble_ratio: float
    peak_memory_bytes: tuple[int, ...]
    static_memory_bytes: tuple[int, ...]
    reserved_memory_bytes: tuple[int, ...] | None
    capacity_bytes: int
    breakdown_s: Mapping[str, object]

    @property
    def fits(self) -> bool:
        """Whether every rank's peak is within the device's memory."""
        return max(self.peak_memory_bytes) <= self.capacity_bytes
