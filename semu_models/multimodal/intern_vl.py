"""InternVL: InternViT, pixel shuffle with two layers, and a language model (2404.16821, 2412.05271, 2504.10479).

An image is cut into tiles of 448 px; a tile is an item: 1024 patches, 256 tokens.
"""

from __future__ import annotations

from dataclasses import replace

from semu.checks import check_sizes
from semu.nn import InputSpec, ModalityModule, ModalityRole, Model, Sequential
from semu.records import dataclass
from semu_models.multimodal.multimodal import make_multimodal
from semu_models.text.encoder import VISION_STREAM, merged_images
from semu_models.text.language import LanguageConfig, language_model
from semu_models.text.llama import LlamaConfig
from semu_models.text.qwen import QWEN2_0_5B, QWEN2_7B, QWEN2_72B
from semu_models.vision.intern_vit import (
    INTERN_VIT_6B,
    INTERN_VIT_300M,
    InternViTConfig,
    PixelShuffle,
    intern_vit_blocks,
)


@dataclass(frozen=True)
class InternVLConfig:
    """An InternVL.

    Attributes:
        vision, language: its parts. shuffle: side of the square of patches that becomes one token.
    """

    vision: InternViTConfig
    language: LanguageConfig
    shuffle: int = 2

    def __post_init__(self) -> None:
        check_sizes(self, "shuffle")


def make_intern_vl(name: str, config: InternVLConfig) -> Model:
    """Modules ``vision`` (encoder with projector) and ``llm``.

    Args:
        name: for reports. config: its parts.
    """
    vision = config.vision
    projector = PixelShuffle(vision, config.language.hidden, config.shuffle)
    encoder = ModalityModule(
        "vision",
        ModalityRole.ENCODER,
        Sequential({**intern_vit_blocks(vision), "projector": projector}),
        (InputSpec(VISION_STREAM, vision.patch_features),),
        merging=merged_images(config.shuffle**2, vision.num_patches, item="tile"),
    )
    return make_multimodal(name, [encoder], language_model(config.language))


INTERNLM2_5_7B = LlamaConfig(layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocab=92553)
"""InternLM2.5 7B as the backbone of InternVL2 and 2.5 8B: a Llama but for a fused QKV weight (2403.17297; config)."""
_ROWS = 151674
"""Rows of InternVL3's token tables (config.json)."""


def internvl2_5_8b() -> Model:
    """InternVL2.5 8B (InternVL2 8B has the same shapes)."""
    return make_intern_vl("internvl2.5-8b", InternVLConfig(INTERN_VIT_300M, INTERNLM2_5_7B))


def internvl3_1b() -> Model:
    """InternVL3 1B."""
    return make_intern_vl("internvl3-1b", InternVLConfig(INTERN_VIT_300M, replace(QWEN2_0_5B, vocab=_ROWS)))


def internvl3_8b() -> Model:
    """InternVL3 8B."""
    return make_intern_vl("internvl3-8b", InternVLConfig(INTERN_VIT_300M, replace(QWEN2_7B, vocab=_ROWS)))


def internvl3_78b() -> Model:
    """InternVL3 78B."""
    return make_intern_vl("internvl3-78b", InternVLConfig(INTERN_VIT_6B, replace(QWEN2_72B, vocab=_ROWS)))
