"""``simulate``: a training job becomes a ``Report``; ``prepare``: the part of it that no schedule changes.

A job becomes, step by step, a ``CostedJob`` (``semu.costs.evaluation``: compiled and costed), a ``SimulatedJob`` and a
``TimedJob`` (``context``: its pipeline before a schedule and under one), an ``Iteration`` (``iteration``: reductions
and optimizer timed too) and a ``Report`` (``results``). ``prepare`` makes the second as a ``JobCheckpoint``
(``checkpoint``), which is restored under schedules; ``pipeline`` times stages and transfers, with ``transfers``,
``bindings`` and ``unit_programs``. ``data_parallel`` holds gathers, reductions and the step, ``memory`` peaks, curves
and reserved memory, ``effects`` launches, contention, noise and uncertainty, ``schedules`` the schedule of a name and
comparisons of many. ``estimate`` is the door for a search that needs the first figures only.

The job's recipe (``semu.compile.recipe``) says what every stage runs; without a ``StagePlan`` it is trivial.

What is remembered between calls is in tables of ``semu.memo``, each declared in the file whose results it holds: of a
model as long as nothing in it changes, of its cut into chunks, of the place of the chunks on a cluster, of the costs of
chunks for a batch's shapes, of a lowered schedule, of the process.
"""

from __future__ import annotations

from collections.abc import Callable

from semu.costs.result_cache import ResultCache
from semu.costs.roofline import LatencyRules
from semu.job import TrainingJob
from semu.present.report import Report
from semu.schedule.schedule import Schedule
from semu.schedule.stage_plan import StagePlan
from semu.simulation.checkpoint import JobCheckpoint
from semu.simulation.preparation import prepare

__all__ = ["JobCheckpoint", "prepare", "simulate"]


def simulate(
    job: TrainingJob,
    *,
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
        job: what to train, on what, how.
        latency_rules: custom latencies by operator kind; they replace semu's roofline where they return a number.
        progress: called with a line at the start of each step.
        cache: results of model blocks that were computed before, e.g. ``ResultCache("folder")``; it changes no result.
            None: one in memory, shared by all simulations of the process. Custom latencies are not cached.
        samples: so many iterations are drawn with ``training.jitter``; the report gives their p50 and p95. 0: none.
        seed: of the draws.
        contention: transfers that use the same port of a GPU at the same time share it (max-min fair), and the report
            says what that cost; else each runs as if alone.
        plan: sub-microbatches, chunks, variants of stages and the order of everything (``semu.schedule.stage_plan``);
            None: what ``training.schedule_file`` holds, if that is a plan (``.json``), else the job's schedule.
        schedule: the order of all stages, or the name of a schedule that the job's cut can run; None: the job's own.
    Returns:
        The report. A job that does not fit in memory is reported (``fits`` is False), not refused.
    Raises:
        ConfigError: sizes or options that do not fit together, or that this version does not model.
        ScheduleError: the schedule cannot order this pipeline.
    """
    return prepare(job, latency_rules=latency_rules, progress=progress, cache=cache, plan=plan).report(
        schedule, progress=progress, samples=samples, seed=seed, contention=contention
    )
