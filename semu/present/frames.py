"""``Tabular``: results with flat records, as data frames of pandas or polars, whichever is installed."""

from __future__ import annotations

from typing import Any

from semu.errors import ConfigError


class Tabular:
    """A result that is one flat record, or several."""

    def to_dicts(self) -> list[dict[str, Any]]:
        """A flat record for each row, in order."""
        raise NotImplementedError

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
