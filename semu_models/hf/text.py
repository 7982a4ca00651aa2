"""Dialects of dense language models in the manner of Llama, and what all decoder-only models share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from semu.nn import Model
from semu_models.hf.common import NO_DROPOUT, SILU
from semu_models.hf.dialect import (
    Dialect,
    Fixed,
    Spelling,
    number,
    optional_size,
    size,
    switch,
    words,
)
from semu_models.hf.values import Values
from semu_models.text.decoder import DecoderConfig, decoder_model
from semu_models.text.gemma import Gemma2Config, Gemma3Config
from semu_models.text.glm import Glm4Config, GlmConfig
from semu_models.text.language import language_model
from semu_models.text.llama import LlamaConfig
from semu_models.text.mistral import MistralConfig
from semu_models.text.olmo import Olmo2Config
from semu_models.text.qwen import QwenConfig
from semu_models.text.qwen3 import Qwen3Config

FULL, SLIDING = "full_attention", "sliding_attention"
"""Words of ``layer_types`` that are modelled."""


def decoder_spellings(**defaults: Any) -> dict[str, Spelling]:
    """The fields that decoder-only models share, with a model type's defaults.

    Args:
        defaults: layers, hidden, ffn, heads, vocab, context; kv_heads and head_dim (None: they follow from others),
            tied.
    """
    return {
        "layers": size("num_hidden_layers", default=defaults["layers"]),
        "hidden": size("hidden_size", default=defaults["hidden"]),
        "ffn": size("intermediate_size", default=defaults["ffn"]),
        "heads": size("num_attention_heads", default=defaults["heads"]),
        "kv_heads": optional_size("num_key_value_heads", default=defaults.get("kv_heads")),
        "head_dim": optional_size("head_dim", default=defaults.get("head_dim")),
        "vocab": size("vocab_size", default=defaults["vocab"]),
        "context": size("max_position_embeddings", default=defaults["context"]),
        "tied": switch("tie_word_embeddings", default=defaults.get("tied", False)),
    }


def decoder_sizes(values: Values) -> dict[str, Any]:
    """Arguments that every ``DecoderConfig`` has."""
    heads = values.size("heads")
    head_dim = values.get("head_dim")
    if head_dim is None:
        head_dim = values.size_or("head_dim", values.quotient("hidden", "heads"), "head_dim; hidden / heads")
    return {
        "layers": values.size("layers"),
        "hidden": values.size("hidden"),
        "ffn": values.size("ffn"),
        "heads": heads,
        "kv_heads": values.size_or("kv_heads", heads, "kv_heads; as many as heads"),
        "vocab": values.size("vocab"),
        "head_dim": head_dim,
        "tied": values.switch("tied"),
    }


def windows(values: Values, default: Sequence[bool]) -> dict[str, Any]:
    """``window`` and ``windowed`` of a ``DecoderConfig``.

    Args:
        values: with ``window`` [tokens] and ``layer_types``. default: which layers have a window, where
            ``layer_types`` does not say it.
    Raises:
        ConfigError: a list of another length or with words that are not modelled, windows without a size.
    """
    types = values.get("layer_types")
    layers = values.size("layers")
    if types is not None:
        if len(types) != layers:
            message = f"{len(types)} layer types for {layers} layers"
            raise values.error("layer_types", message, expected=f"{layers} words", got=len(types), nearest=layers)
        for item in types:
            if item not in (FULL, SLIDING):
                raise values.error(
                    "layer_types",
                    f"layers of the type {item!r} are not modelled for {values.model_type}",
                    expected=f"{FULL} or {SLIDING}",
                    got=item,
                )
    windowed = tuple(item == SLIDING for item in types) if types is not None else tuple(default)
    if not any(windowed) or (types is None and values.get("window") is None):
        return {"window": None, "windowed": None}
    return {"window": values.size("window"), "windowed": None if all(windowed) else windowed}


def model_of(name: str, config: DecoderConfig) -> Model:
    """The model of a dense configuration."""
    return decoder_model(name, language_model(config))


def _llama(values: Values) -> LlamaConfig:
    return LlamaConfig(
        **decoder_sizes(values), attention_bias=values.switch("attention_bias"), mlp_bias=values.switch("mlp_bias")
    )


def _mistral(values: Values) -> MistralConfig:
    sizes = decoder_sizes(values)
    return MistralConfig(**sizes, **windows(values, [True] * sizes["layers"]))


def _qwen_windows(values: Values) -> dict[str, Any]:
    """Layers from ``max_window_layers`` on have windows, where they are switched on."""
    if not values.switch("use_window"):
        return {"window": None, "windowed": None}
    first = values.size("first_window")
    return windows(values, [layer >= first for layer in range(values.size("layers"))])


def _qwen2(values: Values) -> QwenConfig:
    return QwenConfig(**decoder_sizes(values), **_qwen_windows(values))


def _qwen3(values: Values) -> Qwen3Config:
    return Qwen3Config(**decoder_sizes(values), **_qwen_windows(values), attention_bias=values.switch("attention_bias"))


def _gemma2(values: Values) -> Gemma2Config:
    sizes = decoder_sizes(values)
    return Gemma2Config(
        **sizes,
        **windows(values, [layer % 2 == 0 for layer in range(sizes["layers"])]),
        attention_bias=values.switch("attention_bias"),
        attention_softcap=values.get("attention_softcap"),
        logit_softcap=values.get("logit_softcap"),
    )


def _gemma3(values: Values) -> Gemma3Config:
    sizes = decoder_sizes(values)
    every = values.size("full_every")
    return Gemma3Config(
        **sizes,
        **windows(values, [(layer + 1) % every != 0 for layer in range(sizes["layers"])]),
        attention_bias=values.switch("attention_bias"),
    )


def _rotary_dim(values: Values, sizes: Mapping[str, Any]) -> int | None:
    """Features of a head that are rotated, None: all."""
    share = float(values.get("rotary_share"))
    if not 0 < share <= 1:
        raise values.error("rotary_share", "not a share of a head", expected="0 < share <= 1", got=share, nearest=1.0)
    return None if share == 1 else max(1, int(sizes["head_dim"] * share))


def _phi3(values: Values) -> LlamaConfig:
    sizes = decoder_sizes(values)
    return LlamaConfig(**sizes, **windows(values, [True] * sizes["layers"]), rotary_dim=_rotary_dim(values, sizes))


def _olmo2(values: Values) -> Olmo2Config:
    return Olmo2Config(**decoder_sizes(values), attention_bias=values.switch("attention_bias"))


def _glm(values: Values) -> GlmConfig:
    sizes = decoder_sizes(values)
    kind = Glm4Config if values.model_type == "glm4" else GlmConfig
    return kind(**sizes, qkv_bias=values.switch("qkv_bias"), rotary_dim=_rotary_dim(values, sizes))


_BIASES = {"attention_bias": switch("attention_bias", default=False)}
_GELU_TANH = Fixed(("gelu_pytorch_tanh", None), "the feed-forward network would have another activation")
_ONE_WAY = Fixed((None, False), "attention would not be causal")

LLAMA = Dialect(
    family="llama",
    model_types=("llama",),
    spellings={
        **decoder_spellings(layers=32, hidden=4096, ffn=11008, heads=32, vocab=32000, context=2048),
        **_BIASES,
        "mlp_bias": switch("mlp_bias", default=False),
    },
    config=_llama,
    model=model_of,
    fixed={"hidden_act": SILU, "attention_dropout": NO_DROPOUT},
    architectures=("LlamaForCausalLM", "LLaMAForCausalLM"),
)

MISTRAL = Dialect(
    family="mistral",
    model_types=("mistral",),
    spellings={
        **decoder_spellings(layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocab=32000, context=131072),
        "window": optional_size("sliding_window", default=4096),
        "layer_types": words("layer_types"),
    },
    config=_mistral,
    model=model_of,
    fixed={"hidden_act": SILU, "attention_dropout": NO_DROPOUT},
    architectures=("MistralForCausalLM",),
)

QWEN2 = Dialect(
    family="qwen",
    model_types=("qwen2",),
    spellings={
        **decoder_spellings(layers=32, hidden=4096, ffn=22016, heads=32, kv_heads=32, vocab=151936, context=32768),
        "use_window": switch("use_sliding_window", default=False),
        "window": optional_size("sliding_window", default=None),
        "first_window": size("max_window_layers", default=28),
        "layer_types": words("layer_types"),
    },
    config=_qwen2,
    model=model_of,
    fixed={"hidden_act": SILU, "attention_dropout": NO_DROPOUT},
    architectures=("Qwen2ForCausalLM",),
)

QWEN3 = Dialect(
    family="qwen",
    model_types=("qwen3",),
    spellings={
        **QWEN2.spellings,
        **_BIASES,
        "head_dim": optional_size("head_dim", default=128),
    },
    config=_qwen3,
    model=model_of,
    fixed=QWEN2.fixed,
    architectures=("Qwen3ForCausalLM",),
)

_GEMMA_FIXED: Mapping[str, Fixed] = {
    "hidden_act": _GELU_TANH,
    "hidden_activation": _GELU_TANH,
    "attention_dropout": NO_DROPOUT,
    "use_bidirectional_attention": _ONE_WAY,
}

GEMMA2 = Dialect(
    family="gemma",
    model_types=("gemma2",),
    spellings={
        **decoder_spellings(
            layers=26,
            hidden=2304,
            ffn=9216,
            heads=8,
            kv_heads=4,
            head_dim=256,
            vocab=256000,
            context=8192,
            tied=True,
        ),
        **_BIASES,
        "window": size("sliding_window", "sliding_window_size", default=4096),
        "layer_types": words("layer_types"),
        "attention_softcap": number("attn_logit_softcapping", default=50.0, nullable=True),
        "logit_softcap": number("final_logit_softcapping", default=30.0, nullable=True),
    },
    config=_gemma2,
    model=model_of,
    fixed=_GEMMA_FIXED,
    architectures=("Gemma2ForCausalLM",),
)

_NO_CAP = Fixed((None,), "scores or logits would be capped")

GEMMA3_TEXT = replace(
    GEMMA2,
    model_types=("gemma3_text",),
    spellings={
        **{name: item for name, item in GEMMA2.spellings.items() if not name.endswith("_softcap")},
        "vocab": size("vocab_size", default=262208),
        "context": size("max_position_embeddings", default=131072),
        "full_every": size("sliding_window_pattern", "_sliding_window_pattern", default=6),
    },
    config=_gemma3,
    fixed={**_GEMMA_FIXED, "attn_logit_softcapping": _NO_CAP, "final_logit_softcapping": _NO_CAP},
    architectures=("Gemma3ForCausalLM",),
)


def _rotary_share(default: float) -> dict[str, Spelling]:
    keys = ("partial_rotary_factor", "rope_parameters.partial_rotary_factor", "rope_scaling.partial_rotary_factor")
    return {"rotary_share": number(*keys, default=default)}


_PLAIN = Fixed((1, None), "layers would attend in another way")

PHI3 = Dialect(
    family="phi",
    model_types=("phi3",),
    spellings={
        **decoder_spellings(layers=32, hidden=3072, ffn=8192, heads=32, vocab=32064, context=4096),
        **_rotary_share(1.0),
        "window": optional_size("sliding_window", default=None),
    },
    config=_phi3,
    model=model_of,
    fixed={
        "hidden_act": SILU,
        **dict.fromkeys(("attention_dropout", "resid_pdrop", "embd_pdrop"), NO_DROPOUT),
        **dict.fromkeys(("full_attn_mod", "interpolate_factor"), _PLAIN),
        "attention_bias": Fixed((False, None), "transformers' class has no biases"),
    },
    architectures=("Phi3ForCausalLM",),
)

OLMO2 = Dialect(
    family="olmo",
    model_types=("olmo2",),
    spellings={
        **decoder_spellings(layers=32, hidden=4096, ffn=11008, heads=32, vocab=50304, context=2048),
        **_BIASES,
    },
    config=_olmo2,
    model=model_of,
    fixed=LLAMA.fixed,
    architectures=("Olmo2ForCausalLM",),
)

GLM = Dialect(
    family="glm",
    model_types=("glm", "glm4"),
    spellings={
        **decoder_spellings(
            layers=40, hidden=4096, ffn=13696, heads=32, kv_heads=2, head_dim=128, vocab=151552, context=131072
        ),
        **_rotary_share(0.5),
        "qkv_bias": switch("attention_bias", default=True),
    },
    config=_glm,
    model=model_of,
    fixed=LLAMA.fixed,
    architectures=("Glm4ForCausalLM", "GlmForCausalLM"),
)

TEXT = (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA2, GEMMA3_TEXT, PHI3, OLMO2, GLM)
"""Dense language models."""
