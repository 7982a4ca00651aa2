"""``make_job``: tables that a program made become a ``TrainingJob``, as those of a run file do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.runfile.limits import refuse_unmodelled
from semu.runfile.places import Places
from semu.runfile.resolve import resolve_tables
from semu.runfile.schema import SCHEMA


def make_job(tables: Mapping[str, Mapping[str, Any]]) -> TrainingJob:
    """The training job of a run file's tables.

    A key that run files do not have is a setting that this version cannot be told: it is refused like one that it
    knows and does not model, after those.

    Args:
        tables: table -> key -> value, ``{"model": {"transformer": {...}}, "cluster": {...}, ...}``.
    Raises:
        ConfigError: as ``load_run``; ``where`` is the dotted key.
    """
    places = Places("")
    known = _known(tables, "")
    refuse_unmodelled(known, places)
    for key, value in _unknown(tables, ""):
        raise ConfigError(
            f"{key} = {value} is not modelled by this version", where=key, expected=f"no {key}", got=value
        )
    return resolve_tables(known, places).job()


def _is_known(path: str) -> bool:
    table, _, key = path.rpartition(".")
    return path in SCHEMA or key in SCHEMA.get(table, {}) or table == "batch"


def _known(table: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The tables without unknown keys."""
    result: dict[str, Any] = {}
    for key, value in table.items():
        place = f"{path}.{key}".lstrip(".")
        if _is_known(place):
            result[key] = _known(value, place) if place in SCHEMA and isinstance(value, Mapping) else value
    return result


def _unknown(table: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Dotted keys that run files do not have, with their values."""
    for key, value in table.items():
        place = f"{path}.{key}".lstrip(".")
        if not _is_known(place):
            yield place, value
        elif place in SCHEMA and isinstance(value, Mapping):
            yield from _unknown(value, place)
