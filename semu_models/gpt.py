"""GPT: layer norm, biases, learned positions, plain GELU feed-forward network, tied embeddings."""

from __future__ import annotations

from dataclasses import dataclass

from semu.nn import Model, TransformerLayer
from semu_models.checks import check_divides, check_sizes
from semu_models.decoder import Decoder, decoder_model


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a GPT; the feed-forward network is 4 x hidden wide.

    Attributes:
        layers, hidden, heads: of the transformer.
        vocab: rows of the token table, padding included.
        positions: rows of the position table, the longest context [tokens].
    Raises:
        ConfigError: a size below 1, heads that do not divide hidden.
    """

    layers: int
    hidden: int
    heads: int
    vocab: int = 51200
    positions: int = 2048

    def __post_init__(self) -> None:
        check_sizes(self)
        check_divides(self, "hidden", "heads")


GPT3_175B = GPTConfig(layers=96, hidden=12288, heads=96)
"""GPT-3 (2005.14165 Table 2.1) with Megatron-LM's padded vocabulary (2104.04473 §5.1)."""


class GPT(Decoder):
    """Token ids [tokens] of the text stream -> scalar loss.

    With l layers of width h, vocabulary V and s positions it has 12 l h^2 (1 + 13 / (12 h)) + (V + s) h parameters
    (2104.04473 §5.1) and the final norm's 2 h, which the paper leaves out.
    """

    def __init__(self, config: GPTConfig) -> None:
        def layer(_: int) -> TransformerLayer:
            return TransformerLayer(config.hidden, 4 * config.hidden, config.heads)

        super().__init__(config.layers, config.hidden, config.vocab, layer, positions=config.positions, tied=True)
        self.config = config


def gpt3_175b() -> Model:
    """GPT-3 175B, context 2048."""
    return decoder_model("gpt3-175b", GPT(GPT3_175B))
