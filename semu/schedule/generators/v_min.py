"""V-min: a third of 1F1B's activations, two thirds of its bubble (2405.15362 §3).

    rank 0 |F0F1          f0i0w0F2    f1i1I0w1W0F3f2i2I1w2W1F4f3i3I2w3W2F5f4i4I3w4W3  f5i5I4w5W4      I5W5|
    rank 1 |  F0        f0F1  i0w0  f1F2I0i1w1W0f2F3I1i2w2W1f3F4I2i3w3W2f4F5I3i4w4W3f5  I4i5w5W4    I5W5  |
    rank 2 |    F0    f0    F1  i0f1w0I0F2W0i1f2w1I1F3W1i2f3w2I2F4W2i3f4w3I3F5W3i4f5w4I4W4  i5w5  I5W5    |
    rank 3 |      F0f0        F1f1i0I0w0W0F2f2i1I1w1W1F3f3i2I2w2W2F4f4i3I3w3W3F5f5i4I4w4W4    i5I5w5W5    |

Building block: every stage follows the one before it in the V by one slot; where 3 divides p, the last rank's first
gradient waits two slots longer, or slots would collide. Equal stages with f = i = w, p >= 2 and m >= p: makespan
(6 m + 4 p - 5) f, or (6 m + 4 p - 3) f where 3 divides p, against 1F1B's 6 (m + p - 1) f of as large stages; a rank
holds the activations of at most 2 ceil((p + 2) / 3) of the 2 p stages of 1F1B.
"""

from __future__ import annotations

from semu.schedule.family import ScheduleFamily, two_slots
from semu.schedule.placement import Placement
from semu.schedule.rules.block import Block


def _makespan(p: int, m: int, v: int, f: float, i: float, w: float) -> float | None:
    if m < p or not f == i == w:
        return None
    return (6 * m + (0 if p == 1 else 4 * p - 3 if p % 3 == 0 else 4 * p - 5)) * f


v_min = ScheduleFamily(
    "v-min",
    Block(steps=(1, 1), waits=(0, "2 - min(p % 3, 1) * 2", 0)),
    "2405.15362 §3",
    Placement.V_SHAPE,
    doc=__doc__,
    splits_backward=True,
    rules=(two_slots,),
    makespan=_makespan,
    activations=lambda p, m, v: 2 * -(-(p + 2) // 3) if m >= p else None,
    is_fixed=True,
)
