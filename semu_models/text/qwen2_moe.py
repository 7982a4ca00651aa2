"""Qwen2-MoE: many small experts, and shared ones whose output a learned gate weights (2407.10671 §2.2.1).

Queries, keys and values have biases, as in Qwen2.
"""

from __future__ import annotations

from typing import ClassVar

from semu.nn import MixtureOfExperts, Model
from semu.records import dataclass
from semu_models.text.decoder import ConfiguredDecoder, DecoderConfig, DecoderStyle, decoder_model


@dataclass(frozen=True, kw_only=True)
class Qwen2MoEConfig(DecoderConfig):
    """Sizes of a Qwen2-MoE.

    Attributes:
        moe_ffn, shared_ffn: inner width of an expert, of the shared experts together.
        experts, top_k: how many there are, how many a token uses.
        dense_layers: numbers of the layers without experts; ``ffn`` is the inner width of their network.
    """

    ffn: int = 5632
    moe_ffn: int
    shared_ffn: int
    vocab: int = 151936
    experts: int = 64
    top_k: int = 8
    dense_layers: tuple[int, ...] = ()
    STYLE: ClassVar[DecoderStyle] = DecoderStyle(qkv_bias=True)

    def mixture(self, layer: int) -> MixtureOfExperts | None:
        """In every layer that is not dense."""
        if layer in self.dense_layers:
            return None
        return MixtureOfExperts(
            self.hidden, self.moe_ffn, self.experts, self.top_k, shared_ffn=self.shared_ffn, shared_gate=True
        )


QWEN2_57B_A14B = Qwen2MoEConfig(layers=28, hidden=3584, ffn=18944, moe_ffn=2560, shared_ffn=20480, heads=28, kv_heads=4)
"""Qwen2-57B-A14B (2407.10671 Table 1; widths: config.json of the released checkpoint)."""

QWEN1_5_MOE_A2_7B = Qwen2MoEConfig(
    layers=24, hidden=2048, moe_ffn=1408, shared_ffn=5632, heads=16, kv_heads=16, experts=60, top_k=4
)
"""Qwen1.5-MoE-A2.7B (config.json of the released checkpoint)."""


class Qwen2MoE(ConfiguredDecoder):
    """Token ids [tokens] of the text stream -> scalar loss."""

    def __init__(self, config: Qwen2MoEConfig) -> None:
        super().__init__(config)


def qwen2_57b_a14b() -> Model:
    """Qwen2-57B-A14B."""
    return decoder_model("qwen2-57b-a14b", Qwen2MoE(QWEN2_57B_A14B))


def qwen1_5_moe_a2_7b() -> Model:
    """Qwen1.5-MoE-A2.7B."""
    return decoder_model("qwen1.5-moe-a2.7b", Qwen2MoE(QWEN1_5_MOE_A2_7B))
