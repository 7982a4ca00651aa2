"""Mixtral: as Llama, with a mixture of experts in every layer (2401.04088)."""

from __future__ import annotations

from dataclasses import dataclass

from semu.nn import MixtureOfExperts, Model, TransformerLayer
from semu_models.checks import check_divides, check_sizes
from semu_models.decoder import Decoder, decoder_model


@dataclass(frozen=True)
class MixtralConfig:
    """Sizes of a Mixtral.

    Attributes:
        layers, hidden, heads, kv_heads, vocab: as in ``LlamaConfig``.
        ffn: inner width of an expert. experts, top_k: how many there are, how many a token uses.
    Raises:
        ConfigError: a size below 1, heads that do not divide.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int = 8
    vocab: int = 32000
    experts: int = 8
    top_k: int = 2

    def __post_init__(self) -> None:
        check_sizes(self)
        check_divides(self, "hidden", "heads")
        check_divides(self, "heads", "kv_heads")


MIXTRAL_8X7B = MixtralConfig(layers=32, hidden=4096, ffn=14336, heads=32)
"""Mixtral 8x7B (2401.04088 Table 1)."""

MIXTRAL_8X22B = MixtralConfig(layers=56, hidden=6144, ffn=16384, heads=48)
"""Mixtral 8x22B (config.json of the released checkpoint, Mixtral-8x22B-v0.1)."""


class Mixtral(Decoder):
    """Token ids [tokens] of the text stream -> scalar loss."""

    def __init__(self, config: MixtralConfig) -> None:
        def layer(_: int) -> TransformerLayer:
            return TransformerLayer(
                config.hidden,
                config.ffn,
                config.heads,
                config.kv_heads,
                rotary=True,
                rms_norm=True,
                bias=False,
                mlp=MixtureOfExperts(config.hidden, config.ffn, config.experts, config.top_k),
            )

        super().__init__(config.layers, config.hidden, config.vocab, layer, rms_norm=True)
        self.config = config


def mixtral_8x7b() -> Model:
    """Mixtral 8x7B."""
    return decoder_model("mixtral-8x7b", Mixtral(MIXTRAL_8X7B))


def mixtral_8x22b() -> Model:
    """Mixtral 8x22B."""
    return decoder_model("mixtral-8x22b", Mixtral(MIXTRAL_8X22B))
