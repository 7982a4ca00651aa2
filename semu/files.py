"""Files: ``read_source`` and ``parse_json``; written at once when complete, ``write_file``; strings of TOML."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from semu.errors import ConfigError

_GZIP_MAGIC = b"\x1f\x8b"


def make_folder(folder: Path) -> Path:
    """Make a folder where it is not there.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    return folder


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file.

    Raises:
        ConfigError: it cannot be written.
    """
    return write_file(Path(path), lambda temporary: temporary.write_text(text, encoding="utf-8"))


def toml_string(text: str) -> str:
    """A basic string of TOML: JSON's escapes are TOML's, but TOML wants DEL escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def write_file(path: Path, write: Callable[[Path], object]) -> Path:
    """Write through a temporary file beside the target, so that nothing is ever half-written.

    A link or a device (``/dev/stdout``) is written to as it is, never replaced.

    Args:
        path: the file to make. write: fills the file that it is given.
    Raises:
        ConfigError: it cannot be written.
    """
    from tempfile import mkstemp

    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            write(path)
            return path
        handle, name = mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
        os.close(handle)
        try:
            write(Path(name))
            os.chmod(name, 0o644)
            os.replace(name, path)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise _cannot_write(path, error) from error
    return path


def _cannot_write(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot write results: {error.strerror}", where=str(path), expected="a place to write to")


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
