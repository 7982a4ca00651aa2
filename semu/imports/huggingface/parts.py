"""``Parts``: the settings of the files that one run is made of, with one report.

A run of HuggingFace's Trainer may be told in several files: its arguments, DeepSpeed's configuration, accelerate's.
Each has ``Settings`` of its own, whose messages name its own lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import field, replace
from typing import Any

from semu import memo
from semu.errors import ConfigError, unknown_name
from semu.imports.arguments import Argument, Given
from semu.imports.documents import read_document
from semu.imports.reading import ImportedTables, Tables, finish
from semu.imports.settings import Difference, Settings
from semu.records import dataclass

_SUFFIXES = (".json", ".yaml", ".yml")
_ROWS = ("understood", "defaulted", "ignored", "notes", "unmodelled", "small")


@dataclass(frozen=True)
class Asked:
    """What the caller asks for.

    Attributes:
        cluster: ``DEVICE:NODESxGPUS``; None: as the files say. defined: further keys of the program, or other values.
        allow_unmodelled: leave out what makes another model or arithmetic, and list it, instead of refusing it.
        model: in the place of the file's.
    """

    cluster: str | None = None
    defined: Mapping[str, str] = field(default_factory=dict)
    allow_unmodelled: bool = False
    model: str | None = None


@dataclass
class Parts:
    """The settings of one run.

    Attributes:
        main: of the file that was asked for. others: name of a further file -> its settings.
    """

    main: Settings
    others: dict[str, Settings] = field(default_factory=dict)

    def finished(self, tables: Tables, asked: Asked) -> ImportedTables:
        """``finish`` for all of them; arguments and errors as there.

        Args:
            tables: of a run file, which are changed. asked: by the caller.
        """
        for name, settings in self.others.items():
            self.main.refused += [_named(item, name) for item in settings.refused]
            self.main.near += [_named(item, name) for item in settings.near]
            settings.refused, settings.near = [], []
        result = finish(self.main, tables, allow_unmodelled=asked.allow_unmodelled, cluster=asked.cluster)
        reading, places = result.reading, dict(result.places)
        for settings in self.others.values():
            other = finish(settings, deepcopy(tables), cluster="told elsewhere")
            rows: dict[str, Any] = {n: (*getattr(reading, n), *getattr(other.reading, n)) for n in _ROWS}
            reading = replace(reading, **rows)
            places |= other.places
        return ImportedTables(result.tables, replace(reading, notes=tuple(dict.fromkeys(reading.notes))), places)


def _named(item: Difference, name: str) -> Difference:
    """A difference of another file: its line would be one of the first file's."""
    line = f":{item.line}" if item.line else ""
    return replace(item, name=f"{name}{line} {item.name}", line=0)


def with_asked(given: Given, asked: Asked, aliases: Mapping[str, str], model: str = "model") -> Given:
    """What a file and the caller say; the caller counts.

    Args:
        aliases: further names of keys. model: key that names the model.
    Raises:
        ConfigError: a key that the program does not have.
    """
    wanted = dict(asked.defined)
    if asked.model is not None:
        wanted["model"] = asked.model
    added: list[Argument] = []
    for key, value in wanted.items():
        name = {"model": model, **aliases}.get(key, key)
        flag = given.flags.spelt(name) or given.flags.understood.get(name)
        if flag is None:
            legal = ["model", *aliases, *(item.name for item in given.flags.flags if not item.is_pattern)]
            raise unknown_name(f"key of {given.flags.program}", key, legal, where=f"--define {key}={value}")
        is_set = key == "model" and asked.model is not None
        written = "--set model" if is_set else f"--define {flag.name}"
        added.append(Argument(flag, written, (value.lower() if flag.is_switch else value,), 0))
    names = {argument.flag.dest for argument in added if argument.flag is not None}
    kept = [item for item in given.arguments if item.flag is None or item.flag.dest not in names]
    return replace(given, arguments=(*kept, *added))


def merged_flags(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """One table of flags of several; of a name that stands twice the last counts."""
    found: dict[str, Any] = {"understood": {}, "families": {}}
    own: set[str] = set()
    for number, table in enumerate(reversed(tables)):
        names = dict(_names(table))
        for grade in ("understood", "ignored", "small", "structural"):
            for purpose, group in table.get(grade, {}).items():
                label = f"{purpose}{'_' * number}" if purpose in found.get(grade, {}) else purpose
                found.setdefault(grade, {})[label] = _without(grade, group, own)
        found["families"] = {**table.get("families", {}), **found["families"]}
        own |= set(names)
    return found


def _names(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for grade in ("understood", "ignored", "small", "structural"):
        for group in table.get(grade, {}).values():
            if grade == "understood":
                for name, told in group.items():
                    yield from ((spelling, grade) for spelling in (name, *told.get("same", ())))
            else:
                yield from ((name, grade) for name in (*group.get("flags", ()), *group.get("harmless", {})))


def _without(grade: str, group: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """A group of flags without some names."""
    if grade == "understood":
        return {
            name: {**told, "same": [spelling for spelling in told.get("same", ()) if spelling not in names]}
            for name, told in group.items()
            if name not in names
        }
    kept = {**group, "flags": [name for name in group.get("flags", ()) if name not in names]}
    if "harmless" in group:
        kept["harmless"] = {name: words for name, words in group["harmless"].items() if name not in names}
    return kept


@memo.remembered(4)
def top_keys(path: str, text: str) -> frozenset[str]:
    """Keys at the top of a YAML or JSON file; none, where it cannot be parsed or is of another kind."""
    if not path.endswith(_SUFFIXES):
        return frozenset()
    try:
        data = read_document(text, path).data
    except ConfigError:
        return frozenset()
    return frozenset(map(str, data))
