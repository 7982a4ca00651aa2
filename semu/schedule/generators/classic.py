"""GPipe, 1F1B and interleaved 1F1B as families; their generators are functions that the simulation of jobs calls."""

from __future__ import annotations

from semu.parallel.pipeline import nearest_multiple
from semu.schedule.family import Misfit, ScheduleFamily, one_slot
from semu.schedule.generators.gpipe import gpipe
from semu.schedule.generators.interleaved import interleaved
from semu.schedule.generators.looped_bfs import looped_bfs
from semu.schedule.generators.one_f_one_b import one_f_one_b
from semu.schedule.placement import Placement


def _groups_of_p(p: int, m: int, v: int) -> Misfit | None:
    if v == 1 or m % p == 0:
        return None
    rule = "interleaved 1F1B runs its microbatches in groups of as many as there are ranks"
    return Misfit(rule, f"a multiple of {p} microbatches", m, nearest_multiple(m, p))


def _one_chunk(p: int, m: int, v: int, f: float, i: float, w: float) -> float:
    return (m + p - 1) * (f + i + w)


def _held(p: int, m: int, v: int) -> list[int]:
    if v == 1:
        return [min(m, p - rank) for rank in range(p)]
    return [min(m * v, 2 * (p - rank - 1) + (v - 1) * p + 1) for rank in range(p)]


families = (
    ScheduleFamily(
        "gpipe",
        lambda shape: gpipe(shape).orders,
        "1811.06965 §2.3",
        rules=(one_slot,),
        makespan=_one_chunk,
        activations=lambda p, m, v: [m * v] * p,
        generate=gpipe,
        overlaps_sends=False,
        is_bounded=True,
        is_tried=True,
    ),
    ScheduleFamily(
        "1f1b",
        lambda shape: one_f_one_b(shape).orders,
        "2006.09503 §3, 2104.04473 §2.2",
        rules=(one_slot,),
        makespan=_one_chunk,
        activations=_held,
        generate=one_f_one_b,
        alternates=True,
        overlaps_sends=False,
        is_bounded=True,
        compared=0,
        is_tried=True,
    ),
    ScheduleFamily(
        "interleaved",
        lambda shape: interleaved(shape).orders,
        "2104.04473 §2.2",
        Placement.CIRCULAR,
        rules=(_groups_of_p,),
        makespan=lambda p, m, v, f, i, w: (m * v + p - 1) * (f + i + w),
        activations=_held,
        generate=interleaved,
        alternates=True,
        overlaps_sends=False,
        is_bounded=True,
        compared=0,
        is_tried=True,
    ),
    looped_bfs,
)
