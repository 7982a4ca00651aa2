"""Dialects of dense language models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semu.nn import Model
from semu_models.decoder import decoder_model
from semu_models.hf.common import NO_BIAS, NO_DROPOUT, SILU
from semu_models.hf.dialect import Dialect, Fixed, Spelling, optional_size, size, switch
from semu_models.hf.values import Values
from semu_models.llama import Llama, LlamaConfig
from semu_models.qwen import Qwen, QwenConfig


def decoder_spellings(**defaults: Any) -> dict[str, Spelling]:
    """The fields that decoder-only models share, with a model type's own defaults.

    Args:
        defaults: layers, hidden, ffn, heads, kv_heads, vocab, context (None: ``null`` is legal), tied.
    """
    return {
        "layers": size("num_hidden_layers", default=defaults["layers"]),
        "hidden": size("hidden_size", default=defaults["hidden"]),
        "ffn": size("intermediate_size", default=defaults["ffn"]),
        "heads": size("num_attention_heads", default=defaults["heads"]),
        "kv_heads": optional_size("num_key_value_heads", default=defaults.get("kv_heads")),
        "vocab": size("vocab_size", default=defaults["vocab"]),
        "context": size("max_position_embeddings", default=defaults["context"]),
        "tied": switch("tie_word_embeddings", default=defaults.get("tied", False)),
    }


LLAMA_FIXED: Mapping[str, Fixed] = {
    "hidden_act": SILU,
    "attention_bias": NO_BIAS,
    "mlp_bias": NO_BIAS,
    "attention_dropout": NO_DROPOUT,
}


def _llama(values: Values) -> LlamaConfig:
    return LlamaConfig(**_sizes(values))


def _qwen(values: Values) -> QwenConfig:
    return QwenConfig(**_sizes(values))


def _sizes(values: Values) -> dict[str, int]:
    heads = values.size("heads")
    if values.get("head_dim") is not None and values.size("head_dim") * heads != values.size("hidden"):
        raise values.error("head_dim", "heads of another width than hidden / heads", got=values.get("head_dim"))
    refuse_tied(values)
    return {
        "layers": values.size("layers"),
        "hidden": values.size("hidden"),
        "ffn": values.size("ffn"),
        "heads": heads,
        "kv_heads": values.size_or("kv_heads", heads, "kv_heads; num_attention_heads"),
        "vocab": values.size("vocab"),
    }


def refuse_tied(values: Values) -> None:
    """For families whose output projection has a table of its own."""
    if values.switch("tied"):
        raise values.error("tied", "tied embeddings are not modelled for this family", expected="false", got="true")


def _llama_model(name: str, config: LlamaConfig) -> Model:
    return decoder_model(name, Llama(config))


def _qwen_model(name: str, config: QwenConfig) -> Model:
    return decoder_model(name, Qwen(config))


LLAMA = Dialect(
    family="llama",
    model_types=("llama",),
    spellings={
        **decoder_spellings(layers=32, hidden=4096, ffn=11008, heads=32, vocab=32000, context=2048),
        "head_dim": size("head_dim"),
    },
    config=_llama,
    model=_llama_model,
    fixed=LLAMA_FIXED,
    architectures=("LlamaForCausalLM", "LLaMAForCausalLM"),
)

QWEN2 = Dialect(
    family="qwen",
    model_types=("qwen2",),
    spellings=decoder_spellings(layers=32, hidden=4096, ffn=22016, heads=32, kv_heads=32, vocab=151936, context=32768),
    config=_qwen,
    model=_qwen_model,
    fixed={
        "hidden_act": SILU,
        "attention_dropout": NO_DROPOUT,
        "use_sliding_window": Fixed((False, None), "layers would attend to a window"),
    },
    ignored={
        "sliding_window": "use_sliding_window is false",
        "layer_types": "use_sliding_window is false",
    },
    architectures=("Qwen2ForCausalLM",),
)

TEXT = (LLAMA, QWEN2)
"""Dense language models."""
