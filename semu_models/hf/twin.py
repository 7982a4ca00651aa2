"""Dialects of BERT, and of dual encoders whose towers are sections: CLIP and SigLIP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semu.nn.layers.contrastive import ContrastiveKind
from semu_models.hf.common import NO_DROPOUT
from semu_models.hf.dialect import Dialect, Fixed, Section, Spelling, number, optional_size, size, switch, word
from semu_models.hf.values import Values
from semu_models.hf.vision import activation_of
from semu_models.text.bert import BertConfig, make_bert
from semu_models.vision.clip import DualEncoderConfig, TextTowerConfig, make_dual_encoder

_BOTH, _MASKED = "BertForPreTraining", "BertForMaskedLM"
_SCALE = "a starting value"


# -- BERT -------------------------------------------------------------------------------------------------------------
def _bert(values: Values) -> BertConfig:
    hidden, attention = (float(values.get(name)) for name in ("dropout", "attention_dropout"))
    if (hidden > 0) != (attention > 0):
        raise values.error(
            "attention_dropout",
            "dropout on the attention alone, or everywhere else, is not modelled",
            expected=f"{values.short('attention_dropout')} = {hidden}, as {values.short('dropout')}",
            got=attention,
            nearest=hidden,
        )
    if not values.switch("tied"):
        raise values.error("tied", "a decoder with a table of its own is not modelled", expected="true", got="false")
    names = ("layers", "hidden", "ffn", "heads", "vocab", "segments")
    return BertConfig(
        **{name: values.size(name) for name in names},
        positions=values.size("context"),
        dropout=hidden,
        next_sentence=values.architecture != _MASKED,
    )


BERT = Dialect(
    family="bert",
    model_types=("bert",),
    spellings={
        "layers": size("num_hidden_layers", default=12),
        "hidden": size("hidden_size", default=768),
        "ffn": size("intermediate_size", default=3072),
        "heads": size("num_attention_heads", default=12),
        "vocab": size("vocab_size", default=30522),
        "context": size("max_position_embeddings", default=512),
        "segments": size("type_vocab_size", default=2),
        "dropout": number("hidden_dropout_prob", default=0.1),
        "attention_dropout": number("attention_probs_dropout_prob", default=0.1),
        "tied": switch("tie_word_embeddings", default=True),
    },
    config=_bert,
    model=make_bert,
    fixed={
        "hidden_act": Fixed(("gelu",), "the feed-forward network would have another activation"),
        "position_embedding_type": Fixed(("absolute", None), "attention would have relative positions"),
    },
    ignored={
        "gradient_checkpointing": "training.recompute counts",
        "is_decoder": "the released encoders have false",
        "pooler_fc_size": "a pooler of other models",
        "pooler_num_attention_heads": "a pooler of other models",
        "pooler_num_fc_layers": "a pooler of other models",
        "pooler_size_per_head": "a pooler of other models",
        "pooler_type": "a pooler of other models",
        "directionality": "bidirectional in every BERT",
    },
    architectures=(_BOTH, _MASKED),
)


# -- text towers ------------------------------------------------------------------------------------------------------
def _text_spellings(**defaults: Any) -> dict[str, Spelling]:
    return {
        "layers": size("num_hidden_layers", default=12),
        "hidden": size("hidden_size", default=defaults["hidden"]),
        "ffn": size("intermediate_size", default=defaults["ffn"]),
        "heads": size("num_attention_heads", default=defaults["heads"]),
        "vocab": size("vocab_size", default=defaults["vocab"]),
        "positions": size("max_position_embeddings", default=defaults["positions"]),
        "activation": word("hidden_act", default=defaults["activation"]),
    }


def _text_sizes(values: Values) -> dict[str, Any]:
    names = ("layers", "hidden", "ffn", "heads", "vocab", "positions")
    return {**{name: values.size(name) for name in names}, "activation": activation_of(values)}


def _clip_text(values: Values) -> TextTowerConfig:
    return TextTowerConfig(**_text_sizes(values))


def _siglip_text(values: Values) -> TextTowerConfig:
    width = values.size_or("projection", values.size("hidden"), "projection_size; hidden_size")
    return TextTowerConfig(**_text_sizes(values), causal=False, projection=width)


CLIP_TEXT = Dialect(
    family="clip",
    model_types=("clip_text_model",),
    spellings=_text_spellings(hidden=512, ffn=2048, heads=8, vocab=49408, positions=77, activation="quick_gelu"),
    config=_clip_text,
    fixed={"attention_dropout": NO_DROPOUT, "dropout": NO_DROPOUT},
    ignored={"projection_dim": "projection_dim of the model counts"},
)

SIGLIP_TEXT = Dialect(
    family="clip",
    model_types=("siglip_text_model",),
    spellings={
        **_text_spellings(hidden=768, ffn=3072, heads=12, vocab=32000, positions=64, activation="gelu_pytorch_tanh"),
        "projection": optional_size("projection_size", default=None),
    },
    config=_siglip_text,
    fixed={"attention_dropout": NO_DROPOUT},
)


# -- dual encoders ----------------------------------------------------------------------------------------------------
def _dual(values: Values, loss: ContrastiveKind) -> DualEncoderConfig:
    for old in ("text_config", "vision_config"):
        _check_copy(values, old)
    return DualEncoderConfig(
        values.section("vision").config, values.section("text").config, values.get("projection"), loss
    )


def _check_copy(values: Values, section: str) -> None:
    """Older files have ``text_config_dict`` beside ``text_config``; they must say the same."""
    fields = values.document.fields
    original, copy = fields.get(section), fields.get(f"{section}_dict")
    if not isinstance(copy, Mapping):
        return
    for key, value in copy.items():
        if not isinstance(original, Mapping) or (key in original and original[key] != value):
            raise values.error(
                f"{section}_dict",
                f"{section}_dict.{key} = {value} contradicts {section}",
                expected=f"as in {section}, or no {section}_dict",
                got=value,
                nearest=original.get(key) if isinstance(original, Mapping) else None,
            )


def _clip(values: Values) -> DualEncoderConfig:
    return _dual(values, ContrastiveKind.SOFTMAX)


def _siglip(values: Values) -> DualEncoderConfig:
    config = _dual(values, ContrastiveKind.SIGMOID)
    if config.text.projection != config.vision.hidden:
        raise values.section("text").values.error(
            "projection",
            "texts and images have features of different widths",
            expected=f"projection_size = {config.vision.hidden}",
            got=config.text.projection,
            nearest=config.vision.hidden,
        )
    return config


_COPIES = {
    "text_config_dict": "an older copy of text_config, which says the same",
    "vision_config_dict": "an older copy of vision_config, which says the same",
    "logit_scale_init_value": _SCALE,
}

CLIP = Dialect(
    family="clip",
    model_types=("clip",),
    spellings={"projection": size("projection_dim", default=512)},
    config=_clip,
    model=make_dual_encoder,
    ignored=_COPIES,
    sections={
        "text": Section(("text_config",), "clip_text_model"),
        "vision": Section(("vision_config",), "clip_vision_model"),
    },
    architectures=("CLIPModel",),
)

SIGLIP = Dialect(
    family="clip",
    model_types=("siglip",),
    spellings={},
    config=_siglip,
    model=make_dual_encoder,
    ignored=_COPIES,
    sections={
        "text": Section(("text_config",), "siglip_text_model"),
        "vision": Section(("vision_config",), "siglip_vision_model"),
    },
    architectures=("SiglipModel",),
)

TWIN = (BERT, CLIP_TEXT, SIGLIP_TEXT, CLIP, SIGLIP)
"""BERT and dual encoders."""
