"""Eager 1F1B: as many forwards before the first backward as memory allows, then one forward, one backward (named so in
2211.05322 §4, where the room hides transfers).

    rank 0 |F0F1F2F3F4F5        B0--  B1--  B2--  B3--  B4--  B5--|
    rank 1 |  F0F1F2F3F4    B0--F5B1--  B2--  B3--  B4--  B5--    |
    rank 2 |    F0F1F2  B0--F3B1--F4B2--F5B3--  B4--  B5--        |
    rank 3 |      F0B0--F1B1--F2B2--F3B3--F4B4--F5B5--            |

Rank r holds the activations of min(m, its limit, those of the ranks before it); by default the limit is 2 (p - r) - 1,
one microbatch on its way to and from every later rank. Equal stages without transfer time: as 1F1B, makespan
(m + p - 1)(f + b).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from semu.errors import MemoryLimitError
from semu.schedule.family import ScheduleFamily, one_slot
from semu.schedule.rules.patterns import alternate
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape, StageKey


def eager_with_limit(shape: PipelineShape, limits: Sequence[int]) -> Schedule:
    """Eager 1F1B within the memory of each rank.

    Args:
        shape: one slot per rank. limits: per rank, how many microbatches' activations fit.
    Raises:
        MemoryLimitError: a rank with room for none. ScheduleError: as ``eager_1f1b``.
    """
    p = shape.num_ranks
    eager_1f1b.check(p, shape.num_microbatches, shape.num_slots)
    for rank, limit in enumerate(limits):
        if limit < 1:
            raise MemoryLimitError(
                f"rank {rank} has no room for a microbatch",
                where=f"eager-1f1b: rank {rank}",
                expected="room for 1 microbatch",
                got=limit,
                nearest=1,
            )
    return Schedule.build("eager-1f1b", _within(shape, limits))


def _within(shape: PipelineShape, limits: Sequence[int]) -> Iterator[list[StageKey]]:
    """A rank runs at most as many forwards ahead as those before it feed it without a backward."""
    most = shape.num_microbatches
    for rank in range(shape.num_ranks):
        most = min(most, limits[rank])
        yield alternate(shape, rank, most - 1)


def _default(p: int) -> list[int]:
    return [2 * (p - rank) - 1 for rank in range(p)]


eager_1f1b = ScheduleFamily(
    "eager-1f1b",
    lambda shape: _within(shape, _default(shape.num_ranks)),
    "2211.05322 §4",
    rules=(one_slot,),
    makespan=lambda p, m, v, f, i, w: (m + p - 1) * (f + i + w),
    activations=lambda p, m, v: [min(m, limit) for limit in _default(p)],
    compared=0,
)
