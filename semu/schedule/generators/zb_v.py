"""ZB-V: two chunks per rank in a V, no bubble at the memory of 1F1B (2401.10241 §6).

    rank 0 |F0F1F2F3F4F5F6f0i0w0f1i1w1f2i2w2f3i3w3I0W0f4i4w4I1W1f5i5w5I2W2f6i6w6I3W3I4W4I5W5I6W6      |
    rank 1 |  F0F1F2F3F4f0F5f1i0w0f2i1w1f3i2w2F6I0W0f4i3w3I1W1f5i4w4I2W2f6i5w5I3i6I4W3I5W4I6W5w6W6    |
    rank 2 |    F0F1F2f0F3f1F4f2i0w0f3i1w1F5I0W0f4i2w2F6I1W1f5i3w3I2W2f6i4w4I3i5I4i6I5W3I6W4w5w6W5W6  |
    rank 3 |      F0f0F1f1F2f2F3f3i0w0F4I0W0f4i1w1F5I1W1f5i2w2F6I2W2f6i3w3I3i4I4i5I5i6I6W3w4w5w6W4W5W6|

Equal stages with f = i = w and m >= 2 p - 1: no rank idles between its first stage and its last; the makespan is
6 m f + (p - 1) f. Every rank holds the activations of 2 p stages, half as large as 1F1B's p. Fewer microbatches run as
the first of 2 p - 1.
"""

from __future__ import annotations

from semu.schedule.family import ScheduleFamily, two_slots
from semu.schedule.placement import Placement
from semu.schedule.rules.pattern import Pattern

zb_v = ScheduleFamily(
    "zb-v",
    Pattern(
        (
            ("2 * (p - r) - 1", "F0"),
            ("r", "F1 F0"),
            ("p - r", "F1 I1 W1"),
            ("m - 2 * p + 1 + r", "F0 I0 W0 F1 I1 W1"),
            ("p - 1 - r", "I0 W0 F1 I1 W1"),
            ("r", "I0 I1"),
            ("p - r", "I0 W0"),
            ("r", "W1"),
            ("r", "W0"),
        ),
        at_least="2 * p - 1",
    ),
    "2401.10241 §6",
    Placement.V_SHAPE,
    doc=__doc__,
    splits_backward=True,
    rules=(two_slots,),
    makespan=lambda p, m, v, f, i, w: (6 * m + p - 1) * f if m >= 2 * p - 1 and f == i == w else None,
    activations=lambda p, m, v: [2 * min(m, p)] * p if m >= 2 * p - 1 else None,
    is_fixed=True,
    compared=0,
)
