"""Interleaved zero bubble: interleaved 1F1B with ZB-H1's late weight gradients (2401.10241 §2.2 over 2104.04473 §2.2;
as torch.distributed.pipelining has it).

    rank 0 |F0F1F2F3f0f1f2f3      i0w0i1w1i2w2i3w3I0W0I1W1I2W2I3W3|
    rank 1 |  F0F1F2F3f0f1f2    i0f3i1w0i2w1i3w2I0w3I1W0I2W1I3W2W3|
    rank 2 |    F0F1F2F3f0f1  i0f2i1f3i2w0i3w1I0w2I1w3I2W0I3W1W2W3|
    rank 3 |      F0F1F2F3f0i0f1i1f2i2f3i3w0I0w1I1w2I2w3I3W0W1W2W3|

Microbatches run in max(1, m // p) equal groups. Rank r runs p - r - 1 forwards more than the (v - 1) groups of its
other slots before its first I, half of interleaved 1F1B's way since a rank passes an I on before the W, and W r turns
after its I. Equal stages with f = i = w, p dividing m: makespan 3 m v f + (p - 1) f; every rank holds p v stages'
activations.
"""

from __future__ import annotations

from semu.schedule.family import Misfit, ScheduleFamily
from semu.schedule.placement import Placement
from semu.schedule.rules.alternate import Alternate


def _equal_groups(p: int, m: int, v: int) -> Misfit | None:
    groups = max(1, m // p)
    if m % groups == 0:
        return None
    rule = f"microbatches run in {groups} groups of equal size"
    return Misfit(rule, f"a multiple of {groups} microbatches", m, m - m % groups)


_GROUP = "m // max(1, m // p)"

interleaved_zb = ScheduleFamily(
    "interleaved-zb",
    Alternate(warm_up=f"(v - 1) * ({_GROUP}) + p - r - 1", weight_delay="r", group=_GROUP),
    "2401.10241 §2.2, 2104.04473 §2.2",
    Placement.CIRCULAR,
    doc=__doc__,
    splits_backward=True,
    rules=(_equal_groups,),
    makespan=lambda p, m, v, f, i, w: (3 * m * v + p - 1) * f if m % p == 0 and f == i == w else None,
    activations=lambda p, m, v: [p * v] * p if m % p == 0 else None,
)
