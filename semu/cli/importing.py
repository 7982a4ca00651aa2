"""``semu import``: a file of another program becomes a run file, with a report of what was understood."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semu.cli.console import Progress, emit, emit_json, has_compiled_kernels, say
from semu.errors import ConfigError

if TYPE_CHECKING:
    from semu.runfile.importing import ImportedRun


def import_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: a file that cannot be read or imported, a place that cannot be written.
    """
    output = arguments.output
    if output is not None and not Path(output).absolute().parent.is_dir():
        raise ConfigError(
            "no such folder", where=f"-o {output}", expected="a file in a folder that is there", got=output
        )
    with Progress(is_first_run=not has_compiled_kernels()) as progress:
        progress(f"reading {arguments.file}")
        from semu.runfile import Overrides
        from semu.runfile.importing import describe_model, import_run

        changes = Overrides(arguments.assignments, arguments.cluster, arguments.parallel)
        imported = import_run(arguments.file, changes)
        modules = describe_model(imported.run)
        flop = _flop(imported)
    toml = imported.to_toml(os.path.dirname(output) or "." if output is not None else ".")
    if output is not None:
        try:
            Path(output).write_text(toml, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write the run file: {error.strerror}", where=f"-o {output}") from error
        say(f"wrote {output}")
    if arguments.json:
        emit_json(
            {
                "kind": imported.kind,
                "source": imported.source,
                "reading": imported.report.to_json(),
                "parameters": imported.run.model.num_parameters(),
                "modules": modules,
                "flop_per_token": flop,
                "run": imported.run.config,
                "notes": list(imported.notes),
                "toml": toml,
            }
        )
        return 0
    text = "\n\n".join((repr(imported.report), _decided(imported), _module_text(modules), _flop_text(flop)))
    if output is None:
        say(text)
        emit(toml)
    else:
        emit(text)
    return 0


def _flop(imported: ImportedRun) -> dict[str, Any] | None:
    """FLOP of a token of the backbone, by convention; with them that of the traced operators of this very run."""
    from semu_models.flop_per_token import flop_per_token

    training = imported.run.config["training"]
    length = training.get("seq_len")
    if not isinstance(length, int):
        return None
    known = flop_per_token(imported.run.model, length)
    return {"seq_len": length, **known} if known is not None else None


def _decided(imported: ImportedRun) -> str:
    return "\n".join(["decided for the run", *(f"  {note}" for note in imported.notes or ("nothing",))])


def _module_text(rows: list[Any]) -> str:
    from semu.report_text import align_columns

    cells = []
    for row in rows:
        name = "  " * (row["level"] + 1) + row["path"]
        cells.append((name, f"{row['parameters_each']:,}", f"x {row['count']}", f"{row['parameters']:,}"))
    total = sum(row["parameters"] for row in rows if row["level"] == 0)
    lines = align_columns([*cells, ("  all", "", "", f"{total:,}")], [False, True, True, True])
    return "\n".join(["parameters", *lines])


def _flop_text(flop: dict[str, Any] | None) -> str:
    from semu_models.flop_per_token import CONVENTIONS

    if flop is None:
        return "model FLOP per token: not known without a batch; semu simulate counts it"
    rows = [f"  {name:<14}{flop[name] / 1e9:>16,.3f} G" for name in CONVENTIONS]
    return "\n".join([f"model FLOP per token of training, sequences of {flop['seq_len']:,} tokens", *rows])
