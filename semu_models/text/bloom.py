"""BLOOM (2211.05100): a GPT with ALiBi in place of positions, a norm behind the embedding, and tied tables.

ALiBi (2108.12409) adds to every score a number that depends on the head and on the distance: inside the product of
queries and keys (``baddbmm``, in Megatron-DeepSpeed and transformers) or inside a fused kernel. It has no parameters
and no kernel of its own.
"""

from __future__ import annotations

from typing import ClassVar

from semu.nn import Activation
from semu.records import dataclass
from semu_models.text.decoder import DecoderConfig, DecoderStyle


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
