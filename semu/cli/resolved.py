"""What commands that take RUN share: reading it with the options that change it, and printing it resolved."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from semu.cli.console import Progress, emit, emit_json

if TYPE_CHECKING:
    from semu.runfile.config import RunConfig


def read_run(arguments: argparse.Namespace, progress: Progress) -> RunConfig:
    """The run of a command line, with ``--cluster``, ``--parallel``, ``--profile``, ``--seed`` and ``--set`` applied.

    Raises:
        ConfigError: a run that cannot be read, or an option that does not fit.
    """
    progress("reading the run")
    from semu.runfile import Overrides, resolve_run

    return resolve_run(
        arguments.run,
        Overrides(arguments.assignments, arguments.cluster, arguments.parallel, arguments.profile, arguments.seed),
    )


def dump_run(run: RunConfig, *, is_json: bool) -> int:
    """Print the run resolved, as TOML or as one JSON document; returns the exit code."""
    if is_json:
        emit_json({"config": run.config})
    else:
        emit(run.to_toml())
    return 0
