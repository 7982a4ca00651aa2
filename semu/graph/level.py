"""``Level``: how large a piece of an iteration is, from one operator to the whole iteration."""

from __future__ import annotations

from enum import Enum


class Level(Enum):
    """operator < layer < chunk < stage < microbatch < iteration: a piece of one level lies inside one of the next.

    A layer is any module inside a chunk: a block of the model (``llm.layers.4``) or a part of one (its attention).
    A chunk is the work of one model chunk within a stage: one module's consecutive layers on one pipeline rank.
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
        """Whether pieces of this level lie inside pieces of the other; no level lies inside itself."""
        return self.depth < other.depth


_DEPTHS = {level: depth for depth, level in enumerate(Level)}
