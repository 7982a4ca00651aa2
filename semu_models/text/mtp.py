"""Multi-token prediction (DeepSeek-V3, 2412.19437 §2.2): further layers behind a decoder, each one token ahead.

Module k normalises the representation of depth k - 1 and the embedding of the token that is k further on, projects both
side by side to the model's width, and runs one transformer layer; embedding and output table are the model's. So the
model ends in a second modality module, ``mtp``, which also makes the main loss: its first block looks the ids up again,
on the ranks of the last layers (as Megatron-LM does on its last pipeline stage). If the first layers are on other
ranks, both hold the shared table and its gradients are summed, like those of tied embeddings.
"""

from __future__ import annotations

from collections.abc import Callable

from semu.nn import (
    TEXT_IDS,
    Embedding,
    LayerNorm,
    Linear,
    LMHead,
    ModalityModule,
    ModalityRole,
    Model,
    Module,
    ModuleList,
    RMSNorm,
    Sequential,
    Tensor,
)
from semu.nn import functional as F
from semu_models.text.decoder import Decoder


class FurtherEmbeddings(Module):
    """The embeddings of the ids, shifted once for every depth.

    Args:
        text: the model's embedding. depths: how many.
    """

    def __init__(self, text: Embedding, depths: int) -> None:
        super().__init__()
        self.text, self.depths = text, depths

    def forward(self, ids: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        """Ids [tokens], what the last layer made [tokens, hidden] -> x, and an embedding [tokens, hidden] per depth."""
        return (x, *(self.text(ids) for _ in range(self.depths)))


class PredictionLayer(Module):
    """One depth; tensors of other depths pass through.

    The projection is replicated: under sequence parallelism each rank projects its tokens (Megatron-LM splits the
    columns and gathers the result).

    Args:
        number: of the depth, from 0. hidden: width. layer: the transformer layer. rms_norm: kind of the norms.
    """

    fp8_region = True

    def __init__(self, number: int, hidden: int, layer: Module, *, rms_norm: bool = True) -> None:
        super().__init__()
        self.number = number
        self.hidden_norm = _norm(hidden, is_rms=rms_norm)
        self.embedding_norm = _norm(hidden, is_rms=rms_norm)
        self.projection = Linear(2 * hidden, hidden, bias=False)
        self.layer = layer

    def forward(self, *carry: Tensor) -> tuple[Tensor, ...]:
        """Representations of depths 0 to ``number``, embeddings of those to come -> one more, one less."""
        done, embedding, rest = carry[: self.number + 1], carry[self.number + 1], carry[self.number + 2 :]
        both = F.concatenate(self.hidden_norm(done[-1]), self.embedding_norm(embedding))
        return (*done, self.layer(self.projection(both)), *rest)


class PredictionHead(Module):
    """The losses of all depths, from one output table, summed.

    Args:
        head: of the main model. hidden: width. depths: how many further tokens are predicted. rms_norm: kind of norms.
    """

    def __init__(self, head: LMHead, hidden: int, depths: int, *, rms_norm: bool = True) -> None:
        super().__init__()
        self.main = head
        self.norms = ModuleList([_norm(hidden, is_rms=rms_norm) for _ in range(depths)])

    def forward(self, x: Tensor, *further: Tensor) -> Tensor:
        """Representations [tokens, hidden] of all depths -> scalar loss."""
        losses = [self.main(x)]
        losses += [F.cross_entropy(self.main.projection(n(y))) for n, y in zip(self.norms, further, strict=True)]
        return F.add_losses(losses)


def _norm(hidden: int, *, is_rms: bool) -> Module:
    return RMSNorm(hidden) if is_rms else LayerNorm(hidden)


def predicting_model(
    name: str, body: Decoder, hidden: int, layers: int, layer: Callable[[int], Module], *, rms_norm: bool = True
) -> Model:
    """A decoder with multi-token prediction: modules ``llm``, without its head, and ``mtp``.

    Args:
        name: for reports. body: the decoder. hidden: its width. layers: further tokens that are predicted.
        layer: makes the transformer layer of a depth, from 0. rms_norm: kind of the norms.
    """
    blocks = dict(body.named_children())
    head, embedding = blocks.pop("head"), blocks["embedding"]
    assert isinstance(head, LMHead) and isinstance(embedding, Embedding)
    further = Sequential(
        {
            "embedding": FurtherEmbeddings(embedding, layers),
            **{f"layers.{i}": PredictionLayer(i, hidden, layer(i), rms_norm=rms_norm) for i in range(layers)},
            "head": PredictionHead(head, hidden, layers, rms_norm=rms_norm),
        }
    )
    return Model(
        name,
        [
            ModalityModule("llm", ModalityRole.BACKBONE, Sequential(blocks)),
            ModalityModule("mtp", ModalityRole.DECODER, further, inputs=(TEXT_IDS,), sources=("llm",)),
        ],
    )
