"""``semu compare``: runs, results and logs side by side."""

from __future__ import annotations

import argparse
import math

from semu.cli.console import Progress, emit, emit_json, printed_anyway, say, say_written, write_html
from semu.cli.option_checks import check_place
from semu.cli.resolved import asked_cluster, read_defined
from semu.errors import ConfigError

TOLERANCE_EXIT = 7


def compare_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: fewer than two sides, a side that is no run, result or log, a place that cannot be written.
        ScheduleError: a schedule that cannot order a run's pipeline.
    """
    check_place("--picture", arguments.picture)
    check_place("--html", arguments.html)
    tolerance = arguments.tolerance
    if tolerance is not None and not 0 <= tolerance < math.inf:
        raise ConfigError("not a tolerance", where="--tolerance", expected="a number of percent >= 0", got=tolerance)
    with Progress() as progress:
        from semu.door.comparing import compare
        from semu.runfile import Overrides

        changes = Overrides(
            arguments.assignments,
            asked_cluster(arguments),
            arguments.parallel,
            arguments.profile,
            arguments.seed,
            read_defined(arguments.define),
            arguments.allow_unmodelled,
        )
        found = compare(*arguments.sides, changes=changes, progress=progress)
        if arguments.picture is not None:
            with printed_anyway(lambda: repr(found), is_json=arguments.json):
                found.save(arguments.picture)
            say_written(arguments.picture)
        with printed_anyway(lambda: repr(found), is_json=arguments.json):
            write_html(arguments.html, found)
    beyond = [] if tolerance is None else found.exceeds(tolerance)
    if arguments.json:
        emit_json({**found.to_json(), "tolerance_percent": tolerance, "beyond": [side.name for side in beyond]})
    else:
        emit(repr(found))
    for side in beyond:
        say(f"{side.name} differs from {found.sides[0].name} by more than {tolerance:g} %")
    return TOLERANCE_EXIT if beyond else 0
