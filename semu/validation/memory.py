"""What a run says about memory in the scope and measure that a row names: ``peak_bytes`` and ``static_bytes``; and
``activation_bytes``, what transformer layers keep for their backward, as closed forms count it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from semu.compile.chunk import ChunkStages
from semu.graph.operator import Phase
from semu.present.estimate import Estimate
from semu.present.report import Report
from semu.simulation import JobCheckpoint
from semu.validation.row import Measure, Row, Scope

PRINTED_UNIT_BYTES = 10**9
"""Bytes that a runs file writes for one printed GB."""
GB_BYTES = 10**9
"""What a printed GB is taken for, in all rows: 10^9 bytes."""
GB_READING = "a printed GB is 10^9 bytes, reserved by the allocator"
"""The same for people."""
_LAYERS = ".layers."
"""In the path of every transformer layer of a decoder, and of nothing else."""


def measured_bytes(row: Row) -> float | None:
    """The row's memory; a printed GB under the one reading that holds for all rows."""
    if row.peak_mem_bytes is None or row.measure is not Measure.PRINTED_GB:
        return row.peak_mem_bytes
    return row.peak_mem_bytes / PRINTED_UNIT_BYTES * GB_BYTES


def peak_bytes(report: Report | Estimate, scope: Scope, measure: Measure) -> int | None:
    """Predicted peak; None: this version does not predict the measure. A closed form is ``static_bytes`` and
    ``activation_bytes``, no peak of an allocator."""
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


def activation_bytes(checkpoint: JobCheckpoint, rank: int, stages: Sequence[tuple[int, Phase]]) -> int:
    """Bytes that the layers of a pipeline rank keep, at the moment at which they are most (2205.05198 §4).

    Nothing transient counts, and nothing of embedding and head. A microbatch counts from its forward stage to its
    backward stage, of a split one to the last part.

    Args:
        checkpoint: a job whose microbatches are all equal. rank: one of its pipeline ranks.
        stages: chunk and phase of each of its stages, in their order.
    """
    sizes = checkpoint.evaluation.by_shape.sizes_of(np.zeros(1, dtype=np.int64))[0]
    kept = {
        chunk.chunk.index: _kept_by_layers(chunk, sizes)
        for chunk in checkpoint.layout.chunks
        if chunk.chunk.rank == rank
    }
    parts = set(stages)
    last: set[tuple[int, Phase]] = {(c, phase) for c, phase in parts if phase is Phase.WEIGHT_GRADIENT}
    last |= {(c, Phase.INPUT_GRADIENT) for c, _ in parts if (c, Phase.WEIGHT_GRADIENT) not in last}
    held = most = 0
    for part in stages:
        chunk, phase = part
        if phase is Phase.FORWARD:
            held += kept[chunk]
            most = max(most, held)
        elif phase is Phase.BACKWARD or part in last:
            held -= kept[chunk]
    return most


def _kept_by_layers(chunk: ChunkStages, sizes: NDArray[np.int64]) -> int:
    """Bytes that outlive a chunk's forward stage because a layer needs them.

    A storage belongs to the block that touches it last: a layer's input to the layer, not to the one that makes it.
    What only waits to be sent does not count.
    """
    stage = chunk.forward
    is_layer = np.array([_LAYERS in block.path for block in chunk.blocks])
    block_of_touch = np.repeat(stage.block, np.diff(stage.touch_ptr))
    last = np.full(len(stage.size_row), -1, dtype=np.int64)
    np.maximum.at(last, stage.touch, block_of_touch)
    kept = stage.alive_after & (last >= 0) & is_layer[last]
    total = int(sizes[stage.size_row[kept]].sum())
    if is_layer[-1]:
        sent = {row for row, survives in zip(stage.leaving, stage.leaving_kept, strict=True) if not survives}
        total -= sum(int(sizes[row]) for row in sent if row >= 0)
    return total
