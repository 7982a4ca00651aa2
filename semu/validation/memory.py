"""What a report says about memory in the scope and measure that a row names: ``peak_bytes`` and ``static_bytes``."""

from __future__ import annotations

from semu.present.estimate import Estimate
from semu.present.report import Report
from semu.validation.row import Measure, Row, Scope

PRINTED_UNIT_BYTES = 10**9
"""Bytes that a runs file writes for one printed GB."""
GB_BYTES = 10**9
"""What a printed GB is taken for, in all rows: 10^9 bytes."""
GB_READING = "a printed GB is 10^9 bytes, reserved by the allocator"
"""The same for people."""


def measured_bytes(row: Row) -> float | None:
    """The row's memory; a printed GB under the one reading that holds for all rows."""
    if row.peak_mem_bytes is None or row.measure is not Measure.PRINTED_GB:
        return row.peak_mem_bytes
    return row.peak_mem_bytes / PRINTED_UNIT_BYTES * GB_BYTES


def peak_bytes(report: Report | Estimate, scope: Scope, measure: Measure) -> int | None:
    """Predicted peak; None: this version does not predict the measure. A closed form is ``static_bytes`` and
    ``activations.activation_bytes``, no peak of an allocator."""
    if measure is Measure.ANALYTIC:
        return None
    peaks = report.peak_memory_bytes if measure is Measure.ALLOCATED else report.reserved_memory_bytes
    outside = report.other_memory_bytes if measure is Measure.DEVICE else 0
    return None if peaks is None else outside + max(peaks[rank] for rank in ranks_of(scope, len(peaks)))


def static_bytes(report: Report | Estimate, scope: Scope) -> int:
    """Predicted parameters, gradients and optimizer state."""
    sizes = report.static_memory_bytes
    return max(sizes[rank] for rank in ranks_of(scope, len(sizes)))


def ranks_of(scope: Scope, count: int) -> range:
    """Pipeline ranks, of ``count``, whose memory a scope looks at."""
    return {Scope.FIRST_STAGE: range(1), Scope.LAST_RANK: range(count - 1, count), Scope.MAX: range(count)}[scope]
