"""``semu templates``: pipeline templates of a run, and what some nodes are composed into."""

from __future__ import annotations

import argparse

from semu.cli.console import Progress, emit, emit_json, say, say_written
from semu.cli.option_checks import check_place
from semu.cli.resolved import dump_run, read_run, say_notes
from semu.errors import ConfigError


def templates_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: a run that cannot be read, ZeRO across pipelines, too few nodes, a file that cannot be written.
        MemoryLimitError: no template fits. PlanError: the pipelines' plan cannot run.
    """
    check_place("--plan", arguments.plan)
    check_place("--html", arguments.html)
    if arguments.plan is not None and arguments.nodes is None:
        raise ConfigError("a plan of no pipelines", where="--plan", expected="with --nodes N", got=arguments.plan)
    with Progress() as progress:
        run = read_run(arguments, progress)
        if arguments.dump_config:
            return dump_run(run, is_json=arguments.json)
        from semu.door.long_runs import options_of
        from semu.door.templates import save_templates
        from semu.plan.verification.rules import verify
        from semu.resilience.pages import templates_page
        from semu.resilience.templates.making import pipeline_templates
        from semu.resilience.templates.planned import compile_pipelines
        from semu.resilience.templates.together import simulate_pipelines

        say_notes(run)
        with run.places.located():
            faults = options_of(run.config).faults if arguments.faults is None else arguments.faults
            found = pipeline_templates(run.job(), faults, progress=progress)
            composed = None if arguments.nodes is None else found.compose(arguments.nodes)
            together = None
            if composed is not None:
                together = simulate_pipelines(found, composed, progress=progress)
            plan = None
            if arguments.plan is not None and composed is not None:
                plan = compile_pipelines(found, composed, together=together, progress=progress)
                progress("verifying the plan")
                verified = verify(plan)
                plan.write(arguments.plan)
                say(f"wrote {arguments.plan}")
        if arguments.html is not None:
            say_written(templates_page(found, composed, together).save(arguments.html))
        if arguments.out is not None:
            progress("drawing")
            say_written(*save_templates(found, composed, together, arguments.out))
    if arguments.json:
        more = {} if composed is None else {"composition": composed.to_json()}
        if together is not None:
            more["simulated"] = together.to_json()
        if plan is not None:
            more["verified"] = verified.to_json()
        emit_json({"run": arguments.run, "warnings": list(run.notes), **found.to_json(), **more})
    else:
        said = [repr(one) for one in (found, composed, together, plan) if one is not None]
        emit("\n\n".join([*said, *([] if plan is None else [verified.to_text()])]))
    return 0
