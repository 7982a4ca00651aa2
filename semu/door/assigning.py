"""``assign``: samples to replicas and microbatches, of a job or of a run; ``assign_all``: by every method."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from semu.door.runs import of_runs
from semu.job import TrainingJob
from semu.searcher.assignment.assigner import Assigner, SampleSource
from semu.searcher.assignment.assigner import assign as assign_job
from semu.searcher.assignment.study import AssignmentStudy, study_methods

__all__ = ["assign", "assignment_study"]


def _study(
    job: TrainingJob,
    samples: str | os.PathLike[str],
    methods: Sequence[str] | None = None,
    *,
    per_iteration: int | None = None,
    iteration: int = 0,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> AssignmentStudy:
    """Methods of assignment on the same samples, each simulated: is it worth it?

    Args:
        job: what trains. samples: a JSONL file. methods: words of ``METHODS``; None: all that suit the model.
        per_iteration, iteration, seed: as ``semu.assign``. progress: called with what is done.
    Returns:
        The study; ``repr`` is its table.
    Raises:
        ConfigError: as ``semu.assign``.
    """
    if progress is not None:
        progress("reading samples")
    source = SampleSource.read(job, samples, per_iteration)
    return study_methods(Assigner(job, seed=seed), source, methods, iteration, progress)


assign = of_runs(assign_job)
assignment_study = of_runs(_study)
