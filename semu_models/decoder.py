"""``Decoder``: the chain of blocks that all decoder-only language models have, whatever their layers are."""

from __future__ import annotations

from collections.abc import Callable

from semu.nn import Embedding, LMHead, ModalityModule, ModalityRole, Model, Module, Sequential


class Decoder(Sequential):
    """Token ids [tokens] of the text stream -> scalar loss; members ``embedding``, ``layers.0`` ..., ``head``.

    Args:
        layers: number of layers. hidden: their width. vocab: rows of the token table.
        layer: makes a layer of a number, [tokens, hidden] -> [tokens, hidden].
        positions: rows of a learned position table; None: no table.
        tied: the output projection shares the token table.
        rms_norm: the final norm is RMS instead of layer norm.
        dropout: probability behind the embedding.
    """

    def __init__(
        self,
        layers: int,
        hidden: int,
        vocab: int,
        layer: Callable[[int], Module],
        *,
        positions: int | None = None,
        tied: bool = False,
        rms_norm: bool = False,
        dropout: float = 0.0,
    ) -> None:
        embedding = Embedding(vocab, hidden, positions=positions, dropout=dropout)
        head = LMHead(hidden, vocab, rms_norm=rms_norm, tied=embedding if tied else None)
        super().__init__({"embedding": embedding, **{f"layers.{i}": layer(i) for i in range(layers)}, "head": head})


def decoder_model(name: str, body: Decoder) -> Model:
    """A decoder trained alone: one backbone, ``llm``.

    Args:
        name: for reports. body: the decoder.
    """
    return Model(name, [ModalityModule("llm", ModalityRole.BACKBONE, body)])
