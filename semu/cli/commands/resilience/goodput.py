"""``semu goodput``: strategies of a run through days of failures."""

from __future__ import annotations

import argparse
from dataclasses import replace

from semu.cli.console import Progress, emit, emit_json, say_written, write_html
from semu.cli.option_checks import check_place
from semu.cli.resolved import dump_run, read_run, say_notes

_KEYS = {
    "failures.mtbf": "mtbf",
    "failures.rate": "failures",
    "failures.gpus": "failures_gpus",
    "failures.trace": "trace",
    "failures.repair": "repair",
    "days": "days",
    "seeds": "seeds",
    "spares": "spares",
    "checkpoint.every_s": "every",
    "checkpoint.save_s": "save",
    "checkpoint.restart_s": "restart",
    "price.gpu_hour_usd": "gpu_hour_usd",
    "seed": "seed",
}
"""Key of ``[resilience]`` -> option."""


def goodput_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: a run that cannot be read, a value that is not legal, a trace that cannot be read, a file that
            cannot be written.
    """
    check_place("--html", arguments.html)
    with Progress() as progress:
        run = read_run(arguments, progress)
        if arguments.dump_config:
            return dump_run(run, is_json=arguments.json)
        from semu.door.long_runs import options_of, save_goodput
        from semu.present.summary import read_tokens
        from semu.resilience.long_run import simulate_long_run

        say_notes(run)
        tokens = None if arguments.tokens is None else read_tokens(arguments.tokens, where="--tokens")
        changes = {key: getattr(arguments, option) for key, option in _KEYS.items()}
        given = {
            f"resilience.{key}": f"--{_KEYS[key].replace('_', '-')}" for key in changes if changes[key] is not None
        }
        if arguments.strategy is not None:
            given["resilience.strategies"] = "--strategy"
        with replace(run.places, flags=run.places.flags | given).located():
            sources = [key for key in ("mtbf", "rate", "trace") if changes[f"failures.{key}"] is not None]
            options = options_of(run.config)
            if sources:  # what the run file has is replaced by what the command line has
                options = options.changed(failures=replace(options.failures, mtbf=None, rate=None, trace=None))
            if arguments.strategy is not None:
                changes["strategies"] = tuple(word.strip() for word in arguments.strategy.split(","))
            report = simulate_long_run(
                run.job(),
                options.changed(**changes),
                tokens=tokens,
                against_mtbf=arguments.out is not None or arguments.html is not None,
                progress=progress,
            )
        write_html(arguments.html, report)
        if arguments.out is not None:
            progress("drawing")
            say_written(*save_goodput(report, arguments.out))
    if arguments.json:
        emit_json({"run": arguments.run, "warnings": list(run.notes), **report.to_json()})
    else:
        emit(repr(report))
    return 0
