"""``make_job``: tables that a program made become a ``TrainingJob``, as those of a run file do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.runfile.limits import refuse_unmodelled
from semu.runfile.places import Places
from semu.runfile.resolve import resolve_tables
from semu.runfile.schema import SCHEMA


def make_job(tables: Mapping[str, Mapping[str, Any]], *, shares_model: bool = False) -> TrainingJob:
    """The training job of a run file's tables.

    A key that run files do not have is refused as a setting that is not modelled, after the keys that run files have.

    Args:
        tables: table -> key -> value, ``{"model": {"transformer": {...}}, "cluster": {...}, ...}``.
        shares_model: jobs whose models are described alike hold one model, which nobody may change.
    Raises:
        ConfigError: as ``load_run``; ``where`` is the dotted key.
    """
    places = Places("")
    unknown: dict[str, Any] = {}
    known = _known(tables, "", unknown)
    refuse_unmodelled(known, places)
    for key, value in unknown.items():
        raise ConfigError(
            f"{key} = {value} is not modelled by this version", where=key, expected=f"no {key}", got=value
        )
    return resolve_tables(known, places, shares_model=shares_model).job()


def _known(table: Mapping[str, Any], path: str, unknown: dict[str, Any]) -> dict[str, Any]:
    """The tables without keys that run files do not have; these go to ``unknown``, by their dotted keys."""
    result: dict[str, Any] = {}
    for key, value in table.items():
        place = f"{path}.{key}".lstrip(".")
        if place not in SCHEMA and key not in SCHEMA.get(path, {}) and path != "batch":
            unknown[place] = value
        else:
            is_table = place in SCHEMA and isinstance(value, Mapping)
            result[key] = _known(value, place, unknown) if is_table else value
    return result
