"""What the commands that look at samples share: reading the run and its options, writing files, printing a study."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from semu.cli.console import Progress, emit, emit_json, say_written
from semu.cli.resolved import dump_run, read_run, say_notes
from semu.errors import ConfigError

if TYPE_CHECKING:
    from semu.job import TrainingJob
    from semu.runfile.config import RunConfig
    from semu.searcher.assignment.options import AssignmentOptions


class Study(Protocol):
    """What a command finds; its ``repr`` is for the terminal."""

    def to_json(self) -> dict[str, Any]:
        """Plain numbers."""
        ...

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write its files."""
        ...


StudyT = TypeVar("StudyT", bound=Study)


def look_at(
    arguments: argparse.Namespace,
    study: Callable[[TrainingJob, str, AssignmentOptions, Progress], StudyT],
) -> StudyT | None:
    """Study the samples of a command line, and print what is found; None: the run was printed instead.

    Args:
        study: of a job, the path of samples and options.
    Raises:
        ConfigError: a run or samples that cannot be read, a file that cannot be written.
    """
    with Progress() as progress:
        run = read_run(arguments, progress)
        if arguments.dump_config:
            dump_run(run, is_json=arguments.json)
            return None
        job = run.job()
        say_notes(run, assigns=True)
        options, samples = asked_of(arguments, run)
        with run.places.located():
            found = study(job, samples, options, progress)
        if arguments.out is not None:
            progress("drawing")
            say_written(*found.save(arguments.out))
    if arguments.json:
        emit_json({"run": arguments.run, "warnings": list(run.notes), **found.to_json()})
    else:
        emit(repr(found))
    return found


def _speeds(arguments: argparse.Namespace) -> tuple[float, ...] | None:
    """``--speeds``, where the command has it.

    Raises:
        ConfigError: not numbers.
    """
    text = getattr(arguments, "speeds", None)
    try:
        return None if text is None else tuple(map(float, text.split(",")))
    except ValueError as error:
        raise ConfigError(
            "not speeds of replicas", where="--speeds", expected="numbers with commas between: 1,1,0.8,1", got=text
        ) from error


def asked_of(
    arguments: argparse.Namespace, run: RunConfig, *, method: str | None = None
) -> tuple[AssignmentOptions, str]:
    """The options, and the path of the samples.

    Args:
        method: of a command without ``--method``.
    Raises:
        ConfigError: no samples, or an option out of range.
    """
    from semu.searcher.assignment.options import AssignmentOptions

    words = ("samples", "method", "count", "iteration", "window", "seed", "costs")
    given = {name: getattr(arguments, name, None) for name in words} | {"speeds": _speeds(arguments)}
    given["method"] = method if method is not None else given["method"]
    with run.places.located():
        options = AssignmentOptions.of(run.config.get("assignment", {}), **given)
    if options.samples is None:
        expected = "the path of a JSONL file, one sample a line; or assignment.samples of the run file"
        raise ConfigError("no samples", where="--samples", expected=expected)
    return options, options.samples
