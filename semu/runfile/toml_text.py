"""Writing TOML: ``format_toml``, the inverse of ``tomllib.loads`` for what run files hold."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Mapping

from semu.files import toml_string

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def format_toml(table: Mapping[str, object]) -> str:
    """TOML text of nested tables of strings, integers, floats, switches and lists of these.

    Raises:
        TypeError: a value that is none of these.
    """
    return "\n".join(_lines(table, ())).lstrip("\n") + "\n"


def comment_lines(text: str) -> list[str]:
    """A sentence as comments of at most 80 columns."""
    return textwrap.wrap(
        text, 80, initial_indent="# ", subsequent_indent="# ", break_long_words=False, break_on_hyphens=False
    )


def format_value(value: object, longest: int = 72) -> str:
    """A value as TOML for one line of a message, tables inline; a long list is cut short."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {format_value(item, longest)}" for key, item in value.items()) + "}"
    text = _value(value)
    if len(text) > longest and isinstance(value, list | tuple):
        return f"[{_value(value[0])}, ... {_value(value[-1])}], {len(value)} of them"
    return text


def _lines(table: Mapping[str, object], path: tuple[str, ...]) -> Iterator[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    if path and (plain or not table):
        yield ""
        yield f"[{'.'.join(_key(part) for part in path)}]"
    for key, value in plain.items():
        yield f"{_key(key)} = {_value(value)}"
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _lines(value, (*path, key))


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else toml_string(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return toml_string(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(item) for item in value)}]"
    raise TypeError(f"no TOML for {type(value).__name__}")
