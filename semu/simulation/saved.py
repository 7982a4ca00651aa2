"""What layers keep for their backward passes, at most at once, on a pipeline rank.

This is the quantity of the closed forms of 2205.05198 (Table 2, eqs. 1 to 6): saved activations of transformer layers
over all microbatches in flight, without embedding, output layer, loss and what kernels need for a moment. The peak
that a rank allocates is more, see ``memory``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.simulation.evaluate import Evaluation
from semu.simulation.layout import ChunkStages, Layout
from semu.simulation.pipeline import PipelineRun


def saved_rows(chunk: ChunkStages) -> list[int]:
    """Size rows of the storages that backward passes of the chunk's layers read of its forward passes, each once.

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
    kept = stage.size_row[read & stage.alive_before & ~np.isin(stage.size_row, arriving)]
    return [int(row) for row in kept]


class SavedActivations:
    """Saved activations of the layers of a job.

    Args:
        layout, evaluation, run: the simulated job.
    """

    def __init__(self, layout: Layout, evaluation: Evaluation, run: PipelineRun) -> None:
        self.layout, self.evaluation, self.run = layout, evaluation, run
        self._known: dict[int, NDArray[np.int64]] = {}

    def peak(self, rank: int) -> int:
        """Most bytes that are saved on a rank at once, over all replicas."""
        problem = self.run.problem
        nodes = np.flatnonzero(problem.node_rank == rank)
        if not len(nodes):
            return 0
        change = np.zeros((self.run.num_replicas, len(nodes)), dtype=np.int64)
        for number in np.unique(problem.chunk[nodes]).tolist():
            size = self._size(number)
            mine = np.flatnonzero(problem.chunk[nodes] == number)
            sign = np.where(problem.phase[nodes[mine]] == 0, 1, -1)
            change[:, mine] = sign * size[self.run.shape[:, problem.microbatch[nodes[mine]]]]
        return int(np.cumsum(change, axis=1).max(initial=0))

    def _size(self, number: int) -> NDArray[np.int64]:
        """Bytes that one microbatch of each shape saves in a chunk: int64[num_shapes]."""
        chunk = self.layout.chunks[number]
        key = id(chunk.backward)
        if key not in self._known:
            self._known[key] = self.evaluation.by_shape.sizes_of_rows(saved_rows(chunk)).sum(axis=0)
        return self._known[key]
