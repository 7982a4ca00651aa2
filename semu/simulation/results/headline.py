"""The figures that a report begins with, and all that ``semu.evaluate`` computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from semu.compile.layout import Layout
from semu.costs.evaluation import Evaluation
from semu.job import TrainingJob
from semu.present.estimate import Estimate
from semu.simulation.data_parallel.gather import ParameterGather
from semu.simulation.data_parallel.step import RankTail
from semu.simulation.memory.peaks import PipelineMemory, RankPeak
from semu.simulation.memory.ranks import RankMemory
from semu.simulation.memory.reserved import reserved_memory
from semu.simulation.memory.unsharded import pipeline_unsharded
from semu.simulation.pipeline import PipelineRun
from semu.simulation.results.breakdown import Work, breakdown, bubble_ratio, count_work, overhead_s


@dataclass(frozen=True, eq=False)
class Headline:
    """An estimate with what it was found from.

    Attributes:
        estimate: the figures. slowest: the distinct replica with the longest pipeline.
        memories, peaks: of every pipeline rank. work: FLOP and tokens.
        peak_rate: FLOP that all devices could do during the iteration.
    """

    estimate: Estimate
    slowest: int
    memories: list[RankMemory]
    peaks: list[RankPeak]
    work: Work
    peak_rate: float


def headline(
    layout: Layout,
    evaluation: Evaluation,
    run: PipelineRun,
    tails: list[RankTail],
    gathers: Mapping[int, ParameterGather],
) -> Headline:
    """Time, memory and use of the devices.

    Args:
        layout, evaluation, run, tails: the simulated job. gathers: before the first forwards, by rank.
    """
    job = layout.job
    makespan = run.makespan()
    slowest = int(np.argmax(makespan))
    iteration = iteration_time(job, run, tails)
    held = pipeline_unsharded(layout, evaluation, run, gathers, [tail.reductions for tail in tails])
    pipeline = PipelineMemory(layout, evaluation, run, held)
    memories = [RankMemory(layout, evaluation, run, rank, pipeline) for rank in range(job.parallel.pp)]
    peaks = [memory.peak() for memory in memories]
    work = count_work(layout, evaluation)
    peak_rate = possible_flop(job, iteration)
    estimate = Estimate(
        iteration_time_s=iteration,
        makespan_s=float(makespan[slowest]),
        mfu=work.model_flop / peak_rate,
        hfu=work.hardware_flop / peak_rate,
        bubble_ratio=bubble_ratio(run, slowest),
        peak_memory_bytes=tuple(peak.size_bytes for peak in peaks),
        static_memory_bytes=tuple(memory.static.total for memory in memories),
        capacity_bytes=int(job.profile.memory_bytes.value),
        breakdown_s=breakdown(layout, evaluation, run, tails, iteration).to_json(),
        reserve=partial(
            reserved_memory,
            layout,
            evaluation,
            run,
            [peak.replica for peak in peaks],
            [peak.size_bytes for peak in peaks],
        ),
    )
    return Headline(estimate, slowest, memories, peaks, work, peak_rate)


def possible_flop(job: TrainingJob, iteration_time_s: float) -> float:
    """FLOP that all devices could do in the time of an iteration."""
    return job.profile.peak_flop_per_s(job.training.precision.compute_dtype) * job.cluster.num_gpus * iteration_time_s


def iteration_time(job: TrainingJob, run: PipelineRun, tails: list[RankTail]) -> float:
    """End of everything on every rank, and the time outside the model [s], on the time grid.

    Where ranks step apart, the longest time of a rank from its first stage to its last end: moved by that, all stages
    of the next iteration find their ranks free and what they wait for done (2401.10241 §4).
    """
    if job.training.optimizer_post_validation:
        busy = [max(run.rank_ends[rank], tail.end_s) - run.first_start(rank) for rank, tail in enumerate(tails)]
        return max(busy) + overhead_s(job)
    ends = max(float(run.makespan().max()), *(tail.end_s for tail in tails))
    return ends + overhead_s(job)
