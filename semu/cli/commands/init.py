"""``semu init``: a commented run file to start from."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semu.cli.console import Progress, emit, emit_json, say_written
from semu.cli.option_checks import check_place
from semu.cli.resolved import asked_cluster, read_run, say_notes
from semu.errors import ConfigError

if TYPE_CHECKING:
    from semu.runfile.config import RunConfig

GENERIC: dict[str, dict[str, Any]] = {
    "model": {
        "transformer": {
            "layers": 32,
            "hidden": 4096,
            "ffn": 14336,
            "heads": 32,
            "kv_heads": 8,
            "vocab": 128256,
            "gated_mlp": True,
        }
    },
    "cluster": {"device": "h100", "nodes": 1, "gpus_per_node": 8},
    "parallel": {"tp": 2},
    "training": {"seq_len": 4096, "global_batch": 64},
}
"""The run without a name: a dense transformer of 8 B parameters on a node."""


def init_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: a run that cannot be read, a file that is there.
    """
    place = arguments.output
    check_place("-o", place)
    if place is not None and Path(place).exists():
        raise ConfigError(
            "a file is there, and stays as it is", where=f"-o {place}", expected="the name of a new file", got=place
        )
    with Progress() as progress:
        run = _generic(arguments) if arguments.run is None else read_run(arguments, progress)
        run.job()
        say_notes(run, assigns=True)
    from semu.files import write_text
    from semu.runfile.commented import commented_run

    name = Path(place or "run.toml").name
    title = f"A run of semu, made by semu init. Next: semu simulate {name}, semu grid {name}, semu search {name}"
    text = commented_run(run, title)
    if place is not None:
        say_written(write_text(place, text))
    if arguments.json:
        emit_json({"config": run.config, "file": place})
    elif place is None:
        emit(text, is_code=True)
    return 0


def _generic(arguments: argparse.Namespace) -> RunConfig:
    from copy import deepcopy

    from semu.runfile import Overrides
    from semu.runfile.places import Places
    from semu.runfile.resolve import resolve_tables

    tables, places = deepcopy(GENERIC), Places("the generic run")
    changes = Overrides(
        arguments.assignments, asked_cluster(arguments), arguments.parallel, arguments.profile, arguments.seed
    )
    changes.apply(tables, places)
    return resolve_tables(tables, places)
