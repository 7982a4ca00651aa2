"""The metrics that a report begins with, which are all that ``semu.evaluate`` and tables of configurations need."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semu.distinct import sorted_distinct
from semu.job import TrainingJob
from semu.present.estimate import Deferred, Estimate
from semu.records import dataclass
from semu.schedule.phases import NOTHING
from semu.schedule.stage_table import StageTable
from semu.simulation.context import PipelineRun, TimedJob
from semu.simulation.iteration import Iteration
from semu.simulation.memory.peaks import PipelineMemory, RankPeak
from semu.simulation.memory.ranks import RankMemory
from semu.simulation.memory.reserved import HeldMemory, device_room
from semu.simulation.memory.static import resident_memory
from semu.simulation.memory.unsharded import pipeline_unsharded
from semu.simulation.results.time_breakdown import Work, breakdown, bubble_ratio, count_work


class Metrics(NamedTuple):
    """What a table of configurations says of each: times [s], what is allocated on the fullest rank [bytes]."""

    iteration_time_s: float
    mfu: float
    bubble_ratio: float
    peak_memory_bytes: int


def iteration_metrics(iteration: Iteration, pipeline: PipelineMemory) -> Metrics:
    """The metrics of an iteration, equal to those of ``estimate_iteration``; ``pipeline``: as ``pipeline_memory``.

    A stage is looked at event by event only where it could raise the peak of the fullest rank; there is no breakdown.
    """
    run, time_s = iteration.run, iteration.time_s
    return Metrics(
        iteration_time_s=time_s,
        mfu=count_work(iteration).model_flop / possible_flop(iteration.job, time_s),
        bubble_ratio=bubble_ratio(iteration, int(np.argmax(run.makespan()))),
        peak_memory_bytes=_fullest_of(pipeline),
    )


def pipeline_memory(iteration: Iteration) -> PipelineMemory:
    """Dynamic memory of all pipeline ranks of an iteration."""
    return PipelineMemory(iteration, pipeline_unsharded(iteration))


def fullest_bytes(timed: TimedJob) -> int:
    """What is allocated at most on the fullest rank while the pipeline runs [bytes]."""
    return _fullest_of(PipelineMemory(timed))


def _fullest_of(pipeline: PipelineMemory) -> int:
    resident = [static.total + workspace for static, workspace in resident_memory(pipeline.layout)]
    return pipeline.fullest(np.array(resident, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class EstimatedIteration:
    """An estimate with what it is made from.

    Attributes:
        estimate: the metrics. slowest: the distinct replica with the longest pipeline.
        memories, peaks: of every pipeline rank. work: FLOP and tokens.
        peak_rate: FLOP that all devices could do during the iteration.
    """

    estimate: Estimate
    slowest: int
    memories: list[RankMemory]
    peaks: list[RankPeak]
    work: Work
    peak_rate: float


def estimate_iteration(iteration: Iteration, pipeline: PipelineMemory | None = None) -> EstimatedIteration:
    """Time, memory of every rank and use of the devices; ``pipeline``: its memory, where that is known."""
    job, run, time_s = iteration.job, iteration.run, iteration.time_s
    makespan = run.makespan()
    slowest = int(np.argmax(makespan))
    pipeline = pipeline_memory(iteration) if pipeline is None else pipeline
    memories = [RankMemory(iteration, rank, pipeline) for rank in range(job.parallel.pp)]
    resident = resident_memory(iteration.layout)
    peaks = [
        RankPeak(highest.size_bytes + static.total + workspace, highest.replica, highest.node)
        for highest, (static, workspace) in zip(pipeline.peaks, resident, strict=True)
    ]
    work = count_work(iteration)
    peak_rate, room = possible_flop(job, time_s), device_room(job)
    estimate = Estimate(
        iteration_time_s=time_s,
        makespan_s=float(makespan[slowest]),
        mfu=work.model_flop / peak_rate,
        hfu=work.hardware_flop / peak_rate,
        bubble_ratio=bubble_ratio(iteration, slowest),
        peak_memory_bytes=tuple(peak.size_bytes for peak in peaks),
        static_memory_bytes=tuple([static.total for static, _ in resident]),
        capacity_bytes=room.capacity_bytes,
        other_memory_bytes=room.other_bytes,
        memory_margin_bytes=room.margin_bytes,
        breakdown_s=Deferred(partial(breakdown, iteration, time_s)),
        reserve=HeldMemory(iteration, [peak.replica for peak in peaks], [peak.size_bytes for peak in peaks]),
    )
    return EstimatedIteration(estimate, slowest, memories, peaks, work, peak_rate)


def possible_flop(job: TrainingJob, iteration_time_s: float) -> float:
    """FLOP that all devices could do in the time of an iteration."""
    return job.profile.peak_flop_per_s(job.training.precision.compute_dtype) * job.cluster.num_gpus * iteration_time_s


def stage_table(run: PipelineRun, estimated: EstimatedIteration) -> StageTable:
    """Times of the slowest replica's stages; their memory is worked out when it is read."""
    nodes = np.flatnonzero(run.problem.phase != NOTHING)  # behind a whole backward among split ones
    slowest = estimated.slowest

    def highest() -> NDArray[np.int64]:
        """The most that each stage's rank has allocated while it runs: int64[n] [bytes]."""
        pipeline = estimated.memories[0].pipeline
        level = pipeline.summits.low[slowest].copy()
        doubtful = nodes[pipeline.summits.high[slowest, nodes] > level[nodes]]
        pipeline.load(run.shape[slowest, sorted_distinct(run.column[doubtful])].tolist())
        for node in doubtful.tolist():
            level[node] = pipeline.exact_summit(slowest, node, with_end=False)
        resident = np.array([memory.static.total + memory.workspace for memory in estimated.memories], dtype=np.int64)
        total: NDArray[np.int64] = level[nodes] + resident[run.problem.node_rank[nodes]]
        return total

    start, end = run.start[slowest, nodes], run.end[slowest, nodes]
    return StageTable(run.problem.schedule, run.problem.shape, start, end, estimated.estimate.bubble_ratio, highest)
