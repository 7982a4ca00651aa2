"""``semu what-if``: a run under changes, one at a time."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semu.cli.console import INTERRUPTED, Progress, emit, emit_json, printed_anyway, say, write_html
from semu.cli.option_checks import check_place
from semu.cli.resolved import dump_run, read_run, say_notes
from semu.errors import ConfigError
from semu.files import make_folder, write_file, write_text

if TYPE_CHECKING:
    from semu.job import TrainingJob
    from semu.searcher.what_if.changes import Change
    from semu.searcher.what_if.sensitivity import WhatIf


def what_if_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: a run that cannot be read or cannot run as it is, a change that is none, another factor.
        ScheduleError: the run's schedule file is none for it.
    """
    check_place("--html", arguments.html)
    with Progress() as progress:
        run = read_run(arguments, progress)
        if arguments.dump_config:
            return dump_run(run, is_json=arguments.json)
        from semu.runfile.overrides import parse_value
        from semu.searcher.what_if.changes import parse_change
        from semu.searcher.what_if.sensitivity import FACTOR, what_if

        if arguments.changes and arguments.factor is not None:
            raise ConfigError("a factor of changes that are told", where="--factor", expected="without --set")
        changes = [parse_change(text, parse_value) for text in arguments.changes]
        job = run.job()
        say_notes(run)
        if arguments.out is not None:
            make_folder(Path(arguments.out))
        _check(changes, job)
        factor = FACTOR if arguments.factor is None else arguments.factor
        with run.places.located():
            found = what_if(job, changes or None, factor=factor, progress=progress)
        document = {"run": arguments.run, "warnings": list(run.notes), **found.to_json()}
        if arguments.out is not None:
            progress("drawing")
            with printed_anyway(lambda: repr(found), is_json=arguments.json):
                _save(found, document, Path(arguments.out))
        with printed_anyway(lambda: repr(found), is_json=arguments.json):
            write_html(arguments.html, found)
    if arguments.json:
        emit_json(document)
    else:
        emit(repr(found))
    if found.is_interrupted:
        say("interrupted: these are the answers so far")
        return INTERRUPTED
    return 0


def _check(changes: Sequence[Change], job: TrainingJob) -> None:
    """Refuse changes of something that there is not, before anything is simulated.

    Raises:
        ConfigError: the first of them, as it stands on the command line.
    """
    for change in changes:
        try:
            change.before(job)
        except ConfigError as error:
            error.where = f"--set {change}"
            raise


def _save(found: WhatIf, document: dict[str, object], folder: Path) -> None:
    from semu.present.plots.tornado import TornadoBar, TornadoRow, draw_tornado
    from semu.searcher.what_if.words import plain_key, plain_value

    rows = [
        TornadoRow(
            plain_key(key)
            if len({one.before for one in own}) > 1
            else f"{plain_key(key)} ({plain_value(key, own[0].before)})",
            tuple(
                TornadoBar(one.change.label, one.estimate.iteration_time_s, one.estimate.fits)
                for one in own
                if one.estimate is not None
            ),
        )
        for key, own in found.ranked()
    ]
    path = folder / "what_if.json"
    write_text(path, json.dumps(document, indent=2, allow_nan=False) + "\n")
    say(f"wrote {path}")
    write_html(str(folder / "report.html"), found)
    if not rows:
        return
    subtitle = "each row: one change to the run, everything else as it is"
    picture = write_file(
        folder / "what_if.png",
        lambda path: draw_tornado(path, rows, found.base.iteration_time_s, title=found.title, subtitle=subtitle),
    )
    say(f"wrote {picture}")
