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

from semu.schedule.family import ScheduleFamily
from semu.schedule.placement import Placement
from semu.schedule.rules.best_of import BestOf
from semu.schedule.rules.priority import Priority
from semu.schedule.rules.traversal import Oldest

RULE = BestOf((Priority(forward=Oldest(), backward=Oldest()),), activations="p * min(v, 2)")

greedy = ScheduleFamily(
    "greedy",
    RULE,
    "list scheduling",
    Placement.CIRCULAR,
    doc=__doc__,
    makespan=lambda p, m, v, f, i, w: (m + p - 1) * (f + i + w) if v == 1 and i + w == 2 * f else None,
    adapt=RULE.on,
    runs_two_copies=True,
    compared=1,
    is_tried=True,
)
