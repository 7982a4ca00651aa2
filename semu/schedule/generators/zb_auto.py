"""The automatic zero-bubble scheduler with an activation limit (2401.10241 §3): from real times to an order.

    rank 0 |F0F1F2F3      I0W0F4I1W1F5I2W2I3W3I4W4I5W5|
    rank 1 |  F0F1F2    I0F3I1W0F4I2W1F5I3W2I4W3I5W4W5|
    rank 2 |    F0F1  I0F2I1F3I2W0F4I3W1F5I4W2I5W3W4W5|
    rank 3 |      F0I0F1I1F2I2F3I3W0F4I4W1F5I5W2W3W4W5|

The list scheduler's policies, and the handcrafted ZB-H1 and ZB-H2 where they fit, on the pipeline's own numbers; the
best of them wins. Two functions choose:

- ``zb_auto_of_study``, for a pipeline given as plain numbers: the shortest makespan, then the shortest span of a rank.
  Within p microbatches' activations it is never later than ZB-H1, within 2 p never later than ZB-H2; equal stages with
  f = i = w reach both closed forms.
- ``zb_auto_of_job``, for a training job: the shortest span of a rank where ranks end an iteration apart (post-validated
  optimizer steps, §4), else the shortest makespan, and then the lowest memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from semu.errors import MemoryLimitError
from semu.schedule.family import ScheduleFamily, one_slot
from semu.schedule.generators.zb_h1 import zb_h1
from semu.schedule.generators.zb_h2 import zb_h2
from semu.schedule.rules.list_scheduler import (
    POLICIES,
    activation_limit,
    held_bytes,
    list_schedule,
    merit,
    search_policies,
)
from semu.schedule.schedule import Schedule
from semu.schedule.study import PipelineStudy


def zb_auto_of_study(study: PipelineStudy, limit_bytes: ArrayLike | None = None, name: str = "zb-auto") -> Schedule:
    """The best zero-bubble schedule of a pipeline given as plain numbers; see ``zb_auto_of_job``.

    Args:
        study: a pipeline with one slot per rank, and its costs.
        limit_bytes: of activations, one number or one per rank [bytes]; by default none.
    Raises:
        MemoryLimitError: a rank has no room for a microbatch. ScheduleError: several slots.
    """
    shape = study.shape
    zb_h1.check_shape(shape)
    best = search_policies(study, name, limit_bytes=limit_bytes)
    reached = merit(study.evaluate(best))
    if shape.is_plain:
        least = held_bytes(study).min(axis=0, initial=2**62)
        for family in (zb_h1, zb_h2):
            held = family.activations(shape.num_ranks, shape.num_microbatches, 1)
            needed = np.array(held, dtype=np.int64) * least
            if limit_bytes is not None and not np.all(needed <= np.asarray(limit_bytes)):
                continue
            made = family(shape)
            found = study.evaluate(made)
            fits = limit_bytes is None or bool(np.all(found.peak_bytes <= np.asarray(limit_bytes)))
            if fits and merit(found) < reached:
                best, reached = Schedule(name, made.orders), merit(found)
    return best


def zb_auto_of_job(study: PipelineStudy, times: float, ends_apart: bool, name: str = "zb-auto") -> Schedule:
    """The best zero-bubble schedule of a training job; see ``zb_auto_of_study``.

    Args:
        study: the job's stages, one slot per rank.
        times: limit of the activations of every rank, in multiples of p of its largest microbatches.
        ends_apart: ranks need not wait for one another at the end of an iteration: the longest span of a rank decides,
            else the makespan; of equals the lowest peak memory of a rank.
    Raises:
        MemoryLimitError: the limit is below one microbatch. ScheduleError: several slots.
    """
    p = study.shape.num_ranks
    if int(times * p) < 1:
        raise MemoryLimitError(
            "rank 0 has no room for a microbatch",
            where="training.activation_limit",
            expected=f"at least one microbatch, {1 / p:g}p of p = {p} ranks",
            got=f"{times:g}p",
            nearest=f"{1 / p:g}p",
        )
    limit = activation_limit(study, int(times * p))
    candidates = [list_schedule(study, name, limit_bytes=limit, split=True, policy=policy) for policy in POLICIES]
    for family in (zb_h1, zb_h2):
        made = Schedule(name, family(study.shape).orders)
        if np.all(study.evaluate(made).peak_bytes <= limit):
            candidates.append(made)

    def _cost(schedule: Schedule) -> tuple[float, int]:
        result = study.evaluate(schedule)
        return result.span_s if ends_apart else result.makespan_s, int(result.peak_bytes.max(initial=0))

    return min(candidates, key=_cost)


def _family(name: str, times: int, reached: ScheduleFamily, compared: int | None = None) -> ScheduleFamily:
    """Within the activations of ``times`` p microbatches."""

    def _adapt(study: PipelineStudy) -> Schedule:
        return zb_auto_of_study(study, activation_limit(study, times * study.shape.num_ranks), name)

    return ScheduleFamily(
        name,
        lambda shape: _adapt(PipelineStudy.of(shape)).orders,
        "2401.10241 §3",
        splits_backward=True,
        rules=(one_slot,),
        makespan=lambda p, m, v, f, i, w: reached.makespan(p, m, v, f, i, w) if f == i == w else None,
        adapt=_adapt,
        adapt_within=lambda study, limit, ends_apart: zb_auto_of_job(study, limit, ends_apart, name),
        activation_limit=times,
        compared=compared,
    )


zb_auto = _family("zb-auto", 1, zb_h1, compared=0)
"""Within the activations of p microbatches."""

zb_auto_2p = _family("zb-auto-2p", 2, zb_h2)
"""Within the activations of 2 p microbatches."""
