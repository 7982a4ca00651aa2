"""Greedy: a list scheduler, the baseline that knows no pattern; any placement, any flow of modules.

    rank 0 |F0F1F2F3            B0--F4B1--F5B2--  B3--  B4--  B5--|
    rank 1 |  F0F1F2F3      B0--  B1--F4B2--F5B3--  B4--  B5--    |
    rank 2 |    F0F1F2F3B0--  B1--  B2--F4B3--F5B4--  B5--        |
    rank 3 |      F0B0--F1B1--F2B2--F3B3--F4B4--F5B5--            |

Of all stages that could run next, the one that could start first; backwards before forwards, later chunks before
earlier ones. By default a rank holds the activations of p microbatches, of 2 p where it has several chunks. Equal
stages with b = 2 f, one chunk per rank: 1F1B's makespan (m + p - 1)(f + b).
"""

from __future__ import annotations

from numpy.typing import ArrayLike

from semu.schedule.family import ScheduleFamily
from semu.schedule.placement import Placement
from semu.schedule.rules.list_scheduler import activation_limit, list_schedule
from semu.schedule.schedule import Schedule
from semu.schedule.study import PipelineStudy


def greedy_schedule(study: PipelineStudy, limit_bytes: ArrayLike | None = None) -> Schedule:
    """The greedy order of a pipeline with its own costs.

    Args:
        study: pipeline and costs.
        limit_bytes: of activations [bytes]; by default those of p microbatches on each rank, of 2 p with several slots.
    """
    times = 1 if study.shape.num_slots == 1 else 2
    limit = activation_limit(study, times * study.shape.num_ranks) if limit_bytes is None else limit_bytes
    return list_schedule(study, "greedy", limit_bytes=limit)


greedy = ScheduleFamily(
    "greedy",
    lambda shape: greedy_schedule(PipelineStudy.of(shape)).orders,
    "list scheduling",
    Placement.CIRCULAR,
    makespan=lambda p, m, v, f, i, w: (m + p - 1) * (f + i + w) if v == 1 and i + w == 2 * f else None,
    adapt=greedy_schedule,
    runs_two_copies=True,
    compared=1,
    is_tried=True,
)
