"""DeepSeek-V3: latent attention, 256 routed and one shared expert behind three dense layers (2412.19437).

Without multi-token prediction, which the paper trains beside it (§2.2).
"""

from __future__ import annotations

from dataclasses import dataclass

from semu.nn import LatentAttention, LatentSizes, MixtureOfExperts, Model, TransformerLayer
from semu_models.decoder import Decoder, decoder_model


@dataclass(frozen=True)
class DeepSeekConfig:
    """Sizes of a DeepSeek-V3.

    Attributes:
        layers, hidden, heads, vocab: as in ``LlamaConfig``. ffn: inner width of the dense layers.
        dense_layers: so many first layers have no experts.
        moe_ffn: inner width of an expert, and of the shared one. experts, top_k: routed ones.
        latent: widths of the attention.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    vocab: int
    dense_layers: int
    moe_ffn: int
    experts: int
    top_k: int
    latent: LatentSizes


DEEPSEEK_V3 = DeepSeekConfig(
    layers=61,
    hidden=7168,
    ffn=18432,
    heads=128,
    vocab=129280,
    dense_layers=3,
    moe_ffn=2048,
    experts=256,
    top_k=8,
    latent=LatentSizes(kv_lora_rank=512, qk_head_dim=128, qk_pos_emb_head_dim=64, v_head_dim=128, q_lora_rank=1536),
)
"""DeepSeek-V3 (2412.19437 §4.2; dense width and vocabulary: config.json of the released checkpoint)."""


class DeepSeek(Decoder):
    """Token ids [tokens] of the text stream -> scalar loss."""

    def __init__(self, config: DeepSeekConfig) -> None:
        def layer(number: int) -> TransformerLayer:
            experts = MixtureOfExperts(
                config.hidden, config.moe_ffn, config.experts, config.top_k, shared_ffn=config.moe_ffn
            )
            return TransformerLayer(
                config.hidden,
                config.ffn,
                config.heads,
                gated=True,
                rms_norm=True,
                bias=False,
                mlp=None if number < config.dense_layers else experts,
                attention=LatentAttention(config.hidden, config.heads, config.latent),
            )

        super().__init__(config.layers, config.hidden, config.vocab, layer, rms_norm=True)
        self.config = config


def deepseek_v3() -> Model:
    """DeepSeek-V3."""
    return decoder_model("deepseek-v3", DeepSeek(DEEPSEEK_V3))
