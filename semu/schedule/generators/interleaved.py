"""Interleaved 1F1B: a rank's v virtual stages lie p virtual stages apart in the model (Megatron-LM: 2104.04473 §2.2).

    rank 0 |F0F1F2F3f0f1f2f3            b0--  b1--  b2--  b3--B0--B1--B2--B3--|
    rank 1 |  F0F1F2F3f0f1f2f3      b0--  b1--  b2--  b3--B0--B1--B2--B3--    |
    rank 2 |    F0F1F2F3f0f1f2  b0--f3b1--  b2--  b3--B0--B1--B2--B3--        |
    rank 3 |      F0F1F2F3f0b0--f1b1--f2b2--f3b3--B0--B1--B2--B3--            |

Equal virtual stages of forward time f and backward time b: makespan (m v + p - 1)(f + b), bubble ratio
(p - 1) / (m v + p - 1), so that the bubble is v times smaller than 1F1B's. Rank r runs min(m v, 2 (p - r - 1) +
(v - 1) p) forwards before it alternates, and holds the activations of one virtual stage more than that at most: on the
first rank those of L (1 + (p - 1) / (p v)) of the model's L layers (2205.05198 §4.2.3).
"""

from __future__ import annotations

from semu.parallel.pipeline import nearest_multiple
from semu.schedule.family import Misfit, ScheduleFamily
from semu.schedule.placement import Placement
from semu.schedule.rules.alternate import Alternate
from semu.schedule.rules.combined import COMBINED
from semu.schedule.schedule import PipelineShape, Schedule, StageColumns

MEGATRONS = Alternate(warm_up="min(v, 2) * (p - r - 1) + (v - 1) * p", group="p")
"""1F1B, interleaved where a rank has several virtual stages."""


def interleaved(shape: PipelineShape) -> Schedule:
    """The interleaved 1F1B schedule; with one virtual stage per rank, plain 1F1B.

    Args:
        shape: ranks, chunks and microbatches; ``chunk_slot`` says to which virtual stage of its rank a chunk belongs.
    Raises:
        ScheduleError: several virtual stages and a number of microbatches that the ranks do not divide.
    """
    interleaved_family.check(shape.num_ranks, shape.num_microbatches, shape.num_slots)
    return Schedule("interleaved", megatrons_stages(shape))


def megatrons_stages(shape: PipelineShape) -> StageColumns:
    """The stages in order; ``shape.combines``: with one more forward before the steady phase."""
    return (COMBINED if shape.combines else MEGATRONS)(shape)


def is_surely_legal(shape: PipelineShape) -> bool:
    """Whether 1F1B, interleaved or not, cannot deadlock, so that nobody need try.

    Groups of chunks follow one another over the ranks, slot by slot, and chunks read earlier ones only. A forward of
    group g then waits for forwards of earlier groups only, and those of one group run in the order of the data.
    """
    p, v = shape.num_ranks, shape.num_slots
    if not shape.is_plain or (v > 1 and shape.num_microbatches % p):
        return False
    group = [slot * p + rank for slot, rank in zip(shape.chunk_slot, shape.chunk_rank, strict=True)]
    reads_earlier = all(source < chunk for chunk, sources in enumerate(shape.sources) for source in sources)
    return reads_earlier and group == sorted(group)


def _groups_of_p(p: int, m: int, v: int) -> Misfit | None:
    if v == 1 or m % p == 0:
        return None
    rule = "interleaved 1F1B runs its microbatches in groups of as many as there are ranks"
    return Misfit(rule, f"a multiple of {p} microbatches", m, nearest_multiple(m, p))


def held_stages(p: int, m: int, v: int) -> list[int]:
    """The most stages whose activations each rank holds."""
    if v == 1:
        return [min(m, p - rank) for rank in range(p)]
    return [min(m * v, 2 * (p - rank - 1) + (v - 1) * p + 1) for rank in range(p)]


interleaved_family = ScheduleFamily(
    "interleaved",
    MEGATRONS,
    "2104.04473 §2.2",
    Placement.CIRCULAR,
    rules=(_groups_of_p,),
    makespan=lambda p, m, v, f, i, w: (m * v + p - 1) * (f + i + w),
    activations=held_stages,
    generate=interleaved,
    alternates=True,
    overlaps_sends=False,
    is_bounded=True,
    compared=0,
    is_tried=True,
)
