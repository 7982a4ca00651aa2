"""Gemma 2 and 3: GeGLU, norms before and behind both branches, tied tables, embeddings times sqrt(hidden), windows.

Gemma 2 (2408.00118 §2): windows of 4096 tokens in every other layer; scores capped at 50, logits at 30.
Gemma 3 (2503.19786 §2): five layers with windows of 1024 (1B: 512) to one without, norms of queries and keys instead of
caps. Of the larger models this is the language model; their vocabulary has 64 rows more for images.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from semu.nn import Activation, Model, NormPlacement
from semu.records import dataclass
from semu_models.text.decoder import ConfiguredDecoder, DecoderConfig, DecoderStyle, decoder_model

_GEMMA = DecoderStyle(activation=Activation.GELU_TANH, placement=NormPlacement.SANDWICH, scaled_embedding=True)


@dataclass(frozen=True)
class Gemma2Config(DecoderConfig):
    """Sizes of a Gemma 2.

    Attributes:
        attention_softcap, logit_softcap: bounds of scores and logits; None: there is none.
    """

    vocab: int = 256000
    tied: bool = True
    window: int | None = 4096
    attention_softcap: float | None = 50.0
    logit_softcap: float | None = 30.0
    STYLE: ClassVar[DecoderStyle] = replace(_GEMMA, full_every=2)

    @property
    def style(self) -> DecoderStyle:
        """With the caps."""
        return replace(self.STYLE, softcap=self.attention_softcap, logit_softcap=self.logit_softcap)


@dataclass(frozen=True)
class Gemma3Config(DecoderConfig):
    """Sizes of a Gemma 3's language model."""

    vocab: int = 262208
    tied: bool = True
    window: int | None = 1024
    STYLE: ClassVar[DecoderStyle] = replace(_GEMMA, qk_norm=True, full_every=6)


GEMMA2_2B = Gemma2Config(layers=26, hidden=2304, ffn=9216, heads=8, kv_heads=4, head_dim=256)
"""Gemma 2 2B (2408.00118 Table 1; its ffn is that of gate and up together)."""
GEMMA2_9B = Gemma2Config(layers=42, hidden=3584, ffn=14336, heads=16, kv_heads=8, head_dim=256)
"""Gemma 2 9B (2408.00118 Table 1)."""
GEMMA2_27B = Gemma2Config(layers=46, hidden=4608, ffn=36864, heads=32, kv_heads=16, head_dim=128)
"""Gemma 2 27B (2408.00118 Table 1)."""

GEMMA3_1B = Gemma3Config(layers=26, hidden=1152, ffn=6912, heads=4, kv_heads=1, head_dim=256, vocab=262144, window=512)
"""Gemma 3 1B (2503.19786 Table 1; widths: config.json of gemma-3-1b-pt)."""
GEMMA3_4B = Gemma3Config(layers=34, hidden=2560, ffn=10240, heads=8, kv_heads=4, head_dim=256)
"""Gemma 3 4B (2503.19786 Table 1; widths: config.json of gemma-3-4b-pt)."""
GEMMA3_12B = Gemma3Config(layers=48, hidden=3840, ffn=15360, heads=16, kv_heads=8, head_dim=256)
"""Gemma 3 12B (2503.19786 Table 1; widths: config.json of gemma-3-12b-pt)."""
GEMMA3_27B = Gemma3Config(layers=62, hidden=5376, ffn=21504, heads=32, kv_heads=16, head_dim=128)
"""Gemma 3 27B (2503.19786 Table 1; widths: config.json of gemma-3-27b-pt)."""


class Gemma(ConfiguredDecoder):
    """Token ids [tokens] of the text stream -> scalar loss."""

    def __init__(self, config: Gemma2Config | Gemma3Config) -> None:
        super().__init__(config)


def gemma2_2b() -> Model:
    """Gemma 2 2B."""
    return decoder_model("gemma2-2b", Gemma(GEMMA2_2B))


def gemma2_9b() -> Model:
    """Gemma 2 9B."""
    return decoder_model("gemma2-9b", Gemma(GEMMA2_9B))


def gemma2_27b() -> Model:
    """Gemma 2 27B."""
    return decoder_model("gemma2-27b", Gemma(GEMMA2_27B))


def gemma3_1b() -> Model:
    """Gemma 3 1B."""
    return decoder_model("gemma3-1b", Gemma(GEMMA3_1B))


def gemma3_4b() -> Model:
    """Gemma 3 4B, text."""
    return decoder_model("gemma3-4b", Gemma(GEMMA3_4B))


def gemma3_12b() -> Model:
    """Gemma 3 12B, text."""
    return decoder_model("gemma3-12b", Gemma(GEMMA3_12B))


def gemma3_27b() -> Model:
    """Gemma 3 27B, text."""
    return decoder_model("gemma3-27b", Gemma(GEMMA3_27B))
