"""``activation_bytes``: what transformer layers keep for their backward, as closed forms count it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from semu.compile.chunk import ChunkStages
from semu.graph.operator import Phase
from semu.simulation import JobCheckpoint

_LAYERS = ".layers."
"""In the path of every transformer layer of a decoder, and of nothing else."""


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
