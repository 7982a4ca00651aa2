"""``evaluate``: the metrics of ``simulate`` that a search compares, without its tables and its timeline."""

from __future__ import annotations

from semu.costs.result_cache import ResultCache
from semu.costs.roofline import LatencyRules
from semu.job import TrainingJob
from semu.present.estimate import Estimate
from semu.schedule.stage_plan import StagePlan
from semu.simulation.preparation import prepare
from semu.simulation.results.estimated import Metrics, iteration_metrics


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
    return prepare(job, latency_rules=latency_rules, cache=cache, plan=plan).estimate()


def evaluate_metrics(job: TrainingJob) -> Metrics:
    """The metrics of a job for a table of configurations, equal to those of ``evaluate``.

    Raises:
        ConfigError, ScheduleError: as ``evaluate``.
    """
    return iteration_metrics(prepare(job).iteration())
