"""GPT: layer norm, biases, learned positions, plain GELU feed-forward network, tied embeddings.

GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners") and GPT-3 (2005.14165).
"""

from __future__ import annotations

from semu.checks import check_divides, check_sizes
from semu.nn import Model, TransformerLayer
from semu.records import dataclass
from semu_models.text.decoder import Decoder, decoder_model


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a GPT.

    Attributes:
        layers, hidden, heads: of the transformer.
        vocab: rows of the token table, padding included.
        positions: rows of the position table, the longest context [tokens].
        ffn: inner width of the feed-forward network; None: 4 x hidden.
        tied: the output projection shares the token table.
        dropout: probability on the attention's probabilities, after attention, feed-forward network and embedding.
    Raises:
        ConfigError: a size below 1, heads that do not divide hidden.
    """

    layers: int
    hidden: int
    heads: int
    vocab: int = 51200
    positions: int = 2048
    ffn: int | None = None
    tied: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_sizes(self)
        check_divides(self, "hidden", "heads")


GPT2 = GPTConfig(layers=12, hidden=768, heads=12, vocab=50257, positions=1024)
"""GPT-2 124M (its paper's Table 2; vocabulary and positions: §2.3). The paper's 117M is a miscount."""
GPT2_MEDIUM = GPTConfig(layers=24, hidden=1024, heads=16, vocab=50257, positions=1024)
"""GPT-2 355M (its paper's Table 2)."""
GPT2_LARGE = GPTConfig(layers=36, hidden=1280, heads=20, vocab=50257, positions=1024)
"""GPT-2 774M (its paper's Table 2)."""
GPT2_XL = GPTConfig(layers=48, hidden=1600, heads=25, vocab=50257, positions=1024)
"""GPT-2 1558M (its paper's Table 2)."""

GPT3_175B = GPTConfig(layers=96, hidden=12288, heads=96)
"""GPT-3 (2005.14165 Table 2.1) with Megatron-LM's padded vocabulary (2104.04473 §5.1)."""


class GPT(Decoder):
    """Token ids [tokens] of the text stream -> scalar loss.

    With l layers of width h, vocabulary V and s positions it has 12 l h^2 (1 + 13 / (12 h)) + (V + s) h parameters
    (2104.04473 §5.1) and the final norm's 2 h, which the paper leaves out.
    """

    def __init__(self, config: GPTConfig) -> None:
        def _layer(_: int) -> TransformerLayer:
            ffn = config.ffn if config.ffn is not None else 4 * config.hidden
            return TransformerLayer(config.hidden, ffn, config.heads, dropout=config.dropout)

        sizes = config.layers, config.hidden, config.vocab
        super().__init__(*sizes, _layer, positions=config.positions, tied=config.tied, dropout=config.dropout)
        self.config = config


def gpt2() -> Model:
    """GPT-2 124M."""
    return decoder_model("gpt2", GPT(GPT2))


def gpt2_medium() -> Model:
    """GPT-2 355M."""
    return decoder_model("gpt2-medium", GPT(GPT2_MEDIUM))


def gpt2_large() -> Model:
    """GPT-2 774M."""
    return decoder_model("gpt2-large", GPT(GPT2_LARGE))


def gpt2_xl() -> Model:
    """GPT-2 1.5B."""
    return decoder_model("gpt2-xl", GPT(GPT2_XL))


def gpt3_175b() -> Model:
    """GPT-3 175B, context 2048."""
    return decoder_model("gpt3-175b", GPT(GPT3_175B))
