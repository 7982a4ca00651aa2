"""``refuse``: model types that are known and not modelled, with the nearest model that is."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from semu.checks import is_integer
from semu.errors import ConfigError
from semu_models.hf.document import Document

_TWO_TEXTS = "an encoder over one text and a decoder over another"
_STATE_SPACE = "scans of state-space or linear-recurrent layers, of which no profile has a measured kernel"
_HYBRID = "attention beside " + _STATE_SPACE

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("t5", "mt5", "umt5", "longt5", "switch_transformers"), _TWO_TEXTS),
        **dict.fromkeys(("bart", "mbart", "pegasus", "marian", "m2m_100", "t5gemma"), _TWO_TEXTS),
        **dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm"), _STATE_SPACE),
        **dict.fromkeys(("jamba", "zamba", "zamba2", "bamba", "nemotron_h", "falcon_h1"), _HYBRID),
        **dict.fromkeys(("recurrent_gemma", "granitemoehybrid", "qwen3_next", "lfm2"), _HYBRID),
    }
)
"""Model type -> what it is made of, which this version does not model."""

_SIZES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "hidden": ("d_model", "hidden_size"),
        "ffn": ("d_ff", "encoder_ffn_dim", "intermediate_size"),
        "heads": ("num_heads", "encoder_attention_heads", "num_attention_heads"),
        "kv_heads": ("num_key_value_heads",),
        "head_dim": ("d_kv",),
        "vocab": ("vocab_size",),
    }
)
"""Key of ``[model.transformer]`` -> its spellings."""


def refuse(document: Document, model_type: str) -> None:
    """Say no to a model type of ``REFUSED``, with a model of about its size that can be simulated instead.

    Raises:
        ConfigError: it is one of them.
    """
    if (what := REFUSED.get(model_type)) is None:
        return
    table = ", ".join(f"{name} = {size}" for name, size in _nearest_transformer(document, what).items())
    raise ConfigError(
        f"{model_type} has {what}: it is not modelled by this version",
        where=document.place("model_type"),
        expected="a decoder, an encoder or a multimodal model (all types: semu_models.hf.DIALECTS); "
        "or a run file with a decoder of about as many parameters",
        got=model_type,
        nearest=f"[model] transformer = {{{table}}}",
    )


def _nearest_transformer(document: Document, what: str) -> dict[str, int]:
    """Sizes of a decoder of about as many parameters.

    The decoder of two texts has the layers of both, without the cross-attention. A state-space layer of hidden size h
    and inner size e has about 3 h e weights, a plain transformer layer 12 h^2.
    """
    found = {name: size for name, keys in _SIZES.items() if (size := _first(document, *keys)) is not None}
    layers = _first(document, "num_hidden_layers", "n_layer", "num_layers", "encoder_layers") or 24
    hidden = found.setdefault("hidden", 1024)
    if what == _TWO_TEXTS:
        layers += _first(document, "num_decoder_layers", "decoder_layers") or layers
    elif what == _STATE_SPACE:
        inner = found.pop("ffn", None) or hidden * (_first(document, "expand") or 2)
        layers = max(1, round(layers * inner / (4 * hidden)))
    heads = found.get("heads")
    if heads is None or ("head_dim" not in found and hidden % heads):
        found["heads"] = max(1, hidden // 128) if hidden % 128 == 0 else 1
    if found["heads"] % found.get("kv_heads", 1):
        del found["kv_heads"]
    found.setdefault("vocab", 32000)
    order = ("hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab")
    return {"layers": layers} | {name: found[name] for name in order if name in found}


def _first(document: Document, *keys: str) -> int | None:
    """The first of some keys that holds a size."""
    values = (document.fields.get(key) for key in keys)
    return next((value for value in values if is_integer(value) and value >= 1), None)
