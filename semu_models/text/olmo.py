"""OLMo 2 (2501.00656): as Llama, with norms behind the branches and over all queries and all keys of a token."""

from __future__ import annotations

from typing import ClassVar

from semu.nn import Model, NormPlacement
from semu.records import dataclass
from semu_models.text.decoder import ConfiguredDecoder, DecoderConfig, DecoderStyle, decoder_model


@dataclass(frozen=True)
class Olmo2Config(DecoderConfig):
    """Sizes of an OLMo 2."""

    STYLE: ClassVar[DecoderStyle] = DecoderStyle(placement=NormPlacement.BEHIND, whole_norm=True)


OLMO2_7B = Olmo2Config(layers=32, hidden=4096, ffn=11008, heads=32, kv_heads=32, vocab=100352)
"""OLMo 2 7B (2501.00656 Table 1; config.json of OLMo-2-1124-7B)."""
OLMO2_13B = Olmo2Config(layers=40, hidden=5120, ffn=13824, heads=40, kv_heads=40, vocab=100352)
"""OLMo 2 13B (2501.00656 Table 1; config.json of OLMo-2-1124-13B)."""
OLMO2_32B = Olmo2Config(layers=64, hidden=5120, ffn=27648, heads=40, kv_heads=8, vocab=100352)
"""OLMo 2 32B (config.json of OLMo-2-0325-32B)."""


def olmo2_7b() -> Model:
    """OLMo 2 7B."""
    return decoder_model("olmo2-7b", ConfiguredDecoder(OLMO2_7B))


def olmo2_13b() -> Model:
    """OLMo 2 13B."""
    return decoder_model("olmo2-13b", ConfiguredDecoder(OLMO2_13B))


def olmo2_32b() -> Model:
    """OLMo 2 32B."""
    return decoder_model("olmo2-32b", ConfiguredDecoder(OLMO2_32B))
