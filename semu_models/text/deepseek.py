"""DeepSeek: latent attention, many small routed experts and shared ones, behind some dense layers.

DeepSeek-V2 (2405.04434) routes by a softmax, V3 (2412.19437) by sigmoids with a bias per expert that balances the load
without an auxiliary loss; that bias is no parameter (nothing trains it) and is not counted. Group-limited routing costs
nothing to speak of. V3 may predict further tokens (``mtp_layers``; ``semu_models.text.mtp``).
"""

from __future__ import annotations

from dataclasses import replace

from semu.checks import check_sizes
from semu.errors import ConfigError
from semu.nn import LatentAttention, LatentSizes, MixtureOfExperts, Model, TransformerLayer
from semu.records import dataclass
from semu_models.text.decoder import Decoder, decoder_model
from semu_models.text.mtp import predicting_model


@dataclass(frozen=True)
class DeepSeekConfig:
    """Sizes of a DeepSeek.

    Attributes:
        layers, hidden, heads, vocab: as in ``LlamaConfig``. ffn: inner width of the dense layers.
        dense_layers: number of first layers without experts.
        moe_ffn: inner width of an expert. experts, top_k: routed ones.
        latent: widths of the attention.
        shared_experts: each as wide as a routed one; 0: none.
        tied: the output projection shares the token table.
        attention_bias: of the attention's down-projections and of its output.
        mtp_layers: further tokens that are predicted.
    Raises:
        ConfigError: a size below 1, more dense layers than layers.
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
    shared_experts: int = 1
    tied: bool = False
    attention_bias: bool = False
    mtp_layers: int = 0

    def __post_init__(self) -> None:
        check_sizes(self, zero=("dense_layers", "shared_experts", "mtp_layers"))
        if self.dense_layers > self.layers:
            raise ConfigError(
                f"{self.dense_layers} dense layers of {self.layers}",
                where="DeepSeekConfig.dense_layers",
                expected=f"0 to {self.layers}",
                got=self.dense_layers,
                nearest=self.layers,
            )

    def layer(self, number: int) -> TransformerLayer:
        """A new layer. ``number``: from 0; those behind the last layer have experts."""
        mixture = MixtureOfExperts(
            self.hidden,
            self.moe_ffn,
            self.experts,
            self.top_k,
            shared_ffn=self.shared_experts * self.moe_ffn if self.shared_experts else None,
        )
        bias = self.attention_bias
        return TransformerLayer(
            self.hidden,
            self.ffn,
            self.heads,
            gated=True,
            rms_norm=True,
            bias=False,
            mlp=None if number < self.dense_layers else mixture,
            attention=LatentAttention(self.hidden, self.heads, self.latent, bias=bias, down_bias=bias),
        )


DEEPSEEK_V2_LITE = DeepSeekConfig(
    layers=27,
    hidden=2048,
    ffn=10944,
    heads=16,
    vocab=102400,
    dense_layers=1,
    moe_ffn=1408,
    experts=64,
    top_k=6,
    shared_experts=2,
    latent=LatentSizes(kv_lora_rank=512, qk_head_dim=128, qk_pos_emb_head_dim=64, v_head_dim=128),
)
"""DeepSeek-V2-Lite (2405.04434 appendix B; dense width and vocabulary: config.json of the released checkpoint)."""

DEEPSEEK_V2 = DeepSeekConfig(
    layers=60,
    hidden=5120,
    ffn=12288,
    heads=128,
    vocab=102400,
    dense_layers=1,
    moe_ffn=1536,
    experts=160,
    top_k=6,
    shared_experts=2,
    latent=LatentSizes(kv_lora_rank=512, qk_head_dim=128, qk_pos_emb_head_dim=64, v_head_dim=128, q_lora_rank=1536),
)
"""DeepSeek-V2 (2405.04434 §3.1.2; dense width and vocabulary: config.json of the released checkpoint)."""

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

KIMI_K2 = DeepSeekConfig(
    layers=61,
    hidden=7168,
    ffn=18432,
    heads=64,
    vocab=163840,
    dense_layers=1,
    moe_ffn=2048,
    experts=384,
    top_k=8,
    latent=LatentSizes(kv_lora_rank=512, qk_head_dim=128, qk_pos_emb_head_dim=64, v_head_dim=128, q_lora_rank=1536),
)
"""Kimi K2 (2507.20534 Table 2: DeepSeek-V3 with half the heads, more experts and one dense layer; dense width,
attention's widths and vocabulary: config.json of the released checkpoint). The table prints 1.04 T parameters where
these sizes make 1.026 T, and 32.6 B active ones where they make 32.9 B."""


class DeepSeek(Decoder):
    """Token ids [tokens] of the text stream -> scalar loss, of the next token only."""

    def __init__(self, config: DeepSeekConfig) -> None:
        super().__init__(config.layers, config.hidden, config.vocab, config.layer, tied=config.tied, rms_norm=True)
        self.config = config


def deepseek_model(name: str, config: DeepSeekConfig) -> Model:
    """A DeepSeek trained alone; with ``mtp_layers`` a second module, ``mtp``, follows.

    Args:
        name: for reports. config: sizes.
    """
    body = DeepSeek(config)
    if not config.mtp_layers:
        return decoder_model(name, body)
    return predicting_model(name, body, config.hidden, config.mtp_layers, lambda i: config.layer(config.layers + i))


def deepseek_v2_lite() -> Model:
    """DeepSeek-V2-Lite."""
    return deepseek_model("deepseek-v2-lite", DEEPSEEK_V2_LITE)


def deepseek_v2() -> Model:
    """DeepSeek-V2."""
    return deepseek_model("deepseek-v2", DEEPSEEK_V2)


def deepseek_v3() -> Model:
    """DeepSeek-V3, without multi-token prediction."""
    return deepseek_model("deepseek-v3", DEEPSEEK_V3)


def deepseek_v3_mtp() -> Model:
    """DeepSeek-V3 with the one further token that it was trained to predict."""
    return deepseek_model("deepseek-v3-mtp", replace(DEEPSEEK_V3, mtp_layers=1))


def kimi_k2() -> Model:
    """Kimi K2."""
    return deepseek_model("kimi-k2", KIMI_K2)
