"""Qwen2 and Qwen2.5: as Llama, with biases on queries, keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from semu.nn import Embedding, LMHead, ModalityModule, ModalityRole, Model, Sequential, TransformerLayer
from semu_models.checks import check_divides, check_sizes


@dataclass(frozen=True)
class QwenConfig:
    """Sizes of a Qwen2.

    Attributes:
        layers, hidden, ffn, heads: of the transformer; ``ffn`` is the width of gate and of up.
        kv_heads: key/value heads, a divisor of heads.
        vocab: rows of the token table and of the output table.
    Raises:
        ConfigError: a size below 1, heads that do not divide.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int = 8
    vocab: int = 152064

    def __post_init__(self) -> None:
        check_sizes(self)
        check_divides(self, "hidden", "heads")
        check_divides(self, "heads", "kv_heads")


QWEN2_32B = QwenConfig(layers=64, hidden=5120, ffn=27648, heads=40)
"""Qwen2.5 32B (2412.15115 Table 1; DIP Table 2, which calls it Qwen2 32B)."""

QWEN2_72B = QwenConfig(layers=80, hidden=8192, ffn=29568, heads=64)
"""Qwen2 72B (2407.10671 Table 1; DIP Table 2)."""


class Qwen(Sequential):
    """Token ids [tokens] of the text stream -> scalar loss."""

    def __init__(self, config: QwenConfig) -> None:
        layers = {
            f"layers.{i}": TransformerLayer(
                config.hidden,
                config.ffn,
                config.heads,
                config.kv_heads,
                rotary=True,
                gated=True,
                rms_norm=True,
                bias=False,
                qkv_bias=True,
            )
            for i in range(config.layers)
        }
        embedding = Embedding(config.vocab, config.hidden)
        super().__init__({"embedding": embedding, **layers, "head": LMHead(config.hidden, config.vocab, rms_norm=True)})
        self.config = config


def _model(name: str, config: QwenConfig) -> Model:
    return Model(name, [ModalityModule("llm", ModalityRole.BACKBONE, Qwen(config))])


def qwen2_32b() -> Model:
    """Qwen2 32B."""
    return _model("qwen2-32b", QWEN2_32B)


def qwen2_72b() -> Model:
    """Qwen2 72B."""
    return _model("qwen2-72b", QWEN2_72B)
