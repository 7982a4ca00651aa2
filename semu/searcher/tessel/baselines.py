"""Tessel and Tessel-fast, baselines of FlexPipe (§7): the MLLM placement under a searched repetend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from semu.baselines import BASELINES, Baseline, t_1f1b
from semu.checks import find_named
from semu.job import TrainingJob
from semu.records import dataclass
from semu.schedule.phases import PHASES
from semu.schedule.schedule import Schedule
from semu.schedule.shape import StageKey
from semu.schedule.study import PipelineStudy
from semu.searcher.assignment.configuration import entrain, entrain_literal
from semu.searcher.tessel.blocks import Blocks
from semu.searcher.tessel.phases import Placed, complete, in_order
from semu.searcher.tessel.repetend import find_repetend
from semu.simulation import prepare
from semu.simulation.memory.reserved import device_room
from semu.simulation.memory.static import resident_memory
from semu.simulation.schedules.named import pipeline_study

SEARCH_S = 120.0
"""How long a repetend is looked for [s]; as long again for warm-up and cool-down."""


@dataclass(frozen=True)
class TesselSchedule:
    """What was found.

    Attributes:
        schedule: the order. period_s: of the repetend [s]. least_period_s: the work of the busiest rank [s].
        is_shortest: no shorter period of those that were tried has a repetend.
    """

    schedule: Schedule
    period_s: float
    least_period_s: float
    is_shortest: bool


def search_tessel(
    study: PipelineStudy,
    limit_bytes: tuple[int, ...] | None = None,
    *,
    is_fast: bool = False,
    time_s: float = SEARCH_S,
    workers: int = 2,
) -> TesselSchedule:
    """Tessel's schedule of a pipeline.

    Args:
        study: with alike microbatches and whole backwards. limit_bytes: of activations on every rank; None: any.
        is_fast: warm-up and cool-down as the repetend has them. time_s: of the repetend, and of the phases [s].
        workers: threads.
    Raises:
        ConfigError: no repetend within the time or memory.
    """
    blocks = Blocks.of(study)
    repetend = find_repetend(blocks, limit_bytes, time_s=time_s, workers=workers)
    m = study.shape.num_microbatches
    schedule = _schedule("tessel-fast" if is_fast else "tessel", blocks, in_order(blocks, repetend, m), study)
    if not is_fast:
        placed = complete(blocks, repetend, m, time_s=time_s / 2, workers=workers)
        found = _schedule("tessel", blocks, placed, study)
        schedule = min(schedule, found, key=lambda one: study.evaluate(one).makespan_s)
    least = blocks.least_period * blocks.tick_s
    return TesselSchedule(schedule, repetend.period * blocks.tick_s, least, repetend.is_shortest)


def _schedule(name: str, blocks: Blocks, placed: list[Placed], study: PipelineStudy) -> Schedule:
    """Placed blocks as the orders of ranks."""
    orders: list[list[StageKey]] = [[] for _ in range(study.shape.num_ranks)]
    for number, microbatch in placed:
        block = blocks.blocks[number]
        for rank, (chunk, code) in zip(block.ranks, block.stages, strict=True):
            orders[rank].append(StageKey(chunk, PHASES[code], microbatch))
    schedule = Schedule.build(name, orders)
    schedule.validate(study.shape)
    return schedule


def tessel(job: TrainingJob, *, is_fast: bool = False, time_s: float = SEARCH_S) -> Baseline:
    """The job of T-1F1B under Tessel's schedule, within the memory of the device.

    Args:
        job: what to train. is_fast: Tessel-fast. time_s: as ``search_tessel``.
    Raises:
        ConfigError: as ``t_1f1b``; no repetend within the time or memory.
    """
    base = t_1f1b(job)
    checkpoint = prepare(base.job)
    study = pipeline_study(checkpoint, splits=False)
    room = device_room(base.job).usable_bytes
    static = np.array([own.total + work for own, work in resident_memory(checkpoint.layout)])
    limit = tuple(int(max(size, 0)) for size in room - static)
    found = search_tessel(study, limit, is_fast=is_fast, time_s=time_s)
    note = (
        f"{found.schedule.name}: a period of {found.period_s:.4g} s a microbatch; the busiest rank works "
        f"{found.least_period_s:.4g} s" + ("" if found.is_shortest else "; shorter ones were not ruled out")
    )
    name = found.schedule.name
    return Baseline(name, "Tessel, HPCA 2024", base.job, base.changes, (note,), found.schedule)


def tessel_fast(job: TrainingJob) -> Baseline:
    """``tessel`` with warm-up and cool-down as the repetend has them."""
    return tessel(job, is_fast=True)


ALL_BASELINES: Mapping[str, Callable[[TrainingJob], Baseline]] = MappingProxyType(
    {
        **BASELINES,
        "tessel": tessel,
        "tessel-fast": tessel_fast,
        "entrain": entrain,
        "entrain-literal": entrain_literal,
    }
)
"""Every baseline by the name that ``--baseline`` uses, searched ones too."""


def any_baseline(name: str, *, where: str = "baseline") -> Callable[[TrainingJob], Baseline]:
    """The baseline of a name.

    Raises:
        ConfigError: an unknown name, with a 'did you mean'.
    """
    return find_named("baseline", name, ALL_BASELINES, where=where)
