"""What layers keep for their backward passes, at most at once, on a pipeline rank.

This is the quantity of the closed forms of 2205.05198 (Table 2, eqs. 1 to 6): saved activations of transformer layers
over all microbatches in flight, without embedding, output layer, loss and what kernels need for a moment. The peak
that a rank allocates is more, see ``memory``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import NDArray

from semu.compile.chunk import ChunkStages
from semu.compile.stage import StageProgram
from semu.costs.phases import program_of
from semu.distinct import sorted_distinct
from semu.schedule.phases import WEIGHT
from semu.simulation.context import PipelineRun, TimedJob


def saved_rows(chunk: ChunkStages, only: Collection[int] | None = None) -> list[int]:
    """Size rows of the storages that backward passes of the chunk's layers read of its forward passes, each once.

    Args:
        only: numbers of storages to look at; None: all.

    What arrives from the chunk before counts, what leaves to the next one does not, unless a layer here reads it again.
    """
    stage = chunk.backward
    if stage is None:
        return []
    is_layer = np.array([block.is_layer for block in chunk.blocks], dtype=np.bool_)
    reader = np.repeat(stage.block, np.diff(stage.touch_ptr))
    read = np.zeros(len(stage.size_row), dtype=np.bool_)
    read[stage.touch[is_layer[reader]]] = True
    arriving = [row for row in stage.arriving if row >= 0]
    kept = read & stage.alive_before & ~np.isin(stage.size_row, arriving)
    if only is not None:
        kept &= np.isin(stage.storage, sorted(only))
    return [int(row) for row in stage.size_row[kept]]


def highest_level(run: PipelineRun, rank: int, changes_of: Callable[[int], NDArray[np.int64]]) -> int:
    """Highest sum, over all replicas, of what a rank's stages add and take away in turn [bytes].

    Args:
        changes_of: of one of ``Layout.kinds``, what a stage of each code adds: int64[num_codes, num_shapes] [bytes].
    """
    nodes = run.problem.rank_nodes[rank]
    change = np.zeros((run.num_replicas, len(nodes)), dtype=np.int64)
    for kind in sorted_distinct(run.kind[nodes]).tolist():
        alike = np.flatnonzero(run.kind[nodes] == kind)
        codes, columns = run.problem.phase[nodes[alike]], run.column[nodes[alike]]
        change[:, alike] = changes_of(kind)[codes, run.shape[:, columns]]
    return int(np.cumsum(change, axis=1).max(initial=0))


class SavedActivations:
    """Saved activations of the layers of a job."""

    def __init__(self, timed: TimedJob) -> None:
        self.layout, self.evaluation, self.run = timed.layout, timed.evaluation, timed.run
        self._sizes: dict[StageProgram | None, NDArray[np.int64]] = {}

    def peak(self, rank: int) -> int:
        """Most bytes that are saved on a rank at once, over all replicas."""
        return highest_level(self.run, rank, self._changes)

    def _changes(self, number: int) -> NDArray[np.int64]:
        """What a stage of each code saves, of one microbatch of each shape: int64[num_codes, num_shapes] [bytes].

        W keeps what it reads of the forward pass; the gradients that it reads too are not counted.
        """
        size = self._size(number)
        nothing = np.zeros_like(size)
        if self.layout.kinds[number].backward is None:
            return np.stack([size, *[nothing] * 4])
        if not self.run.problem.splits_backward:
            return np.stack([size, -size])
        weights = program_of(self.layout, number, WEIGHT)
        late = saved_rows(self.layout.kinds[number], set(weights.storage.tolist()))
        kept = self.evaluation.by_shape.sizes_of_rows(late).sum(axis=0)
        return np.stack([size, -size, kept - size, -kept, nothing])

    def _size(self, number: int) -> NDArray[np.int64]:
        """Bytes that one microbatch of each shape saves in a chunk, or a variant: int64[num_shapes]."""
        chunk = self.layout.kinds[number]
        if chunk.backward not in self._sizes:
            self._sizes[chunk.backward] = self.evaluation.by_shape.sizes_of_rows(saved_rows(chunk)).sum(axis=0)
        return self._sizes[chunk.backward]
