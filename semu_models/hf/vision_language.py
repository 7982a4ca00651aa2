"""Dialects of language models that read images; their parts are sections with separate dialects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from semu.errors import ConfigError
from semu_models.hf.dialect import Dialect, FieldKind, Fixed, Section, Spelling, number, size, switch, word
from semu_models.hf.text import QWEN2, decoder_spellings
from semu_models.hf.values import Values
from semu_models.hf.vision import GELU
from semu_models.multimodal.gemma_vl import Gemma3VLConfig, make_gemma_vl
from semu_models.multimodal.intern_vl import InternVLConfig, make_intern_vl
from semu_models.multimodal.llava import LlavaConfig, make_llava
from semu_models.multimodal.qwen_vl import QwenVLConfig, make_qwen_vl
from semu_models.text.decoder import DecoderConfig
from semu_models.vision.clip_vision import ClipVisionConfig
from semu_models.vision.intern_vit import InternViTConfig
from semu_models.vision.qwen_vision import QwenVisionConfig
from semu_models.vision.siglip import SiglipVisionConfig

_Config = TypeVar("_Config")

TIED: Mapping[str, Spelling] = {"tied": Spelling(("tie_word_embeddings",), FieldKind.SWITCH, None, nullable=True)}
"""At the top level: true, false, or nothing said."""


def language_of(values: Values, *, tied: bool | None, asks_text: bool = False) -> Any:
    """The language model's configuration, with the tables tied as transformers ties them.

    Version 4 of transformers asks the text section alone (in the flat form: the top level), version 5 the top level;
    the version that wrote the file decides, 5 where it does not say so.

    Args:
        values: of the whole file.
        tied: version 5's default at the top level; None: version 5 never ties them.
        asks_text: version 5 ties them also where only the text section says so.
    """
    part = values.section("text")
    if not isinstance(part.config, DecoderConfig):
        raise ConfigError(
            f"a language model of type {part.model_type} behind encoders is not modelled",
            where=values.document.place(f"{prefix_of(values)}text_config.model_type"),
            expected="a decoder of the Llama, Qwen, Mistral or Gemma families",
            got=part.model_type,
        )
    text = text_section(values)
    nested, top, inner = text.get("tie_word_embeddings"), values.get("tied"), part.config.tied
    by_4 = bool(top) if not text and top is not None else inner
    by_5 = tied is not None and (bool(tied if top is None else top) or (asks_text and inner))
    written = str(values.document.fields.get("transformers_version", ""))
    chosen = by_4 if written.startswith("4.") else by_5
    if by_4 != by_5 or (nested is not None and top is not None and nested != top):
        given = [f"{where}: {value}" for where, value in (("top", top), ("text_config", nested)) if value is not None]
        values.notes.append(
            f"tie_word_embeddings ({', '.join(given) or 'not given'}): transformers 4 takes {by_4}, 5 takes {by_5}; "
            f"{chosen} counts, as the file is of version {written or '5 (not given)'}"
        )
    if nested is None and top is None:
        values.derived.append(("tie_word_embeddings", chosen, "default of the model type"))
    return part.config if inner == chosen else replace(part.config, tied=chosen)


def prefix_of(values: Values) -> str:
    """Dotted path of the configuration, with a point behind it; empty at the top of the file."""
    return values.keys["tied"].rpartition("tie_word_embeddings")[0]


def text_section(values: Values) -> Mapping[str, Any]:
    """The text section as the file has it, empty where there is none."""
    table: Any = values.document.fields
    for key in [*filter(None, prefix_of(values).split(".")), "text_config"]:
        table = table.get(key) if isinstance(table, Mapping) else None
    return table if isinstance(table, Mapping) else {}


def encoder_of(values: Values, section: str, kind: type[_Config]) -> _Config:
    """An encoder's configuration, which must be of the kind that the model is made for.

    Raises:
        ConfigError: it is another's.
    """
    part = values.section(section)
    if not isinstance(part.config, kind):
        raise ConfigError(
            f"a {section} encoder of type {part.model_type} in {values.model_type} is not modelled",
            where=values.document.place(f"{prefix_of(values)}{section}_config.model_type"),
            expected=f"the encoder that {values.model_type} was published with",
            got=part.model_type,
        )
    return part.config


def check_width(values: Values, section: str, field: str, width: int) -> None:
    """What an encoder hands over must be as wide as the language model."""
    part = values.section(section)
    if part.values.size(field) != width:
        raise part.values.error(
            field,
            f"the {section} encoder's tokens are not as wide as the language model",
            expected=f"{width}, hidden_size of the language model",
            got=part.values.size(field),
            nearest=width,
        )


# -- Qwen2-VL and Qwen2.5-VL ------------------------------------------------------------------------------------------
def qwen_text_dialect(model_types: tuple[str, ...], **sizes: int) -> Dialect:
    """A Qwen2 inside a multimodal model.

    Args:
        model_types: model types that it reads. sizes: the defaults.
    """
    return replace(
        QWEN2,
        model_types=model_types,
        spellings={**QWEN2.spellings, **decoder_spellings(**sizes, context=32768), **TIED},
        model=None,
        architectures=(),
    )


QWEN_VL_TEXT = qwen_text_dialect(
    ("qwen2_vl_text", "qwen2_5_vl_text"), layers=80, hidden=8192, ffn=29568, heads=64, kv_heads=8, vocab=152064
)


def _qwen_vl(values: Values) -> QwenVLConfig:
    language = language_of(values, tied=False, asks_text=True)
    check_width(values, "vision", "out", language.hidden)
    return QwenVLConfig(encoder_of(values, "vision", QwenVisionConfig), language)


def _qwen_vl_dialect(model_type: str, architecture: str) -> Dialect:
    """Nested, or flat as Qwen wrote it: the language model's keys at the top."""
    vision, text = f"{model_type}_vision", f"{model_type}_text"
    return Dialect(
        family="qwen-vl",
        model_types=(model_type,),
        spellings=TIED,
        config=_qwen_vl,
        model=make_qwen_vl,
        sections={
            "text": Section(("text_config",), dialect=text, renames={model_type: text}, flat=True),
            "vision": Section(("vision_config",), dialect=vision, renames={model_type: vision}),
        },
        architectures=(architecture,),
    )


QWEN2_VL = _qwen_vl_dialect("qwen2_vl", "Qwen2VLForConditionalGeneration")
QWEN2_5_VL = _qwen_vl_dialect("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration")


# -- LLaVA ------------------------------------------------------------------------------------------------------------
def _llava(values: Values) -> LlavaConfig:
    layer = values.get("feature_layer")
    vision = encoder_of(values, "vision", ClipVisionConfig)
    layers = vision.layers
    if not isinstance(layer, int) or not -layers <= layer <= layers or layer == 0:
        raise values.error(
            "feature_layer",
            "features of several layers, or of a layer that is not there, are not modelled",
            expected=f"-{layers} to -1, or 1 to {layers}",
            got=layer,
            nearest=-2,
        )
    return LlavaConfig(
        vision,
        language_of(values, tied=False, asks_text=True),
        feature_layer=layer if layer < 0 else layer - layers - 1,
        keeps_class=values.get("select") == "full",
        projector_bias=values.switch("projector_bias"),
    )


LLAVA = Dialect(
    family="llava",
    model_types=("llava",),
    spellings={
        **TIED,
        "feature_layer": Spelling(("vision_feature_layer",), FieldKind.INTEGER, -2),
        "select": word("vision_feature_select_strategy", default="default"),
        "projector_bias": switch("multimodal_projector_bias", default=True),
    },
    config=_llava,
    model=make_llava,
    fixed={"projector_hidden_act": GELU},
    ignored={"vocab_size": "repeats the language model's", "image_seq_length": "patches of an image"},
    sections={
        "text": Section(("text_config",), dialect="llama"),
        "vision": Section(("vision_config",), dialect="clip_vision_model"),
    },
    architectures=("LlavaForConditionalGeneration",),
)


# -- InternVL ---------------------------------------------------------------------------------------------------------
def _intern_vl(values: Values) -> InternVLConfig:
    ratio = values.get("downsample_ratio")
    shuffle = round(1 / ratio) if ratio > 0 else 0
    if shuffle < 1 or abs(shuffle * ratio - 1) > 1e-9:
        raise values.error(
            "downsample_ratio", "not one over a whole number", expected="1, 0.5, 0.25 ...", got=ratio, nearest=0.5
        )
    return InternVLConfig(encoder_of(values, "vision", InternViTConfig), language_of(values, tied=True), shuffle)


INTERN_VL = Dialect(
    family="internvl",
    model_types=("internvl",),
    spellings={**TIED, "downsample_ratio": number("downsample_ratio", default=0.5)},
    config=_intern_vl,
    model=make_intern_vl,
    fixed={
        "projector_hidden_act": GELU,
        "vision_feature_layer": Fixed((-1,), "features of another layer"),
        "vision_feature_select_strategy": Fixed(("default",), "the class token would be projected too"),
    },
    ignored={"image_seq_length": "tokens of a tile"},
    sections={
        "text": Section(("text_config",), dialect="qwen2"),
        "vision": Section(("vision_config",), dialect="internvl_vision"),
    },
    architectures=("InternVLForConditionalGeneration",),
)


# -- Gemma 3 ----------------------------------------------------------------------------------------------------------
def _gemma3(values: Values) -> Gemma3VLConfig:
    vision = encoder_of(values, "vision", SiglipVisionConfig)
    if vision.head:
        part = values.section("vision").values
        values.notes.append(
            f"{part.keys['head']}: the pooling head of the tower is left out: transformers holds its parameters, but "
            "the projector reads the patches and no gradient reaches it (the released files say false)"
        )
        vision = replace(vision, head=False)
    return Gemma3VLConfig(vision, language_of(values, tied=True), values.size("tokens_per_image"))


GEMMA3 = Dialect(
    family="gemma-vl",
    model_types=("gemma3",),
    spellings={**TIED, "tokens_per_image": size("mm_tokens_per_image", default=256)},
    config=_gemma3,
    model=make_gemma_vl,
    sections={
        "text": Section(("text_config",), dialect="gemma3_text"),
        "vision": Section(("vision_config",), dialect="siglip_vision_model"),
    },
    architectures=("Gemma3ForConditionalGeneration",),
)

VISION_LANGUAGE = (QWEN_VL_TEXT, QWEN2_VL, QWEN2_5_VL, LLAVA, INTERN_VL, GEMMA3)
"""Models that see and read."""
