"""Writing files, each at once when it is complete: ``write_file``, ``write_text``, ``make_folder``; strings of TOML."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from semu.errors import ConfigError


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
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            write(path)
            return path
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
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
