"""``Tabular``: results with flat records, as data frames of pandas or polars, whichever is installed.

Objects: ``Tabular``, ``html_table``, ``scalars``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from semu.errors import ConfigError

_MOST_ROWS, _MOST_LETTERS = 60, 200
"""Rows of a table for notebooks, and letters of a cell."""


class Tabular(ABC):
    """A result that is one flat record, or several."""

    @abstractmethod
    def to_dicts(self) -> list[dict[str, Any]]:
        """A flat record for each row, in order."""

    def _repr_html_(self) -> str:
        """For notebooks: the first records as a table."""
        records = self.to_dicts()
        names = list(dict.fromkeys(name for record in records for name in record))
        rows = [[_cell(record.get(name)) for name in names] for record in records[:_MOST_ROWS]]
        left = f"the first {_MOST_ROWS} of {len(records):,} rows" if len(records) > _MOST_ROWS else ""
        return html_table(names, rows, left)

    def to_pandas(self) -> Any:
        """The records as a ``pandas.DataFrame``.

        Raises:
            ConfigError: pandas is not installed.
        """
        return _library("pandas").DataFrame(self.to_dicts())

    def to_polars(self) -> Any:
        """The records as a ``polars.DataFrame``.

        Raises:
            ConfigError: polars is not installed.
        """
        return _library("polars").DataFrame(self.to_dicts(), infer_schema_length=None)


def html_table(names: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """A table as static HTML, everything in it escaped; long cells are cut.

    Args:
        names: of the columns. rows: cells. caption: above the table; empty: none.
    """
    from html import escape

    lines = [
        "".join(f"<{tag} style='text-align:left'>{escape(_cut(cell))}</{tag}>" for cell in row)
        for tag, row in (("th", names), *(("td", row) for row in rows))
    ]
    said = f"<caption>{escape(_cut(caption))}</caption>" if caption else ""
    return f"<table>{said}{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else text[:_MOST_LETTERS] + "..."


def scalars(document: Mapping[str, object]) -> dict[str, Any]:
    """What of a document is no list and no table."""
    return {key: value for key, value in document.items() if value is None or isinstance(value, int | float | str)}


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _library(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{name} is not installed",
            where=f"to_{name}",
            expected=f"pip install {name}, or to_dicts() and to_csv(), which need nothing",
        ) from error
