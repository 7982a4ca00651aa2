"""``evaluate``: the metrics of ``simulate`` that a search compares, without its tables and its timeline."""

from __future__ import annotations

from semu.collector import without_collector
from semu.costs.result_cache import ResultCache
from semu.costs.roofline import LatencyRules
from semu.job import TrainingJob
from semu.present.estimate import Estimate
from semu.schedule.stage_plan import StagePlan
from semu.simulation.memory.reserved import device_room
from semu.simulation.preparation import prepare
from semu.simulation.results.estimated import Metrics, estimate_iteration, iteration_metrics


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
