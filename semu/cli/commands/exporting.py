"""``semu export``: a run in the words of another program."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from semu.cli.console import Progress, emit, emit_json, say, say_written
from semu.cli.option_checks import check_place
from semu.cli.resolved import read_defined, read_run, say_notes
from semu.errors import ConfigError

if TYPE_CHECKING:
    from semu.exports.exported import Exported
    from semu.runfile.config import RunConfig
    from semu.searcher.report import SearchReport


def export_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: a run that cannot be read, a program or a model that cannot be written, a place that cannot be.
    """
    check_place("-o", arguments.output)
    with Progress() as progress:
        run = read_run(arguments, progress)
        run.job()
        say_notes(run, assigns=True)
        progress(f"writing it for {arguments.to}")
        from semu.exports import difference, export

        exported = export(run, arguments.to)
        text, told = exported.text, ""
        if arguments.diff:
            own = _own_text(arguments.run, arguments.to)
            if own is None:
                message, expected = "not a file of that program", f"a file of {arguments.to}, or no --diff"
                raise ConfigError(message, where=f"--diff {arguments.run}", expected=expected, got=arguments.run)
            text, told = difference(arguments.to, own, arguments.run, _unchanged(arguments), run)
    _write(arguments.output, text)
    for sentence in exported.unsaid:
        say(f"{arguments.to} cannot say: {sentence}")
    if arguments.json:
        emit_json(
            {
                "run": arguments.run,
                "to": arguments.to,
                "file": arguments.output,
                "text": text,
                "unsaid": list(exported.unsaid),
                **({"diff": told} if arguments.diff else {}),
            }
        )
    elif arguments.diff:
        emit(told or "nothing changes", is_code=True)
    elif arguments.output is None:
        emit(text, is_code=True)
    return 0


def write_export(arguments: argparse.Namespace, run: RunConfig, exported: Exported | None = None) -> dict[str, object]:
    """Write a run as ``--export PROGRAM[:FILE]`` asks: where RUN is a file of that program, this file with what has
    changed; returns what to tell of it in a document.

    Args:
        exported: the run in the program's words; None: it is made.
    Raises:
        ConfigError: an unknown program, a model that it cannot describe, a place that cannot be written.
    """
    from semu.exports import PROGRAMS, difference, export

    word, _, place = arguments.export.partition(":")
    exported, target = exported or export(run, word), PROGRAMS[word]
    text = exported.text
    if target.changed is not None and (own := _own_text(arguments.run, word)) is not None:
        text, _ = difference(word, own, arguments.run, _unchanged(arguments), run)
    place = place or target.file_name
    _write(place, text)
    for sentence in exported.unsaid:
        say(f"{word} cannot say: {sentence}")
    return {"to": word, "file": place, "unsaid": list(exported.unsaid)}


def write_searched(arguments: argparse.Namespace, run: RunConfig, found: SearchReport) -> dict[str, object]:
    """Write what of a searched schedule ``--export``'s program can be told; returns what to tell of it in a document.

    Raises:
        ConfigError: a model that the program cannot describe, a place that cannot be written.
    """
    from semu.exports.searched import launchable

    nearest, exported, report = launchable(run, found, arguments.export.partition(":")[0])
    told = write_export(arguments, nearest, exported)
    return {**told, "iteration_time_s": report.iteration_time_s, "fits": report.fits}


def check_export(option: str | None, run: RunConfig | None = None) -> None:
    """Refuse an ``--export`` that cannot be, before a long search.

    Args:
        option: as given. run: whose model the program must be able to describe; None: nothing is known of it yet.
    Raises:
        ConfigError: an unknown program, a folder that is not there, a model that the program cannot describe.
    """
    if option is not None:
        from semu.exports.programs import export, target_of

        word, _, place = option.partition(":")
        target_of(word)
        check_place("--export", place or None)
        if run is not None:
            export(run, word)


def _own_text(run: str, word: str) -> str | None:
    """What a file of a program holds; None: RUN is none."""
    from semu.imports.kinds import program_of

    if not Path(run).is_file():
        return None
    text = Path(run).read_text("utf-8", errors="replace")
    program = program_of(run, text)
    return text if program is not None and program.word == word else None


def _write(place: str | None, text: str) -> None:
    if place is not None:
        from semu.files import write_text

        say_written(write_text(place, text))


def _unchanged(arguments: argparse.Namespace) -> RunConfig:
    """The run without what the command line changes."""
    from semu.runfile import Overrides, resolve_run

    defined = read_defined(arguments.define)
    return resolve_run(arguments.run, Overrides(defined=defined, allow_unmodelled=arguments.allow_unmodelled))
