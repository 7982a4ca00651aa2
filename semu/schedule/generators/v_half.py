"""V-half: half of 1F1B's activations, less than three fifths of its bubble (2405.15362 §3).

    rank 0 |F0F1F2        f0i0w0F3  f1i1w1F4  f2i2w2I0W0F5f3i3w3I1W1f4i4w4I2W2  f5i5w5I3W3    I4W4  I5W5|
    rank 1 |  F0F1      f0F2  i0w0f1F3  i1w1f2F4I0i2w2f3W0F5I1i3w3f4W1  I2i4w4f5W2I3i5w5W3  I4W4  I5W5  |
    rank 2 |    F0F1  f0    F2f1i0w0  F3f2i1w1I0W0F4f3i2w2I1W1F5f4i3w3I2W2f5i4w4I3W3  i5w5I4W4  I5W5    |
    rank 3 |      F0f0F1f1    F2  i0w0f2F3I0i1w1f3W0F4I1i2w2f4W1F5I2i3w3f5W2I3i4w4W3I4  i5w5W4I5W5      |

Building block: two slots from rank to rank down the V, one up it, and the waits at its turns that hold the fewest
activations without a collision. Equal stages with f = i = w, p >= 2 and m > p: makespan (6 m + floor((7 p - 8) / 2)) f,
against 1F1B's 6 (m + p - 1) f of as large stages; a rank holds the activations of at most 2 (floor(p / 2) + 1) of the
2 p stages of 1F1B.
"""

from __future__ import annotations

from semu.schedule.family import ScheduleFamily, two_slots
from semu.schedule.placement import Placement
from semu.schedule.rules.block import Block


def _makespan(p: int, m: int, v: int, f: float, i: float, w: float) -> float | None:
    if m <= p or not f == i == w:
        return None
    return (6 * m + (0 if p == 1 else (7 * p - 8) // 2)) * f


v_half = ScheduleFamily(
    "v-half",
    Block(steps=(2, 1), waits=("min(3 * (p - 1), 3 - p % 2 * 2)", 0, "4 - p % 2 * 4")),
    "2405.15362 §3",
    Placement.V_SHAPE,
    doc=__doc__,
    splits_backward=True,
    rules=(two_slots,),
    makespan=_makespan,
    activations=lambda p, m, v: 2 * (p // 2 + 1) if m > p else None,
    is_fixed=True,
)
