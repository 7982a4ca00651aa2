"""BLOOM (2211.05100): a GPT with ALiBi in place of positions, a norm behind the embedding, and tied tables.

ALiBi (2108.12409) adds to every score a number that depends on the head and on the distance: inside the product of
queries and keys (``baddbmm``, in Megatron-DeepSpeed and transformers) or inside a fused kernel. It has no parameters
and no kernel of its own.
"""

from __future__ import annotations

from typing import ClassVar

from semu.nn import Activation, Model
from semu.records import dataclass
from semu_models.text.decoder import ConfiguredDecoder, DecoderConfig, DecoderStyle, decoder_model


@dataclass(frozen=True)
class BloomConfig(DecoderConfig):
    """Sizes of a BLOOM."""

    vocab: int = 250880
    tied: bool = True
    attention_bias: bool = True
    mlp_bias: bool = True
    STYLE: ClassVar[DecoderStyle] = DecoderStyle(
        rms_norm=False, rotary=False, gated=False, activation=Activation.GELU_TANH, embedding_norm=True
    )


BLOOM_7B1 = BloomConfig(layers=30, hidden=4096, ffn=16384, heads=32, kv_heads=32)
"""BLOOM 7.1B (2211.05100 Table 3)."""
BLOOM_176B = BloomConfig(layers=70, hidden=14336, ffn=57344, heads=112, kv_heads=112)
"""BLOOM (2211.05100 Table 3)."""


def bloom_7b1() -> Model:
    """BLOOM 7.1B."""
    return decoder_model("bloom-7b1", ConfiguredDecoder(BLOOM_7B1))


def bloom_176b() -> Model:
    """BLOOM."""
    return decoder_model("bloom-176b", ConfiguredDecoder(BLOOM_176B))
