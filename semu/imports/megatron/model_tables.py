"""``transformer_table``: the sizes and the style of the model, as ``[model.transformer]``.

Where a flag is not given Megatron-LM's own rule holds: an inner width of 4 x hidden (with SwiGLU two thirds of it, in
multiples of 64), learned positions, layer norms, biases, dropout 0.1, tied embeddings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import semu_models
from semu.checks import nearest_divisor
from semu.errors import ConfigError
from semu.imports.flags import Effect
from semu.imports.hub import find_hub_model
from semu.imports.megatron.flags import ADDED_TOKENS, TOKENIZERS
from semu.imports.settings import Settings
from semu.nn.vocabulary import vocabulary_rows
from semu.parallel.expert_layers import layer_pattern


def transformer_table(settings: Settings) -> dict[str, Any]:
    """``[model.transformer]`` of a run file, from the settings of a launch script.

    Raises:
        ConfigError: a size is missing, or sizes contradict one another.
    """
    layers, hidden = settings.required("num_layers"), settings.required("hidden_size")
    heads = settings.required("num_attention_heads")
    activation = _activation(settings)
    is_gated = settings.get("swiglu") or activation == "quick_gelu"
    has_bias = settings.get("add_bias_linear")
    width = int((4 * hidden * 2 / 3) / 64) * 64 if settings.get("swiglu") else 4 * hidden  # ``validate_args``
    table: dict[str, Any] = {
        "layers": layers,
        "hidden": hidden,
        "ffn": settings.size("ffn_hidden_size") or width,
        "heads": heads,
        "kv_heads": _kv_heads(settings, heads),
        "head_dim": _head_dim(settings, hidden, heads),
        **_vocabulary(settings),
        "gated_mlp": is_gated,
        "tied_embeddings": not settings.get("untie_embeddings_and_output_weights"),
        "rms_norm": settings.get("normalization") == "RMSNorm",
        **_positions(settings),
        "bias": has_bias,
        "dropout": _dropout(settings),
    }
    if activation is not None:
        table["activation"] = activation
    if settings.get("add_qkv_bias") and not has_bias:
        table["qkv_bias"] = True
    _check_fusions(settings, table)
    table |= _latent(settings)
    if settings.get("qk_layernorm") and "mla" not in table:
        table["qk_norm" if table["rms_norm"] else "qk_layer_norm"] = True
    return table | _experts(settings, layers, table["ffn"], has_bias=has_bias)


_ACTIVATIONS = {"squared_relu": "squared_relu", "openai_gelu": "gelu_tanh", "quick_geglu": "quick_gelu"}


def _activation(settings: Settings) -> str | None:
    """What stands in place of GELU or SwiGLU.

    Raises:
        ConfigError: several at once.
    """
    told = [name for name in ("swiglu", *_ACTIVATIONS) if settings.get(name)]
    if len(told) > 1:
        expected = f"one of {', '.join(map(settings.name, told))}"
        got = "all of them" if len(told) > 2 else "both"
        raise settings.error(told[1], "several activations", expected=expected, got=got)
    return _ACTIVATIONS.get(told[0]) if told else None


def _check_fusions(settings: Settings, table: dict[str, Any]) -> None:
    """Fused kernels that semu takes for granted, where there is something to fuse. Unfused, a tensor of the layer is
    read and written once or twice more; of a layer's traffic that is a small share."""
    has_parts = {
        "bias_gelu_fusion": (not table["gated_mlp"] and table["bias"] and "activation" not in table, 0.04, 0.1),
        "bias_swiglu_fusion": (table["gated_mlp"], 0.04, 0.1),
        "apply_rope_fusion": (table["rotary"], 0.03, 0.0),
    }
    for name, (matters, slower, more) in has_parts.items():
        if matters and not settings.get(name):
            settings.approximate(name, "in separate kernels", Effect(slower=slower, more=more))


def _kv_heads(settings: Settings, heads: int) -> int:
    if not settings.get("group_query_attention"):
        return heads
    groups = settings.size("num_query_groups") or 1
    if heads % groups:
        expected = f"a divisor of {settings.name('num_attention_heads')} = {heads}"
        message, nearest = f"{heads} heads in {groups} groups", nearest_divisor(heads, min(groups, heads))
        raise settings.error("num_query_groups", message, expected=expected, got=groups, nearest=nearest)
    return groups


def _head_dim(settings: Settings, hidden: int, heads: int) -> int:
    width = settings.size("kv_channels")
    if width is None and hidden % heads:
        raise settings.error(
            "num_attention_heads",
            f"a width of {hidden} does not divide into {heads} heads",
            expected=f"a divisor of {settings.name('hidden_size')} = {hidden}, or --kv-channels",
            got=heads,
            nearest=nearest_divisor(hidden, min(heads, hidden)),
        )
    return width or hidden // heads


def _vocabulary(settings: Settings) -> dict[str, int]:
    """Entries, and what they are padded to."""
    padded = settings.size("padded_vocab_size", least=0)
    if padded:
        return {"vocab": padded}
    size = settings.size("vocab_size")
    kind = settings.get("tokenizer_type")
    if size is not None:
        size += ADDED_TOKENS.get(kind, 0)
    elif kind is None or kind in TOKENIZERS:
        size = TOKENIZERS[kind or "GPT2BPETokenizer"]
        settings.notes.append(f"vocabulary: {size} entries, those of {kind or 'GPT2BPETokenizer'}")
    elif (found := _rows_of_tokenizer(settings)) is not None:
        size, name = found
        settings.notes.append(f"vocabulary: {size} entries, those of {name}")
    if size is None:
        known = ", ".join(f"{rows} {name}" for name, rows in LIKELY.items())
        raise settings.error(
            "tokenizer_type",
            f"the size of the vocabulary is in the files of {kind}",
            expected=f"--vocab-size in the file, or --set model.transformer.vocab=N ({known})",
            got=kind,
            nearest="--set model.transformer.vocab=N",
        )
    return {"vocab": size, "vocab_multiple": settings.size("make_vocab_size_divisible_by") or 128}


LIKELY = {
    "Llama 2, Mistral": 32000,
    "Llama 3": 128256,
    "Qwen 2, 3": 151936,
    "DeepSeek-V3": 129280,
    "GPT-2": 50257,
    "Nemotron": 256000,
    "Mistral NeMo": 131072,
}
"""Rows of tables that are often trained, for a message."""


def _rows_of_tokenizer(settings: Settings) -> tuple[int, str] | None:
    """Entries of a tokenizer that the file names as HuggingFace's hub does, and the shipped model that has as many."""
    told = settings.told.get("tokenizer_model")
    settings.asked["tokenizer_model"] = None if told is None else told.shown
    name = told.shown if told is not None else None
    if told is None or name is None:
        return None
    settings.told["tokenizer_model"] = replace(told, gap="")  # a folder that is not known does not matter
    model = find_hub_model(name, settings.given.source) if "/" in name and not told.gap else None
    if model is not None and "name" in model:
        rows = vocabulary_rows(semu_models.build(model["name"]))
        return None if rows is None else (rows, str(model["name"]))
    last = name.rstrip("/").rpartition("/")[2].lower()
    return next(((rows, f"{kind}, by the name {last}") for part, rows, kind in _HINTS if part in last), None)


_HINTS = (
    ("256k", 256000, "a tokenizer of 256k entries"),
    ("128k", 131072, "a tokenizer of 128k entries"),
    ("mixtral", 32000, "Mixtral"),
    ("mistral", 32000, "Mistral"),
    ("llama3", 128256, "Llama 3"),
    ("llama-3", 128256, "Llama 3"),
    ("llama2", 32000, "Llama 2"),
    ("llama-2", 32000, "Llama 2"),
    ("qwen", 151936, "Qwen"),
    ("deepseek", 129280, "DeepSeek-V3"),
    ("gpt2", 50257, "GPT-2"),
)
"""Part of a tokenizer's file name -> entries of the vocabulary, and whose it is."""


def _positions(settings: Settings) -> dict[str, Any]:
    kind = settings.get("position_embedding_type")
    if settings.get("use_rotary_position_embeddings"):
        kind = "rope"
    if kind == "learned_absolute" and settings.get("add_position_embedding"):
        rows, tokens = settings.size("max_position_embeddings"), settings.size("seq_length")
        if rows is None:
            raise ConfigError(
                "no --max-position-embeddings",
                where=settings.given.source,
                expected="the rows of the learned position table, or --position-embedding-type rope",
            )
        if tokens is not None and rows < tokens:
            message = f"sequences of {tokens} tokens and {rows} positions"
            expected = f"at least {settings.name('seq_length')} = {tokens}"
            raise settings.error("max_position_embeddings", message, expected=expected, got=rows, nearest=tokens)
        return {"rotary": False, "positions": rows}
    return {"rotary": kind in ("rope", "yarn")}


def _dropout(settings: Settings) -> float:
    attention, hidden = float(settings.get("attention_dropout")), float(settings.get("hidden_dropout"))
    if (attention == 0) != (hidden == 0):
        settings.approximate(
            "attention_dropout" if settings.is_told("attention_dropout") else "hidden_dropout",
            f"dropout of {attention:g} in attention and {hidden:g} behind it, modelled as {hidden:g} in both",
            Effect(slower=0.01, faster=0.01),
        )
    return hidden


def _latent(settings: Settings) -> dict[str, Any]:
    """Multi-latent attention; its latents have norms under ``--qk-layernorm`` only."""
    if not settings.get("multi_latent_attention"):
        return {}
    names = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
    sizes = {name: settings.size(name) for name in names}
    norms = {} if settings.get("qk_layernorm") else {"norms": False}
    return {"mla": {name: size for name, size in sizes.items() if size is not None} | norms}


def _experts(settings: Settings, layers: int, ffn: int, *, has_bias: bool) -> dict[str, Any]:
    experts = settings.size("num_experts")
    table: dict[str, Any] = {}
    if further := settings.size("mtp_num_layers", least=0):
        table["mtp_layers"] = further
    if experts is None:
        return table
    top_k = settings.size("moe_router_topk") or 2
    if top_k > experts:
        message = f"{top_k} of {experts} experts for every token"
        expected = f"at most {settings.name('num_experts')} = {experts}"
        raise settings.error("moe_router_topk", message, expected=expected, got=top_k, nearest=experts)
    if has_bias:
        table["expert_bias"] = True
    table |= {"experts": experts, "top_k": top_k, "moe_ffn": settings.size("moe_ffn_hidden_size") or ffn}
    shared = settings.size("moe_shared_expert_intermediate_size", least=0)
    if shared:
        table["shared_ffn"] = shared
        if settings.get("moe_shared_expert_gate"):
            table["shared_gate"] = True
    return table | _expert_layers(settings, layers)


def _expert_layers(settings: Settings, layers: int) -> dict[str, Any]:
    text: str = settings.get("moe_layer_freq")
    pattern = layer_pattern(text, settings.where("moe_layer_freq"))
    if isinstance(pattern, int):
        return {} if pattern == 1 else {"moe_layer_freq": pattern}
    if len(pattern) != layers or not set(pattern) <= {0, 1}:
        message, expected = f"a pattern of {len(pattern)} layers", f"a 0 or a 1 for each of {layers} layers"
        raise settings.error("moe_layer_freq", message, expected=expected, got=text)
    first = next((at for at, kind in enumerate(pattern) if kind), layers)
    if all(pattern[first:]) and first < layers:
        return {"first_k_dense": first} if first else {}
    return {"moe_layer_freq": pattern}
