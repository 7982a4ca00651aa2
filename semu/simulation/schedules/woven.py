"""Schedules of jobs whose pipeline has gangs: a schedule of the layers, with the gangs' stages woven in."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from semu.schedule.family import ScheduleFamily
from semu.schedule.gangs.weaving import weave, without_gangs
from semu.schedule.graph import Wait, graph_of
from semu.schedule.phases import BACKWARD, CODE_OF_PHASE, FORWARD
from semu.schedule.rules.rule import Rule
from semu.schedule.schedule import Schedule
from semu.schedule.shape import StageKey
from semu.schedule.study import PipelineStudy


def woven_schedule(family: ScheduleFamily, study: PipelineStudy, limit: float | None, *, ends_apart: bool) -> Schedule:
    """The schedule of a family for the chunks that are in no gang, and the gangs between them.

    Args:
        family: of the layers' schedule. study: the whole job. limit, ends_apart: as ``ScheduleFamily.on_job``.
    Raises:
        ScheduleError: the schedule does not fit the layers.
    """
    inner = layers_study(study)
    if isinstance(family.orders, Rule):
        inner = family.orders.waiting(inner)
    if family.generate is not None:
        base = family.generate(inner.shape)
    elif family.adapt is not None:
        base = family.on_job(inner, limit, ends_apart=ends_apart)
    else:
        base = family(inner.shape)
    return with_gangs(base, study, max((wait.every for wait in inner.waits), default=1))


def with_gangs(base: Schedule, study: PipelineStudy, every: int = 1) -> Schedule:
    """An order of the layers with the gangs between them, by the times of the job's stages.

    Args:
        base: an order of ``without_gangs(study.shape)``. study: the whole job. every: as ``weave``.
    """
    graph, costs = graph_of(study.shape), study.costs

    def _of(values: NDArray[np.float64], stage: StageKey) -> float:
        return float(values[4 * (graph.first[stage.chunk] + stage.microbatch) + CODE_OF_PHASE[stage.phase]])

    return weave(base, study.shape, partial(_of, costs.latency_s), sends=partial(_of, costs.transfer_s), every=every)


def layers_study(study: PipelineStudy) -> PipelineStudy:
    """The chunks that are in no gang, with their costs; what a gang reads of one, the others' backwards wait for."""
    inner, kept = without_gangs(study.shape)
    graph = graph_of(study.shape)
    stages = [s for chunk in kept for s in range(4 * int(graph.first[chunk]), 4 * int(graph.first[chunk + 1]))]
    number = {chunk: place for place, chunk in enumerate(kept)}
    waits = []
    for members in study.shape.gangs:
        read = [number[source] for chunk in members for source in study.shape.sources[chunk]]
        waits += [Wait(one, FORWARD, other, BACKWARD) for one in read for other in read if one != other]
    return PipelineStudy(inner, study.costs.of_stages(stages), tuple(waits))
