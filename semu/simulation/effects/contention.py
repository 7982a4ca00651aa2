"""Contention: transfers of an iteration that share ports slow one another down, and the pipeline waits for them.

``contend`` times the pipeline, the overlapped gathers and the gradient collectives again, all replicas together. What
comes after them (the optimizer with what surrounds it) runs when nothing else moves. Which gradients form a bucket
stays as it is without contention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from semu.compile.layout import Layout
from semu.distinct import sorted_distinct
from semu.engine.timeline import OuterSlice
from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.present.report import ContentionSummary
from semu.records import dataclass
from semu.simulation.context import ParameterGather, TimedJob, TouchedStage
from semu.simulation.data_parallel.reduce import Reduction
from semu.simulation.effects.link_units import UnitWriter
from semu.simulation.effects.port_units import JobUnits, WrittenStages

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Contended:
    """A job's times under contention.

    Attributes:
        timed, reductions: as without contention, with other times of stages, transfers, gathers and collectives.
        summary: what was touched, on the replica that ends last.
    """

    timed: TimedJob
    reductions: tuple[Reduction, ...]
    summary: ContentionSummary


def check_contention(contention: bool, samples: int, job: TrainingJob) -> None:
    """Samples repeat stages and transfers at their usual lengths; launches are not written out under contention.

    Raises:
        ConfigError: samples or launches under contention, or a bidirectional placement.
    """
    if contention and job.parallel.copies > 1:
        raise ConfigError(
            "contention in a bidirectional pipeline, whose collectives wait for two ranks, is not modelled by this "
            "version",
            where="parallel.placement",
            expected="circular or v-shape, or no contention",
            got=job.parallel.placement,
            nearest="no contention",
        )
    if contention and job.hides_exchanges:
        raise ConfigError(
            "contention of hidden exchanges of experts' tokens is not modelled by this version",
            where="overlap.expert_parallel",
            expected="false, or no contention",
            got="contention",
            nearest="no contention",
        )
    if contention and job.training.launches:
        raise ConfigError(
            "training.launch with contention is not modelled by this version",
            where="training.launch",
            expected="false, or no contention",
            got="contention",
            nearest="no contention",
        )
    if contention and samples:
        raise ConfigError(
            "samples with contention are not modelled by this version",
            where="samples",
            expected="0, or no contention",
            got=samples,
            nearest=0,
        )


def contend(timed: TimedJob, reductions: Sequence[Reduction]) -> Contended:
    """Time a job, timed without contention, and its gradient collectives again: transfers share ports."""
    run, units = timed.run, timed.units
    writer = UnitWriter(timed, reductions)
    job = writer.write()
    graph = job.build(writer.num_ports)
    start, end = graph.run()
    begins = np.arange(run.num_replicas)[:, None] * units.num_units + writer.unit_of[None, :]
    starts, ends = start[begins], end[job.tail[:, writer.unit_of]]
    inside: dict[tuple[int, int], TouchedStage] = {}
    for stages in job.written:
        inside.update(_touched(stages, starts, start, end))
    contended = replace(run, start=starts, end=ends, latency=ends - starts, release={}, inside=inside)
    lost = np.maximum(end - start - graph.fixed - graph.work, 0.0)
    slowest = int(np.argmax(contended.makespan()))
    return Contended(
        replace(timed, run=contended, gathers=_timed_gathers(job, timed.gathers, start, end)),
        tuple(
            replace(item, piece=_timed(item.piece, start[unit], end[unit]))
            for unit, item in enumerate(reductions, start=job.reductions)
        ),
        _summary(timed.layout, writer, job, inside, lost, slowest),
    )


def _touched(stages: WrittenStages, starts: F64, start: F64, end: F64) -> dict[tuple[int, int], TouchedStage]:
    """The stages whose operators do not run as their template says."""
    program = stages.program
    alone: dict[int, tuple[F64, F64, float, F64]] = {}
    result: dict[tuple[int, int], TouchedStage] = {}
    for number, (replica, node, first, shape) in enumerate(
        zip(stages.replica.tolist(), stages.node.tolist(), stages.first.tolist(), stages.shape.tolist(), strict=True)
    ):
        operators = slice(first, first + program.num_ops)
        begin = starts[replica, node]
        begins, ends = start[operators] - begin, end[operators] - begin
        if shape not in alone:
            alone[shape] = program.timed(stages.latency[number])
        usual_start, usual_end, usual, exposed = alone[shape]
        if (begins == usual_start).all() and (ends == usual_end).all():
            continue
        held, more = 0.0, np.zeros_like(exposed)
        if (ends - begins != stages.latency[number]).any():
            lasts, waits = program.timed(ends - begins)[2:]
            held, more = lasts - usual, waits - exposed
        result[replica, node] = TouchedStage(begins, ends, held, more)
    return result


def _timed(piece: OuterSlice, start: float, end: float) -> OuterSlice:
    return replace(piece, start_s=float(start), end_s=float(end))


def _timed_gathers(
    job: JobUnits, gathers: Mapping[int, ParameterGather], start: F64, end: F64
) -> dict[int, ParameterGather]:
    unit = job.gathers
    result: dict[int, ParameterGather] = {}
    for rank, gather in sorted(gathers.items()):
        times = range(unit, unit + len(gather.slices))
        slices = tuple(_timed(piece, start[u], end[u]) for piece, u in zip(gather.slices, times, strict=True))
        result[rank] = replace(gather, slices=slices)
        unit += len(gather.slices)
    return result


def _summary(
    layout: Layout,
    writer: UnitWriter,
    job: JobUnits,
    inside: Mapping[tuple[int, int], TouchedStage],
    lost: F64,
    replica: int,
) -> ContentionSummary:
    """What one replica's transfers lost; a collective of several ranks counts on each."""
    by_stream: dict[str, float] = {}
    count = slowed = 0

    def _see(name: str, seconds: F64) -> None:
        nonlocal count, slowed
        count += seconds.size
        slowed += int((seconds > 0).sum())
        total = float(seconds.sum())
        if total > 0:
            by_stream[name] = by_stream.get(name, 0.0) + total

    units = writer.units
    is_send = np.tile(np.arange(units.size) >= units.num_stages, units.shape.num_microbatches)
    _see("pp", lost[replica * units.num_units + np.flatnonzero(is_send)])
    pieces = [piece for _, gather in sorted(writer.gathers.items()) for piece in gather.slices]
    for number, piece in enumerate(pieces):
        _see(piece.stream, lost[job.gathers + number :][:1])
    for number, item in enumerate(writer.reductions):
        _see(item.piece.stream, np.repeat(lost[job.reductions + number], len(item.ranks)))
    for stages in job.written:
        first = stages.first[stages.replica == replica]
        for stream in sorted_distinct(stages.program.stream[stages.moves]).tolist():
            ops = np.flatnonzero(stages.moves & (stages.program.stream == stream))
            _see(layout.streams[stream], lost[first[:, None] + ops[None, :]])
    held = {node for (number, node), stage in inside.items() if number == replica and stage.held_s > 0}
    moved = {
        int(node)
        for stages in job.written
        for number, node, first in zip(stages.replica, stages.node, stages.first, strict=True)
        if number == replica and lost[first : first + stages.program.num_ops].any()
    }
    return ContentionSummary(
        transfers=count,
        slowed=slowed,
        lost_s=dict(sorted(by_stream.items())),
        stages=writer.run.problem.num_stages,
        touched_stages=len(held | moved),
    )
