"""GLM-4 (2406.12793): as Llama, with biases of queries, keys and values and half of each head rotated.

The models of 2025 (GLM-4-0414) have norms before and behind the branches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from semu.nn import NormPlacement
from semu.records import dataclass
from semu_models.text.decoder import DecoderConfig, DecoderStyle


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
