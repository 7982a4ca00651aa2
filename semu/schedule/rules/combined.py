"""``combined_stages``: which forwards and backwards run as one where exchanges of experts' tokens hide (Megatron-LM's
``combined_1f1b``, DeepSeek's DualPipe).

    one rank |F0 [F1|B0][F2|B1][F3|B2] B3|

In the steady phase a forward and the backward behind it run layer by layer in one: both begin when the inputs of both
are there, and what either sends leaves when both are done. Under 1F1B every rank runs one more forward before its
steady phase, so that no two of a pair need one another; DualPipe-V's pairs are of two chunks of a rank and need not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semu.schedule.phases import FORWARD
from semu.schedule.rules.alternate import Alternate
from semu.schedule.rules.pattern import Pattern
from semu.schedule.rules.turns import Turns, turn_stages
from semu.schedule.shape import PipelineShape

I64 = NDArray[np.int64]
COMBINED = Alternate(warm_up="min(v, 2) * (p - r - 1) + (v - 1) * p + 1", group="p")
"""1F1B, interleaved where a rank has several virtual stages, with one forward more before its steady phase."""
DUALPIPE_V = Pattern(
    (
        ("2 * (p - r - 1)", "F0"),
        ("r + 1", "F0 F1"),
        ("p - r - 1", "I1 W F1"),
        ("(r + 1) // p", "F0 B1 F1+B0"),  # the last rank's first two follow one another, as F1 needs F0
        ("m - 2 * p + r + 1 - (r + 1) // p", "F0+B1 F1+B0"),
        ("p - r - 1", "B1 F1+B0"),
        ("(r + 1) // 2", "B1 B0"),  # of 2 (r + 1) backwards the first half is whole, the second split
        ("(r + 1) % 2", "B1 I0"),
        ("(r + 1) // 2", "I1 I0"),
        ("p - r - 1", "W I0"),
        ("r + 1", "W"),
    )
)
"""DeepSeek's DualPipe-V (2412.19437 §3.2.1; ``dualpipev.py`` of github.com/deepseek-ai/DualPipe, steps 1 to 8)."""


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
    """The stages of a pipeline that run in pairs under 1F1B, interleaved or not, or in a V under DualPipe-V; none
    unless ``shape.combines``."""
    if shape.is_v_shaped:
        return _of_pattern(shape)
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


def _of_pattern(shape: PipelineShape) -> CombinedStages:
    stages, forward = DUALPIPE_V.pairs(shape)
    if not shape.combines:
        forward = forward[:0]
    mine = np.stack((forward, forward + 1), axis=1).ravel()
    pair = np.repeat(np.arange(len(forward)), 2)
    return CombinedStages(stages.chunk[mine], stages.phase[mine], stages.microbatch[mine], pair)


def first_and_last(stages: CombinedStages) -> tuple[I64, I64]:
    """Of every stage, the places of the first forward and of the last backward of its pair: int64[n] each."""
    _, first, place = np.unique(stages.pair, return_index=True, return_inverse=True)
    last = len(stages.pair) - 1 - np.unique(stages.pair[::-1], return_index=True)[1]
    return first[place], last[place]
