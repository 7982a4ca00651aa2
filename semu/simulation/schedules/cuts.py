"""Which cut of a job each schedule runs on: its own placement, the run's virtual stages where the schedule allows them.

A schedule keeps the run's ``parallel.vpp`` where it can, and else takes the fewest chunks that it needs: one, or two
where it is made for several (a circular placement of one chunk is one-to-one, and the schedule plain 1F1B or GPipe).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.parallel.config import PLACEMENTS
from semu.schedule.family import ScheduleFamily
from semu.schedule.placement import Placement
from semu.schedule.registry import schedule_family

MOST_SLOTS = 4
"""Virtual stages that are tried where a schedule does not take the run's."""


def job_for(job: TrainingJob, name: str) -> TrainingJob:
    """The job under another schedule, cut as this needs it.

    Raises:
        ConfigError: an unknown name, sizes that it does not fit (the rule), a cut that
            the model does not allow.
    """
    family, parallel = schedule_family(name), job.parallel
    vpp, placement = cut_for(family, parallel.pp, parallel.vpp, parallel.placement, lambda v: job.num_microbatches)
    limit = job.training.activation_limit if family.activation_limit is not None else None
    return replace(
        job,
        parallel=replace(parallel, vpp=vpp, placement=placement),
        training=replace(job.training, schedule=name, schedule_file=None, activation_limit=limit),
    )


def cut_for(family: ScheduleFamily, pp: int, vpp: int, placement: str, count: Callable[[int], int]) -> tuple[int, str]:
    """Virtual stages per rank and placement with which a schedule runs a pipeline.

    Args:
        family: the schedule. pp, vpp, placement: of the run. count: virtual stages -> microbatches of a replica.
    Raises:
        ConfigError: sizes that the schedule does not fit (the rule).
    """
    if not family.is_placed:
        return vpp, placement
    copies, least = family.placement.copies, family.placement.fewest_slots
    if family.placement is Placement.BIDIRECTIONAL:  # two groups of layers per rank, one of each copy
        vpp = 1
    wanted = dict.fromkeys((vpp * copies, *range(copies, max(MOST_SLOTS, least) + 1, copies)))
    slots = [v for v in wanted if v >= max(family.fewest_slots, least) or pp == 1]
    v = next((v for v in slots if family.misfit(pp, count(v), v) is None), None)
    if v is None:
        misfit = family.misfit(pp, count(slots[0]), slots[0])
        assert misfit is not None
        raise ConfigError(misfit.rule, where="schedule", expected=misfit.expected, got=misfit.got)
    return v // copies, _placement(family, placement, keeps=v == vpp)


def _placement(family: ScheduleFamily, placement: str, *, keeps: bool) -> str:
    """``parallel.placement`` for a schedule; ``keeps``: the run's virtual stages stay."""
    wanted = family.placement.value
    if wanted in PLACEMENTS and wanted != "circular":
        return wanted
    is_v = family.adapt is not None and keeps and placement == "v-shape"
    return "v-shape" if is_v else "circular"
