"""Llama: RMS norm, rotary positions, SwiGLU, grouped queries, no biases, an output table of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from semu.nn import Model, TransformerLayer
from semu_models.checks import check_divides, check_sizes
from semu_models.decoder import Decoder, decoder_model


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes of a Llama, and of the families that build on it (they change the class attribute and the defaults).

    Attributes:
        layers, hidden, ffn, heads: of the transformer; ``ffn`` is the width of gate and of up.
        kv_heads: key/value heads, a divisor of heads.
        vocab: rows of the token table and of the output table.
        QKV_BIAS: whether the family's queries, keys and values have biases.
    Raises:
        ConfigError: a size below 1, heads that do not divide.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    QKV_BIAS: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_sizes(self)
        check_divides(self, "hidden", "heads")
        check_divides(self, "heads", "kv_heads")


LLAMA3_8B = LlamaConfig(layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocab=128256)
"""Llama 3 8B (2407.21783 Table 3; DIP Table 2)."""

LM_7B = LlamaConfig(layers=32, hidden=4096, ffn=11008, heads=32, kv_heads=32, vocab=32000)
"""DIP Table 1's "LM 7B", whose shape is not printed: that of Llama 7B (2302.13971 Table 2; 2307.09288)."""

LM_5B = LlamaConfig(layers=24, hidden=4096, ffn=11008, heads=32, kv_heads=32, vocab=32000)
"""DIP Table 1's "LM 5B", whose shape is not printed: LM 7B with 24 layers (5.1 B; 7.1 B with ViT 2B in front)."""


class Llama(Decoder):
    """Token ids [tokens] of the text stream -> scalar loss."""

    def __init__(self, config: LlamaConfig) -> None:
        def layer(_: int) -> TransformerLayer:
            return TransformerLayer(
                config.hidden,
                config.ffn,
                config.heads,
                config.kv_heads,
                rotary=True,
                gated=True,
                rms_norm=True,
                bias=False,
                qkv_bias=config.QKV_BIAS,
            )

        super().__init__(config.layers, config.hidden, config.vocab, layer, rms_norm=True)
        self.config = config


def llama3_8b() -> Model:
    """Llama 3 8B."""
    return decoder_model("llama3-8b", Llama(LLAMA3_8B))


def lm_5b() -> Model:
    """The language model of DIP Table 1's vision-language model, alone."""
    return decoder_model("lm-5b", Llama(LM_5B))


def lm_7b() -> Model:
    """The unimodal model of DIP Table 1."""
    return decoder_model("lm-7b", Llama(LM_7B))
