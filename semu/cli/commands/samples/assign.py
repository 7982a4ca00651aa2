"""``semu assign``: samples of a file to the replicas and microbatches of a run."""

from __future__ import annotations

import argparse

from semu.cli.console import Progress, emit, emit_json, say_written
from semu.cli.resolved import dump_run, read_run, say_notes
from semu.errors import ConfigError, MemoryLimitError


def assign_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: a run or samples that cannot be read, an unknown method, a file that cannot be written.
    """
    with Progress() as progress:
        run = read_run(arguments, progress)
        if arguments.dump_config:
            return dump_run(run, is_json=arguments.json)
        if arguments.samples is None:
            raise ConfigError("no samples", where="--samples", expected="the path of a JSONL file, one sample a line")
        from semu.door.assigning import assignment_study
        from semu.searcher.assignment.methods.table import DEFAULT_METHOD

        job = run.job()
        say_notes(run)
        asked = arguments.method or DEFAULT_METHOD
        methods = None if asked == "all" else [word.strip() for word in asked.split(",")]
        with run.places.located():
            found = assignment_study(
                job,
                arguments.samples,
                methods,
                per_iteration=arguments.count,
                iteration=arguments.iteration,
                seed=arguments.seed or 0,
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
