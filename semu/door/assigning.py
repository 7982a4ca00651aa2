"""``assign``: samples to replicas and microbatches; ``assignment_study``: by several methods; ``workload_study``: what
samples ask of modules. Of a job, or of a run. ``assigned_iteration``: one iteration as options say; ``assigned_run``:
as a run file does."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from semu.checks import check_count, check_number
from semu.door.runs import of_runs
from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.searcher.assignment.assigner import Assigner, SampleSource
from semu.searcher.assignment.assigner import assign as assign_job
from semu.searcher.assignment.assignment import Assignment
from semu.searcher.assignment.costs import SampleCosts
from semu.searcher.assignment.measured import read_costs, read_members, refitted
from semu.searcher.assignment.methods.table import DEFAULT_METHOD
from semu.searcher.assignment.options import AssignmentOptions
from semu.searcher.assignment.reordering import assigned_iterations
from semu.searcher.assignment.study import AssignmentStudy, study_methods
from semu.searcher.assignment.workload import WorkloadStudy, study_workload
from semu.validation.traces.stages import read_stages

if TYPE_CHECKING:
    from semu.runfile.config import RunConfig

__all__ = ["assign", "assignment_study", "refit_costs", "workload_study"]


def _study(
    job: TrainingJob,
    samples: str | os.PathLike[str],
    methods: Sequence[str] | None = None,
    *,
    per_iteration: int | None = None,
    iteration: int = 0,
    window: int = 1,
    seed: int = 0,
    speeds: Sequence[float] | None = None,
    costs: str | os.PathLike[str] | None = None,
    exact_s: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> AssignmentStudy:
    """Methods of assignment on the same samples, each simulated: is it worth it?

    Args:
        job: what trains. samples: a JSONL file. methods: words of ``METHODS``; None: all that suit the model.
        per_iteration, iteration, seed, speeds: as ``semu.assign``. window: iterations among which samples may change
            places; every method deals its own; 1: none. exact_s: time for the exact solver as well [s]; None: none.
        costs: a file that ``semu validate --costs`` wrote; None: fitted to the engine.
        progress: called with what is done.
    Returns:
        The study; ``repr`` is its table.
    Raises:
        ConfigError: as ``semu.assign``; costs of another pipeline; too many samples for the exact solver, or a window
            beside it.
    """
    if exact_s is not None:
        check_number(exact_s, "exact", is_above=True)
    if progress is not None:
        progress("reading samples")
    source = SampleSource.read(job, samples, per_iteration)
    assigner = make_assigner(job, source, seed=seed, speeds=speeds, costs=costs)
    return study_methods(assigner, source, methods, iteration, progress, window=window, exact_s=exact_s)


def make_assigner(
    job: TrainingJob,
    source: SampleSource,
    method: str = DEFAULT_METHOD,
    *,
    seed: int = 0,
    speeds: Sequence[float] | None = None,
    costs: str | os.PathLike[str] | None = None,
) -> Assigner:
    """An assigner for a file of samples.

    Args:
        job, method, seed, speeds: as ``Assigner``. source: whose samples costs are fitted on, when they are needed.
        costs: a file that ``semu validate --costs`` wrote; None: fitted to the engine.
    Raises:
        ConfigError: as ``Assigner``; costs of another pipeline.
    """
    assigner = Assigner(job, method, seed=seed, speeds=speeds)
    if costs is None:
        return assigner
    known = read_costs(costs, assigner.costs(source.samples))
    return Assigner(job, method, seed=seed, speeds=speeds, costs=known)


def assigned_iteration(job: TrainingJob, samples: str, options: AssignmentOptions, iteration: int = 0) -> Assignment:
    """The samples of one iteration of a file, assigned as ``[assignment]`` and a command line say.

    Args:
        job: what trains. samples: a JSONL file. options: one method, count, window, seed, speeds, costs.
        iteration: of the file.
    Raises:
        ConfigError: as ``semu.assign``; several methods; no such iteration.
    """
    if options.methods is None or len(options.methods) != 1:
        got, expected = options.method, "one method"
        raise ConfigError("several methods", where="assignment.method", expected=expected, got=got, nearest="entrain")
    source = SampleSource.read(job, samples, options.count)
    check_count(iteration, "assignment.iteration", least=0, most=source.num_iterations - 1)
    seed, speeds, costs = options.seed, options.speeds, options.costs
    assigner = make_assigner(job, source, options.methods[0], seed=seed, speeds=speeds, costs=costs)
    return next(assigned_iterations(assigner, source, options.window, iteration))[1]


def assigned_run(
    run: RunConfig, job: TrainingJob, progress: Callable[[str], None] | None = None
) -> tuple[RunConfig, Assignment | None]:
    """What ``[assignment]`` of a run file makes of the samples that it names, and the run with a note that says so.

    Args:
        run, job: of the same file. progress: called with what is done.
    Returns:
        None beside the run as it is, where it names no samples.
    Raises:
        ConfigError: as ``assigned_iteration``; replicas that are not equally fast; a schedule from a file.
    """
    with run.places.located():
        options = AssignmentOptions.of(run.config.get("assignment", {}))
        if options.samples is None:
            return run, None
        if job.training.schedule_file is not None:
            raise ConfigError(
                "a schedule from a file beside samples that are assigned by costs of any number of microbatches",
                where="training.schedule_file",
                expected="none; semu.simulate(found.job, plan=found.plan) of what semu.search found",
                got=str(job.training.schedule_file),
            )
        if progress is not None:
            progress("assigning samples")
        found = assigned_iteration(job, options.samples, options, options.iteration)
        found.check_alike()
    deferred = int(found.dealt.is_deferred.sum())
    note = (
        f"assignment.samples: {len(found.ids):,} samples of {options.samples}, assigned by {found.method}, in place of "
        f"[batch]" + (f"; {deferred} of them are deferred" if deferred else "")
    )
    return replace(run, notes=(*run.notes, note)), found


def _workload(
    job: TrainingJob,
    samples: str | os.PathLike[str],
    *,
    alpha: float = 0.05,
    error: float = 0.05,
    per_iteration: int | None = None,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> WorkloadStudy:
    """What samples ask of the modules of a job: shares of the work, GPUs for each, and how many samples tell that.

    Args:
        job: what trains. samples: a JSONL file. alpha: probability that the answer is wrong. error: share of batches
            that may give another allocation. per_iteration, seed: as ``semu.assign``. progress: called with what is
            done.
    Returns:
        The study; ``repr`` is its table.
    Raises:
        ConfigError: as ``semu.assign``; alpha or error outside (0, 1).
    """
    for name, value in (("alpha", alpha), ("error", error)):
        if not 0 < check_number(value, name, most=1.0) < 1:
            raise ConfigError("not a probability", where=name, expected="above 0 and below 1", got=value, nearest=0.05)
    say = progress if progress is not None else lambda _: None
    say("reading samples")
    source = SampleSource.read(job, samples, per_iteration)
    say("fitting costs of samples")
    return study_workload(Assigner(job, "order", seed=seed), source, alpha=alpha, error=error)


def refit_costs(
    job: TrainingJob,
    samples: str | os.PathLike[str],
    assignment: str | os.PathLike[str],
    trace: str | os.PathLike[str],
    *,
    replica: int = 0,
    progress: Callable[[str], None] | None = None,
) -> SampleCosts:
    """What samples cost, refitted to the measured stages of an iteration whose samples are known.

    Args:
        job: that was measured. samples: its JSONL file. assignment: ``assignment.jsonl`` of the iteration.
        trace: with annotations of stages (``semu.searcher.assignment.measured``). replica: of the trace.
        progress: called with what is done.
    Raises:
        ConfigError: files that cannot be read, or that are of another run.
    """
    check_count(replica, "replica", least=0)
    say = progress if progress is not None else lambda _: None
    say("reading samples")
    source = SampleSource.read(job, samples, job.parallel.replicas * job.num_microbatches)
    members = read_members(assignment, replica, source.ids)
    stages = read_stages(trace)
    say("fitting costs of samples")
    costs = Assigner(job, "order").costs(source.samples)
    return refitted(costs, costs.features(source.samples), members, stages, os.fspath(trace))


assign = of_runs(assign_job)
workload_study = of_runs(_workload)
assignment_study = of_runs(_study)
