"""Qwen3-MoE: 128 small experts in every layer, normed queries and keys, no shared experts (2505.09388)."""

from __future__ import annotations

from dataclasses import dataclass

from semu.nn import MixtureOfExperts, Model, TransformerLayer
from semu_models.checks import check_divides, check_sizes
from semu_models.decoder import Decoder, decoder_model


@dataclass(frozen=True)
class QwenMoEConfig:
    """Sizes of a Qwen3-MoE.

    Attributes:
        layers, hidden, heads, vocab: as in ``LlamaConfig``. kv_heads, head_dim: of the attention.
        moe_ffn: inner width of an expert. experts, top_k: how many there are, how many a token uses.
    Raises:
        ConfigError: a size below 1, heads that do not divide.
    """

    layers: int
    hidden: int
    moe_ffn: int
    heads: int
    kv_heads: int = 4
    head_dim: int = 128
    vocab: int = 151936
    experts: int = 128
    top_k: int = 8

    def __post_init__(self) -> None:
        check_sizes(self)
        check_divides(self, "heads", "kv_heads")


QWEN3_30B_A3B = QwenMoEConfig(layers=48, hidden=2048, moe_ffn=768, heads=32)
"""Qwen3-30B-A3B (2505.09388 Table 2; widths: config.json of the released checkpoint)."""

QWEN3_235B_A22B = QwenMoEConfig(layers=94, hidden=4096, moe_ffn=1536, heads=64)
"""Qwen3-235B-A22B (2505.09388 Table 2; widths: config.json of the released checkpoint)."""


class QwenMoE(Decoder):
    """Token ids [tokens] of the text stream -> scalar loss."""

    def __init__(self, config: QwenMoEConfig) -> None:
        def layer(_: int) -> TransformerLayer:
            return TransformerLayer(
                config.hidden,
                config.moe_ffn,
                config.heads,
                config.kv_heads,
                head_dim=config.head_dim,
                rotary=True,
                rms_norm=True,
                bias=False,
                qk_norm=True,
                mlp=MixtureOfExperts(config.hidden, config.moe_ffn, config.experts, config.top_k),
            )

        super().__init__(config.layers, config.hidden, config.vocab, layer, rms_norm=True)
        self.config = config


def qwen3_30b_a3b() -> Model:
    """Qwen3-30B-A3B."""
    return decoder_model("qwen3-30b-a3b", QwenMoE(QWEN3_30B_A3B))


def qwen3_235b_a22b() -> Model:
    """Qwen3-235B-A22B."""
    return decoder_model("qwen3-235b-a22b", QwenMoE(QWEN3_235B_A22B))
