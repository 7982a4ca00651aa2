"""``semu drill``: nodes of pipelines die while they train, and the others go on."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from semu.cli.console import Progress, emit_result, say, say_written
from semu.cli.resolved import dump_run, read_run, say_notes
from semu.errors import ConfigError, ExecutorError
from semu.files import make_folder

_Found = TypeVar("_Found")


def drill_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: a run that cannot be read, nodes of several GPUs, failures of nodes that there are not.
        MemoryLimitError: no template fits.
        ExecutorError: torch is not installed, or the end is not that of a run without failures.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of lost connections semu tells by itself
    with Progress() as progress:
        run = read_run(arguments, progress)
        if arguments.dump_config:
            return dump_run(run, is_json=arguments.json)
        from semu.executor import require_torch

        require_torch()
        from semu.door.long_runs import options_of
        from semu.executor.drill import run_drill
        from semu.executor.drill.orders import Failure, Moment
        from semu.resilience.templates.drilled import Arranger
        from semu.resilience.templates.making import pipeline_templates

        def _failure(words: list[str]) -> Failure:
            moment = words[2] if len(words) > 2 else Moment.STAGE.value
            if len(words) > 3 or moment not in tuple(Moment):
                raise ValueError
            iteration, node = words[:2]
            return Failure(int(iteration), int(node), Moment(moment))

        def _join(words: list[str]) -> tuple[int, int]:
            iteration, node = words
            return int(iteration), int(node)

        failures = _events(arguments.kill, "--kill", f"2:1, or 2:1:MOMENT with {', '.join(Moment)}", _failure)
        joins = _events(arguments.join, "--join", "5:1", _join)
        say_notes(run)
        out = None if arguments.out is None else make_folder(Path(arguments.out))
        with run.places.located():
            faults = options_of(run.config).faults if arguments.faults is None else arguments.faults
            templates = pipeline_templates(run.job(), faults, progress=progress)
            arranger = Arranger(templates, templates.nodes - len(failures), progress=progress)
            report = run_drill(
                arranger,
                arranger.first(),
                iterations=arguments.iterations,
                failures=failures,
                joins=joins,
                backend=arguments.backend,
                timeout_s=arguments.timeout,
                out=out,
                progress=progress,
            )
        if out is not None:
            say_written(*report.save(out))
    emit_result(report, is_json=arguments.json, file=arguments.run)
    if report.stopped is not None:
        say(f"stopped behind step {report.stopped.steps}: {report.stopped.reason}")
        return ExecutorError.exit_code
    return 0


def _events(told: str | None, flag: str, form: str, read: Callable[[list[str]], _Found]) -> list[_Found]:
    """What a flag says, comma by comma.

    Raises:
        ConfigError: something that is none.
    """
    found = []
    for text in (told or "").split(",") if told else []:
        try:
            found.append(read(text.strip().split(":")))
        except ValueError:
            raise ConfigError("not an event", where=flag, expected=form, got=text) from None
    return found
