"""ZB-H2: as many forwards before the first backward as keep every rank busy (2401.10241 §2.2).

    rank 0 |F0F1F2F3F4F5F6I0W0F7I1W1I2W2I3W3I4W4I5W5I6W6I7W7      |
    rank 1 |  F0F1F2F3F4I0F5I1F6I2W0F7I3W1I4W2I5W3I6W4I7W5W6W7    |
    rank 2 |    F0F1F2I0F3I1F4I2F5I3F6I4W0F7I5W1I6W2I7W3W4W5W6W7  |
    rank 3 |      F0I0F1I1F2I2F3I3F4I4F5I5F6I6W0F7I7W1W2W3W4W5W6W7|

Rank r runs 2 (p - r) - 1 forwards before its first I, and W 2 r turns after its I; every rank holds min(m, 2 p - 1)
microbatches' activations. Equal stages with f = i = w and m >= 2 p - 1: no rank idles between its first stage and its
last, so the makespan is 3 m f + (p - 1) f; an iteration costs 3 m f where the optimizer does not wait for all ranks.
"""

from __future__ import annotations

from semu.schedule.family import ScheduleFamily, one_slot
from semu.schedule.rules.alternate import Alternate

zb_h2 = ScheduleFamily(
    "zb-h2",
    Alternate(warm_up="2 * (p - r - 1)", weight_delay="2 * r"),
    "2401.10241 §2.2",
    doc=__doc__,
    splits_backward=True,
    rules=(one_slot,),
    makespan=lambda p, m, v, f, i, w: 3 * m * f + (p - 1) * f if m >= 2 * p - 1 and f == i == w else None,
    activations=lambda p, m, v: [min(m, 2 * p - 1)] * p,
)
