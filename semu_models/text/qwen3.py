"""Qwen3, dense: as Llama, with an RMS norm on every head of queries and keys in place of biases (2505.09388 §2).

Heads are 128 wide in all sizes, not hidden / heads; the small models tie their tables.
"""

from __future__ import annotations

from typing import ClassVar

from semu.nn import Model
from semu.records import dataclass
from semu_models.text.decoder import ConfiguredDecoder, DecoderStyle, decoder_model
from semu_models.text.llama import LlamaConfig


@dataclass(frozen=True)
class Qwen3Config(LlamaConfig):
    """Sizes of a Qwen3."""

    kv_heads: int = 8
    vocab: int = 151936
    head_dim: int | None = 128
    STYLE: ClassVar[DecoderStyle] = DecoderStyle(qk_norm=True)


QWEN3_0_6B = Qwen3Config(layers=28, hidden=1024, ffn=3072, heads=16, tied=True)
"""Qwen3 0.6B (2505.09388 Table 1; widths: config.json of Qwen3-0.6B)."""
QWEN3_1_7B = Qwen3Config(layers=28, hidden=2048, ffn=6144, heads=16, tied=True)
"""Qwen3 1.7B (2505.09388 Table 1; widths: config.json of Qwen3-1.7B)."""
QWEN3_4B = Qwen3Config(layers=36, hidden=2560, ffn=9728, heads=32, tied=True)
"""Qwen3 4B (2505.09388 Table 1; widths: config.json of Qwen3-4B)."""
QWEN3_8B = Qwen3Config(layers=36, hidden=4096, ffn=12288, heads=32)
"""Qwen3 8B (2505.09388 Table 1; widths: config.json of Qwen3-8B)."""
QWEN3_14B = Qwen3Config(layers=40, hidden=5120, ffn=17408, heads=40)
"""Qwen3 14B (2505.09388 Table 1; widths: config.json of Qwen3-14B)."""
QWEN3_32B = Qwen3Config(layers=64, hidden=5120, ffn=25600, heads=64)
"""Qwen3 32B (2505.09388 Table 1; widths: config.json of Qwen3-32B)."""


class Qwen3(ConfiguredDecoder):
    """Token ids [tokens] of the text stream -> scalar loss."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__(config)


def qwen3_0_6b() -> Model:
    """Qwen3 0.6B."""
    return decoder_model("qwen3-0.6b", Qwen3(QWEN3_0_6B))


def qwen3_1_7b() -> Model:
    """Qwen3 1.7B."""
    return decoder_model("qwen3-1.7b", Qwen3(QWEN3_1_7B))


def qwen3_4b() -> Model:
    """Qwen3 4B."""
    return decoder_model("qwen3-4b", Qwen3(QWEN3_4B))


def qwen3_8b() -> Model:
    """Qwen3 8B."""
    return decoder_model("qwen3-8b", Qwen3(QWEN3_8B))


def qwen3_14b() -> Model:
    """Qwen3 14B."""
    return decoder_model("qwen3-14b", Qwen3(QWEN3_14B))


def qwen3_32b() -> Model:
    """Qwen3 32B."""
    return decoder_model("qwen3-32b", Qwen3(QWEN3_32B))
