"""Hanayo: the wave, a V with v = 2, 4, ... chunks per rank, without a second copy of the weights (2308.15762 §3).

    rank 0 |F0F1F2F3      f0b0f1b1f2b2f3b3B0  B1  B2  B3|
    rank 1 |  F0F1F2F3  f0  f1b0f2b1f3b2B0b3B1  B2  B3  |
    rank 2 |    F0F1F2f0F3f1  f2b0f3b1B0b2B1b3B2  B3    |
    rank 3 |      F0f0F1f1F2f2F3f3b0B0b1B1b2B2b3B3      |

The order is by earliest start, backwards first, within the activations of p microbatches. Equal stages with f = b, p
dividing m: makespan 2 (m v + p - 1) f; a rank holds at most p v stages' activations. Where b is twice f, an order of
equal times leaves gaps that grow with m; on a pipeline's own costs the better of both orders is taken.
"""

from __future__ import annotations

from dataclasses import replace

from semu.schedule.family import Misfit, ScheduleFamily
from semu.schedule.placement import Placement
from semu.schedule.rules.best_of import BestOf
from semu.schedule.rules.priority import Priority
from semu.schedule.rules.traversal import Oldest


def _waves(p: int, m: int, v: int) -> Misfit | None:
    rule = "a wave goes over the ranks and back"
    return Misfit(rule, "an even number of virtual stages per rank", v, v + 1) if v % 2 else None


RULE = Priority(forward=Oldest(), backward=Oldest(), in_flight="p * v", clock="steps")

hanayo = ScheduleFamily(
    "hanayo",
    RULE,
    "2308.15762 §3",
    Placement.V_SHAPE,
    doc=__doc__,
    rules=(_waves,),
    makespan=lambda p, m, v, f, i, w: 2 * (m * v + p - 1) * f if m % p == 0 and f == i + w else None,
    activations=lambda p, m, v: p * v if m % p == 0 else None,
    is_fixed=True,
    adapt=BestOf((RULE, replace(RULE, clock="costs"))).on,
    compared=0,
)
