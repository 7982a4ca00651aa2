"""``semu import``: a file of another program becomes a run file, with a report of what was understood."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semu.checks import LARGEST_COUNT
from semu.cli.console import Progress, emit, emit_json, say
from semu.cli.option_checks import check_place
from semu.cli.resolved import read_defined
from semu.errors import ConfigError, SemuError
from semu.units import GIB

if TYPE_CHECKING:
    from semu.present.report import Report
    from semu.runfile.importing import ImportedRun


def import_command(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code.

    Raises:
        ConfigError: a file that cannot be read or imported, a place that cannot be written.
    """
    output = arguments.output
    check_place("-o", output)
    with Progress() as progress:
        progress(f"reading {arguments.file}")
        from semu.runfile import Overrides
        from semu.runfile.importing import describe_model, import_run

        imported = import_run(
            arguments.file,
            Overrides(
                arguments.assignments,
                arguments.cluster,
                arguments.parallel,
                defined=read_defined(arguments.define),
                allow_unmodelled=arguments.allow_unmodelled,
            ),
        )
        modules = describe_model(imported.run)
        progress("simulating it")
        predicted = _predict(imported)
        flop = _flop(imported, predicted)
    toml = imported.to_toml(os.path.dirname(output) or "." if output is not None else None)
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
                "predicted": _figures(predicted),
                "run": imported.run.config,
                "notes": list(imported.notes),
                "toml": toml,
            }
        )
        return 0
    decided = "\n".join(["decided for the run", *(f"  {note}" for note in imported.notes or ("nothing",))])
    parts = (repr(imported.report), decided, _module_text(modules), _flop_text(flop), _predicted_text(predicted))
    text = "\n\n".join(parts)
    if output is None:
        say(text)
        emit(toml, is_code=True)
    else:
        emit(text)
    return 0


def _predict(imported: ImportedRun) -> Report | None:
    """The run simulated as it is written; None where it cannot be, which is said."""
    from semu.simulation import simulate

    try:
        with imported.run.places.located():
            return simulate(imported.run.job())
    except SemuError as error:
        say(f"the run is written, and cannot be simulated as it is: {error}")
        return None


def _flop(imported: ImportedRun, predicted: Report | None) -> dict[str, Any]:
    """FLOP of a token: of the backbone by convention, where there is a closed form; of all traced operators of this run
    (``traced``: what is frozen, and other modules than the backbone, counted as they are)."""
    from semu_models.flop_formulas import flop_per_token

    length = imported.run.config["training"].get("seq_len")
    known = None
    if isinstance(length, int) and length <= LARGEST_COUNT:
        known = flop_per_token(imported.run.model, length)
    traced = predicted.model_flop / predicted.tokens if predicted is not None and predicted.tokens else None
    return {"seq_len": length, **(known or {}), "traced": traced}


def _figures(predicted: Report | None) -> dict[str, Any] | None:
    if predicted is None:
        return None
    return {
        "iteration_time_s": predicted.iteration_time_s,
        "mfu": predicted.mfu,
        "peak_memory_bytes": max(predicted.peak_memory_bytes),
        "fits": predicted.fits,
    }


def _module_text(rows: list[Any]) -> str:
    from semu.units import align_columns

    cells = []
    for row in rows:
        name = "  " * (row["level"] + 1) + row["path"]
        cells.append((name, f"{row['parameters_each']:,}", f"x {row['count']}", f"{row['parameters']:,}"))
    total = sum(row["parameters"] for row in rows if row["level"] == 0)
    lines = align_columns([*cells, ("  all", "", "", f"{total:,}")], [False, True, True, True])
    return "\n".join(["parameters", *lines])


def _flop_text(flop: dict[str, Any]) -> str:
    from semu_models.flop_formulas import CONVENTIONS

    names = [name for name in (*CONVENTIONS, "traced") if flop.get(name) is not None]
    if not names:
        return "model FLOP per token: there is no closed form for this model"
    rows = [f"  {name:<14}{flop[name] / 1e9:>16,.3f} G" for name in names]
    length = "" if flop["seq_len"] is None else f", sequences of {flop['seq_len']:,} tokens"
    return "\n".join([f"model FLOP per token of training{length} (traced: all that this run computes)", *rows])


def _predicted_text(predicted: Report | None) -> str:
    if predicted is None:
        return "predicted: nothing, see the message"
    peak, fits = max(predicted.peak_memory_bytes) / GIB, "fits" if predicted.fits else "does not fit"
    return (
        f"predicted: {predicted.iteration_time_s:.4g} s an iteration, MFU {predicted.mfu:.1%}, "
        f"peak {peak:.2f} GiB ({fits})"
    )
