"""``assign``: samples to replicas and microbatches; ``assignment_study``: by several methods; ``workload_study``: what
samples ask of modules. Of a job, or of a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from semu.checks import check_count, check_number
from semu.door.runs import of_runs
from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.searcher.assignment.assigner import Assigner, SampleSource
from semu.searcher.assignment.assigner import assign as assign_job
from semu.searcher.assignment.costs import SampleCosts
from semu.searcher.assignment.measured import read_costs, read_members, refitted
from semu.searcher.assignment.study import AssignmentStudy, study_methods
from semu.searcher.assignment.workload import WorkloadStudy, study_workload
from semu.validation.traces.stages import read_stages

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
    assigner = Assigner(job, seed=seed, speeds=speeds)
    if costs is not None:
        fitted = assigner.costs(source.samples)
        assigner = Assigner(job, seed=seed, speeds=speeds, costs=read_costs(costs, fitted))
    return study_methods(assigner, source, methods, iteration, progress, window=window, exact_s=exact_s)


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
