"""``import_run``: a file of another program becomes run.toml's tables and a report of what was understood.

``semu.imports.kinds`` says whose file it is and reads it. What it leaves open is then decided as for any run, and the
tables are resolved, so that what is written also loads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from semu.errors import ConfigError, nearest_name
from semu.files import read_bounded
from semu.imports.kinds import PROGRAMS, program_of
from semu.nn import Module
from semu.nn.module import Parameter
from semu.records import dataclass
from semu.runfile.complete import complete_run
from semu.runfile.config import RunConfig
from semu.runfile.overrides import Overrides
from semu.runfile.places import Places
from semu.runfile.resolve import resolve_tables
from semu.runfile.schema import TABLES
from semu.runfile.sources import LARGEST_TEXT, hf_file
from semu.runfile.toml_text import comment_lines, format_toml
from semu_models.hf.reading import Reading

Tables = dict[str, dict[str, Any]]
HF_KIND = "config.json of HuggingFace transformers"


@dataclass(frozen=True)
class ImportedRun:
    """A file that was imported.

    Attributes:
        kind: of the file. source: its path. report: what was understood.
        tables: of the run file; paths start from the current folder. run: the tables resolved.
        notes: what was decided, a sentence each.
    """

    kind: str
    source: str
    report: Reading
    tables: Tables
    run: RunConfig
    notes: tuple[str, ...]

    def to_toml(self, folder: str | None = ".") -> str:
        """The run file, for a folder: ``model.hf_config`` starts from there; None: for any, by its whole path."""
        tables = deepcopy(self.tables)
        if (path := tables["model"].get("hf_config")) is not None:
            place = os.path.abspath(path) if folder is None else os.path.relpath(path, folder)
            tables["model"]["hf_config"] = Path(place).as_posix()
        tables = {name: tables[name] for name in TABLES if name in tables}
        head = [f"from {self.source}, {self.kind}", *self.notes]
        return "\n".join(line for text in head for line in comment_lines(text)) + "\n\n" + format_toml(tables)


def import_run(path: str, overrides: Overrides | None = None) -> ImportedRun:
    """Read a file of another program.

    Args:
        path: a file of one of ``PROGRAMS``, or a config.json. overrides: what the command line changes.
    Raises:
        ConfigError: a file that cannot be read, of another program, or with settings that semu does not model.
    """
    changes = overrides if overrides is not None else Overrides()
    path = hf_file(path) or path
    text = _read(path)
    program = program_of(path, text)
    report: Reading | None = None
    if program is not None:
        read = program.read(text.replace("\r\n", "\n"), path, changes.reading)
        kind, tables, report, decided = program.kind, read.tables, read.reading, dict(read.places)
    elif path.endswith(".json") or text.lstrip().startswith("{"):
        _refuse_options(changes)
        kind, tables, decided = HF_KIND, {"model": {"hf_config": path}}, {}
    else:
        got = text.strip().partition("\n")[0][:60] or "an empty file"
        raise ConfigError("not a file that semu can import", where=path, expected=_kinds(), got=got)
    places = Places("", flags=decided)
    is_open = "cluster" not in tables
    changes.apply(tables, places)
    notes = list(complete_run(tables, places, resolve_tables)) if is_open else []
    run = resolve_tables(tables, places)
    report = run.reading if report is None else report
    assert report is not None
    run.job()
    tables.setdefault("training", {}).setdefault("global_batch", run.config["training"]["global_batch"])
    said = (run.reading.summary(), *run.reading.notes) if run.reading is not None else ()
    told = [note for note in run.notes if note not in said]
    return ImportedRun(kind, path, report, tables, run, tuple(dict.fromkeys((*notes, *told))))


def _refuse_options(changes: Overrides) -> None:
    """Say no to what only files of programs have."""
    for flag, value in (("--define", changes.defined), ("--allow-unmodelled", changes.allow_unmodelled)):
        if value:
            message = f"{flag} is for files of a program that trains"
            raise ConfigError(message, where=flag, expected="a script, a log or a configuration", got="config.json")


def _read(path: str) -> str:
    try:
        return read_bounded(path, _kinds(), LARGEST_TEXT).decode("utf-8-sig", errors="replace")
    except OSError as error:
        folder = Path(path).parent
        nearest = nearest_name(Path(path).name, [item.name for item in folder.iterdir()] if folder.is_dir() else [])
        message = f"cannot read the file: {error.strerror}"
        raise ConfigError(message, where=path, expected=_kinds(), nearest=nearest) from error


def _kinds() -> str:
    kinds = [(HF_KIND, "config.json"), *((program.kind, program.example) for program in PROGRAMS)]
    return " or ".join(f"{kind} ({example})" for kind, example in kinds)


def describe_model(run: RunConfig) -> list[Mapping[str, Any]]:
    """Parameters of a run's model, module by module: blocks that are alike in one row, with their parts below.

    Returns:
        Rows with ``path``, ``count``, ``parameters_each``, ``parameters`` and ``level`` (0 block, 1 part of one).
    """
    rows: list[Mapping[str, Any]] = []
    seen: set[Parameter] = set()
    for modality in run.model.modules:
        groups: list[list[tuple[str, int, tuple[tuple[str, int], ...]]]] = []
        for path, block in modality.blocks():
            parts = tuple((name, _own(child, seen)) for name, child in block.named_children())
            entry = (path, _own(block, seen), parts)
            seen.update(parameter for parameter in block.parameters())
            if groups and groups[-1][0][1:] == entry[1:] and parts:
                groups[-1].append(entry)
            else:
                groups.append([entry])
        for group in groups:
            (first, each, parts), last = group[0], group[-1][0]
            name = first if len(group) == 1 else f"{first} .. {last.rpartition('.')[2]}"
            rows.append(_row(name, len(group), each, 0))
            rows += [_row(f"{first}.{part}", len(group), size, 1) for part, size in parts if size]
    return rows


def _own(module: Module, seen: set[Parameter]) -> int:
    """Parameters below a module that no block before it has: a tied table counts where it comes first."""
    return sum(parameter.numel for parameter in module.parameters() if parameter not in seen)


def _row(path: str, count: int, each: int, level: int) -> Mapping[str, Any]:
    return {"path": path, "count": count, "parameters_each": each, "parameters": count * each, "level": level}
