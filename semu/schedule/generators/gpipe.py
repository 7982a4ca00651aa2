"""GPipe: all forwards, then all backwards (Huang et al., 1811.06965 §2.3).

    rank 0 |F0F1F2F3                  B3--B2--B1--B0--|
    rank 1 |  F0F1F2F3            B3--B2--B1--B0--    |
    rank 2 |    F0F1F2F3      B3--B2--B1--B0--        |
    rank 3 |      F0F1F2F3B3--B2--B1--B0--            |

Equal stages of forward time f and backward time b: makespan (m + p - 1)(f + b), bubble ratio (p - 1) / (m + p - 1);
every rank holds the activations of all m microbatches. Several virtual stages per rank run breadth first, all
microbatches through one, then through the next (2211.05953 §4.1): with p <= m, m v + p - 1 in the place of m + p - 1.
"""

from __future__ import annotations

from semu.schedule.family import ScheduleFamily, one_slot
from semu.schedule.rules.sweep import Sweep
from semu.schedule.schedule import PipelineShape, Schedule


def gpipe(shape: PipelineShape, *, in_order: bool = False) -> Schedule:
    """The GPipe schedule; backwards run in reverse order of the forwards.

    Args:
        shape: ranks, chunks and microbatches. in_order: as ``Sweep``.
    """
    return Schedule("gpipe", Sweep(in_order)(shape))


gpipe_family = ScheduleFamily(
    "gpipe",
    Sweep(),
    "1811.06965 §2.3",
    rules=(one_slot,),
    makespan=lambda p, m, v, f, i, w: (m + p - 1) * (f + i + w),
    activations=lambda p, m, v: [m * v] * p,
    generate=gpipe,
    overlaps_sends=False,
    is_bounded=True,
    is_tried=True,
)
