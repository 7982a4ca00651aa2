"""``compare_schedules``: a job under many schedules, each on the cut that it needs, through the engine of ``simulate``.

Tracing, cutting and costing are shared where cuts are equal (what ``prepare`` remembers), so that a further schedule
costs its order and one run of the pipeline. ``semu.schedule.compare`` does the same on plain numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from semu.costs.result_cache import ResultCache
from semu.costs.roofline import LatencyRules
from semu.errors import ConfigError, MemoryLimitError, ScheduleError
from semu.job import TrainingJob
from semu.schedule.registry import ALL_SCHEDULES, compared_schedules, schedule_family
from semu.simulation.preparation import prepare
from semu.simulation.schedules.comparison import ComparedSchedule, RefusedSchedule, ScheduleComparison
from semu.simulation.schedules.cuts import job_for

EVERY = "all"
"""Stands for all schedules."""


def compare_schedules(
    job: TrainingJob,
    names: Iterable[str] | str | None = None,
    *,
    latency_rules: LatencyRules | None = None,
    progress: Callable[[str], None] | None = None,
    cache: ResultCache | None = None,
) -> ScheduleComparison:
    """Predict an iteration of a job under many schedules.

    Each runs on its own placement, with the job's ``parallel.vpp`` where it allows that, else with the fewest chunks
    that it needs; everything else of the job stays. Every figure is the one that ``simulate(row.job)`` gives.

    Args:
        job: the run; its schedule is always the first row of the comparison.
        names: of schedules, ``"all"`` among them or alone for every one; None: one
            of each idea (``compared_schedules``).
        latency_rules, progress, cache: as ``simulate``.
    Returns:
        the schedules in the order asked for, and those that cannot run this job with the rule that they break.
    Raises:
        ConfigError: an unknown name; and as ``simulate``, of the job's own schedule. ScheduleError: the same.
    """
    chosen = _chosen(names)
    for name in chosen:
        schedule_family(name)

    def _run(variant: TrainingJob, name: str | None = None) -> ComparedSchedule:
        if progress is not None:
            progress(f"running the schedule {name or job.training.schedule_file or job.training.schedule}")
        checkpoint = prepare(variant, latency_rules=latency_rules, cache=cache)
        estimate, stages = checkpoint.staged()
        is_file = variant.training.schedule_file is not None
        return ComparedSchedule(
            stages.schedule.name if is_file else variant.training.schedule, variant, estimate, stages
        )

    original = _run(job)
    rows, refused = [original], list[RefusedSchedule]()
    for name in chosen:
        try:
            variant = job_for(job, name)
            if not original.is_same(variant):
                rows.append(_run(variant, name))
        except (ConfigError, ScheduleError, MemoryLimitError) as error:
            refused.append(RefusedSchedule(name, error))
    return ScheduleComparison(tuple(rows), tuple(refused), None if names is None else tuple(chosen))


def _chosen(names: Iterable[str] | str | None) -> list[str]:
    """Names, each once."""
    given = [names] if isinstance(names, str) else compared_schedules() if names is None else names
    return [*dict.fromkeys(one for name in given for one in (ALL_SCHEDULES if name == EVERY else (name,)))]
