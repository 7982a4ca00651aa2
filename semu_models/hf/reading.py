"""``Reading``: what was understood of a file, what was taken by default and what was left out; text and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from semu.records import dataclass
from semu.units import fit_lines

_LONGEST = 48
_HEADS = {
    "small": "not modelled, changes little (the interval is wider for it)",
    "unmodelled": "not modelled, left out as asked (the interval is wider for it)",
}


@dataclass(frozen=True)
class ReadingRow:
    """A key of the file.

    Attributes:
        key: as the file writes it, or could have written it. value: the one that counts.
        meaning: the canonical name, or why the key has no effect. line: in the file; None: not recorded.
    """

    key: str
    value: Any
    meaning: str
    line: int | None = None

    @property
    def text(self) -> str:
        """The meaning, and the line if it is recorded."""
        return self.meaning if self.line is None else f"{self.meaning} (line {self.line})"

    def to_json(self) -> dict[str, Any]:
        """A row of the JSON document."""
        row = {"key": self.key, "value": _json_value(self.value), "meaning": self.meaning}
        return row if self.line is None else {**row, "line": self.line}


def _json_value(value: object) -> object:
    """A value of a file as JSON has it: infinity and NaN, which YAML and TOML know, are words."""
    if isinstance(value, Mapping):
        return {key: _json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


@dataclass(frozen=True)
class Reading:
    """A report of a file that was read.

    Attributes:
        source: the file. kind: what sort of file. model_type: of the model in it, if it says one.
        understood: keys of the file that were used. defaulted: what the file does not say.
        ignored: keys of the file without effect on time and memory. notes: sentences.
        unmodelled: keys that make another model or arithmetic and were left out because the user said so.
        small: keys that are not modelled and change little, with how much.
    """

    source: str
    kind: str
    model_type: str | None
    understood: tuple[ReadingRow, ...]
    defaulted: tuple[ReadingRow, ...]
    ignored: tuple[ReadingRow, ...]
    notes: tuple[str, ...] = ()
    unmodelled: tuple[ReadingRow, ...] = ()
    small: tuple[ReadingRow, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "source": self.source,
            "kind": self.kind,
            "model_type": self.model_type,
            **{name: [row.to_json() for row in rows] for name, rows in self._groups()},
            "notes": list(self.notes),
        }

    def summary(self) -> str:
        """One sentence."""
        taken = ", ".join(f"{row.key} = {_short(row.value)}" for row in self.defaulted)
        return (
            f"{self.source}: {self._subject()}: {len(self.understood)} keys understood, {len(self.ignored)} without "
            f"effect, {len(self.defaulted)} taken by default" + (f" ({taken})" if taken else "")
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for each key that is not modelled."""
        rows = (*self.small, *self.unmodelled)
        return tuple(f"not modelled: {row.key} {_short(row.value)}, {row.text}" for row in rows)

    def __repr__(self) -> str:
        lines = [f"{self.source}: {self._subject()}"]
        every = [row for _, rows in self._groups() for row in rows]
        key = max((len(row.key) for row in every), default=0)
        value = min(max((len(_short(row.value)) for row in every), default=0), _LONGEST // 2)
        for name, rows in self._groups():
            lines += ["", f"{_HEADS.get(name, name)} ({len(rows)})"]
            lines += [f"  {row.key:<{key}}  {_short(row.value):<{value}}  {row.text}".rstrip() for row in rows]
        if self.notes:
            lines += ["", "notes", *(f"  {note}" for note in self.notes)]
        return fit_lines("\n".join(lines))

    def _subject(self) -> str:
        return self.kind if self.model_type is None else f"{self.kind}, model_type {self.model_type}"

    def _groups(self) -> Iterator[tuple[str, tuple[ReadingRow, ...]]]:
        yield "understood", self.understood
        yield "defaulted", self.defaulted
        yield "ignored", self.ignored
        if self.small:
            yield "small", self.small
        if self.unmodelled:
            yield "unmodelled", self.unmodelled


def _short(value: Any) -> str:
    """A value as JSON, long ones cut; a list of one thing repeated says how often."""
    if isinstance(value, list) and len(value) > 4 and len({json.dumps(item, sort_keys=True) for item in value}) == 1:
        return f"{len(value)} x {json.dumps(value[0])}"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."
