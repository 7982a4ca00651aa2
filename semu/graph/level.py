"""``Level``: how large a piece of an iteration is, from one operator to the whole iteration."""

from __future__ import annotations

from enum import Enum


class Level(Enum):
    """operator < layer < chunk < stage < microbatch < iteration: pieces of one level lie inside pieces of later levels.

    OPERATOR: one kernel, collective or transfer. LAYER: a module inside a chunk, a block of the model
    (``llm.layers.4``) or a part of one (its attention); layers nest in layers. CHUNK: consecutive blocks of one
    modality module on one pipeline rank. STAGE: one forward or backward computation of one chunk for one microbatch.
    MICROBATCH: all stages of one microbatch, on all ranks. ITERATION: everything between two optimizer steps.
    """

    OPERATOR = "operator"
    LAYER = "layer"
    CHUNK = "chunk"
    STAGE = "stage"
    MICROBATCH = "microbatch"
    ITERATION = "iteration"

    @property
    def depth(self) -> int:
        """Levels below this one: 0 for operators, 5 for iterations."""
        return _DEPTHS[self]

    def is_inside(self, other: Level) -> bool:
        """Whether this level lies below the other; no level lies below itself."""
        return self.depth < other.depth


_DEPTHS = {level: depth for depth, level in enumerate(Level)}
