"""``semu search``: a schedule made for the batch at hand."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from semu.cli.console import Progress, emit, emit_json, has_compiled_kernels, say
from semu.cli.resolved import dump_run, read_run
from semu.cli.simulate import refuse_defaults
from semu.errors import ConfigError
from semu.files import make_folder
from semu.units import GIB, KIB, MIB

INTERRUPTED = 130
EVERY_S = 0.25
"""Incumbents that follow one another faster are not told."""
_SIZES = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def search_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: a run that cannot be read or does not fit together, options that are none.
        ScheduleError: sub-microbatches of a module that cannot be cut.
        MemoryLimitError: no strategy fits.
        MissingCoefficientError: a default coefficient under ``--strict``.
    """
    sub_batch = _counts("--sub-batch", arguments.sub_batch)
    segments = _counts("--segments", arguments.segments)
    limit = None if arguments.memory_limit is None else _size(arguments.memory_limit)
    with Progress(is_first_run=not has_compiled_kernels()) as progress:
        run = read_run(arguments, progress)
        job = run.job()
        for note in run.notes:
            say(note)
        if arguments.dump_config:
            return dump_run(run, is_json=arguments.json)
        if arguments.out is not None:  # a long search does not end with a folder that cannot be made
            make_folder(Path(arguments.out))
        from semu.schedule.stage_plan import STRATEGIES
        from semu.searcher.search import search

        words = STRATEGIES if arguments.strategies is None else _words(arguments.strategies)
        with run.places.located():
            found = search(
                job,
                rollouts=arguments.rollouts,
                time_s=arguments.time,
                seed=arguments.seed or 0,
                strategy=arguments.strategy,
                workers=arguments.workers,
                objective=arguments.objective,
                sub_batch=sub_batch,
                segments=segments,
                strategies=words,
                candidates=arguments.candidates,
                memory_limit_bytes=limit,
                exact=arguments.exact,
                progress=_slower(progress),
            )
        if arguments.strict:
            refuse_defaults(found.report)
        if arguments.out is not None:
            progress("drawing the schedule")
            for file in found.save(arguments.out):
                say(f"wrote {file}")
            say(f"it runs again with {_settings(found.changes, Path(arguments.out) / 'schedule.json')}")
    if arguments.json:
        emit_json({"run": arguments.run, "warnings": list(run.notes), **found.to_json()})
    else:
        emit(repr(found))
    if found.result.ended_by == "interrupt":
        say("interrupted: this is the best schedule so far")
        return INTERRUPTED
    return 0


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


def _settings(changes: Mapping[str, object], path: Path) -> str:
    """Options with which ``semu simulate`` runs a schedule."""
    from semu.runfile.toml_text import format_value

    words = [f"--set training.schedule_file={path}"]
    words += [f"--set '{key}={format_value(value)}'" for key, value in changes.items() if value is not None]
    without = [key for key, value in changes.items() if value is None]
    return " ".join(words) + (f", without {', '.join(without)}" if without else "")


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


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))


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
