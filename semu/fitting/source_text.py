"""``read_source``: the bytes of a user's file, unpacked where it is gzip."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path

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


def _unpack(content: bytes, place: str) -> bytes:
    try:
        return gzip.decompress(content)
    except EOFError as error:
        raise ConfigError(
            "the gzip file is truncated", where=place, expected="a whole gzip file", got=f"{len(content)} bytes"
        ) from error
    except (OSError, zlib.error) as error:
        raise ConfigError(
            f"the gzip file is damaged: {error}", where=place, expected="a whole gzip file", got=f"{len(content)} bytes"
        ) from error
