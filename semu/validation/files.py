"""Writing a validation to disk, each file at once when it is complete: ``save``, ``write_file``."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from semu.errors import ConfigError
from semu.validation.result import Quantity, ValidationResult


def save(result: ValidationResult, directory: str | os.PathLike[str], *, title: str) -> list[Path]:
    """Write ``validation.json``, ``validation.csv`` and ``validation.png``.

    Args:
        result: what to write. directory: made if it is not there; existing files of these names are replaced.
        title: headline of the picture.
    Returns:
        The files written.
    Raises:
        ConfigError: the directory cannot be made or written to.
    """
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(folder, error) from error

    def document(path: Path) -> None:
        path.write_text(json.dumps(result.to_json(), indent=2, allow_nan=False) + "\n", encoding="utf-8")

    return [
        write_file(folder / "validation.json", document),
        write_text(folder / "validation.csv", result.to_csv()),
        save_picture(result, folder / "validation.png", title=title),
    ]


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


def save_picture(result: ValidationResult, path: str | os.PathLike[str], *, title: str) -> Path:
    """Draw predicted over measured.

    Args:
        result: what to draw. path: the PNG to make. title: headline.
    Raises:
        ConfigError: it cannot be written.
    """

    def picture(path: Path) -> None:
        from semu.plots import ScatterPoint, draw_validation

        points = {
            quantity: [
                ScatterPoint(row.group, both.measured, both.predicted)
                for row in result.rows
                if row.is_scored
                and (both := row.compared.get(quantity)) is not None
                and both.measured is not None
                and both.predicted is not None
            ]
            for quantity in (Quantity.TIME, Quantity.MEMORY)
        }
        draw_validation(path, points[Quantity.TIME], points[Quantity.MEMORY], title=title)

    return write_file(Path(path), picture)


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file.

    Raises:
        ConfigError: it cannot be written.
    """
    return write_file(Path(path), lambda temporary: temporary.write_text(text, encoding="utf-8"))


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
