"""``semu assign``: samples of a file to the replicas and microbatches of a run."""

from __future__ import annotations

import argparse

from semu.cli.console import Progress, emit, emit_json, say_written
from semu.cli.resolved import dump_run, read_run, say_notes
from semu.errors import MemoryLimitError


def assign_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: a run or samples that cannot be read, an unknown method, a file that cannot be written.
    """
    with Progress() as progress:
        run = read_run(arguments, progress)
        if arguments.dump_config:
            return dump_run(run, is_json=arguments.json)
        from semu.cli.commands.samples.asked import asked_of
        from semu.door.assigning import assignment_study

        job = run.job()
        say_notes(run)
        options, samples = asked_of(arguments, run)
        with run.places.located():
            found = assignment_study(
                job,
                samples,
                options.methods,
                per_iteration=options.count,
                iteration=arguments.iteration,
                seed=options.seed,
                progress=progress,
            )
        if arguments.out is not None:
            progress("drawing")
            say_written(*found.best.save(arguments.out))
    if arguments.json:
        emit_json({"run": arguments.run, "warnings": list(run.notes), **found.to_json()})
    else:
        emit(repr(found))
    return 0 if found.best.estimate.fits else MemoryLimitError.exit_code
