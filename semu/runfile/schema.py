"""Every table and key of a run file, with the type of its value; ``check_schema``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType

from semu.errors import ConfigError, unknown_name
from semu.job.declare import ValueKind
from semu.job.training import OPTIONS
from semu.parallel.axes import COUNTS
from semu.parallel.config import Overlap
from semu.runfile.places import Places

SCHEMA: Mapping[str, Mapping[str, ValueKind]] = MappingProxyType(
    {
        "model": {
            "name": ValueKind.STRING,
            "hf_config": ValueKind.STRING,
            "transformer": ValueKind.TABLE,
            "frozen": ValueKind.STRINGS,
            "lora": ValueKind.TABLE,
            "hf_ignore": ValueKind.STRINGS,
            "vocab_multiple": ValueKind.INTEGER,
        },
        "model.lora": {
            "rank": ValueKind.INTEGER,
            **dict.fromkeys(("targets", "trainable"), ValueKind.WORDS),
            **dict.fromkeys(("alpha", "dropout"), ValueKind.NUMBER),
        },
        "model.transformer": {
            **dict.fromkeys(("layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab"), ValueKind.INTEGER),
            **dict.fromkeys(("gated_mlp", "tied_embeddings", "rms_norm", "rotary", "bias"), ValueKind.SWITCH),
            "qkv_bias": ValueKind.SWITCH,
            "activation": ValueKind.STRING,
            "dropout": ValueKind.NUMBER,
            "positions": ValueKind.INTEGER,
            "vocab_multiple": ValueKind.INTEGER,
            **dict.fromkeys(("experts", "top_k", "moe_ffn"), ValueKind.INTEGER),
            **dict.fromkeys(("shared_ffn", "first_k_dense"), ValueKind.INTEGER),
            "moe_layer_freq": ValueKind.PATTERN,
            **dict.fromkeys(("shared_gate", "qk_norm"), ValueKind.SWITCH),
            "mla": ValueKind.TABLE,
            "mtp_layers": ValueKind.INTEGER,
        },
        "model.transformer.mla": dict.fromkeys(
            ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"), ValueKind.INTEGER
        ),
        "cluster": {
            "device": ValueKind.STRING,
            "nodes": ValueKind.INTEGER,
            "gpus_per_node": ValueKind.INTEGER,
            "override": ValueKind.TABLE,
        },
        "parallel": {
            **dict.fromkeys(COUNTS, ValueKind.INTEGER),
            "sequence_parallel": ValueKind.SWITCH,
            "zero": ValueKind.INTEGER,
            "partition": ValueKind.STRING,
            "modules": ValueKind.TABLE,
            "layout": ValueKind.TABLE,
            "zero_group": ValueKind.INTEGER,
            "reshard_after_forward": ValueKind.SWITCH,
            "etp": ValueKind.INTEGER,
            "cp_kind": ValueKind.STRING,
            "placement": ValueKind.STRING,
            "segments": ValueKind.STRING,
            "shares": ValueKind.TABLE,
        },
        "training": {row.name: row.value.kind for row in OPTIONS if row.value.kind is not None},
        "overlap": dict.fromkeys((item.name for item in fields(Overlap)), ValueKind.SWITCH),
        "parallel.layout": {
            "stages": ValueKind.STRING,
            "layers": ValueKind.INTEGERS,
            "modules": ValueKind.TABLE,
            **dict.fromkeys(("first", "last"), ValueKind.INTEGER),
            **dict.fromkeys(("account_for_embedding", "account_for_loss"), ValueKind.SWITCH),
        },
        "batch": {},
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
        if kinds[key] is ValueKind.TABLE:
            _check_table(f"{path}.{key}", item, places)
        elif not kinds[key].accepts(item):
            expected = kinds[key].value
            raise ConfigError(f"not {expected}", where=where, expected=expected, got=repr(item))


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
