"""Qwen2 and Qwen2.5: as Llama, with biases on queries, keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from semu.nn import Model
from semu_models.decoder import decoder_model
from semu_models.llama import Llama, LlamaConfig


@dataclass(frozen=True)
class QwenConfig(LlamaConfig):
    """Sizes of a Qwen2: those of a Llama; the published models share their key/value heads and their vocabulary."""

    kv_heads: int = 8
    vocab: int = 152064
    QKV_BIAS: ClassVar[bool] = True


QWEN2_32B = QwenConfig(layers=64, hidden=5120, ffn=27648, heads=40)
"""Qwen2.5 32B (2412.15115 Table 1; DIP Table 2, which calls it Qwen2 32B)."""

QWEN2_72B = QwenConfig(layers=80, hidden=8192, ffn=29568, heads=64)
"""Qwen2 72B (2407.10671 Table 1; DIP Table 2)."""


class Qwen(Llama):
    """Token ids [tokens] of the text stream -> scalar loss."""

    def __init__(self, config: QwenConfig) -> None:
        super().__init__(config)


def qwen2_32b() -> Model:
    """Qwen2 32B."""
    return decoder_model("qwen2-32b", Qwen(QWEN2_32B))


def qwen2_72b() -> Model:
    """Qwen2 72B."""
    return decoder_model("qwen2-72b", Qwen(QWEN2_72B))
