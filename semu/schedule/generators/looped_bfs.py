"""Looped breadth-first: every microbatch through one of a rank's chunks, then through the next (2211.05953 §4.1).

    rank 0 |F0F1F2F3f0f1f2f3                  b3--b2--b1--b0--B3--B2--B1--B0--|
    rank 1 |  F0F1F2F3f0f1f2f3            b3--b2--b1--b0--B3--B2--B1--B0--    |
    rank 2 |    F0F1F2F3f0f1f2f3      b3--b2--b1--b0--B3--B2--B1--B0--        |
    rank 3 |      F0F1F2F3f0f1f2f3b3--b2--b1--b0--B3--B2--B1--B0--            |

Backwards run in reverse order of the forwards, as under GPipe, of which this is the form with several chunks per rank.
Equal stages of times f and b, m >= p or v = 1: makespan (m v + p - 1)(f + b); every rank holds m v stages' activations.
Gradients of a chunk are complete together and reduced while the next chunk's backwards run.
"""

from __future__ import annotations

from semu.schedule.family import ScheduleFamily
from semu.schedule.placement import Placement
from semu.schedule.rules.sweep import Sweep

looped_bfs = ScheduleFamily(
    "looped-bfs",
    Sweep(),
    "2211.05953 §4.1",
    Placement.CIRCULAR,
    doc=__doc__,
    makespan=lambda p, m, v, f, i, w: (m * v + p - 1) * (f + i + w) if m >= p or v == 1 else None,
    activations=lambda p, m, v: [m * v] * p,
    runs_two_copies=True,
    compared=0,
)
