"""``semu workload``: what the samples of a file ask of the modules of a run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from semu.cli.commands.samples.asked import look_at
from semu.cli.console import Progress, write_html
from semu.cli.option_checks import check_place

if TYPE_CHECKING:
    from semu.job import TrainingJob
    from semu.searcher.assignment.options import AssignmentOptions
    from semu.searcher.assignment.workload import WorkloadStudy


def workload_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: a run or samples that cannot be read, a file that cannot be written.
    """

    def _study(job: TrainingJob, samples: str, options: AssignmentOptions, progress: Progress) -> WorkloadStudy:
        from semu.door.assigning import workload_study

        return workload_study(
            job,
            samples,
            alpha=arguments.alpha,
            error=arguments.error,
            per_iteration=options.count,
            seed=options.seed,
            progress=progress,
        )

    check_place("--html", arguments.html)
    found = look_at(arguments, _study)
    if found is not None:
        write_html(arguments.html, found)
    return 0
