"""``semu grid``: the best configurations of a run within memory."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semu.cli.commands.exporting import check_export, write_export
from semu.cli.commands.simulate import refuse_defaults
from semu.cli.console import (
    INTERRUPTED,
    Progress,
    emit,
    emit_json,
    printed_anyway,
    say,
    say_written,
    write_html,
)
from semu.cli.option_checks import check_place, named_by_flags
from semu.cli.resolved import asked_changes, dump_run, say_notes
from semu.errors import ConfigError, MemoryLimitError
from semu.files import make_folder, write_text

if TYPE_CHECKING:
    from semu.job import TrainingJob
    from semu.nn import Model
    from semu.runfile.config import RunConfig
    from semu.searcher.grid.result import GridResult
    from semu.searcher.grid.space import Value


_NAMES = ("vary", "fix", "gpus", "axes", "top", "rank_by", "price", "workers", "engine", "results")


def grid_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: a run that cannot be read, unknown axes, no legal configuration, results of another job.
        MissingCoefficientError: a default coefficient under ``--strict``.
        ExecutorError: the engine's workers are lost.
    """
    vary = None if arguments.vary is None else _axes(arguments.vary)
    fix = _fixed(arguments.fix)
    lists = _taken_lists(arguments.assignments)
    check_export(arguments.export)
    check_place("--html", arguments.html)
    with Progress() as progress:
        run, job = _read(arguments, progress)
        check_export(arguments.export, run)
        say_notes(run)
        if arguments.dump_config:
            return dump_run(run, is_json=arguments.json)
        if arguments.out is not None:  # a long grid does not end with a folder that cannot be made
            make_folder(Path(arguments.out))
        from semu.door.searching import said_axes
        from semu.searcher.grid.framework import framework_of, framework_values
        from semu.searcher.grid.grid_search import grid
        from semu.searcher.grid.pictures import heat_axes
        from semu.searcher.grid.space import Space, with_gpus, with_rules

        with run.places.located(), named_by_flags(*_NAMES):
            vary, fix = _with_said(vary, fix, lists, said_axes(run.model, asked_changes(arguments)), run.model)
            job = job if arguments.gpus is None else with_gpus(job, arguments.gpus)
            framework = "any" if arguments.explore and arguments.framework is None else arguments.framework
            whose = framework_of(framework, job)
            if arguments.explore:
                vary = {name: own for name, own in with_rules(job, vary).items() if name not in fix}
            space = Space.of(job, vary, fix, framework_values(whose, job))
            if arguments.explore:
                from semu.searcher.grid.exploring import with_best_layouts

                asked = {"rank_by": arguments.rank_by, "price": arguments.price, "framework": whose}
                space = with_best_layouts(job, space, **asked, progress=progress)
            axes = heat_axes(space.varied, arguments.axes)
            found = grid(
                job,
                vary=space,
                top=arguments.top,
                rank_by=arguments.rank_by,
                price=arguments.price,
                framework=whose,
                exhaustive=arguments.exhaustive,
                results=arguments.results,
                workers=arguments.workers,
                engine=arguments.engine,
                progress=progress,
            )
        table = repr(found)
        if arguments.csv is not None:
            with printed_anyway(lambda: table, is_json=arguments.json):
                say_written(write_text(arguments.csv, found.to_csv()))
        said = f"{found.evaluated:,} simulated"
        if arguments.results is not None:
            said += f", {found.reused:,} taken from {arguments.results}"
        say(f"{found.num_legal:,} configurations decided in {found.time_s:.1f} s: {said}")
        if found.rows:
            progress("simulating the best configuration in full")
            if arguments.strict:
                refuse_defaults(found.report)
            if arguments.out is not None:
                progress("drawing the configurations")
                with printed_anyway(lambda: f"{table}\n\n{found.report!r}", is_json=arguments.json):
                    say_written(*found.save(arguments.out, axes))
        if arguments.html is not None:
            progress("writing the page")
            with printed_anyway(lambda: table, is_json=arguments.json):
                write_html(arguments.html, found)
        exported = None
        if arguments.export is not None and found.best is not None:
            progress("writing the best configuration for another program")
            with printed_anyway(lambda: table, is_json=arguments.json):
                exported = write_export(arguments, run.with_job(found.best_job))
    if arguments.json:
        report = found.report.to_json() if found.rows else None
        document = {"run": arguments.run, **found.to_json(), "report": report}
        emit_json(document if exported is None else {**document, "exported": exported})
    else:
        emit("\n\n".join([table, *([repr(found.report)] if found.rows else [])]))
    if found.ended_by == "interrupt":
        say("interrupted: this is what was done so far")
        return INTERRUPTED
    if found.best is None:
        return _refuse(found)
    return 0


def _refuse(found: GridResult) -> int:
    """Say by how much nothing fits; returns the exit code."""
    from semu.present.summary import fit_sentence

    if not found.rows:
        point, why = next(iter(found.refused.items()))
        raise ConfigError("no configuration runs", where=point.label(found.varied), expected="one that does", got=why)
    say(
        f"no configuration fits; the smallest, {found.smallest.point.label(found.varied)}, {fit_sentence(found.report)}"
    )
    return MemoryLimitError.exit_code


def _read(arguments: argparse.Namespace, progress: Progress) -> tuple[RunConfig, TrainingJob]:
    """The run and its job; under ``--cluster`` and ``--gpus`` the run need not be legal before its axes vary."""
    progress("reading the run")
    from semu.door.searching import run_to_vary

    return run_to_vary(arguments.run, asked_changes(arguments), arguments.gpus)


def _axes(text: str) -> dict[str, Sequence[Value] | None]:
    """``tp=2:4,pp`` as a table; no values: all."""
    found: dict[str, Sequence[Value] | None] = {}
    for word in text.split(","):
        name, equals, values = word.strip().partition("=")
        if not name or (equals and not values) or name in found:
            raise ConfigError(
                "not axes", where="--vary", expected="each once, with commas between: tp=2:4,pp", got=text
            )
        found[name] = [_value(value) for value in values.split(":")] if equals else None
    return found


def _fixed(words: Sequence[str]) -> dict[str, Value]:
    """``tp=8`` as a table."""
    found: dict[str, Value] = {}
    for word in [part.strip() for text in words for part in text.split(",")]:
        name, _, value = word.partition("=")
        if not name or not value or name in found:
            raise ConfigError("not a fixed axis", where="--fix", expected="AXIS=VALUE, each axis once", got=word)
        found[name] = _value(value)
    return found


def _taken_lists(assignments: list[str]) -> dict[str, list[Value]]:
    """Axes with several values, ``--tp 4,8`` or ``--set parallel.tp=4,8``, which are taken out of the assignments."""
    found: dict[str, list[Value]] = {}
    for text in [*assignments]:
        key, _, values = text.replace(" ", "").partition("=")
        table, _, name = key.partition(".")
        if table in ("parallel", "training") and re.fullmatch(r"\w+(,\w+)+", values):
            found[name] = [_value(value) for value in values.split(",")]
            assignments.remove(text)
    return found


def _with_said(
    vary: Mapping[str, Sequence[Value] | None] | None,
    fix: Mapping[str, Value],
    lists: Mapping[str, list[Value]],
    said: Mapping[str, Value],
    model: Model,
) -> tuple[dict[str, Sequence[Value] | None] | None, dict[str, Value]]:
    """``--vary`` and ``--fix`` with what the command line says of the axes elsewhere.

    Args:
        lists: axes with several values: they vary. said: axes with one value, which is fixed without ``--vary``.
    """
    from semu.searcher.grid.space import usual_axes

    if vary is not None:
        return {**{name: vary[name] for name in vary if name not in lists}, **lists}, {**fix}
    said = {name: value for name, value in said.items() if name not in (*fix, *lists)}
    if said:
        shown = " ".join(f"{name}={value}" for name, value in said.items())
        them = "it" if len(said) == 1 else "them"
        say(f"fixed, as the command line says: {shown} (--vary {','.join(said)} varies {them})")
    fix = {**fix, **said}
    own = {name: lists.get(name) for name in usual_axes(model) if name not in fix}
    return ({**own, **lists} if lists else None), fix


def _value(text: str) -> Value:
    return int(text) if text.isdecimal() else text
