"""The table ``[model.transformer]`` of a row. What a row leaves open: ``semu.validation.jobs`` says."""

from __future__ import annotations

from typing import Any

from semu.checks import find_named
from semu.errors import ConfigError
from semu.nn.layers.activation import Activation
from semu.parallel.expert_layers import layer_pattern
from semu.validation.row import Measure, Row, Shape

UNFUSED_DROPOUT = 0.1
VOCAB_MULTIPLE = 128
"""Megatron-LM's ``make-vocab-size-divisible-by``."""


def transformer_table(row: Row, *, is_unfused: bool) -> dict[str, Any]:
    """Keys and values of the table.

    Raises:
        ConfigError: a word that semu does not know, experts without their sizes.
    """
    shape = row.shape
    dropout = shape.dropout
    if dropout is None:
        dropout = UNFUSED_DROPOUT if is_unfused else 0.0
    table: dict[str, Any] = {
        "layers": shape.layers,
        "hidden": shape.hidden,
        "ffn": shape.ffn,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab": row.tp if row.measure is Measure.ANALYTIC else shape.vocab_padded or shape.vocab,
        **({"vocab_multiple": VOCAB_MULTIPLE} if _is_padded(row) else {}),
        "gated_mlp": shape.gated_mlp,
        "tied_embeddings": shape.tied_embeddings,
        "rms_norm": find_named("norm", shape.norm, {"layernorm": False, "rmsnorm": True}, where="model.norm"),
        "bias": shape.bias,
        "dropout": dropout,
        **_activation(shape),
        **_positions(row),
        **_experts(shape),
    }
    if shape.qkv_bias is not None:
        table["qkv_bias"] = shape.qkv_bias
    if shape.mla is not None:
        table["mla"] = {name: value for name, value in shape.mla.items() if value is not None}
    if shape.mtp_layers:
        table["mtp_layers"] = shape.mtp_layers
    return table


def _activation(shape: Shape) -> dict[str, Any]:
    """The non-linearity of feed-forward networks where it is not semu's default; gated ones have names of their own."""
    word = shape.activation
    if word in (None, "swiglu" if shape.gated_mlp else "gelu"):
        return {}
    names = {kind.value: kind.value for kind in Activation}
    if shape.gated_mlp:
        names = {kind.gated_name: kind.value for kind in reversed(Activation)} | names
    return {"activation": find_named("activation", word, names, where="model.activation")}


def _positions(row: Row) -> dict[str, Any]:
    kinds = {"learned": False, "learned_absolute": False, "rope": True, "none": False}
    is_rotary = find_named("position", row.shape.position, kinds, where="model.position")
    if not row.shape.has_learned_positions or row.measure is Measure.ANALYTIC:
        return {"rotary": is_rotary}
    return {"rotary": is_rotary, "positions": row.shape.positions or row.shape.seq_len}


def _experts(shape: Shape) -> dict[str, Any]:
    """Keys for a mixture of experts; a setting that is null, or that every layer shares, is left out."""
    if shape.moe is None:
        return {}
    names = {"num_experts": "experts", "topk": "top_k", "moe_ffn_hidden": "moe_ffn", "shared_expert_ffn": "shared_ffn"}
    table = {key: shape.moe[name] for name, key in names.items() if shape.moe.get(name) is not None}
    for name in ("num_experts", "topk", "moe_ffn_hidden"):
        if names[name] not in table:
            raise ConfigError("missing field", where=f"model.moe.{name}", expected="an integer >= 1")
    frequency = shape.moe.get("layer_freq")
    if isinstance(frequency, str):
        frequency = layer_pattern(frequency, "model.moe.layer_freq")
    if frequency not in (None, 1):
        table["moe_layer_freq"] = frequency
    elif shape.moe.get("dense_layers"):
        table["first_k_dense"] = shape.moe["dense_layers"]
    return table


def _is_padded(row: Row) -> bool:
    """Whether the table has more rows than the row says."""
    if row.measure is Measure.ANALYTIC or row.shape.vocab_padded is not None:
        return False
    return (row.tp > 1 and row.sharding != "fsdp") or row.pp > 1 or row.shape.vocab % row.tp != 0
