"""``semu assign``: samples of a file to the replicas and microbatches of a run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from semu.cli.commands.samples.asked import look_at
from semu.cli.console import Progress, write_html
from semu.cli.option_checks import check_place
from semu.errors import MemoryLimitError

if TYPE_CHECKING:
    from semu.job import TrainingJob
    from semu.searcher.assignment.options import AssignmentOptions
    from semu.searcher.assignment.study import AssignmentStudy


def assign_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: a run or samples that cannot be read, an unknown method, a file that cannot be written.
    """

    def _study(job: TrainingJob, samples: str, options: AssignmentOptions, progress: Progress) -> AssignmentStudy:
        from semu.door.assigning import assignment_study

        return assignment_study(
            job,
            samples,
            options.methods,
            per_iteration=options.count,
            iteration=options.iteration,
            window=options.window,
            seed=options.seed,
            speeds=options.speeds,
            costs=options.costs,
            exact_s=arguments.exact,
            progress=progress,
        )

    check_place("--html", arguments.html)
    found = look_at(arguments, _study)
    if found is not None:
        write_html(arguments.html, found)
    return 0 if found is None or found.best.estimate.fits else MemoryLimitError.exit_code
