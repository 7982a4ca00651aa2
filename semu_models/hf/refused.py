"""Model types that are not modelled, known ones and others: what to write instead, from the sizes in the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
        "hidden": ("d_model", "hidden_size", "n_embd"),
        "ffn": ("d_ff", "encoder_ffn_dim", "intermediate_size", "n_inner"),
        "heads": ("num_heads", "encoder_attention_heads", "num_attention_heads", "n_head"),
        "kv_heads": ("num_key_value_heads",),
        "head_dim": ("d_kv", "head_dim"),
        "vocab": ("vocab_size",),
    }
)
"""Key of ``[model.transformer]`` -> its spellings."""
_ACTIVATIONS = ("feed_forward_proj", "hidden_act", "hidden_activation", "activation_function")
_GATED = ("gated", "silu", "swi")
"""How the names of the activations of gated networks begin, in most families."""


def refuse(document: Document, model_type: str) -> None:
    """Say no to a model type of ``REFUSED``, with a model of about its size that can be simulated instead.

    Raises:
        ConfigError: it is one of them.
    """
    if (what := REFUSED.get(model_type)) is None:
        return
    raise ConfigError(
        f"{model_type} has {what}: it is not modelled by this version",
        where=document.place("model_type"),
        expected="a model of attention layers, e.g. in a run file a decoder of about as many parameters",
        got=model_type,
        nearest=_nearest_transformer(document, what),
    )


@contextmanager
def way_out(document: Document) -> Iterator[None]:
    """A block whose errors about a model type that is not known name a decoder with the sizes of the file."""
    try:
        yield
    except ConfigError as error:
        names = (("hidden_size", "n_embd", "d_model"), ("num_hidden_layers", "n_layer"), ("vocab_size",))
        if all(_first(document, *keys) is not None for keys in names):
            table = _nearest_transformer(document, "")
            error.expected = f"{error.expected}; or, for a decoder, its sizes in a run file: {table}"
        raise


def _nearest_transformer(document: Document, what: str) -> str:
    """A decoder of about as many parameters, as a line of a run file.

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
    activation = str(next((document.fields[key] for key in _ACTIVATIONS if document.fields.get(key)), ""))
    order = ("hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab")
    sizes = ", ".join(f"{name} = {found[name]}" for name in order if name in found)
    gate = ", gated_mlp = true" if "ffn" in found and activation.startswith(_GATED) else ""
    return f"[model] transformer = {{layers = {layers}, {sizes}{gate}}}"


def _first(document: Document, *keys: str) -> int | None:
    """The first of some keys that holds a size."""
    values = (document.fields.get(key) for key in keys)
    return next((value for value in values if is_integer(value) and value >= 1), None)
