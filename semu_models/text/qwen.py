"""Qwen2 and Qwen2.5: as Llama, with biases on queries, keys and values; the small ones tie their tables.

Models of one size have one shape in both generations (2407.10671 Table 1; 2412.15115 Table 1); 3B, 14B and 32B are of
the second only.
"""

from __future__ import annotations

from typing import ClassVar

from semu.nn import Model
from semu.records import dataclass
from semu_models.text.decoder import DecoderStyle, decoder_model
from semu_models.text.llama import Llama, LlamaConfig


@dataclass(frozen=True)
class QwenConfig(LlamaConfig):
    """Sizes of a Qwen2: those of a Llama; the large models share their key/value heads and their vocabulary."""

    kv_heads: int = 8
    vocab: int = 152064
    STYLE: ClassVar[DecoderStyle] = DecoderStyle(qkv_bias=True)


QWEN2_0_5B = QwenConfig(layers=24, hidden=896, ffn=4864, heads=14, kv_heads=2, vocab=151936, tied=True)
"""Qwen2 0.5B (2407.10671 Table 1; vocabulary: config.json of Qwen2-0.5B)."""
QWEN2_1_5B = QwenConfig(layers=28, hidden=1536, ffn=8960, heads=12, kv_heads=2, vocab=151936, tied=True)
"""Qwen2 1.5B (2407.10671 Table 1; vocabulary: config.json of Qwen2-1.5B)."""
QWEN2_7B = QwenConfig(layers=28, hidden=3584, ffn=18944, heads=28, kv_heads=4)
"""Qwen2 7B (2407.10671 Table 1)."""
QWEN2_5_3B = QwenConfig(layers=36, hidden=2048, ffn=11008, heads=16, kv_heads=2, vocab=151936, tied=True)
"""Qwen2.5 3B (2412.15115 Table 1; widths: config.json of Qwen2.5-3B)."""
QWEN2_5_14B = QwenConfig(layers=48, hidden=5120, ffn=13824, heads=40)
"""Qwen2.5 14B (2412.15115 Table 1; widths: config.json of Qwen2.5-14B)."""

QWEN2_32B = QwenConfig(layers=64, hidden=5120, ffn=27648, heads=40)
"""Qwen2.5 32B (2412.15115 Table 1; DIP Table 2, which calls it Qwen2 32B)."""

QWEN2_72B = QwenConfig(layers=80, hidden=8192, ffn=29568, heads=64)
"""Qwen2 72B (2407.10671 Table 1; DIP Table 2)."""


class Qwen(Llama):
    """Token ids [tokens] of the text stream -> scalar loss."""

    def __init__(self, config: QwenConfig) -> None:
        super().__init__(config)


def qwen2_0_5b() -> Model:
    """Qwen2 0.5B."""
    return decoder_model("qwen2-0.5b", Qwen(QWEN2_0_5B))


def qwen2_1_5b() -> Model:
    """Qwen2 1.5B."""
    return decoder_model("qwen2-1.5b", Qwen(QWEN2_1_5B))


def qwen2_7b() -> Model:
    """Qwen2 7B."""
    return decoder_model("qwen2-7b", Qwen(QWEN2_7B))


def qwen2_32b() -> Model:
    """Qwen2 32B."""
    return decoder_model("qwen2-32b", Qwen(QWEN2_32B))


def qwen2_72b() -> Model:
    """Qwen2 72B."""
    return decoder_model("qwen2-72b", Qwen(QWEN2_72B))


def qwen2_5_3b() -> Model:
    """Qwen2.5 3B."""
    return decoder_model("qwen2.5-3b", Qwen(QWEN2_5_3B))


def qwen2_5_7b() -> Model:
    """Qwen2.5 7B: the shape of Qwen2 7B."""
    return decoder_model("qwen2.5-7b", Qwen(QWEN2_7B))


def qwen2_5_14b() -> Model:
    """Qwen2.5 14B."""
    return decoder_model("qwen2.5-14b", Qwen(QWEN2_5_14B))


def qwen2_5_32b() -> Model:
    """Qwen2.5 32B, which DIP calls Qwen2 32B."""
    return decoder_model("qwen2.5-32b", Qwen(QWEN2_32B))


def qwen2_5_72b() -> Model:
    """Qwen2.5 72B: the shape of Qwen2 72B."""
    return decoder_model("qwen2.5-72b", Qwen(QWEN2_72B))
