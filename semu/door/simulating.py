"""``simulate``, ``prepare``, ``evaluate`` of a job or a run; ``of_run``, ``advised``: what reports have besides."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from semu import simulation
from semu.costs.result_cache import ResultCache
from semu.costs.roofline import LatencyRules
from semu.door.runs import RunName, job_of, of_runs
from semu.errors import ConfigError, SemuError
from semu.job import TrainingJob
from semu.present.report import Report
from semu.schedule.schedule import Schedule
from semu.schedule.stage_plan import StagePlan
from semu.simulation import estimate

if TYPE_CHECKING:
    from semu.runfile.config import RunConfig
    from semu.runfile.overrides import Changes, SaidCluster, SaidParallel


def simulate(
    job: TrainingJob | RunName,
    overrides: Changes = (),
    *,
    cluster: SaidCluster | None = None,
    parallel: SaidParallel | None = None,
    advice: bool = False,
    latency_rules: LatencyRules | None = None,
    progress: Callable[[str], None] | None = None,
    cache: ResultCache | None = None,
    samples: int = 0,
    seed: int = 0,
    contention: bool = False,
    plan: StagePlan | None = None,
    schedule: Schedule | str | None = None,
) -> Report:
    """Predict one training iteration: time, memory of every rank, timeline.

    Args:
        job: what to train, on what, how; or a run as ``semu.load_run`` reads it: the name of a model or setup, a run
            file, a config.json, a script of Megatron-LM. The report of a run has its ``settings`` and notes. Where a
            run file names samples (``[assignment]``), they are what is trained.
        overrides, cluster, parallel: of a run, as ``semu.load_run`` has them.
        advice: simulate changes too: ``reasons`` and ``advice`` of the report, or ``nearest_fit`` where the job does
            not fit. It takes as long as some ten simulations.
        latency_rules, progress, cache, samples, seed, contention, plan, schedule: see ``semu.simulation.simulate``;
            ``seed`` is that of the draws.
    Returns:
        The report. A job that does not fit in memory is reported (``fits`` is False), not refused.
    Raises:
        ConfigError: as ``semu.load_run`` and ``semu.simulation.simulate``; options of a run beside a job; advice beside
            what it does not try its changes with.
        ScheduleError: the schedule cannot order this pipeline.
    """
    job, run = job_of(job, overrides, cluster, parallel)
    if run is not None and plan is None and run.names_samples:
        from semu.door.assigning import assigned_run

        run, assigned = assigned_run(run, job, progress)
        assert assigned is not None
        job, plan = assigned.assigned_job, assigned.recipe
    other = {"latency_rules": latency_rules, "samples": samples, "contention": contention, "plan": plan}
    given = [key for key, value in {**other, "schedule": schedule}.items() if value]
    if advice and given:
        raise ConfigError(
            "advice is looked for without this option", where=given[0], expected=f"advice or {given[0]}, not both"
        )
    report = simulation.simulate(
        job,
        latency_rules=latency_rules,
        progress=progress,
        cache=cache,
        samples=samples,
        seed=seed,
        contention=contention,
        plan=plan,
        schedule=schedule,
    )
    if run is not None:
        report = of_run(report, run)
    return advised(job, report, progress=progress, cache=cache) if advice else report


def of_run(report: Report, run: RunConfig) -> Report:
    """The report with the settings and the notes of its run."""
    return replace(report, settings=run.settings(), warnings=(*report.warnings, *run.notes))


def advised(
    job: TrainingJob,
    report: Report,
    *,
    progress: Callable[[str], None] | None = None,
    cache: ResultCache | None = None,
    contention: bool = False,
    has_reasons: bool = True,
) -> Report:
    """The report with what would make its job faster, or, where it does not fit, with what would make it fit.

    Args:
        job: what was simulated. progress, cache, contention: as it was. has_reasons: look for the former at all.
    """
    if not report.fits:
        from semu.simulation.memory.changes_that_fit import nearest_fit

        fitting = nearest_fit(
            job,
            report,
            lambda other: simulation.simulate(other, cache=cache, contention=contention),
            progress or (lambda _: None),
        )
        return replace(report, nearest_fit=fitting)
    if has_reasons:
        from semu.searcher.what_if.advice import advise

        with suppress(SemuError):
            return advise(job, report, progress)
    return report


prepare = of_runs(simulation.prepare)
evaluate = of_runs(estimate.evaluate)
