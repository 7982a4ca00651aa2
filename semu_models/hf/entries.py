"""Keys of a file as the reader sees them: ``Entry``, and what can be asked of a table of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semu.checks import is_number
from semu.records import dataclass
from semu_models.hf.common import FIXED, IGNORED, UNDERSTOOD
from semu_models.hf.dialect import Dialect

QUANTISATION = ("quantization_config", "compression_config")
"""Keys that a quantised checkpoint has."""


@dataclass(frozen=True)
class Entry:
    """A value of the file and its dotted key from the top."""

    key: str
    value: Any


Table = Mapping[str, Entry]
"""Entries of one level of the file, by key."""


def look_up(table: Table, path: str) -> Entry | None:
    """The entry of a dotted path, None where it is absent."""
    first, _, inner = path.partition(".")
    entry = table.get(first)
    for part in inner.split(".") if inner else ():
        if entry is None or not isinstance(entry.value, Mapping) or part not in entry.value:
            return None
        entry = Entry(f"{entry.key}.{part}", entry.value[part])
    return entry


def outer_key(table: Table, key: str) -> str:
    """The dotted key from the top that an absent key of this table would have."""
    for name, entry in table.items():
        if entry.key.endswith(f".{name}"):
            return f"{entry.key[: -len(name)]}{key}"
    return key


def architecture(table: Table) -> str | None:
    """The class that ``architectures`` names first."""
    entry = table.get("architectures")
    classes = entry.value if entry is not None else None
    return classes[0] if isinstance(classes, list) and classes and isinstance(classes[0], str) else None


def known_keys(dialect: Dialect) -> set[str]:
    """Every key that a dialect reads at its level of the file."""
    spelt = {path.partition(".")[0] for spelling in dialect.spellings.values() for path in spelling.keys}
    nested = {key for section in dialect.sections.values() for key in section.keys}
    tables = (UNDERSTOOD, IGNORED, FIXED, dialect.understood, dialect.ignored, dialect.fixed)
    return spelt | nested | set().union(*map(set, tables)) | set(QUANTISATION)


def is_zero(value: Any) -> bool:
    """0 and 0.0, which equal False."""
    return is_number(value)
