"""Qwen3-MoE: 128 small experts in every layer, normed queries and keys, no shared experts (2505.09388)."""

from __future__ import annotations

from typing import ClassVar

from semu.nn import MixtureOfExperts, Model
from semu.records import dataclass
from semu_models.text.decoder import ConfiguredDecoder, DecoderConfig, DecoderStyle, decoder_model


@dataclass(frozen=True, kw_only=True)
class QwenMoEConfig(DecoderConfig):
    """Sizes of a Qwen3-MoE.

    Attributes:
        moe_ffn: inner width of an expert. experts, top_k: how many there are, how many a token uses.
        dense_layers: numbers of the layers without experts; ``ffn`` is the inner width of their network.
    """

    ffn: int = 6144
    moe_ffn: int
    kv_heads: int = 4
    head_dim: int | None = 128
    vocab: int = 151936
    experts: int = 128
    top_k: int = 8
    dense_layers: tuple[int, ...] = ()
    STYLE: ClassVar[DecoderStyle] = DecoderStyle(qk_norm=True)

    def mixture(self, layer: int) -> MixtureOfExperts | None:
        """In every layer that is not dense."""
        if layer in self.dense_layers:
            return None
        return MixtureOfExperts(self.hidden, self.moe_ffn, self.experts, self.top_k)


QWEN3_30B_A3B = QwenMoEConfig(layers=48, hidden=2048, moe_ffn=768, heads=32)
"""Qwen3-30B-A3B (2505.09388 Table 2; widths: config.json of the released checkpoint)."""

QWEN3_235B_A22B = QwenMoEConfig(layers=94, hidden=4096, ffn=12288, moe_ffn=1536, heads=64)
"""Qwen3-235B-A22B (2505.09388 Table 2; widths: config.json of the released checkpoint)."""


class QwenMoE(ConfiguredDecoder):
    """Token ids [tokens] of the text stream -> scalar loss."""

    def __init__(self, config: QwenMoEConfig) -> None:
        super().__init__(config)


def qwen3_30b_a3b() -> Model:
    """Qwen3-30B-A3B."""
    return decoder_model("qwen3-30b-a3b", QwenMoE(QWEN3_30B_A3B))


def qwen3_235b_a22b() -> Model:
    """Qwen3-235B-A22B."""
    return decoder_model("qwen3-235b-a22b", QwenMoE(QWEN3_235B_A22B))
