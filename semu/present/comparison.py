"""``Comparison``: runs, results and logs side by side: what differs in their settings, times and memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from semu.errors import MALFORMED, ConfigError
from semu.present.report_data import SCHEMA_VERSION
from semu.present.summary import seconds_of_groups
from semu.records import dataclass
from semu.units import GIB, align_columns, fit_lines, format_time

if TYPE_CHECKING:
    from semu.present.page import Page

_PARTS = {"bubble": "pipeline bubble"}
_LARGEST = 1e30


@dataclass(frozen=True)
class Side:
    """One of the things that are compared.

    Attributes:
        name: as the user wrote it. kind: ``simulated``, ``result`` or ``log``.
        time_s: of an iteration [s]. interval_s: its 90 % interval; None: a log has none.
        tokens_per_s: per GPU; None: not known. mfu: a fraction; None: not known.
        parts_s: where the time goes [s]; empty: not known.
        memory: pipeline rank -> peak of allocated memory [bytes]; empty: not known.
        settings: dotted key -> value; empty: not known.
        warnings: sentences.
    """

    name: str
    kind: str
    time_s: float
    interval_s: tuple[float, float] | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    parts_s: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[int, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @classmethod
    def of_document(cls, document: Mapping[str, Any], name: str, kind: str) -> Side:
        """From a result (``semu simulate --json``, or ``result.json``).

        Raises:
            ConfigError: a document that is no result of semu, or one of another version.
        """
        version = document.get("schema_version", SCHEMA_VERSION)
        if version != SCHEMA_VERSION:
            raise ConfigError(
                "a result of another version of semu",
                where=f"{name} schema_version",
                expected=f"{SCHEMA_VERSION}; simulate the run again with this version",
                got=version,
                nearest=SCHEMA_VERSION,
            )
        try:
            interval = document.get("iteration_time_interval_s")
            return cls(
                name,
                kind,
                _number(document["iteration_time_s"], least=1 / _LARGEST),
                None if interval is None else (_number(interval[0]), _number(interval[1])),
                _number(document["tokens_per_s_per_gpu"]),
                _number(document["mfu"]),
                dict(_parts(document["breakdown_s"])),
                {rank: _number(peak) for rank, peak in enumerate(document["peak_memory_bytes"])},
                dict(_settings(document)),
            )
        except MALFORMED as error:
            expected = "a document with iteration_time_s, breakdown_s, peak_memory_bytes, as semu simulate writes it"
            raise ConfigError("not a result of semu", where=name, expected=expected, got=str(error)[:60]) from error

    def to_json(self) -> dict[str, Any]:
        """A side of the JSON document."""
        return {
            "name": self.name,
            "kind": self.kind,
            "iteration_time_s": self.time_s,
            "iteration_time_interval_s": None if self.interval_s is None else list(self.interval_s),
            "tokens_per_s_per_gpu": self.tokens_per_s,
            "mfu": self.mfu,
            "breakdown_s": dict(self.parts_s),
            "peak_memory_bytes": [self.memory[rank] for rank in sorted(self.memory)],
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True)
class Comparison:
    """Sides beside the first one.

    Attributes:
        sides: two or more.
    """

    sides: tuple[Side, ...]

    @property
    def differences(self) -> dict[str, tuple[Any, ...]]:
        """Settings that are known of all sides but logs, and differ: dotted key -> value on each side, None where it is
        not set."""
        known = [side.settings for side in self.sides if side.settings]
        keys = dict.fromkeys(key for settings in known for key in settings)
        rows = {key: tuple(side.settings.get(key) for side in self.sides) for key in keys}
        return {key: row for key, row in rows.items() if any(one.get(key) != known[0].get(key) for one in known)}

    @property
    def changes(self) -> list[float]:
        """Relative difference of each side's time to the first one's."""
        first = self.sides[0].time_s
        return [side.time_s / first - 1 for side in self.sides]

    def exceeds(self, tolerance: float) -> list[Side]:
        """Sides whose times differ from the first by more than a tolerance.

        Args:
            tolerance: [percent].
        """
        return [side for side, change in zip(self.sides, self.changes, strict=True) if 100 * abs(change) > tolerance]

    def to_json(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "sides": [side.to_json() for side in self.sides],
            "time_difference_percent": [100 * change for change in self.changes],
            "settings": {key: list(row) for key, row in self.differences.items()},
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Draw where the time goes and the memory of every rank, as a PNG.

        Raises:
            OSError: the file cannot be written.
        """
        from semu.present.plots.comparison import draw_comparison

        draw_comparison(path, self)

    def page(self) -> Page:
        """The same as tables, with a bar for every side's time, as one HTML file."""
        from semu.present.page import Column, Page

        marks = [chr(ord("a") + number) for number in range(len(self.sides))]
        page = Page("Compared: " + ", ".join(side.name for side in self.sides))
        page.add_bars("Iteration", [(s.name, s.time_s, format_time(s.time_s)) for s in self.sides])
        page.add_facts("Sides", [(mark, f"{s.name}, {s.kind}") for mark, s in zip(marks, self.sides, strict=True)])
        columns = [Column("name", ""), *(Column(mark, mark) for mark in marks)]
        for heading, rows in (
            ("Figures", self._times()),
            ("Where the time goes", self._parts()),
            ("Memory at the peak of each pipeline rank", self._memory()),
            ("Settings that differ", ((key, *map(str, row)) for key, row in self.differences.items())),
        ):
            records = [dict(zip(("name", *marks), map(str.strip, row), strict=True)) for row in rows]
            if records:
                page.add_table(heading, records, columns)
        page.add_list("Notes", [f"{side.name}: {warning}" for side in self.sides for warning in side.warnings])
        return page

    def __repr__(self) -> str:
        head = ["", *(f"({chr(ord('a') + number)})" for number in range(len(self.sides)))]
        lines = [f"{mark} {side.name}, {side.kind}" for mark, side in zip(head[1:], self.sides, strict=True)]
        lines += ["", *align_columns([head, *self._times()], [False, *[True] * len(self.sides)])]
        for title, rows in (
            ("where the time goes", self._parts()),
            ("memory at the peak of each pipeline rank", self._memory()),
            ("settings that differ", self._different()),
        ):
            found = list(rows)
            if found:
                lines += ["", title, *align_columns([head, *found], [False, *[True] * len(self.sides)])]
        if any(side.settings for side in self.sides) and not self.differences:
            lines += ["", "no setting differs"]
        lines += [f"{side.name}: {warning}" for side in self.sides for warning in side.warnings]
        return fit_lines("\n".join(lines))

    def _times(self) -> Iterator[tuple[str, ...]]:
        yield "iteration", *(format_time(side.time_s) for side in self.sides)
        yield "beside (a)", *("" if not number else f"{change:+.1%}" for number, change in enumerate(self.changes))
        yield "90% interval", *(_interval(side) for side in self.sides)
        yield "tokens/s/GPU", *("" if s.tokens_per_s is None else f"{s.tokens_per_s:,.0f}" for s in self.sides)
        yield "MFU", *("" if side.mfu is None else f"{side.mfu:.1%}" for side in self.sides)

    def _parts(self) -> Iterator[tuple[str, ...]]:
        names = dict.fromkeys(name for side in self.sides for name in side.parts_s)
        for name in names:
            times = [side.parts_s.get(name) for side in self.sides]
            if max((abs(time) for time in times if time is not None), default=0.0) >= 1e-3 * self.sides[0].time_s:
                yield f"  {name}", *("" if time is None else format_time(time) if time else "0 s" for time in times)

    def _memory(self) -> Iterator[tuple[str, ...]]:
        ranks = sorted({rank for side in self.sides for rank in side.memory})
        for rank in ranks if len(ranks) <= _MOST_RANKS else ranks[:_MOST_RANKS]:
            peaks = [side.memory.get(rank) for side in self.sides]
            yield f"  rank {rank}", *("" if peak is None else f"{peak / GIB:.2f} GiB" for peak in peaks)
        if len(ranks) > _MOST_RANKS:
            fullest = [max(side.memory.values(), default=None) for side in self.sides]
            yield "  fullest", *("" if peak is None else f"{peak / GIB:.2f} GiB" for peak in fullest)

    def _different(self) -> Iterator[tuple[str, ...]]:
        for key, row in self.differences.items():
            yield f"  {key}", *(_shown(value) for value in row)


_MOST_RANKS = 8


def _interval(side: Side) -> str:
    return "" if side.interval_s is None else f"{side.interval_s[0]:.3g} to {side.interval_s[1]:.3g} s"


def _shown(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else "-" if value is None else str(value)
    return text if len(text) <= 24 else text[:21] + "..."


def _number(value: Any, *, least: float = 0.0) -> float:
    """A number as times, rates and sizes are; ratios of such are finite."""
    number = float(value)
    if not least <= number <= _LARGEST:
        raise ValueError(f"{number} for a time, a rate or a size")
    return number


def _parts(breakdown: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in breakdown.items():
        if isinstance(value, Mapping):
            yield from ((group, _number(seconds)) for group, seconds in seconds_of_groups(value).items())
        elif isinstance(value, int | float) and not isinstance(value, bool):
            _number(abs(value))  # "other" is what rounding leaves, and may be below zero
            yield _PARTS.get(name, name.replace("_", " ")), float(value)


def _settings(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Of ``settings``, or of ``job`` where a document has no settings."""
    settings = document.get("settings")
    if isinstance(settings, Mapping):
        yield from ((key, item.get("value")) for key, item in settings.items())
        return
    for table, values in document.get("job", {}).items():
        if table in ("cluster", "parallel", "training", "overlap") and isinstance(values, Mapping):
            yield from ((f"{table}.{key}", value) for key, value in values.items())


def compared(sides: Sequence[Side]) -> Comparison:
    """Sides beside the first one.

    Raises:
        ConfigError: fewer than two.
    """
    if len(sides) < 2:
        raise ConfigError("nothing to compare with", where="compare", expected="two or more", got=len(sides))
    return Comparison(tuple(sides))
