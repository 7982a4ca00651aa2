"""Eager 1F1B: more forwards before the first backward than 1F1B, then one forward, one backward in turn (named so in
2211.05322 §4, where the forwards ahead hide transfers).

    rank 0 |F0F1F2F3F4F5        B0--  B1--  B2--  B3--  B4--  B5--|
    rank 1 |  F0F1F2F3F4    B0--F5B1--  B2--  B3--  B4--  B5--    |
    rank 2 |    F0F1F2  B0--F3B1--F4B2--F5B3--  B4--  B5--        |
    rank 3 |      F0B0--F1B1--F2B2--F3B3--F4B4--F5B5--            |

Rank r holds the activations of min(m, 2 (p - r) - 1) microbatches: one microbatch is on its way to and from every later
rank. Equal stages without transfer time: as 1F1B, makespan (m + p - 1)(f + b).
"""

from __future__ import annotations

from semu.schedule.family import ScheduleFamily, one_slot
from semu.schedule.rules.alternate import Alternate

eager_1f1b = ScheduleFamily(
    "eager-1f1b",
    Alternate(warm_up="2 * (p - r - 1)"),
    "2211.05322 §4",
    doc=__doc__,
    rules=(one_slot,),
    makespan=lambda p, m, v, f, i, w: (m + p - 1) * (f + i + w),
    activations=lambda p, m, v: [min(m, 2 * (p - rank) - 1) for rank in range(p)],
    compared=0,
)
