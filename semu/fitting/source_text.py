"""``read_source``: the bytes of a user's file, unpacked where it is gzip; ``parse_json``: what a JSON file holds."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from pathlib import Path
from typing import Any

from semu.errors import ConfigError

_GZIP_MAGIC = b"\x1f\x8b"


def read_source(path: str | os.PathLike[str], expected: str) -> bytes:
    """The content of a file; gzip is recognised by its first bytes, not by the file's name.

    Args:
        path: the file. expected: format of the file, for messages.
    Raises:
        ConfigError: it cannot be read, is empty, or its gzip stream is damaged.
    """
    place = os.fspath(path)
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the file: {error.strerror}", where=place, expected=expected) from error
    if content.startswith(_GZIP_MAGIC):
        content = _unpack(content, place)
    if not content.strip():
        raise ConfigError("the file is empty", where=place, expected=expected, got="no text")
    return content


def parse_json(content: str | bytes, place: str, expected: str) -> Any:
    """The document in a JSON file.

    Args:
        content: of the file. place: the file, for messages. expected: format of the file, for messages.
    Raises:
        ConfigError: no text, no JSON, or JSON of too many levels.
    """
    try:
        return json.loads(content)
    except UnicodeDecodeError as error:
        raise ConfigError("not a text file", where=place, expected=expected, got=f"byte {error.start}") from error
    except json.JSONDecodeError as error:
        at_end = error.pos >= len(error.doc.rstrip())
        hint = "the file ends inside the document: is it truncated?" if at_end else error.msg
        raise ConfigError(f"not JSON: {hint}", where=f"{place}:{error.lineno}", expected=expected) from error
    except RecursionError as error:
        raise ConfigError("JSON of too many levels", where=place, expected=expected) from error


def _unpack(content: bytes, place: str) -> bytes:
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        what = "truncated" if isinstance(error, EOFError) else f"damaged: {error}"
        got = f"{len(content)} bytes"
        raise ConfigError(f"the gzip file is {what}", where=place, expected="a whole gzip file", got=got) from error
