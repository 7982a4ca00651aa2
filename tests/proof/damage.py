"""Damage of real files, the same for the same seed: bytes, numbers, words, lines; and, so that a parser takes them and
what is behind it is met, settings (``key = value``, ``key: value``, ``--key value``), cells of tables and JSON.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

SNIPPETS = [
    b"'", b'"', b"(", b")", b"[", b"]", b"{", b"}", b":", b"\n", b"#", b"=", b"$", b"\\", b",", b"null", b"true",
    b"\x00", b"\xff\xfe", "é".encode(), "‮".encode(), b"\r", b"\t", b"- ", b"'''", b"[[", b"]]", b"[a.b.c]\n",
    b"\xef\xbb\xbf", b"<script>", b"../../", b"%s%n", b"/dev/full",
]  # fmt: skip
NUMBERS = [
    b"0", b"-1", b"1", b"2", b"3", b"7", b"1e309", b"-1e309", b"1e-320", b"nan", b"inf", b"-0.0", b"0.5",
    b"9223372036854775808", b"99999999999999999999999999", b"4294967296", b"1e18", b"true", b'""', b"[]", b"{}",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 1e-320, 0.5, -0.5, 2**63, 10**30, 1e308, float("nan"), float("inf"), "", "x",
    "<script>", "é" * 40, [], [[]], {}, {"": 0},
]  # fmt: skip
SETTINGS = [
    b"0", b"-1", b"1", b"2", b"3", b"4", b"7", b"16", b"128", b"4096", b"131072", b"2147483648", b"9223372036854775807",
    b"0.5", b"-0.5", b"1.0", b"0.0", b"1e-320", b"1e308", b"1e18", b"true", b"false", b'""', b'"x"', b'"none"',
    b'"auto"', b'"all"', b'"<b>"', b"[]", b"[[]]", b"[1]", b"[1, 2]", b"[0.5, 0.5]", b'["x"]', b"[true, 1]", b'"../x"',
    b'"1"', b"{}", b"nan", b"inf", b"null", b"1979-05-27",
]  # fmt: skip
"""Values that TOML or YAML take."""
_SETTING = re.compile(rb"""^(\s*-?\s*)(--[\w-]+|[\w.-]+|"[^"]*")(\s*=\s*|:\s+|\s+)(\S.*?)(\s*\\?\s*)$""")
_HEAD = re.compile(rb"^\s*(\[.*\]|[\w.-]+:)\s*$")
_NUMBER = re.compile(rb"-?\d+(\.\d+)?([eE][-+]?\d+)?")
_WORD = re.compile(rb"[A-Za-z_][A-Za-z_0-9]+")


def damaged(draw: random.Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """The file with one to three faults.

    Args:
        others: files of the same kind, from which settings are taken.
    """
    kinds = [_bytes, _numbers, _numbers, _near, _near, _words, _lines, _structure, _structure, _settings, _settings]
    for _ in range(draw.choice([1, 1, 1, 2, 2, 3])):
        kind = draw.randrange(len(kinds) + 1)
        data = kinds[kind](draw, data) if kind < len(kinds) else _borrowed(draw, data, draw.choice(others or [data]))
    return data


def _bytes(draw: random.Random, data: bytes) -> bytes:
    at = draw.randrange(len(data) + 1)
    end = min(len(data), at + draw.choice([0, 1, 1, 5, 40, 400]))
    kind = draw.random()
    if kind < 0.2:
        return data[:at]
    if kind < 0.4 and at < len(data):
        return data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]
    new = draw.choice(SNIPPETS) if kind < 0.8 else data[at:end] * 2
    return data[:at] + new + data[end:]


def _numbers(draw: random.Random, data: bytes) -> bytes:
    found = list(_NUMBER.finditer(data))
    if not found:
        return _bytes(draw, data)
    one = draw.choice(found)
    return data[: one.start()] + draw.choice(NUMBERS) + data[one.end() :]


def _near(draw: random.Random, data: bytes) -> bytes:
    """A number becomes one that is nearly as good."""
    found = [one for one in _NUMBER.finditer(data) if len(one.group()) < 40]
    if not found:
        return _bytes(draw, data)
    one = draw.choice(found)
    value = float(one.group())
    with suppress(ValueError):
        value = int(one.group())
    others = [value + 1, value - 1, value * 2, -value, value * 1000, value * 3]
    others += [value // 2, value * 10**6] if isinstance(value, int) else [value / 2, value * 1e-9]
    return data[: one.start()] + str(draw.choice(others)).encode() + data[one.end() :]


def _settings(draw: random.Random, data: bytes) -> bytes:
    """Another value or key of a line that sets something; another cell of a table."""
    lines = data.split(b"\n")
    found = [at for at, line in enumerate(lines) if _SETTING.match(line)]
    cells = [at for at, line in enumerate(lines) if line.count(b",") > 1 or line.count(b"|") > 1]
    if not data.startswith((b"{", b"[{")) and cells and (not found or draw.random() < 0.5):
        at = draw.choice(cells)
        mark = b"," if b"," in lines[at] else b"|"
        row = lines[at].split(mark)
        row[draw.randrange(len(row))] = draw.choice([*SETTINGS, b"", draw.choice(row)]).strip(b'"')
        lines[at] = mark.join(row)
        return b"\n".join(lines)
    if not found:
        return _numbers(draw, data)
    at = draw.choice(found)
    parts = list(_SETTING.match(lines[at]).groups())  # type: ignore[union-attr]
    other = list(_SETTING.match(lines[draw.choice(found)]).groups())  # type: ignore[union-attr]
    kind = draw.random()
    if kind < 0.55:
        parts[3] = draw.choice(SETTINGS)
    elif kind < 0.75:
        parts[3] = other[3]
    elif kind < 0.85:
        parts[1] = other[1]
    elif kind < 0.9:
        parts[3] = b"[" + parts[3] + b", " + parts[3] + b"]"
    else:
        del lines[at]
        return b"\n".join(lines)
    lines[at] = b"".join(parts)
    return b"\n".join(lines)


def _borrowed(draw: random.Random, data: bytes, other: bytes) -> bytes:
    """A setting of another file, under the heading that it has there."""
    theirs, heading, given = other.split(b"\n"), b"", []
    for line in theirs:
        if _HEAD.match(line):
            heading = line
        elif _SETTING.match(line):
            given.append((heading, line))
    if not given:
        return _settings(draw, data)
    heading, line = draw.choice(given)
    match = _SETTING.match(line)
    if match is not None and draw.random() < 0.3:
        line = b"".join((*match.groups()[:3], draw.choice(SETTINGS), match.group(5)))
    lines = data.split(b"\n")
    name = match.group(2) if match is not None else b""
    lines = [one for one in lines if not ((same := _SETTING.match(one)) and same.group(2) == name)]
    if heading in lines:
        lines.insert(lines.index(heading) + 1, line)
    elif heading and _HEAD.match(heading):
        lines += [heading, line, b""]
    else:
        lines.insert(0, line)
    return b"\n".join(lines)


def _words(draw: random.Random, data: bytes) -> bytes:
    found = list(_WORD.finditer(data))
    if len(found) < 2:
        return _bytes(draw, data)
    one, other = draw.choice(found), draw.choice(found)
    return data[: one.start()] + other.group() + data[one.end() :]


def _lines(draw: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    at = draw.randrange(len(lines))
    kind = draw.randrange(4)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, lines[draw.randrange(len(lines))])
    elif kind == 2:
        other = draw.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    else:
        lines[at] = lines[at] * draw.choice([2, 50])
    return b"\n".join(lines)


def _structure(draw: random.Random, data: bytes) -> bytes:
    """Another value, a key less, an item more, somewhere in a document of JSON (or in a line of it)."""
    lines = data.split(b"\n")
    at = draw.randrange(len(lines))
    for part, put in ((data, None), (lines[at], at)):
        try:
            document = json.loads(part)
        except (ValueError, RecursionError):
            continue
        text = json.dumps(_changed(draw, document)).encode()
        return text if put is None else b"\n".join([*lines[:at], text, *lines[at + 1 :]])
    return _numbers(draw, data)


def _changed(draw: random.Random, value: Any) -> Any:
    if not isinstance(value, dict | list) or not value or draw.random() < 0.1:
        return draw.choice(VALUES)
    if isinstance(value, dict):
        value = dict(value)
        key = draw.choice(sorted(value))
        kind = draw.random()
        if kind < 0.15:
            del value[key]
        elif kind < 0.2:
            value[key + "_"] = value[key]
        else:
            value[key] = _changed(draw, value[key])
        return value
    value = list(value)
    at = draw.randrange(len(value))
    kind = draw.random()
    if kind < 0.1:
        del value[at]
    elif kind < 0.2:
        value.insert(at, value[draw.randrange(len(value))])
    elif kind < 0.25:
        value[at] = [value[at]] * 3
    else:
        value[at] = _changed(draw, value[at])
    return value
