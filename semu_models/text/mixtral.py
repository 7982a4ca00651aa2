"""Mixtral: as Llama, with a mixture of experts in every layer (2401.04088)."""

from __future__ import annotations

from semu.nn import MixtureOfExperts, Model
from semu.records import dataclass
from semu_models.text.decoder import ConfiguredDecoder, DecoderConfig, decoder_model


@dataclass(frozen=True)
class MixtralConfig(DecoderConfig):
    """Sizes of a Mixtral.

    Attributes:
        ffn: inner width of an expert. experts, top_k: how many there are, how many a token uses.
    """

    kv_heads: int = 8
    vocab: int = 32000
    experts: int = 8
    top_k: int = 2

    def mixture(self, layer: int) -> MixtureOfExperts:
        """In every layer."""
        return MixtureOfExperts(self.hidden, self.ffn, self.experts, self.top_k)


MIXTRAL_8X7B = MixtralConfig(layers=32, hidden=4096, ffn=14336, heads=32)
"""Mixtral 8x7B (2401.04088 Table 1)."""

MIXTRAL_8X22B = MixtralConfig(layers=56, hidden=6144, ffn=16384, heads=48)
"""Mixtral 8x22B (config.json of the released checkpoint, Mixtral-8x22B-v0.1)."""


class Mixtral(ConfiguredDecoder):
    """Token ids [tokens] of the text stream -> scalar loss."""

    def __init__(self, config: MixtralConfig) -> None:
        super().__init__(config)


def mixtral_8x7b() -> Model:
    """Mixtral 8x7B."""
    return decoder_model("mixtral-8x7b", Mixtral(MIXTRAL_8X7B))


def mixtral_8x22b() -> Model:
    """Mixtral 8x22B."""
    return decoder_model("mixtral-8x22b", Mixtral(MIXTRAL_8X22B))
