"""ZB-H1: 1F1B with weight gradients put off until after the gradients that others wait for (2401.10241 §2.2).

    rank 0 |F0F1F2F3      I0W0F4I1W1F5I2W2I3W3I4W4I5W5|
    rank 1 |  F0F1F2    I0F3I1W0F4I2W1F5I3W2I4W3I5W4W5|
    rank 2 |    F0F1  I0F2I1F3I2W0F4I3W1F5I4W2I5W3W4W5|
    rank 3 |      F0I0F1I1F2I2F3I3W0F4I4W1F5I5W2W3W4W5|

Rank r runs W r turns after its I, so that every rank holds the activations of min(m, p) microbatches, 1F1B's first.
Equal stages of times f, i, w with w <= f and w <= i, and m >= p: makespan m (f + i + w) + (p - 1)(f + i - w).
"""

from __future__ import annotations

from semu.schedule.family import ScheduleFamily, one_slot
from semu.schedule.rules.alternate import Alternate

zb_h1 = ScheduleFamily(
    "zb-h1",
    Alternate(warm_up="p - r - 1", weight_delay="r"),
    "2401.10241 §2.2",
    doc=__doc__,
    splits_backward=True,
    rules=(one_slot,),
    makespan=lambda p, m, v, f, i, w: m * (f + i + w) + (p - 1) * (f + i - w) if m >= p and w <= min(f, i) else None,
    activations=lambda p, m, v: [min(m, p)] * p,
    compared=0,
    is_tried=True,
)
