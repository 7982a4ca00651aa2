"""``Sweep``: all forwards, then all backwards."""

from __future__ import annotations

import numpy as np

from semu.records import dataclass
from semu.schedule.phases import BACKWARD, FORWARD
from semu.schedule.rules.rule import Rule
from semu.schedule.rules.turns import Turns, turn_columns
from semu.schedule.schedule import StageColumns
from semu.schedule.shape import PipelineShape


@dataclass(frozen=True)
class Sweep(Rule):
    """All microbatches through one virtual stage, then through the next; then backwards the same way back.

    Attributes:
        in_order: backwards of a virtual stage run in the order of its forwards, as in torch.distributed.pipelining;
            else in reverse.
    """

    in_order: bool = False

    def __call__(self, shape: PipelineShape) -> StageColumns:
        """See ``Rule``."""
        m, v = shape.num_microbatches, shape.num_slots
        slot, microbatch = np.repeat(np.arange(v), m), np.tile(np.arange(m), v)
        turns = Turns(
            np.repeat((FORWARD, BACKWARD), m * v),
            np.concatenate((slot, slot[::-1])),
            np.concatenate((microbatch, microbatch if self.in_order else microbatch[::-1])),
        )
        return turn_columns(shape, turns)
