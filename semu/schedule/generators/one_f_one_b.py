"""1F1B: one forward, one backward in turn (PipeDream-Flush: 2006.09503 §3; Megatron-LM: 2104.04473 §2.2).

    rank 0 |F0F1F2F3            B0--F4B1--F5B2--  B3--  B4--  B5--|
    rank 1 |  F0F1F2        B0--F3B1--F4B2--F5B3--  B4--  B5--    |
    rank 2 |    F0F1    B0--F2B1--F3B2--F4B3--F5B4--  B5--        |
    rank 3 |      F0B0--F1B1--F2B2--F3B3--F4B4--F5B5--            |

Equal stages of forward time f and backward time b: makespan (m + p - 1)(f + b), bubble ratio (p - 1) / (m + p - 1) as
GPipe, but rank r holds at most min(m, p - r) microbatches' activations. The turns are those of ``interleaved`` with one
virtual stage per rank (v = 1); several virtual stages take turns as in Megatron-LM.
"""

from __future__ import annotations

from semu.schedule.family import ScheduleFamily, one_slot
from semu.schedule.generators.interleaved import MEGATRONS, held_stages, interleaved, megatrons_stages
from semu.schedule.schedule import PipelineShape, Schedule


def one_f_one_b(shape: PipelineShape) -> Schedule:
    """The 1F1B schedule, interleaved where ranks have several virtual stages; a rank runs all chunks of a virtual stage
    where one forward stands.

    Args:
        shape: ranks, chunks and microbatches.
    Raises:
        ScheduleError: as ``interleaved``.
    """
    return interleaved(shape) if shape.num_slots > 1 else Schedule("1f1b", megatrons_stages(shape))


one_f_one_b_family = ScheduleFamily(
    "1f1b",
    MEGATRONS,
    "2006.09503 §3, 2104.04473 §2.2",
    rules=(one_slot,),
    makespan=lambda p, m, v, f, i, w: (m + p - 1) * (f + i + w),
    activations=held_stages,
    generate=one_f_one_b,
    alternates=True,
    overlaps_sends=False,
    is_bounded=True,
    compared=0,
    is_tried=True,
)
