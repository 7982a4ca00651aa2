"""BERT: bidirectional attention, norms behind the additions, segment embeddings, a masked-token and a sentence loss.

As transformers' ``BertForPreTraining`` (1810.04805). The masked-token loss is taken over all tokens, as in
Megatron-LM and transformers (tokens without mask are ignored after the product): a head that first picks the masked
15 % would do less.
"""

from __future__ import annotations

from semu.checks import check_divides, check_probability, check_sizes
from semu.nn import (
    Dropout,
    Embedding,
    LayerNorm,
    Linear,
    LMHead,
    ModalityModule,
    ModalityRole,
    Model,
    Module,
    NormPlacement,
    Parameter,
    Sequential,
    Tensor,
    TransformerLayer,
)
from semu.nn import functional as F
from semu.nn.layers.transformer import TiedLinear
from semu.records import dataclass


@dataclass(frozen=True)
class BertConfig:
    """Sizes of a BERT.

    Attributes:
        layers, hidden, ffn, heads: of the transformer.
        vocab, positions, segments: rows of the token, position and segment tables.
        dropout: behind the embedding, on the attention's probabilities and behind either branch.
        next_sentence: a pooled first token tells whether the second sentence follows the first; false: only masked
            tokens are learned (``BertForMaskedLM``), without pooler.
    Raises:
        ConfigError: a size below 1, heads that do not divide hidden, a probability out of range.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    vocab: int = 30522
    positions: int = 512
    segments: int = 2
    dropout: float = 0.1
    next_sentence: bool = True

    def __post_init__(self) -> None:
        check_sizes(self, "layers", "hidden", "ffn", "heads", "vocab", "positions", "segments")
        check_divides(self, "hidden", "heads")
        check_probability(self.dropout, "BertConfig.dropout")


BERT_BASE = BertConfig(layers=12, hidden=768, ffn=3072, heads=12)
"""1810.04805 §3; bert-base-uncased."""
BERT_LARGE = BertConfig(layers=24, hidden=1024, ffn=4096, heads=16)
"""1810.04805 §3; bert-large-uncased."""


class BertEmbedding(Module):
    """Tokens, positions and segments, a norm, dropout."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.tokens = Embedding(config.vocab, config.hidden, positions=config.positions)
        self.segments = Parameter(config.segments, config.hidden)
        self.norm = LayerNorm(config.hidden)
        self.dropout = Dropout(config.dropout)

    def forward(self, ids: Tensor) -> Tensor:
        """Ids [tokens] -> [tokens, hidden]."""
        x = F.add_parameter(self.tokens(ids), self.segments, self.segments.shape[0])
        out: Tensor = self.dropout(self.norm(x))
        return out


class TiedDecoder(TiedLinear):
    """A projection with the token table as its weight, and a bias."""

    def __init__(self, table: Parameter) -> None:
        super().__init__(table)
        self.bias = Parameter(table.shape[0])

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, vocab]."""
        return F.linear(x, self.weight, self.bias)


class BertHead(LMHead):
    """Losses of masked tokens (dense layer, GELU, norm, tied projection) and of the next sentence, added.

    Args:
        config: sizes. table: of the tokens.
    """

    def __init__(self, config: BertConfig, table: Parameter) -> None:
        Module.__init__(self)
        hidden = config.hidden
        self.transform = Linear(hidden, hidden)
        self.norm = LayerNorm(hidden)
        self.projection = TiedDecoder(table)
        self.pooler = Linear(hidden, hidden) if config.next_sentence else None
        self.sentence = Linear(hidden, 2) if config.next_sentence else None

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> scalar loss."""
        loss = F.cross_entropy(self.projection(self.norm(F.gelu(self.transform(x)))))
        if self.pooler is not None and self.sentence is not None:
            pooled = F.activation(self.pooler(F.first_tokens(x)), "tanh")
            loss = F.add_losses([loss, F.cross_entropy(self.sentence(pooled))])
        return loss


class Bert(Sequential):
    """Token ids [tokens] of the text stream -> scalar loss; members ``embedding``, ``layers.0`` ..., ``head``."""

    def __init__(self, config: BertConfig) -> None:
        embedding = BertEmbedding(config)
        layers = {
            f"layers.{i}": TransformerLayer(
                config.hidden,
                config.ffn,
                config.heads,
                causal=False,
                dropout=config.dropout,
                placement=NormPlacement.POST,
            )
            for i in range(config.layers)
        }
        super().__init__({"embedding": embedding, **layers, "head": BertHead(config, embedding.tokens.weight)})
        self.config = config


def make_bert(name: str, config: BertConfig) -> Model:
    """One backbone, ``bert``.

    Args:
        name: for reports. config: sizes.
    """
    return Model(name, [ModalityModule("bert", ModalityRole.BACKBONE, Bert(config))])


def bert_base() -> Model:
    """BERT base with both losses."""
    return make_bert("bert-base", BERT_BASE)


def bert_large() -> Model:
    """BERT large with both losses."""
    return make_bert("bert-large", BERT_LARGE)
