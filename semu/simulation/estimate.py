"""``evaluate``: the metrics of ``simulate`` that a search compares, without its tables and its timeline."""

from __future__ import annotations

from semu.collector import without_collector
from semu.costs.result_cache import ResultCache
from semu.costs.roofline import LatencyRules
from semu.job import TrainingJob
from semu.present.estimate import Estimate
from semu.schedule.stage_plan import StagePlan
from semu.simulation.iteration import time_iteration
from semu.simulation.memory.reserved import device_room
from semu.simulation.preparation import prepare
from semu.simulation.results.estimated import Metrics, estimate_iteration, fullest_bytes, iteration_metrics


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

    Of other jobs only as much is worked out as says so: their pipeline, then what is allocated while it runs.

    Returns:
        None: it takes longer than ``limit_s`` [s], or does not fit.
    Raises:
        ConfigError, ScheduleError: as ``evaluate``, where that much is worked out.
    """
    with without_collector():
        timed = prepare(job).timed()
        steps_apart = job.training.optimizer_post_validation  # then an iteration may be shorter than its pipeline
        if not steps_apart and timed.run.makespan().max() > limit_s:
            return None
        if not job.gathers_once and fullest_bytes(timed) > device_room(job).usable_bytes:
            return None
        iteration = time_iteration(timed)
        if iteration.time_s > limit_s:
            return None
        return iteration.time_s if estimate_iteration(iteration).estimate.fits else None


def evaluate_metrics(job: TrainingJob) -> tuple[Metrics, int | None]:
    """The metrics of a job for a table of configurations, equal to those of ``evaluate``, and ``judged_bytes``.

    Raises:
        ConfigError, ScheduleError: as ``evaluate``.
    """
    iteration = prepare(job).iteration()
    metrics = iteration_metrics(iteration)
    if not device_room(job).is_tight(metrics.peak_memory_bytes):
        return metrics, None
    return metrics, estimate_iteration(iteration).estimate.judged_bytes
