"""Where a value of a run file stands, for messages: ``Places``, ``parse_toml``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from functools import cached_property
from typing import Any

from semu.errors import ConfigError, SemuError
from semu.files import checked_levels
from semu.parallel.axes import AXES
from semu.records import dataclass

_KEY = re.compile(r"(model|cluster|parallel|training|overlap|batch|resilience|assignment)(\.\S+)?")
_FIELD = re.compile(r"(\w+)((?:[,.\[].*)?)", re.DOTALL)
_BLAMED_SIZE = re.compile(rf"({'|'.join(AXES)}) = \d+")


@dataclass
class Places:
    """Knows, for every dotted key, which line or which command-line flag it came from.

    Attributes:
        name: the run file as the user wrote it, or ``setup NAME``; empty: tables that no file holds.
        text: the file's contents; empty for a setup.
        flags: dotted key -> flag that set it. notes: what was decided as the file was read, a sentence each.
        fields: field of the run's own rule -> dotted key that says it.
    """

    name: str
    text: str = ""
    flags: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    fields: dict[str, str] = field(default_factory=dict)

    def where(self, key: str) -> str:
        """Place of a dotted key: ``run.toml:12 parallel.tp``, ``setup vlm-m parallel.tp`` or ``--set parallel.tp``.

        A table stands at the flag that set one of its keys; a key that neither the file nor a flag has, at the nearest
        table around it.
        """
        inside = [flag for name, flag in self.flags.items() if name.startswith(f"{key}.")]
        if inside:
            return f"{inside[0]} {key}"
        parts = key.split(".")
        for length in range(len(parts), 0, -1):
            prefix = ".".join(parts[:length])
            if prefix in self.flags:
                return f"{self.flags[prefix]} {key}"
            if prefix in self._lines:
                return f"{self.name}:{self._lines[prefix]} {key}"
        return f"{self.name} {key}".lstrip()

    def source(self, key: str) -> str | None:
        """What wrote a dotted key: ``--set`` or another flag, ``run.toml:12``; None: no flag and no line of a file."""
        return self.flags.get(key) or (f"{self.name}:{self._lines[key]}" if key in self._lines else None)

    def locate(self, error: SemuError) -> None:
        """Put the place of the offending key into an error that names a key of the schema.

        An error that names a field of the run's own rule (``in_flight, rank 1``) gets the key that says it. One that
        names another place but blames a parallel size (``got tp = 3``) gets the size's place in front.
        """
        said = _FIELD.match(error.where or "")
        if error.where is not None and _KEY.fullmatch(error.where):
            error.where = self.where(error.where)
        elif said is not None and said[1] in self.fields:
            error.where = self.where(self.fields[said[1]]) + said[2]
        elif isinstance(error.got, str) and (match := _BLAMED_SIZE.fullmatch(error.got)):
            inner = "" if error.where is None else f" ({error.where})"
            error.where = self.where(f"parallel.{match[1]}") + inner

    @contextmanager
    def located(self) -> Iterator[None]:
        """A block whose errors are located."""
        try:
            yield
        except SemuError as error:
            self.locate(error)
            raise

    @cached_property
    def _lines(self) -> Mapping[str, int]:
        return _key_lines(self.text)


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """Read TOML.

    Args:
        text: contents. name: of the file, for messages.
    Raises:
        ConfigError: a syntax error; ``where`` is ``NAME:LINE``.
    """
    try:
        return checked_levels(tomllib.loads(text), name, "a run file")
    except tomllib.TOMLDecodeError as error:
        what, line, column = _split_message(str(error), text)
        raise ConfigError(
            f"not valid TOML: {what}", where=f"{name}:{line}", expected="TOML: [table] and key = value", got=column
        ) from error
    except ValueError as error:  # an integer of thousands of digits
        raise ConfigError(f"not valid TOML: {error}", where=name, expected="numbers of at most 20 digits") from error
    except RecursionError as error:
        raise ConfigError("TOML of too many levels", where=name, expected="tables and lists a few deep") from error


def _split_message(message: str, text: str) -> tuple[str, int, str | None]:
    """The error of tomllib, its line, and the text there."""
    lines = text.split("\n")
    match = re.search(r" \(at line (\d+), column \d+\)$", message)
    if match is None:  # "(at end of document)"
        return re.sub(r" \(at end of document\)$", " at the end of the file", message), len(lines), None
    line = int(match[1])
    return message[: match.start()], line, lines[line - 1].strip() or None if line <= len(lines) else None


def _key_lines(text: str) -> dict[str, int]:
    """Line of every dotted key and table of a valid TOML text, from 1.

    A statement is the shortest run of lines that is TOML by itself: so strings and arrays may span several lines.
    """
    lines = text.split("\n")
    found: dict[str, int] = {}
    prefix: tuple[str, ...] = ()
    start = 0
    while start < len(lines):
        end, table = _statement(lines, start)
        paths = list(_paths(table))
        if lines[start].lstrip().startswith("["):
            prefix = max(paths, key=len)
            found.setdefault(".".join(prefix), start + 1)
        else:
            for path in paths:
                found.setdefault(".".join(prefix + path), start + 1)
        start = end
    return found


def _statement(lines: list[str], start: int) -> tuple[int, dict[str, Any]]:
    """End (exclusive) and contents of the statement that begins at a line."""
    for end in range(start + 1, len(lines) + 1):
        try:
            return end, tomllib.loads("\n".join(lines[start:end]))
        except (ValueError, RecursionError):
            continue
    return len(lines), {}


def _paths(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All dotted paths inside a parsed statement."""
    if path:
        yield path
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _paths(item, (*path, key))
