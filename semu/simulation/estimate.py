"""``evaluate``: the metrics of ``simulate`` that a search compares, without its tables and its timeline."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from semu.collector import without_collector
from semu.costs.result_cache import ResultCache
from semu.costs.roofline import LatencyRules
from semu.errors import ConfigError, ScheduleError
from semu.job import TrainingJob
from semu.nn.trace.sharding import ContextKind
from semu.present.estimate import Estimate
from semu.schedule import SCHEDULES
from semu.schedule.stage_plan import StagePlan
from semu.simulation.context import TimedJob
from semu.simulation.iteration import time_iteration
from semu.simulation.memory.reserved import device_room
from semu.simulation.preparation import prepare
from semu.simulation.results.estimated import (
    Metrics,
    estimate_iteration,
    fullest_bytes,
    iteration_metrics,
    pipeline_memory,
)
from semu.workload.batch import TextBatch
from semu.workload.listed import ListedBatch

_MANY = 4
"""Replicas: fewer cost little more than one."""


def evaluate(
    job: TrainingJob,
    *,
    latency_rules: LatencyRules | None = None,
    cache: ResultCache | None = None,
    plan: StagePlan | None = None,
) -> Estimate:
    """Predict the metrics that a search compares: time, memory of every rank, use of the devices.

    It is ``simulate`` without tables and timeline, and gives the same numbers.

    Args:
        job, latency_rules, cache, plan: as ``simulate``.
    Raises:
        ConfigError, ScheduleError: as ``simulate``.
    """
    with without_collector():
        return prepare(job, latency_rules=latency_rules, cache=cache, plan=plan).estimate()


def time_if_it_fits(job: TrainingJob, limit_s: float) -> float | None:
    """Iteration time of a job that fits in memory and takes no longer than a limit, as ``evaluate`` has it [s].

    Of other jobs only as much is worked out as says so: the first replica's pipeline and what is allocated while it
    runs, then those of all replicas.

    Returns:
        None: it takes longer than ``limit_s`` [s], or does not fit.
    Raises:
        ConfigError, ScheduleError: as ``evaluate``, where that much is worked out.
    """
    with without_collector():
        first = first_replica(job)
        if first is not None:
            with suppress(ConfigError, ScheduleError):  # what is wrong with the job is said of all of it
                alone = prepare(first).timed()
                if alone.run.num_replicas == 1 and _is_ruled_out(alone, limit_s):
                    return None
        timed = prepare(job).timed()
        if _is_ruled_out(timed, limit_s):
            return None
        iteration = time_iteration(timed)
        if iteration.time_s > limit_s:
            return None
        return iteration.time_s if estimate_iteration(iteration).estimate.fits else None


def first_replica(job: TrainingJob) -> TrainingJob | None:
    """The job with the first replica's microbatches on all replicas, which leaves that one's pipeline as it is.

    Returns:
        None: too few replicas differ to ask one first, or where the model is cut, its stages' order or the exchange of
        keys depends on all of them.
    """
    training, parallel, count = job.training, job.parallel, job.parallel.replicas
    if count < _MANY or isinstance(job.batch, TextBatch):
        return None
    if training.schedule_file is not None or training.schedule not in SCHEDULES:
        return None
    if parallel.cuts_by_time or parallel.modules or parallel.gathers_towers or parallel.spreads_vocabulary:
        return None
    if parallel.context_kind is ContextKind.AUTO:
        return None
    items = job.batch.microbatches(job.num_microbatches * count, training.micro_batch, training.seq_len)
    return replace(job, batch=ListedBatch(tuple([item for item in items[::count] for _ in range(count)])))


def _is_ruled_out(timed: TimedJob, limit_s: float) -> bool:
    """Whether an iteration takes longer than a limit [s] or does not fit, by its pipeline alone."""
    job = timed.job
    steps_apart = job.training.optimizer_post_validation  # then an iteration may be shorter than its pipeline
    if not steps_apart and timed.run.makespan().max() > limit_s:
        return True
    return not job.gathers_once and fullest_bytes(timed) > device_room(job).usable_bytes


def evaluate_metrics(job: TrainingJob) -> tuple[Metrics, int | None]:
    """The metrics of a job for a table of configurations, equal to those of ``evaluate``, and ``judged_bytes``.

    Raises:
        ConfigError, ScheduleError: as ``evaluate``.
    """
    iteration = prepare(job).iteration()
    memory = pipeline_memory(iteration)
    metrics = iteration_metrics(iteration, memory)
    if not device_room(job).is_tight(metrics.peak_memory_bytes):
        return metrics, None
    return metrics, estimate_iteration(iteration, memory).estimate.judged_bytes
