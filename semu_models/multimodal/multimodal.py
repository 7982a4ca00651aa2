"""Language models that read images and sounds: encoders whose tokens take places among the text's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semu.nn import Embedding, ModalityModule, ModalityRole, Model, Module, Sequential, Tensor
from semu.nn import functional as F


class ItemEmbedding(Module):
    """Text embedding with the tokens of images and clips written over it, encoder by encoder.

    Args:
        text: embeds all ids; the id of an image's or a clip's token is a placeholder.
    """

    def __init__(self, text: Embedding) -> None:
        super().__init__()
        self.text = text

    def forward(self, ids: Tensor, *items: Tensor) -> Tensor:
        """Ids [tokens], tokens of each encoder [n, hidden] -> [tokens, hidden]."""
        x: Tensor = self.text(ids)
        for tokens in items:
            x = F.scatter_tokens(tokens, into=x)
        return x


def make_multimodal(name: str, encoders: Sequence[ModalityModule], language: Sequential) -> Model:
    """The encoders, and the backbone ``llm``.

    An encoder's last member is its projector; freezing the encoder's name freezes it too, freezing its ``embedding``
    and ``layers`` (and ``norm``) keeps it training.

    Args:
        name: for reports. encoders: their tokens are as wide as the language model.
        language: members ``embedding``, ``layers.0`` ..., ``head``, as ``language_model`` makes them.
    """
    blocks: Mapping[str, Module] = dict(language.named_children())
    embedding = blocks["embedding"]
    assert isinstance(embedding, Embedding)
    body = Sequential({**blocks, "embedding": ItemEmbedding(embedding)})
    sources = tuple(encoder.name for encoder in encoders)
    return Model(name, [*encoders, ModalityModule("llm", ModalityRole.BACKBONE, body, sources=sources)])
