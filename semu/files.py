"""Files: ``read_source``, ``parse_json``, ``read_toml``; ``write_file``, at once when complete; strings of TOML."""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from semu.errors import ConfigError

LARGEST_TABLE = 4 << 20
"""Bytes of a file of settings: those of a real one are some thousands."""
LARGEST_UNPACKED = 4 << 30
"""Bytes of a file that gzip made small, such as a trace."""
MOST_LEVELS = 50
"""Of tables and lists within one another, in a file of settings."""
Table = TypeVar("Table")
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
    except ValueError as error:  # an integer of thousands of digits
        raise ConfigError(f"not JSON: {error}", where=place, expected=expected) from error
    except RecursionError as error:
        raise ConfigError("JSON of too many levels", where=place, expected=expected) from error


def read_toml(path: str | os.PathLike[str], place: str, expected: str) -> dict[str, Any]:
    """The document in a TOML file other than a run file, of which ``semu.runfile`` knows every line.

    Args:
        path: the file. place: its name, for messages. expected: what it should hold, for messages.
    Raises:
        ConfigError: it cannot be read, is no TOML, or has too many levels.
    """
    import tomllib

    try:
        return checked_levels(tomllib.loads(read_bounded(path, expected).decode("utf-8")), place, expected)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=place, expected=expected) from error
    except ValueError as error:  # no text, or an integer of thousands of digits, too
        raise ConfigError(f"not a TOML file: {error}", where=place, expected=expected) from error
    except RecursionError as error:
        raise ConfigError("TOML of too many levels", where=place, expected=expected) from error


def checked_levels(document: Table, place: str, expected: str) -> Table:
    """A document whose tables and lists lie in one another no deeper than ``MOST_LEVELS``, for those who walk it.

    Args:
        document: of tables and lists. place: the file, for messages. expected: its format, for messages.
    Raises:
        ConfigError: it is deeper.
    """
    level: list[Any] = [document]
    for _ in range(MOST_LEVELS):
        inner = (value.values() if isinstance(value, dict) else value for value in level)
        level = [one for values in inner for one in values if isinstance(one, dict | list)]
        if not level:
            return document
    most = f"{expected}, at most {MOST_LEVELS} levels deep"
    raise ConfigError("too many levels", where=place, expected=most, got="more")


def read_bounded(path: str | os.PathLike[str], expected: str, largest: int = LARGEST_TABLE) -> bytes:
    """The content of a file that is small where it is what it should be, such as a table of settings.

    Args:
        path: the file. expected: its format, for messages. largest: bytes that it may have.
    Raises:
        ConfigError: a larger file, such as a device that never ends. OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        most = f"{expected}, at most {largest >> 20} MiB"
        raise ConfigError("the file is too large", where=os.fspath(path), expected=most, got="more")
    return content


def _unpack(content: bytes, place: str) -> bytes:
    parts: list[bytes] = []
    left = LARGEST_UNPACKED
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            while left > 0 and (part := file.read(1 << 24)):
                parts.append(part)
                left -= len(part)
    except (EOFError, OSError, zlib.error) as error:
        what = "truncated" if isinstance(error, EOFError) else f"damaged: {error}"
        got = f"{len(content)} bytes"
        raise ConfigError(f"the gzip file is {what}", where=place, expected="a whole gzip file", got=got) from error
    if left <= 0:
        most = f"at most {LARGEST_UNPACKED >> 30} GiB when unpacked"
        raise ConfigError("the gzip file is too large", where=place, expected=most, got="more")
    return b"".join(parts)
