"""What commands that take RUN share: reading it with the options that change it, and printing it resolved."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from semu.cli.console import Progress, emit, emit_json, say
from semu.errors import ConfigError

if TYPE_CHECKING:
    from semu.job import TrainingJob
    from semu.runfile import Overrides
    from semu.runfile.config import RunConfig


def read_run(arguments: argparse.Namespace, progress: Progress, *, seed: int | None = None) -> RunConfig:
    """The run of a command line, with ``--cluster``, ``--parallel``, ``--profile``, ``--seed`` and ``--set`` applied.

    Args:
        seed: of the batch, for a command without ``--seed`` or with many batches; None: ``--seed``.
    Raises:
        ConfigError: a run that cannot be read, or an option that does not fit.
    """
    progress("reading the run")
    from semu.runfile import resolve_run

    return resolve_run(arguments.run, asked_changes(arguments, seed))


def asked_changes(arguments: argparse.Namespace, seed: int | None = None) -> Overrides:
    """What a command line changes of its run; arguments and errors as ``read_run``."""
    from semu.runfile import Overrides

    return Overrides(
        arguments.assignments,
        asked_cluster(arguments),
        arguments.parallel,
        arguments.profile,
        getattr(arguments, "seed", None) if seed is None else seed,
        read_defined(arguments.define),
        arguments.allow_unmodelled,
    )


def asked_cluster(arguments: argparse.Namespace) -> str | None:
    """``--cluster`` and ``--gpus`` as one text.

    Raises:
        ConfigError: both say a number of GPUs, or it is none.
    """
    cluster: str | None = arguments.cluster
    gpus = getattr(arguments, "cluster_gpus", None)
    if gpus is None:
        return cluster
    if gpus < 1:
        raise ConfigError("no number of GPUs", where="--gpus", expected="at least 1", got=gpus, nearest=1)
    if cluster is not None and ":" in cluster:
        raise ConfigError("the number of GPUs is told twice", where="--gpus", expected="--cluster DEVICE", got=cluster)
    return f"{cluster or ''}:{gpus}"


def read_job(
    arguments: argparse.Namespace, progress: Progress, *, assigns: bool = False
) -> tuple[RunConfig, TrainingJob]:
    """The run of a command line and its job; notes on the run go to stderr.

    Args:
        assigns: as for ``say_notes``.
    Raises:
        ConfigError: as ``read_run``, or a run that is not legal.
    """
    run = read_run(arguments, progress)
    job = run.job()
    say_notes(run, assigns=assigns)
    return run, job


def say_notes(run: RunConfig, *, assigns: bool = False) -> None:
    """Write to stderr what was decided for a run. ``assigns``: the command trains the samples of ``[assignment]``."""
    for note in run.notes:
        say(note)
    if not assigns and run.names_samples:
        say("assignment.samples: not used here, where [batch] is trained; simulate, search and plan assign samples")


def dump_run(run: RunConfig, *, is_json: bool) -> int:
    """Print the run resolved, as TOML or as one JSON document; returns the exit code."""
    if is_json:
        emit_json({"config": run.config})
    else:
        emit(run.to_toml(), is_code=True)
    return 0


def read_defined(texts: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` of every ``--define``."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or re.fullmatch(r"[A-Za-z_]\w*|\d+", name) is None:
            raise ConfigError("not a variable", where="--define", expected="NAME=VALUE, e.g. NNODES=4", got=text)
        found[name] = value
    return found
