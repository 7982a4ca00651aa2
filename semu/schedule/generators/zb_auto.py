"""The automatic zero-bubble scheduler with an activation limit (2401.10241 §3): from real times to an order.

    rank 0 |F0F1F2F3      I0W0F4I1W1F5I2W2I3W3I4W4I5W5|
    rank 1 |  F0F1F2    I0F3I1W0F4I2W1F5I3W2I4W3I5W4W5|
    rank 2 |    F0F1  I0F2I1F3I2W0F4I3W1F5I4W2I5W3W4W5|
    rank 3 |      F0I0F1I1F2I2F3I3W0F4I4W1F5I5W2W3W4W5|

The list scheduler's choices, and the handcrafted ZB-H1 and ZB-H2 where they fit, on the pipeline's own numbers; the
best of them wins. On plain numbers that is the shortest makespan, then the shortest span of a rank: within p
microbatches' activations never later than ZB-H1, within 2 p never later than ZB-H2; equal stages with f = i = w reach
both closed forms. For a training job it is the shortest span of a rank where ranks end an iteration apart
(post-validated optimizer steps, §4), else the shortest makespan, and then the lowest memory.
"""

from __future__ import annotations

from semu.errors import MemoryLimitError
from semu.schedule.family import ScheduleFamily, one_slot
from semu.schedule.generators.zb_h1 import zb_h1
from semu.schedule.generators.zb_h2 import zb_h2
from semu.schedule.rules.alternate import Alternate
from semu.schedule.rules.best_of import BestOf
from semu.schedule.rules.earliest_start import EarliestStart
from semu.schedule.rules.limits import activation_limit
from semu.schedule.schedule import StageColumns
from semu.schedule.study import PipelineStudy, StudyResult

CHOICES = (
    *(
        EarliestStart(split=True, patient=patient, eager_weights=eager, slack=slack)
        for patient in (False, True)
        for eager, slack in ((False, 0.0), (False, 0.5), (True, 0.0))
    ),
    Alternate(warm_up="p - r - 1", weight_delay="r"),
    Alternate(warm_up="2 * (p - r - 1)", weight_delay="2 * r"),
)
"""What is tried: the list scheduler, ZB-H1, ZB-H2."""


def _of_job(study: PipelineStudy, times: float, ends_apart: bool) -> StageColumns:
    """The best for a training job.

    Args:
        study: the job's stages, one slot per rank.
        times: limit of the activations of every rank, in multiples of p of its largest microbatches.
        ends_apart: ranks need not wait for one another at the end of an iteration.
    Raises:
        MemoryLimitError: the limit is below one microbatch.
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

    def _score(found: StudyResult) -> tuple[float, int]:
        return found.span_s if ends_apart else found.makespan_s, int(found.peak_bytes.max(initial=0))

    return BestOf(CHOICES).on(study, activation_limit(study, int(times * p)), score=_score)


def _family(name: str, times: int, reached: ScheduleFamily, compared: int | None = None) -> ScheduleFamily:
    """Within the activations of ``times`` p microbatches."""
    rule = BestOf(CHOICES, activations=f"{times} * p")
    return ScheduleFamily(
        name,
        rule,
        "2401.10241 §3",
        doc=__doc__,
        splits_backward=True,
        rules=(one_slot,),
        makespan=lambda p, m, v, f, i, w: reached.makespan(p, m, v, f, i, w) if f == i == w else None,
        adapt=rule.on,
        adapt_within=_of_job,
        activation_limit=times,
        compared=compared,
    )


zb_auto = _family("zb-auto", 1, zb_h1, compared=0)
"""Within the activations of p microbatches."""

zb_auto_2p = _family("zb-auto-2p", 2, zb_h2)
"""Within the activations of 2 p microbatches."""
