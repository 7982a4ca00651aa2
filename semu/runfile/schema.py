"""Every table and key of a run file, with the type of its value; ``check_schema``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from types import MappingProxyType
from typing import Any

from semu.errors import ConfigError, unknown_name
from semu.job.declare import ValueKind
from semu.job.training import OPTIONS
from semu.lazy import LazyTable, imported
from semu.nn import LatentSizes, LoRA
from semu.parallel.config import Overlap, Parallel
from semu.parallel.layout import PipelineLayout
from semu.runfile.multimodal import PARTS
from semu.runfile.networks import NETWORKS
from semu.runfile.networks import TABLES as NETWORK_TABLES
from semu.runfile.places import Places
from semu.runfile.transformer import TransformerConfig

_KINDS: Mapping[str, ValueKind] = MappingProxyType(
    {
        "int": ValueKind.INTEGER,
        "float": ValueKind.NUMBER,
        "bool": ValueKind.SWITCH,
        "str": ValueKind.STRING,
        "ContextKind | str": ValueKind.STRING,
        "Balance | str": ValueKind.STRING,
        "tuple[int, ...]": ValueKind.INTEGERS,
        "tuple[float, ...]": ValueKind.LOADS,
        "tuple[str, ...]": ValueKind.WORDS,
        "int | tuple[int, ...]": ValueKind.PATTERN,
        "Activation": ValueKind.STRING,
        "float | str": ValueKind.DURATION,
    }
)
"""Type of a field, without ``| None`` -> type of its key; a field of any other type is a table."""


def _kinds(config: type[Any], *others: str) -> dict[str, ValueKind]:
    """Keys of a table that holds the fields of a dataclass; ``others``: fields that are no keys."""
    kinds = {item.name: _KINDS.get(str(item.type).removesuffix(" | None")) for item in fields(config)}
    return {name: kind or ValueKind.TABLE for name, kind in kinds.items() if name not in others}


_IN_LOOP = {"caption": ValueKind.TABLE, "vae": ValueKind.SWITCH}
"""Frozen encoders of a diffusion model."""


def _network_kinds(path: str) -> dict[str, ValueKind]:
    return _kinds(NETWORK_TABLES[path], "loss") | (_IN_LOOP if path in ("dit", "unet") else {})


def _model_kinds() -> dict[str, ValueKind]:
    return {
        "name": ValueKind.STRING,
        "hf_config": ValueKind.STRING,
        "transformer": ValueKind.TABLE,
        "encoder": ValueKind.TABLE,
        "projector": ValueKind.TABLE,
        "llm": ValueKind.TABLE,
        **dict.fromkeys(NETWORKS, ValueKind.TABLE),
        "frozen": ValueKind.STRINGS,
        "lora": ValueKind.TABLE,
        "hf_ignore": ValueKind.STRINGS,
        "vocab_multiple": ValueKind.INTEGER,
    }


def _cluster_kinds() -> dict[str, ValueKind]:
    return {
        "device": ValueKind.STRING,
        "nodes": ValueKind.INTEGER,
        "gpus_per_node": ValueKind.INTEGER,
        "oversubscription": ValueKind.NUMBER,
        "fabric": ValueKind.STRING,
        "nics_per_node": ValueKind.INTEGER,
        "nic_gbit": ValueKind.NUMBER,
        "leaf_nodes": ValueKind.INTEGER,
        "nvlink_domain": ValueKind.INTEGER,
        "override": ValueKind.TABLE,
    }


def _training_kinds() -> dict[str, ValueKind]:
    return {row.name: row.value.kind for row in OPTIONS if row.value.kind is not None}


def _cost_kinds() -> dict[str, ValueKind]:
    return {"gpu_hour_usd": ValueKind.NUMBER, "watt": ValueKind.NUMBER}


def _fields(module: str, name: str, *others: str) -> Callable[[], dict[str, ValueKind]]:
    """As ``_kinds``, of a dataclass that is imported when its table is asked for."""
    return lambda: _kinds(imported(module, name)(), *others)


SCHEMA: Mapping[str, Mapping[str, ValueKind]] = LazyTable(
    {
        "model": _model_kinds,
        **{f"model.{path}": partial(_network_kinds, path) for path in NETWORK_TABLES},
        "model.lora": partial(_kinds, LoRA),
        "model.transformer": partial(_kinds, TransformerConfig),
        "model.transformer.mla": partial(_kinds, LatentSizes),
        "model.encoder": _fields("semu_models.multimodal.own", "EncoderConfig"),
        "model.projector": _fields("semu_models.multimodal.own", "ProjectorConfig"),
        "model.llm": partial(_kinds, TransformerConfig),
        "model.llm.mla": partial(_kinds, LatentSizes),
        "cluster": _cluster_kinds,
        "parallel": partial(_kinds, Parallel, "plan"),
        "training": _training_kinds,
        "overlap": partial(_kinds, Overlap),
        "parallel.layout": partial(_kinds, PipelineLayout),
        "batch": dict,
        "cost": _cost_kinds,
        "assignment": _fields("semu.searcher.assignment.options", "AssignmentOptions"),
        "resilience": _fields("semu.resilience.options", "Resilience"),
        "resilience.checkpoint": _fields("semu.resilience.options", "CheckpointOptions"),
        "resilience.failures": _fields("semu.resilience.options", "FailureOptions"),
        "resilience.price": _fields("semu.resilience.options", "PriceOptions"),
    }
)
"""Table -> key -> type. Tables that are not listed, and ``batch``, are checked by what reads them."""

_OPEN = ("batch", "cluster.override", "parallel.modules", "parallel.layout.modules", "parallel.shares")
TABLES = tuple(name for name in SCHEMA if "." not in name)
"""Top-level tables in the order in which they are written."""


def check_schema(config: Mapping[str, object], places: Places) -> None:
    """Check names of tables and keys, and the types of all values.

    Raises:
        ConfigError: an unknown table or key (with a 'did you mean', or the table where it belongs), a wrong type.
    """
    for name, value in config.items():
        if name not in TABLES:
            raise _unknown(name, "", TABLES, places.where(name))
        _check_table(name, value, places)


def _check_table(path: str, value: object, places: Places) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError("not a table", where=places.where(path), expected=f"[{path}]", got=repr(value))
    if path in _OPEN:
        return
    kinds = SCHEMA[path]
    for key, item in value.items():
        where = places.where(f"{path}.{key}")
        if key not in kinds:
            raise _unknown(key, path, tuple(kinds), where)
        if kinds[key] is ValueKind.TABLE and not (path == "model" and key in PARTS and isinstance(item, str)):
            _check_table(f"{path}.{key}", item, places)
        elif kinds[key] is not ValueKind.TABLE and not kinds[key].accepts(item):
            expected = kinds[key].value
            nearest = _whole(item) if kinds[key] is ValueKind.INTEGER else None
            raise ConfigError(f"not {expected}", where=where, expected=expected, got=repr(item), nearest=nearest)


def _whole(item: object) -> int | None:
    """The integer that was meant: 131072 by ``128k`` and ``128K``, 64 by ``64.0`` and ``"64"``."""
    if isinstance(item, float):
        return int(item) if item.is_integer() else None
    found = re.fullmatch(r"(\d{1,15})([kKmM]?)", item) if isinstance(item, str) else None
    return int(found[1]) << {"": 0, "k": 10, "m": 20}[found[2].lower()] if found else None


def _unknown(key: str, path: str, legal: tuple[str, ...], where: str) -> ConfigError:
    """An error for an unknown key; one that another table has is sent there."""
    owners = [table for table, kinds in SCHEMA.items() if key in kinds]
    if owners and key not in legal:
        here = f"[{path}] has" if path else "the top level has"
        return ConfigError(
            f"{here} no key {key!r}, it belongs in [{owners[0]}]",
            where=where,
            expected="one of " + ", ".join(sorted(legal)),
            got=key,
            nearest=f"{owners[0]}.{key}",
        )
    return unknown_name("key" if path else "table", key, legal, where=where)
