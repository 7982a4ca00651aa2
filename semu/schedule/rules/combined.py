"""``combined_stages``: which forwards and backwards run as one where exchanges of experts' tokens hide (Megatron-LM's
``combined_1f1b``).

    one rank |F0 [F1|B0][F2|B1][F3|B2] B3|

In the steady phase of 1F1B a forward and the backward behind it run layer by layer in one: both begin when the inputs
of both are there, and what either sends leaves when both are done. Every rank runs one more forward than 1F1B before
its steady phase, so that no two of a pair need one another.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semu.schedule.phases import FORWARD
from semu.schedule.rules.alternate import Alternate
from semu.schedule.rules.turns import Turns, turn_stages
from semu.schedule.shape import PipelineShape

I64 = NDArray[np.int64]
COMBINED = Alternate(warm_up="min(v, 2) * (p - r - 1) + (v - 1) * p + 1", group="p")
"""1F1B, interleaved where a rank has several virtual stages, with one forward more before its steady phase."""


class CombinedStages(NamedTuple):
    """Stages that run in pairs of turns; int64[n] each, in the order in which ranks run them.

    Attributes:
        chunk, phase, microbatch: the stages. pair: number of the pair that each is part of.
    """

    chunk: I64
    phase: I64
    microbatch: I64
    pair: I64


def combined_stages(shape: PipelineShape) -> CombinedStages:
    """The stages of a pipeline that run in pairs under 1F1B, interleaved or not; none unless ``shape.combines``."""
    turns, warm_up = COMBINED.turns(shape)
    ranks, count = turns.phase.shape
    is_forward = turns.phase == FORWARD
    number = np.where(is_forward, np.cumsum(is_forward, axis=1) - 1 - warm_up[:, None], 0)
    number += np.where(is_forward, 0, np.cumsum(~is_forward, axis=1) - 1)
    steady = (number >= 0) & (number < (count // 2 - warm_up)[:, None]) & shape.combines
    pair = np.where(steady, number + np.arange(ranks)[:, None] * count, -1).ravel()
    turn, stages = turn_stages(shape, Turns(*(np.broadcast_to(of, turns.phase.shape) for of in turns)))
    mine = np.flatnonzero(pair[turn] >= 0)
    return CombinedStages(stages.chunk[mine], stages.phase[mine], stages.microbatch[mine], pair[turn[mine]])


def first_and_last(stages: CombinedStages) -> tuple[I64, I64]:
    """Of every stage, the places of the first forward and of the last backward of its pair: int64[n] each."""
    _, first, place = np.unique(stages.pair, return_index=True, return_inverse=True)
    last = len(stages.pair) - 1 - np.unique(stages.pair[::-1], return_index=True)[1]
    return first[place], last[place]
