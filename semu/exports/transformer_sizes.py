"""``transformer_of``: the sizes of a model that is a plain decoder, read back from its modules.

Programs describe a language model by sizes. A run may name its model, or read it from a config.json; the sizes are
taken from the modules, and a model made of them is compared with the run's, module by module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from semu.errors import SemuError
from semu.nn import (
    Embedding,
    LatentAttention,
    LayerNorm,
    MixtureOfExperts,
    Model,
    Module,
    RMSNorm,
    SelfAttention,
    TransformerLayer,
)
from semu.nn.module import Parameter
from semu.runfile.transformer import TransformerConfig

_NAMES = frozenset({"config", "name", "recompute_kind", "fp8_region"})
"""Attributes that no computation depends on, and those of classes."""


def transformer_of(model: Model) -> TransformerConfig | str:
    """The sizes of a model, or why ``[model.transformer]`` cannot say it, in words.

    Args:
        model: with tables that may be padded, which are taken as they are.
    """
    if len(model.modules) != 1:
        return f"a model of {len(model.modules)} parts"
    body = model.modules[0].body
    layers = [item for item in body.modules() if isinstance(item, TransformerLayer)]
    tables = [item for item in body.modules() if isinstance(item, Embedding)]
    if not layers or len(tables) != 1:
        return "a model that is no decoder of text"
    try:
        sizes = TransformerConfig.from_table(_table(body, layers, tables[0]))
    except SemuError as error:
        return f"a model whose sizes are unusual ({error.message})"
    difference = differences(model, sizes.model())
    return sizes if difference is None else f"a model that differs from a plain decoder at {difference}"


def differences(one: Model, other: Model) -> str | None:
    """Where two models differ, the first place; None: nowhere."""
    names = [module.name for module in one.modules]
    if names != [module.name for module in other.modules]:
        return ", ".join(names)
    found = (_differences(a.body, b.body, "") for a, b in zip(one.modules, other.modules, strict=True))
    return next((place for places in found for place in places), None)


def _table(body: Module, layers: list[TransformerLayer], tokens: Embedding) -> dict[str, Any]:
    """``[model.transformer]`` of a decoder."""
    first, attention = layers[0], layers[0].attention
    vocab, hidden = tokens.weight.shape
    mixtures = [layer.mlp if isinstance(layer.mlp, MixtureOfExperts) else None for layer in layers]
    dense: Any = next((layer.mlp for layer in layers if not isinstance(layer.mlp, MixtureOfExperts)), None)
    table: dict[str, Any] = {
        "layers": len(layers),
        "hidden": hidden,
        "vocab": vocab,
        "tied_embeddings": not any(
            name.startswith("head") and parameter.shape == (vocab, hidden) and parameter is not tokens.weight
            for name, parameter in _parameters(body)
        ),
        "rms_norm": type(first.attention_norm).__name__ == "RMSNorm",
        "dropout": getattr(attention, "dropout", 0.0),
        "positions": None if tokens.positions is None else tokens.positions.shape[0],
    }
    if isinstance(attention, LatentAttention):
        sizes = attention.sizes
        names = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
        table |= {"heads": attention.heads, "rotary": True, "bias": attention.out.bias is not None}
        table["mla"] = {name: size for name in names if (size := getattr(sizes, name)) is not None}
        table["mla"] |= {} if sizes.norms else {"norms": False}
    elif isinstance(attention, SelfAttention):
        table |= {
            "heads": attention.heads,
            "kv_heads": attention.kv_heads,
            "head_dim": attention.head_dim,
            "rotary": attention.rotary,
            "bias": attention.out.bias is not None,
            "qkv_bias": attention.qkv.bias is not None,
            "qk_norm": isinstance(attention.query_norm, RMSNorm) and not attention.whole_norm,
            "qk_layer_norm": isinstance(attention.query_norm, LayerNorm),
        }
    plain: Any = dense if dense is not None else next(item for item in mixtures if item is not None).experts
    table |= {"gated_mlp": plain.gated, "activation": plain.activation.value}
    if dense is not None:
        table["ffn"] = dense.down.weight.shape[1]
    if any(mixtures):
        table |= _experts([item is not None for item in mixtures], next(item for item in mixtures if item is not None))
    return {name: value for name, value in table.items() if value is not None}


def _experts(pattern: list[bool], mixture: MixtureOfExperts) -> dict[str, Any]:
    shared: Any = mixture.shared
    table: dict[str, Any] = {
        "experts": mixture.num_experts,
        "top_k": mixture.top_k,
        "moe_ffn": mixture.ffn,
        "shared_ffn": None if shared is None else shared.down.weight.shape[1],
        "shared_gate": mixture.shared_gate is not None,
        "expert_bias": mixture.experts.up_bias is not None,
    }
    first = pattern.index(True)
    if all(pattern[first:]):
        table |= {"first_k_dense": first} if first else {}
    else:
        table["moe_layer_freq"] = [int(has) for has in pattern]
    return table


def _parameters(module: Module, path: str = "") -> Iterator[tuple[str, Parameter]]:
    for name, value in vars(module).items():
        if isinstance(value, Parameter):
            yield f"{path}{name}", value
    for name, child in module.named_children():
        yield from _parameters(child, f"{path}{name}.")


def _differences(one: Module, other: Module, path: str) -> Iterator[str]:
    """Where two trees of modules differ: classes, sizes, parameters."""
    is_kind = isinstance(one, type(other)) or isinstance(other, type(one))
    if not is_kind or type(one).forward is not type(other).forward:
        yield f"{path or 'the model'} ({type(one).__name__})"
        return
    ours, theirs = _values(one), _values(other)
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            yield f"{path}{name} = {ours.get(name)}"
    children, others = dict(one.named_children()), dict(other.named_children())
    for name in (*children, *(name for name in others if name not in children)):
        if name not in others or name not in children:
            yield f"{path}{name}"
        else:
            yield from _differences(children[name], others[name], f"{path}{name}.")


def _values(module: Module) -> Mapping[str, object]:
    """Scalars of a module and shapes of its parameters."""
    found: dict[str, object] = {}
    for name, value in vars(module).items():
        if name.startswith("_") or name in _NAMES or isinstance(value, Module):
            continue
        found[name] = value.shape if isinstance(value, Parameter) else value
    return found
