"""Vision-language models: a ViT encoder whose image tokens take their places among a language model's text."""

from __future__ import annotations

from dataclasses import replace

from semu.nn import Embedding, ModalityModule, ModalityRole, Model, Module, Sequential, Tensor
from semu.nn import functional as F
from semu.records import dataclass
from semu_models.text.gpt import GPT3_175B
from semu_models.text.language import LanguageConfig, language_model
from semu_models.text.llama import LLAMA3_8B, LM_5B
from semu_models.text.qwen import QWEN2_32B, QWEN2_72B
from semu_models.vision.vit import VIT_2B, VIT_5B, VIT_22B, ViTConfig, vision_module

CONTEXT = 8192
"""Longest packed sequence [tokens] (DIP §7.1)."""


@dataclass(frozen=True)
class VLMConfig:
    """A vision-language model: encoder and backbone."""

    vision: ViTConfig
    language: LanguageConfig


class ImageTextEmbedding(Module):
    """Text embedding with the encoder's image tokens written over it.

    Args:
        text: embeds all ids; an image token's id is a placeholder. Where it adds learned positions, image tokens have
            only those that the encoder gave their patches.
    """

    def __init__(self, text: Embedding) -> None:
        super().__init__()
        self.text = text

    def forward(self, ids: Tensor, images: Tensor) -> Tensor:
        """Ids [tokens], image tokens [n, hidden] -> [tokens, hidden]."""
        return F.scatter_tokens(images, into=self.text(ids))


def make_vlm(name: str, config: VLMConfig) -> Model:
    """Modules ``vit`` (encoder) and ``llm`` (backbone).

    The adapter is the encoder's last block: freezing ``vit`` freezes it too, freezing ``vit.embedding`` and
    ``vit.layers`` keeps it training.

    Args:
        name: for reports. config: encoder and backbone.
    """
    blocks = dict(language_model(config.language).named_children())
    embedding = blocks["embedding"]
    assert isinstance(embedding, Embedding)
    blocks["embedding"] = ImageTextEmbedding(embedding)
    return Model(
        name,
        [
            vision_module(config.vision, config.language.hidden, ModalityRole.ENCODER),
            ModalityModule("llm", ModalityRole.BACKBONE, Sequential(blocks), sources=("vit",)),
        ],
    )


VLM_7B = VLMConfig(VIT_2B, LM_5B)
"""DIP Table 1."""
VLM_S = VLMConfig(VIT_5B, LLAMA3_8B)
"""DIP Table 3."""
VLM_M = VLMConfig(VIT_5B, QWEN2_32B)
"""DIP Table 3."""
VLM_L = VLMConfig(VIT_22B, QWEN2_72B)
"""DIP Table 3."""
VLM_XL = VLMConfig(VIT_22B, replace(GPT3_175B, positions=CONTEXT))
"""DIP Table 6; GPT's position table is made as long as the packed sequences of DIP §7.1."""


def vlm_7b() -> Model:
    """ViT 2B + LM 5B."""
    return make_vlm("vlm-7b", VLM_7B)


def vlm_s() -> Model:
    """ViT 5B + Llama3 8B."""
    return make_vlm("vlm-s", VLM_S)


def vlm_m() -> Model:
    """ViT 5B + Qwen2 32B."""
    return make_vlm("vlm-m", VLM_M)


def vlm_l() -> Model:
    """ViT 22B + Qwen2 72B."""
    return make_vlm("vlm-l", VLM_L)


def vlm_xl() -> Model:
    """ViT 22B + GPT 175B."""
    return make_vlm("vlm-xl", VLM_XL)
