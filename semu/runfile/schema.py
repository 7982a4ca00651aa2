"""Every table and key of a run file, with the type of its value; ``check_schema``."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from semu.errors import ConfigError, unknown_name
from semu.runfile.places import Places


class ValueKind(Enum):
    """Type of a value; the enum's value is what a message calls it."""

    INTEGER = "an integer"
    NUMBER = "a number"
    STRING = "a string"
    SWITCH = "true or false"
    STRINGS = "a list of strings"
    INTEGERS = "a list of integers"
    WORDS = "a string or a list of strings"
    LOADS = "a number or a list of numbers"
    PATTERN = "an integer or a list of integers"
    TABLE = "a table"

    def accepts(self, value: object) -> bool:
        """Whether a TOML value is of this type (true and false are no integers)."""
        is_switch = isinstance(value, bool)
        is_strings = isinstance(value, list) and all(isinstance(item, str) for item in value)
        is_numbers = isinstance(value, list) and all(
            isinstance(item, int | float) and not isinstance(item, bool) for item in value
        )
        return {
            ValueKind.INTEGER: isinstance(value, int) and not is_switch,
            ValueKind.NUMBER: isinstance(value, int | float) and not is_switch,
            ValueKind.STRING: isinstance(value, str),
            ValueKind.SWITCH: is_switch,
            ValueKind.STRINGS: is_strings,
            ValueKind.INTEGERS: isinstance(value, list) and all(ValueKind.INTEGER.accepts(item) for item in value),
            ValueKind.WORDS: isinstance(value, str) or is_strings,
            ValueKind.PATTERN: (isinstance(value, int) and not is_switch)
            or (is_numbers and isinstance(value, list) and all(isinstance(item, int) for item in value)),
            ValueKind.LOADS: (isinstance(value, int | float) and not is_switch) or is_numbers,
            ValueKind.TABLE: isinstance(value, Mapping),
        }[self]


_COUNTS = dict.fromkeys(("dp", "tp", "pp", "vpp", "cp", "ep"), ValueKind.INTEGER)

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
            **_COUNTS,
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
        "training": {
            "micro_batch": ValueKind.INTEGER,
            "global_batch": ValueKind.INTEGER,
            "seq_len": ValueKind.INTEGER,
            "precision": ValueKind.STRING,
            "grad_dtype": ValueKind.STRING,
            "optimizer": ValueKind.STRING,
            "recompute": ValueKind.WORDS,
            "schedule": ValueKind.STRING,
            "attention": ValueKind.STRING,
            "recompute_layers": ValueKind.INTEGER,
            "recompute_method": ValueKind.STRING,
            **dict.fromkeys(("master_dtype", "optimizer_state_dtype", "fp8_weights", "software"), ValueKind.STRING),
            **dict.fromkeys(("gradient_clipping", "loss_scaling"), ValueKind.SWITCH),
            **dict.fromkeys(("overhead_s", "jitter", "straggler_share", "straggler_slowdown"), ValueKind.NUMBER),
            "moe_imbalance": ValueKind.LOADS,
            "moe_capacity_factor": ValueKind.NUMBER,
            **dict.fromkeys(("moe_pad_to_capacity", "moe_grouped_gemm"), ValueKind.SWITCH),
            "workspaces": ValueKind.STRING,
            "recompute_policy": ValueKind.STRING,
            "recompute_every": ValueKind.INTEGER,
            "cross_entropy": ValueKind.STRING,
            "gradient_accumulation_fusion": ValueKind.SWITCH,
            "offload": ValueKind.WORDS,
            "offload_layers": ValueKind.STRINGS,
            "offload_fraction": ValueKind.NUMBER,
            "launch": ValueKind.SWITCH,
            "fp8_recipe": ValueKind.STRING,
            **dict.fromkeys(("schedule_file", "activation_limit"), ValueKind.STRING),
            "optimizer_post_validation": ValueKind.SWITCH,
        },
        "overlap": dict.fromkeys(("grad_reduce", "param_gather", "tensor_parallel", "pipeline"), ValueKind.SWITCH),
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
