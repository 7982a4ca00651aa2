"""``ImportedTables``: the tables that a file of another program becomes, with the report of what was understood.

Files of every program end here: ``finish`` refuses what makes another model or arithmetic, writes what is left out and
changes little into ``[training] left_out``, which widens the interval, and makes the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semu.errors import ConfigError
from semu.imports.arguments import Argument
from semu.imports.settings import Difference, Settings
from semu.records import dataclass
from semu_models.hf.reading import Reading, ReadingRow

Tables = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class ImportedTables:
    """What was read. tables: of a run file. reading: the report. places: key of a run file -> what decided it."""

    tables: Tables
    reading: Reading
    places: Mapping[str, str]


def finish(
    settings: Settings, tables: Tables, *, allow_unmodelled: bool = False, cluster: str | None = None
) -> ImportedTables:
    """Tables with their report.

    Args:
        settings: all that was asked of them. tables: of a run file, which are changed.
        allow_unmodelled: leave out what makes another model or arithmetic as well.
        cluster: as the caller asks for it; None: the tables' cluster is the file's, or a default.
    Raises:
        ConfigError: what makes another model or arithmetic, all of it at once.
    """
    if settings.refused and not allow_unmodelled:
        raise refusal(settings)
    spreads: dict[str, float] = {}
    for item in (*settings.near, *settings.refused):
        name = item.name.removeprefix("--")
        spreads[name] = max(spreads.get(name, 0.0), item.spread)
    left_out = [f"{name} {spread:g}" for name, spread in spreads.items() if spread > 0]
    if left_out:
        tables.setdefault("training", {})["left_out"] = left_out
    return ImportedTables(tables, _reading(settings, tables, cluster), _places(settings, tables))


def refusal(settings: Settings) -> ConfigError:
    """The error that names all that makes another model or arithmetic."""
    refused, given = settings.refused, settings.given
    count = f"{len(refused)} settings" if len(refused) > 1 else "a setting"
    verb = "are" if len(refused) > 1 else "is"
    nearest = [settings.flags.nearest(item.name) for item in refused if item.why.startswith("unknown")]
    return ConfigError(
        f"{count} that may change time or memory {verb} not modelled by this version: {'; '.join(map(str, refused))}",
        where=given.where(min((item.line for item in refused if item.line), default=0)),
        expected="none of them, or --allow-unmodelled, which leaves them out and lists them",
        got=" ".join(item.name for item in refused),
        nearest=next((name for name in nearest if name is not None), None),
    )


def _places(settings: Settings, tables: Tables) -> dict[str, str]:
    """The argument that decided a key; of several the last that the file gives."""
    places: dict[str, str] = {}
    understood = settings.flags.understood
    for dest in settings.asked:
        if settings.is_told(dest) and understood[dest].to:
            places |= dict.fromkeys(_keys(understood[dest].to, tables), settings.where(dest))
    given = settings.given
    if given.nodes is not None:
        places |= dict.fromkeys(("cluster.nodes", "cluster.gpus_per_node"), given.where(given.cluster_line))
    return places


def _reading(settings: Settings, tables: Tables, cluster: str | None) -> Reading:
    flags, given = settings.flags, settings.given
    left = {(item.name, item.line) for item in (*settings.refused, *settings.near)}
    understood, ignored = [], [_row(argument, why) for argument, why in settings.ignored]
    for dest, argument in settings.told.items():
        if (argument.written, argument.line) in left:
            continue
        if dest not in settings.asked:
            ignored.append(_row(argument, "without effect beside the others"))
        elif argument.is_printed and settings.is_default(dest):
            ignored.append(_row(argument, f"{flags.program}'s own value"))
        else:
            understood.append(_row(argument, _shown(flags.understood[dest].to, tables), settings.asked[dest]))
    if given.cluster_line and given.nodes is not None and cluster is None:
        size = f"{given.nodes} x {given.gpus_per_node}"
        understood.append(ReadingRow("launcher", size, _shown("cluster.nodes, cluster.gpus_per_node", tables)))
    defaulted = [
        ReadingRow(flags.shown(flag), False if flag.is_switch else _plain(value), flag.to or "what semu models")
        for dest, value in settings.asked.items()
        if not settings.is_told(dest) and (flag := flags.understood[dest]) and value is not None
    ]
    if cluster is None and "device" in tables.get("cluster", {}):
        defaulted.append(ReadingRow("cluster.device", tables["cluster"]["device"], "cluster.device"))
    return Reading(
        given.source,
        given.kind,
        None,
        tuple(understood),
        tuple(defaulted),
        tuple(ignored),
        tuple(settings.notes),
        tuple(_difference(item) for item in settings.refused),
        tuple(_difference(item) for item in settings.near),
    )


def _difference(item: Difference) -> ReadingRow:
    told = item.why if item.effect is None else f"{item.why}: {item.effect}"
    return ReadingRow(item.name, item.value, told, item.line or None)


def _row(argument: Argument, meaning: str, value: object = None) -> ReadingRow:
    is_switch = argument.flag is not None and argument.flag.is_switch and not argument.is_printed
    told = True if is_switch and not argument.values else argument.shown if value is None else _plain(value)
    return ReadingRow(argument.written, told, meaning, argument.line or None)


def _shown(keys: str, tables: Tables) -> str:
    """``model.transformer.layers = 32``; a key that is not written stands alone."""
    if not keys:
        return "what semu models"
    words = []
    for key in _keys(keys, tables):
        value: Any = tables
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        words.append(key if value is None or isinstance(value, Mapping) else f"{key} = {shown}")
    return ", ".join(words)


def _keys(keys: str, tables: Tables) -> list[str]:
    """Keys of a run file one by one; beside an encoder, the language model's table is ``[model.llm]``."""
    table = "model.llm" if "llm" in tables["model"] else "model.transformer"
    return keys.replace("model.transformer", table).split(", ")


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
