"""``import_run``: a file of another program becomes run.toml's tables and a report of what was understood.

Each kind of file is a row of ``IMPORT_KINDS``: how it is recognised, and a function that reads it. What it leaves open
is then decided as for any run, and the tables are resolved, so that what is written also loads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from semu.errors import ConfigError, nearest_name
from semu.imports.megatron import is_megatron, read_arguments
from semu.nn import Module
from semu.nn.module import Parameter
from semu.runfile.complete import complete_run
from semu.runfile.config import RunConfig
from semu.runfile.overrides import Overrides
from semu.runfile.places import Places
from semu.runfile.resolve import resolve_tables
from semu.runfile.schema import TABLES
from semu.runfile.sources import hf_file
from semu.runfile.toml_text import comment_lines, format_toml

Tables = dict[str, dict[str, Any]]


class ImportReport(Protocol):
    """What was understood of a file; ``repr`` is the text for people."""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""


@dataclass(frozen=True)
class ImportOptions:
    """What the command line says of a file's reading.

    Attributes:
        cluster: ``DEVICE:NODESxGPUS``. defined: variables of a script.
        allow_unmodelled: leave out what is not modelled.
    """

    cluster: str | None = None
    defined: Mapping[str, str] = field(default_factory=dict)
    allow_unmodelled: bool = False

    def refuse(self, kind: str) -> None:
        """Say no to what only scripts and logs have."""
        for flag, value in (("--define", self.defined), ("--allow-unmodelled", self.allow_unmodelled)):
            if value:
                message = f"{flag} is for arguments of Megatron-LM"
                raise ConfigError(message, where=flag, expected="a script or a log", got=kind)


@dataclass(frozen=True)
class ImportKind:
    """A kind of file.

    Attributes:
        name: for messages. example: what such a file is called.
        recognises: (path, text) -> whether it is one.
        read: (path, text, options) -> run.toml's tables, the report (None: the run's own ``reading``), and key of a
            table -> what in the file decided it; raises ConfigError.
        complete: (tables, places, resolve) -> writes what the file leaves open, returns sentences; None: nothing.
    """

    name: str
    example: str
    recognises: Callable[[str, str], bool]
    read: Callable[[str, str, ImportOptions], tuple[Tables, ImportReport | None, Mapping[str, str]]]
    complete: Callable[[Tables, Places, Callable[..., RunConfig]], Sequence[str]] | None = None


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
    report: ImportReport
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


def import_run(path: str, overrides: Overrides | None = None, options: ImportOptions | None = None) -> ImportedRun:
    """Read a file of another program.

    Args:
        path: a file of one of ``IMPORT_KINDS``. overrides: what the command line changes. options: how it is read.
    Raises:
        ConfigError: a file that cannot be read, of another program, or with settings that semu does not model.
    """
    path = hf_file(path) or path
    text = _read(path)
    kind = next((kind for kind in IMPORT_KINDS if kind.recognises(path, text)), None)
    if kind is None:
        got = text.strip().partition("\n")[0][:60] or "an empty file"
        raise ConfigError("not a file that semu can import", where=path, expected=_kinds(), got=got)
    tables, report, decided = kind.read(path, text, options if options is not None else ImportOptions())
    places = Places("", flags=dict(decided))
    (overrides if overrides is not None else Overrides()).apply(tables, places)
    notes = list(kind.complete(tables, places, resolve_tables)) if kind.complete is not None else []
    run = resolve_tables(tables, places)
    report = run.reading if report is None else report
    assert report is not None
    run.job()
    tables.setdefault("training", {}).setdefault("global_batch", run.config["training"]["global_batch"])
    said = (run.reading.summary(), *run.reading.notes) if run.reading is not None else ()
    told = [note for note in run.notes if note not in said]
    return ImportedRun(kind.name, path, report, tables, run, tuple(dict.fromkeys((*notes, *told))))


def _read(path: str) -> str:
    try:
        return Path(path).read_bytes().decode("utf-8-sig", errors="replace")
    except OSError as error:
        folder = Path(path).parent
        nearest = nearest_name(Path(path).name, [item.name for item in folder.iterdir()] if folder.is_dir() else [])
        message = f"cannot read the file: {error.strerror}"
        raise ConfigError(message, where=path, expected=_kinds(), nearest=nearest) from error


def _kinds() -> str:
    return " or ".join(f"{kind.name} ({kind.example})" for kind in IMPORT_KINDS)


def _is_json(path: str, text: str) -> bool:
    return path.endswith(".json") or text.lstrip().startswith("{")


def _read_hf(path: str, _: str, options: ImportOptions) -> tuple[Tables, ImportReport | None, Mapping[str, str]]:
    options.refuse("config.json")
    return {"model": {"hf_config": path}}, None, {}


def _read_megatron(path: str, text: str, options: ImportOptions) -> tuple[Tables, ImportReport, Mapping[str, str]]:
    text, lax = text.replace("\r\n", "\n"), options.allow_unmodelled
    read = read_arguments(text, path, options.cluster, defined=options.defined, allow_unmodelled=lax)
    return read.tables, read.reading, read.places


IMPORT_KINDS: tuple[ImportKind, ...] = (
    ImportKind("config.json of HuggingFace transformers", "config.json", _is_json, _read_hf, complete_run),
    ImportKind("arguments of Megatron-LM", "pretrain.sh or a log", is_megatron, _read_megatron),
)
"""Kinds of files, in the order in which they are tried."""


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
