"""GLM-4 (2406.12793): as Llama, with biases of queries, keys and values and half of each head rotated.

The models of 2025 (GLM-4-0414) have norms before and behind the branches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from semu.nn import Model, NormPlacement
from semu.records import dataclass
from semu_models.text.decoder import ConfiguredDecoder, DecoderConfig, DecoderStyle, decoder_model


@dataclass(frozen=True)
class GlmConfig(DecoderConfig):
    """Sizes of a GLM-4 before 2025.

    Attributes:
        qkv_bias: queries, keys and values have biases.
    """

    qkv_bias: bool = True

    @property
    def style(self) -> DecoderStyle:
        """With the biases."""
        return replace(self.STYLE, qkv_bias=self.qkv_bias)


@dataclass(frozen=True)
class Glm4Config(GlmConfig):
    """Sizes of a GLM-4-0414."""

    STYLE: ClassVar[DecoderStyle] = DecoderStyle(placement=NormPlacement.SANDWICH)


GLM4_9B = GlmConfig(layers=40, hidden=4096, ffn=13696, heads=32, kv_heads=2, vocab=151552, head_dim=128, rotary_dim=64)
"""GLM-4 9B (2406.12793 §2; config.json of glm-4-9b-hf)."""


def glm4_9b() -> Model:
    """GLM-4 9B."""
    return decoder_model("glm4-9b", ConfiguredDecoder(GLM4_9B))
