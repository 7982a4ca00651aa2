"""DualPipe-V: the V half of DeepSeek's DualPipe (2412.19437 §3.2.1; github.com/deepseek-ai/DualPipe), forwards of one
chunk beside backwards of the other.

    rank 0 |F0F1F2F3F4F5F6f0i0w0f1i1w1f2i2w2f3F7b3--f4B0--b4--f5  B1--b5--f6  B2--b6--f7  B3--b7--I4W4I5W5I6W6I7..
    rank 1 |  F0F1F2F3F4f0F5f1i0w0f2i1w1f3F6b2--f4B0--F7b3--f5B1--b4--f6  B2--b5--f7  B3--b6--B4--i7I5w7I6W5I7W6..
    rank 2 |    F0F1F2f0F3f1F4f2i0w0f3F5b1--f4B0--F6b2--f5B1--F7b3--f6B2--b4--f7  B3--b5--B4--b6--I5i7I6W5I7w7W6..
    rank 3 |      F0f0F1f1F2f2F3f3F4b0--f4B0--F5b1--f5B1--F6b2--f6B2--F7b3--f7B3--b4--B4--b5--B5--i6I6i7I7w6W6w7..

A pair of the steady phase runs one after the other, or as one where exchanges of experts' tokens hide
(``overlap.expert_parallel``), which is what DualPipe is for. Equal stages with f = i = w and m >= 2 p: makespan
6 m f + (p - 1) f; a rank holds the activations of at most 2 p + 1 stages, half as large as 1F1B's p.
"""

from __future__ import annotations

from semu.schedule.family import Misfit, ScheduleFamily, two_slots
from semu.schedule.placement import Placement
from semu.schedule.rules.combined import DUALPIPE_V


def _enough(p: int, m: int, v: int) -> Misfit | None:
    rule = "at least as many microbatches as chunks"
    return Misfit(rule, f">= {2 * p} microbatches", m, 2 * p) if m < 2 * p else None


dualpipe_v = ScheduleFamily(
    "dualpipe-v",
    DUALPIPE_V,
    "2412.19437 §3.2.1",
    Placement.V_SHAPE,
    doc=__doc__,
    splits_backward=True,
    rules=(two_slots, _enough),
    makespan=lambda p, m, v, f, i, w: (6 * m + p - 1) * f if f == i == w else None,
    activations=lambda p, m, v: 2 * p + 1,
    is_fixed=True,
    compared=0,
)
