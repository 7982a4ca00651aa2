"""``semu context``: policies of context ranks on a run's batch."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from semu.checks import check_member
from semu.cli.console import Progress, emit, emit_json, say, say_written, write_html
from semu.cli.option_checks import check_place
from semu.cli.resolved import asked_changes, dump_run, read_run, say_notes

if TYPE_CHECKING:
    from semu.runfile.config import RunConfig


def context_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: a run that cannot be read, one context rank, an unknown policy or mask, a file that cannot be
            written.
    """
    check_place("--html", arguments.html)
    with Progress() as progress:
        run = _read(arguments, progress)
        if arguments.dump_config:
            return dump_run(run, is_json=arguments.json)
        from semu.door.contexts import save_study, with_context
        from semu.nn.trace.sharding import EXCHANGES, ContextKind
        from semu.parallel.context import Balance
        from semu.simulation.contexts.permutations import write_permutations
        from semu.simulation.contexts.policies import study

        job = run.job()
        say_notes(run)
        chosen, kinds = None, list(EXCHANGES) if arguments.policies == "all" else None
        if arguments.kinds is not None:
            words = [word.strip() for word in arguments.kinds.split(",")]
            kinds = [check_member(word, ContextKind, "--kinds", "exchange of keys") for word in words]
        if arguments.policies not in (None, "all"):
            words = [word.strip() for word in arguments.policies.split(",")]
            chosen = [check_member(word, Balance, "--policies", "policy of context ranks") for word in words]
        with run.places.located():
            job = with_context(job, arguments.mask, arguments.cp)
            found = study(job, policies=chosen, kinds=kinds, progress=progress)
        if arguments.out is not None:
            progress("drawing")
            say_written(*save_study(found, arguments.out))
        write_html(arguments.html, found)
        if arguments.export is not None:
            if chosen is not None and len(chosen) == 1:
                job = replace(job, parallel=replace(job.parallel, cp_balance=chosen[0]))
            say(f"wrote {write_permutations(job, arguments.export)}")
    if arguments.json:
        emit_json({"run": arguments.run, "warnings": list(run.notes), **found.to_json()})
    else:
        emit(repr(found))
    return 0


def _read(arguments: argparse.Namespace, progress: Progress) -> RunConfig:
    """The run; where nothing says how its GPUs are divided, ``--cp`` ranks are part of the layout, without it two."""
    from semu.parallel.axes import AXES
    from semu.runfile.sources import leaves_cluster_open

    is_said = arguments.parallel is not None or any(
        one.replace(" ", "").startswith(f"parallel.{axis}=") for one in arguments.assignments for axis in AXES
    )
    if is_said or not leaves_cluster_open(arguments.run, asked_changes(arguments).reading):
        return read_run(arguments, progress)
    cp = 2 if arguments.cp is None else arguments.cp
    arguments.assignments = [*arguments.assignments, f"parallel.cp={cp}"]
    found = read_run(arguments, progress)
    note = f"parallel.cp: not given, taken as {cp}"
    return replace(found, notes=(*found.notes, note)) if arguments.cp is None else found
