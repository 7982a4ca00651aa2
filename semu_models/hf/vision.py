"""Dialects of image encoders: whole models, and sections of multimodal ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semu.nn import Activation, Model
from semu_models.hf.common import NO_DROPOUT, SILU
from semu_models.hf.dialect import Dialect, FieldKind, Fixed, Spelling, counts, number, side, size, switch, word
from semu_models.hf.values import Values
from semu_models.vision.clip_vision import ClipVisionConfig, clip_vision_model
from semu_models.vision.intern_vit import InternViTConfig
from semu_models.vision.qwen_vision import QwenVisionConfig
from semu_models.vision.siglip import SiglipVisionConfig, siglip_vision_model
from semu_models.vision.vit_classic import ClassicViT, ClassicViTConfig, tower_model

ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_fast": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "quick_gelu": Activation.QUICK_GELU,
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "relu": Activation.RELU,
}
"""transformers' names of activations."""
GELU = Fixed(("gelu",), "the feed-forward network would have another activation")
_VALUES = "values of tensors, not their sizes"


def activation_of(values: Values) -> Activation:
    """The activation that a file names."""
    name = values.get("activation")
    if name not in ACTIVATIONS:
        raise values.error(
            "activation", "an activation that is not modelled", expected=", ".join(ACTIVATIONS), got=name
        )
    return ACTIVATIONS[name]


def side_of(values: Values, name: str) -> int:
    """The side of a square."""
    value = values.get(name)
    return int(value[0]) if isinstance(value, list) else values.size(name)


def _tower(image: int, patch: int, **defaults: int) -> dict[str, Spelling]:
    """The fields that image towers share, with a model type's defaults."""
    return {
        "layers": size("num_hidden_layers", default=defaults.get("layers", 12)),
        "hidden": size("hidden_size", default=defaults.get("hidden", 768)),
        "ffn": size("intermediate_size", default=defaults.get("ffn", 3072)),
        "heads": size("num_attention_heads", default=defaults.get("heads", 12)),
        "image_size": side("image_size", default=image),
        "patch_size": side("patch_size", default=patch),
        "channels": size("num_channels", default=3),
    }


def _tower_sizes(values: Values) -> dict[str, Any]:
    return {
        **{name: values.size(name) for name in ("layers", "hidden", "ffn", "heads", "channels")},
        **{name: side_of(values, name) for name in ("image_size", "patch_size")},
    }


# -- ViT --------------------------------------------------------------------------------------------------------------
def _vit(values: Values) -> ClassicViTConfig:
    is_classifier = values.architecture == "ViTForImageClassification"
    labels = values.get("labels") or len(values.get("label_names") or ()) or 2
    if is_classifier and values.get("labels") is None:
        values.derived.append(("num_labels", labels, "names in id2label; 2 where there are none"))
    return ClassicViTConfig(
        **_tower_sizes(values),
        labels=labels if is_classifier else None,
        pooler=not is_classifier,
        qkv_bias=values.switch("qkv_bias"),
    )


def _vit_model(name: str, config: ClassicViTConfig) -> Model:
    return tower_model(name, config, ClassicViT(config))


VIT = Dialect(
    family="vit",
    model_types=("vit",),
    spellings={
        **_tower(224, 16),
        "qkv_bias": switch("qkv_bias", default=True),
        "labels": size("num_labels"),
        "label_names": Spelling(("id2label",), FieldKind.OBJECT, None, nullable=True),
    },
    config=_vit,
    model=_vit_model,
    fixed={
        "hidden_act": GELU,
        "hidden_dropout_prob": NO_DROPOUT,
        "attention_probs_dropout_prob": NO_DROPOUT,
        "pooler_act": Fixed(("tanh", None), "the pooler would have another activation"),
    },
    ignored={
        "encoder_stride": "masked image modelling only",
        "pooler_output_size": "as wide as the layers where nothing else is said",
    },
    architectures=("ViTModel", "ViTForImageClassification"),
)


# -- CLIP and SigLIP --------------------------------------------------------------------------------------------------
def _clip_vision(values: Values) -> ClipVisionConfig:
    return ClipVisionConfig(**_tower_sizes(values), activation=activation_of(values))


CLIP_VISION = Dialect(
    family="clip-vision",
    model_types=("clip_vision_model",),
    spellings={**_tower(224, 32), "activation": word("hidden_act", default="quick_gelu")},
    config=_clip_vision,
    model=clip_vision_model,
    fixed={"attention_dropout": NO_DROPOUT, "dropout": NO_DROPOUT},
    ignored={
        "projection_dim": "the projection into the space shared with text, which the tower alone does not have",
        "vocab_size": "of the text tower",
    },
    architectures=("CLIPVisionModel",),
)


def _siglip_vision(values: Values) -> SiglipVisionConfig:
    return SiglipVisionConfig(**_tower_sizes(values), head=values.switch("head"), activation=activation_of(values))


SIGLIP_VISION = Dialect(
    family="siglip",
    model_types=("siglip_vision_model",),
    spellings={
        **_tower(224, 16),
        "activation": word("hidden_act", default="gelu_pytorch_tanh"),
        "head": switch("vision_use_head", default=True),
    },
    config=_siglip_vision,
    model=siglip_vision_model,
    fixed={"attention_dropout": NO_DROPOUT},
    ignored={"projection_dim": "the tower alone has no projection"},
    architectures=("SiglipVisionModel",),
)


# -- InternViT --------------------------------------------------------------------------------------------------------
def _intern_vision(values: Values) -> InternViTConfig:
    return InternViTConfig(
        **_tower_sizes(values),
        qkv_bias=values.switch("qkv_bias"),
        qk_norm=values.switch("qk_norm"),
        rms_norm=values.get("norm") == "rms_norm",
        positions=values.switch("positions"),
        final_norm=not values.switch("mean_pooling"),
    )


INTERN_VISION = Dialect(
    family="internvl",
    model_types=("internvl_vision",),
    spellings={
        **_tower(448, 14, layers=24, hidden=1024, ffn=4096, heads=16),
        "qkv_bias": switch("attention_bias", default=False),
        "qk_norm": switch("use_qk_norm", default=False),
        "norm": word("norm_type", default="layer_norm"),
        "positions": switch("use_absolute_position_embeddings", default=True),
        "mean_pooling": switch("use_mean_pooling", default=True),
    },
    config=_intern_vision,
    fixed={
        "hidden_act": GELU,
        **dict.fromkeys(("hidden_dropout_prob", "attention_dropout", "projection_dropout", "dropout"), NO_DROPOUT),
        "use_mask_token": Fixed((False, None), "patches would be hidden"),
    },
    ignored={"layer_scale_init_value": _VALUES},
)


# -- Qwen -------------------------------------------------------------------------------------------------------------
_QWEN_PATCHES: Mapping[str, Spelling] = {
    "layers": size("depth", default=32),
    "heads": size("num_heads", default=16),
    "patch_size": size("patch_size", default=14),
    "temporal_patch": size("temporal_patch_size", default=2),
    "channels": size("in_channels", "in_chans", default=3),
    "merge": size("spatial_merge_size", default=2),
}
_REPEATED = {"spatial_patch_size": "repeats patch_size"}


def _patches(values: Values) -> dict[str, Any]:
    return {name: values.size(name) for name in _QWEN_PATCHES}


def _qwen2_vision(values: Values) -> QwenVisionConfig:
    hidden, ratio = values.size("hidden"), values.get("mlp_ratio")
    return QwenVisionConfig(
        **_patches(values),
        hidden=hidden,
        ffn=round(hidden * ratio),
        out=values.size("out"),
        activation=activation_of(values),
    )


QWEN2_VISION = Dialect(
    family="qwen-vl",
    model_types=("qwen2_vl_vision",),
    spellings={
        **_QWEN_PATCHES,
        "hidden": size("embed_dim", default=1280),
        "out": size("hidden_size", default=3584),
        "mlp_ratio": number("mlp_ratio", default=4),
        "activation": word("hidden_act", default="quick_gelu"),
    },
    config=_qwen2_vision,
    ignored=_REPEATED,
)


def _qwen2_5_vision(values: Values) -> QwenVisionConfig:
    return QwenVisionConfig(
        **_patches(values),
        hidden=values.size("hidden"),
        ffn=values.size("ffn"),
        out=values.size("out"),
        gated=True,
        window=values.size("window"),
        full_layers=tuple(values.get("full_layers") or ()),
    )


QWEN2_5_VISION = Dialect(
    family="qwen-vl",
    model_types=("qwen2_5_vl_vision", "qwen2_5_omni_vision_encoder"),
    spellings={
        **_QWEN_PATCHES,
        "hidden": size("hidden_size", default=3584),
        "ffn": size("intermediate_size", default=3420),
        "out": size("out_hidden_size", default=3584),
        "window": size("window_size", default=112),
        "full_layers": counts("fullatt_block_indexes", default=(7, 15, 23, 31)),
    },
    config=_qwen2_5_vision,
    fixed={"hidden_act": SILU},
    ignored={
        **_REPEATED,
        "tokens_per_second": "positions of a video's frames",
        "embed_dim": "hidden_size is the encoder's width here",
    },
)

VISION = (VIT, CLIP_VISION, SIGLIP_VISION, INTERN_VISION, QWEN2_VISION, QWEN2_5_VISION)
"""Image encoders."""
