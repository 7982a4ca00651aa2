"""``semu search``: a schedule made for the batch at hand."""

from __future__ import annotations

import argparse
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semu.cli.commands.exporting import check_export, write_searched
from semu.cli.commands.many_searches import search_batches
from semu.cli.commands.simulate import refuse_defaults
from semu.cli.console import (
    INTERRUPTED,
    Progress,
    emit_result,
    printed_anyway,
    say,
    say_options,
    say_written,
    write_html,
)
from semu.cli.option_checks import check_place, given_flags
from semu.cli.resolved import dump_run, read_job
from semu.errors import ConfigError
from semu.files import make_folder
from semu.units import GIB, KIB, MIB

if TYPE_CHECKING:
    from semu.job import TrainingJob
    from semu.runfile.config import RunConfig
    from semu.searcher.assignment.assignment import Assignment
    from semu.searcher.report import SearchReport

EVERY_S = 0.25
"""Least time between two incumbents that are printed [s]."""
_SIZES = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def search_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: a run that cannot be read or does not fit together, options that are none.
        ScheduleError: sub-microbatches of a module that cannot be cut.
        MemoryLimitError: no strategy fits.
        MissingCoefficientError: a default coefficient under ``--strict``.
    """
    options = _options(arguments)
    check_export(arguments.export)
    check_place("--html", arguments.html)
    with Progress() as progress:
        run, job = read_job(arguments, progress, assigns=True)
        check_export(arguments.export, run)
        if arguments.dump_config:
            return dump_run(run, is_json=arguments.json)
        if arguments.batches is not None:
            for flag in given_flags(arguments, ("samples", "assign", "count", "iteration")):
                expected = "a RUN without --batches; --iteration I is another batch of samples"
                raise ConfigError(f"{flag} is an option of one search", where=flag, expected=expected)
            if run.names_samples:
                expected = "a run without assignment.samples; semu plan RUN --stream FILE --assign METHOD"
                raise ConfigError("many batches of assigned samples", where="--batches", expected=expected)
            return search_batches(arguments, progress, options)
        if arguments.engine != "serial" or arguments.processes is not None or arguments.address is not None:
            raise ConfigError("an engine is for many batches", where="--engine", expected="--batches N beside it")
        assigned = _assigned(arguments, run, job, progress)
        if arguments.out is not None:  # a long search does not end with a folder that cannot be made
            make_folder(Path(arguments.out))
        from semu.searcher.job_search import search

        with run.places.located():
            found = search(job, assigned=assigned, seed=arguments.seed or 0, progress=_slower(progress), **options)
        if arguments.strict:
            refuse_defaults(found.report)
        if arguments.out is not None:
            progress("drawing the schedule")
            with printed_anyway(lambda: repr(found), is_json=arguments.json):
                say_written(*found.save(arguments.out))
            _say_again(found, Path(arguments.out))
        with printed_anyway(lambda: repr(found), is_json=arguments.json):
            write_html(arguments.html, found)
        beside: dict[str, object] = {}
        if arguments.export is not None:
            progress(f"simulating what {arguments.export.partition(':')[0]} can be told of it")
            with printed_anyway(lambda: repr(found), is_json=arguments.json):
                beside["exported"] = write_searched(arguments, run, found)
    emit_result(found, is_json=arguments.json, run=arguments.run, warnings=list(run.notes), **beside)
    if found.result.ended_by == "interrupt":
        say("interrupted: this is the best schedule so far")
        return INTERRUPTED
    return 0


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What ``semu.search`` takes beside job, seed and progress."""
    from semu.schedule.stage_plan import STRATEGIES

    names = arguments.strategies
    return {
        "rollouts": arguments.rollouts,
        "time_s": arguments.time,
        "strategy": arguments.strategy,
        "workers": arguments.workers,
        "objective": arguments.objective,
        "sub_batch": _counts("--sub-batch", arguments.sub_batch),
        "segments": _counts("--segments", arguments.segments),
        "strategies": STRATEGIES if names is None else tuple(name.strip() for name in names.split(",")),
        "candidates": arguments.candidates,
        "memory_limit_bytes": None if arguments.memory_limit is None else _size(arguments.memory_limit),
        "exact": arguments.exact,
        "explore": arguments.explore,
    }


def _slower(progress: Progress) -> Callable[[str], None]:
    """Tells every step, but incumbents only now and then."""
    told = 0.0

    def tell(line: str) -> None:
        """A step at once; an incumbent where the last line is old enough."""
        nonlocal told
        now = time.monotonic()
        if not line.startswith("best ") or now - told >= EVERY_S:
            told = now
            progress(line)

    return tell


def _assigned(arguments: argparse.Namespace, run: RunConfig, job: TrainingJob, progress: Progress) -> Assignment | None:
    """The samples of ``--samples``, or of ``[assignment]``; None: the run's own batch.

    Raises:
        ConfigError: options of samples without any, or beside what is for the run's batch alone.
    """
    from semu.cli.commands.samples.asked import asked_of

    if arguments.samples is None and arguments.assign is None and not run.names_samples:
        for flag in given_flags(arguments, ("count", "iteration")):
            raise ConfigError(f"{flag} is an option of samples", where=flag, expected="--samples FILE beside it")
        return None
    if arguments.export is not None:
        expected = "without --samples: a launch script does not say which sample goes where"
        raise ConfigError("no program is told which samples it trains", where="--export", expected=expected)
    options, samples = asked_of(arguments, run, method=arguments.assign)
    progress("assigning samples")
    from semu.door.assigning import assigned_iteration

    with run.places.located():
        return assigned_iteration(job, samples, options, options.iteration)


def _say_again(found: SearchReport, folder: Path) -> None:
    """How a schedule that was written runs again."""
    if found.assigned is not None:  # a schedule from a file does not go with samples of a run file
        say(f"{folder / 'assignment.jsonl'} has the samples of every microbatch, for a data loader")
        return
    without = [key for key, value in found.changes.items() if value is None]
    intro = "it runs again with" + (f", and without {', '.join(without)}" if without else "")
    say_options(intro, _settings(found.changes, folder / "schedule.json"))


def _settings(changes: Mapping[str, object], path: Path) -> list[str]:
    """Options with which ``semu simulate`` runs a schedule."""
    from semu.runfile.toml_text import format_value

    words = [f"training.schedule_file={path}"]
    words += [f"{key}={format_value(value)}" for key, value in changes.items() if value is not None]
    return [f"--set {shlex.quote(word)}" for word in words]


def _counts(flag: str, words: Sequence[str]) -> dict[str, int]:
    """``vit=12`` as a table.

    Raises:
        ConfigError: something else.
    """
    found = {}
    for word in words:
        name, equals, number = word.partition("=")
        if not equals or not name or not re.fullmatch(r"\d+", number):
            raise ConfigError("not a number for a module", where=flag, expected="MODULE=N, such as vit=4", got=word)
        found[name] = int(number)
    return found


def _size(text: str) -> int:
    """``64GiB`` as bytes.

    Raises:
        ConfigError: something else.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", text.strip())
    if match is None or match[2] not in _SIZES:
        expected = "a number with " + ", ".join(_SIZES) + ", such as 64GiB"
        raise ConfigError("not a size", where="--memory-limit", expected=expected, got=text)
    return int(float(match[1]) * _SIZES[match[2]])
