"""Chimera: two copies of the model in opposite directions, each microbatch through one of them (2107.06925 §3).

    rank 0 |F0F1  f2b2f3b3B0F4B1F5f6b6f7b7B4  B5|
    rank 1 |  F0f2F1f3b2B0b3B1F4f6F5f7b6B4b7B5  |
    rank 2 |  f2F0f3F1B0b2B1b3f6F4f7F5B4b6B5b7  |
    rank 3 |f2f3  F0B0F1B1b2f6b3f7F4B4F5B5b6  b7|

Of every p microbatches, half enter at rank 0 and half at rank p - 1 (p even); the stages of both directions interlock
because they fall on slots of different parity. Equal stages with f = b, p dividing m: makespan (2 m + p - 2) f; further
groups of p follow without a gap (direct concatenation). A rank holds the activations of at most p stages, and the
weights of two.
"""

from __future__ import annotations

from collections.abc import Iterator

from semu.graph.operator import Phase
from semu.schedule.family import Misfit, ScheduleFamily
from semu.schedule.placement import Placement
from semu.schedule.shape import PipelineShape, StageKey


def _interlocks(p: int, m: int, v: int) -> Misfit | None:
    if p % 2:
        return Misfit("both directions interlock on an even number of ranks", "even", p, p + 1)
    return Misfit("one chunk of each direction per rank", "2 virtual stages per rank", v, 2) if v != 2 else None


def _orders(shape: PipelineShape) -> Iterator[list[StageKey]]:
    """By the slots of f = b: the k-th microbatch of a direction, in a group of p, runs forward on its d-th rank in slot
    d + 2 k and backward in slot 2 p - 1 - d + 2 k; the next group begins 2 p slots later."""
    p = shape.num_ranks
    for rank in range(p):
        turns: list[tuple[int, StageKey]] = []
        taken: dict[tuple[int, int], int] = {}
        for microbatch, flow in enumerate(shape.microbatch_flow):
            group = microbatch // p
            number = taken.get((group, flow), 0)
            taken[group, flow] = number + 1
            depth, chunk = (rank, rank) if flow == 0 else (p - 1 - rank, 2 * p - 1 - rank)
            begin = 2 * p * group + 2 * number
            turns.append((begin + depth, StageKey(chunk, Phase.FORWARD, microbatch)))
            turns.append((begin + 2 * p - 1 - depth, StageKey(chunk, Phase.BACKWARD, microbatch)))
        yield [stage for _, stage in sorted(turns, key=lambda turn: turn[0])]


chimera = ScheduleFamily(
    "chimera",
    _orders,
    "2107.06925 §3",
    Placement.BIDIRECTIONAL,
    doc=__doc__,
    rules=(_interlocks,),
    makespan=lambda p, m, v, f, i, w: (2 * m + p - 2) * f if m % p == 0 and f == i + w else None,
    activations=lambda p, m, v: min(m, p),
    is_fixed=True,
    runs_two_copies=True,
    compared=0,
)
