"""``semu templates``: pipeline templates of a run, and what some nodes are composed into."""

from __future__ import annotations

import argparse

from semu.cli.console import Progress, emit, emit_json, say_written
from semu.cli.resolved import dump_run, read_run, say_notes


def templates_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: a run that cannot be read, ZeRO across pipelines, too few nodes, a file that cannot be written.
        MemoryLimitError: no template fits.
    """
    with Progress() as progress:
        run = read_run(arguments, progress)
        if arguments.dump_config:
            return dump_run(run, is_json=arguments.json)
        from semu.door.long_runs import options_of
        from semu.door.templates import save_templates
        from semu.resilience.templates.making import pipeline_templates
        from semu.resilience.templates.together import simulate_pipelines

        say_notes(run)
        with run.places.located():
            faults = options_of(run.config).faults if arguments.faults is None else arguments.faults
            found = pipeline_templates(run.job(), faults, progress=progress)
            composed = None if arguments.nodes is None else found.compose(arguments.nodes)
            together = None
            if composed is not None and composed.is_timed:
                together = simulate_pipelines(found, composed, progress=progress)
        if arguments.out is not None:
            progress("drawing")
            say_written(*save_templates(found, composed, together, arguments.out))
    if arguments.json:
        more = {} if composed is None else {"composition": composed.to_json()}
        if together is not None:
            more["simulated"] = together.to_json()
        emit_json({"run": arguments.run, "warnings": list(run.notes), **found.to_json(), **more})
    else:
        emit("\n\n".join(repr(one) for one in (found, composed, together) if one is not None))
    return 0
