"""Writing a validation to disk: ``save``, ``save_picture``."""

from __future__ import annotations

import json
import os
from pathlib import Path

from semu.files import make_folder, write_file, write_text
from semu.validation.result import Quantity, ValidationResult


def save(result: ValidationResult, directory: str | os.PathLike[str], *, title: str) -> list[Path]:
    """Write ``validation.json``, ``validation.csv``, ``validation.png`` and ``report.html``.

    Args:
        result: what to write. directory: made if it is not there; existing files of these names are replaced.
        title: headline of picture and page.
    Returns:
        The files written.
    Raises:
        ConfigError: the directory cannot be made or written to.
    """
    folder = make_folder(Path(directory))
    return [
        write_text(folder / "validation.json", json.dumps(result.to_json(), indent=2, allow_nan=False) + "\n"),
        write_text(folder / "validation.csv", result.to_csv()),
        save_picture(result, folder / "validation.png", title=title),
        result.page(title).save(folder / "report.html"),
    ]


def save_picture(result: ValidationResult, path: str | os.PathLike[str], *, title: str) -> Path:
    """Draw predicted over measured.

    Args:
        result: what to draw. path: the PNG to make. title: headline.
    Raises:
        ConfigError: it cannot be written.
    """

    def _picture(path: Path) -> None:
        from semu.present.plots import ScatterPoint, draw_validation

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

    return write_file(Path(path), _picture)
