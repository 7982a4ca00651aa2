"""Damage of real files, the same for the same seed: bytes, tokens, and the structure of JSON."""

from __future__ import annotations

import json
import random
import re
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
_NUMBER = re.compile(rb"-?\d+(\.\d+)?([eE][-+]?\d+)?")
_WORD = re.compile(rb"[A-Za-z_][A-Za-z_0-9]+")


def damaged(draw: random.Random, data: bytes) -> bytes:
    """The file with one to three faults."""
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        data = draw.choice([_bytes, _numbers, _numbers, _words, _lines, _structure])(draw, data)
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
