"""``Decoder``: the chain of blocks that all decoder-only language models have.

``DecoderConfig`` and ``DecoderStyle`` describe the families whose layers differ in data only; the file of a family says
what is special about it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from semu.checks import check_divides, check_sizes
from semu.errors import ConfigError
from semu.nn import (
    Activation,
    Embedding,
    LMHead,
    ModalityModule,
    ModalityRole,
    Model,
    Module,
    NormPlacement,
    Sequential,
    TransformerLayer,
    Window,
)
from semu.records import dataclass


@dataclass(frozen=True)
class DecoderStyle:
    """Properties of the layers of a family, sizes aside.

    Attributes:
        rms_norm, rotary, gated, activation, placement, qk_norm, whole_norm, sinks: as ``TransformerLayer``.
        qkv_bias: queries, keys and values have biases.
        softcap: bound of the attention's scores. logit_softcap: of the logits. None: there is none.
        scaled_embedding: token embeddings are multiplied by sqrt(hidden). embedding_norm: a norm is behind them.
        full_every: every ``full_every``-th layer attends to the whole sequence although there is a window; None: none.
    """

    rms_norm: bool = True
    rotary: bool = True
    gated: bool = True
    activation: Activation | None = None
    placement: NormPlacement = NormPlacement.PRE
    qk_norm: bool = False
    whole_norm: bool = False
    qkv_bias: bool = False
    sinks: bool = False
    softcap: float | None = None
    logit_softcap: float | None = None
    scaled_embedding: bool = False
    embedding_norm: bool = False
    full_every: int | None = None


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of a decoder-only language model; families set ``STYLE`` and defaults.

    Attributes:
        layers, hidden, ffn, heads: of the transformer; ``ffn`` is the inner width, of gate and of up each.
        kv_heads: key/value heads, a divisor of heads.
        vocab: rows of the token table and of the output table.
        head_dim: width of a head; None: hidden / heads.
        tied: the output projection shares the token table.
        attention_bias, mlp_bias: all projections of the attention, of the feed-forward network have biases.
        window: reach of the sliding windows [tokens]; None: every layer attends to the whole sequence.
        windowed: which layers have the window; None: as the style says.
        rotary_dim: features of a head that are rotated; None: all.
        STYLE: of the family.
    Raises:
        ConfigError: a size below 1, heads that do not divide, not one entry of ``windowed`` per layer.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    head_dim: int | None = None
    tied: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    window: int | None = None
    windowed: tuple[bool, ...] | None = None
    rotary_dim: int | None = None
    STYLE: ClassVar[DecoderStyle] = DecoderStyle()

    def __post_init__(self) -> None:
        check_sizes(self)
        if self.head_dim is None:
            check_divides(self, "hidden", "heads")
        check_divides(self, "heads", "kv_heads")
        if self.windowed is not None and (len(self.windowed) != self.layers or self.window is None):
            raise ConfigError(
                "windows that do not fit the layers",
                where=f"{type(self).__name__}.windowed",
                expected=f"{self.layers} entries, and a window",
                got=f"{len(self.windowed)} entries, window = {self.window}",
            )

    @property
    def style(self) -> DecoderStyle:
        """Properties of the layers."""
        return self.STYLE

    def window_of(self, layer: int) -> Window | None:
        """The window of a layer. ``layer``: its number, from 0."""
        if self.window is None:
            return None
        every = self.style.full_every
        is_windowed = (every is None or (layer + 1) % every != 0) if self.windowed is None else self.windowed[layer]
        return Window.sliding(self.window) if is_windowed else None

    def mixture(self, layer: int) -> Module | None:
        """A mixture of experts in place of a layer's feed-forward network; None: there is none."""
        return None

    def layer(self, number: int) -> Module:
        """A new layer. ``number``: from 0."""
        style = self.style
        return TransformerLayer(
            self.hidden,
            self.ffn,
            self.heads,
            self.kv_heads,
            head_dim=self.head_dim,
            rotary=style.rotary,
            rotary_dim=self.rotary_dim,
            gated=style.gated,
            rms_norm=style.rms_norm,
            bias=False,
            attention_bias=self.attention_bias,
            mlp_bias=self.mlp_bias,
            qkv_bias=True if style.qkv_bias else None,
            qk_norm=style.qk_norm,
            whole_norm=style.whole_norm,
            mlp=self.mixture(number),
            activation=style.activation,
            placement=style.placement,
            window=self.window_of(number),
            sinks=style.sinks,
            softcap=style.softcap,
        )


class Decoder(Sequential):
    """Token ids [tokens] of the text stream -> scalar loss; members ``embedding``, ``layers.0`` ..., ``head``.

    Args:
        layers: number of layers. hidden: their width. vocab: rows of the token table.
        layer: makes a layer of a number, [tokens, hidden] -> [tokens, hidden].
        positions: rows of a learned position table; None: no table.
        tied: the output projection shares the token table.
        rms_norm: the final norm is RMS instead of layer norm.
        dropout: probability behind the embedding.
        scaled: embeddings are multiplied by sqrt(hidden). embedding_norm: a layer norm behind the embedding.
        softcap: bound of the logits; None: there is none.
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
        scaled: bool = False,
        embedding_norm: bool = False,
        softcap: float | None = None,
    ) -> None:
        embedding = Embedding(vocab, hidden, positions=positions, dropout=dropout, scaled=scaled, norm=embedding_norm)
        head = LMHead(hidden, vocab, rms_norm=rms_norm, tied=embedding if tied else None, softcap=softcap)
        super().__init__({"embedding": embedding, **{f"layers.{i}": layer(i) for i in range(layers)}, "head": head})


class ConfiguredDecoder(Decoder):
    """The decoder of a ``DecoderConfig``: token ids [tokens] of the text stream -> scalar loss."""

    def __init__(self, config: DecoderConfig) -> None:
        style = config.style
        super().__init__(
            config.layers,
            config.hidden,
            config.vocab,
            config.layer,
            tied=config.tied,
            rms_norm=style.rms_norm,
            scaled=style.scaled_embedding,
            embedding_norm=style.embedding_norm,
            softcap=style.logit_softcap,
        )
        self.config = config


def decoder_model(name: str, body: Decoder) -> Model:
    """A decoder trained alone: one backbone, ``llm``.

    Args:
        name: for reports. body: the decoder.
    """
    return Model(name, [ModalityModule("llm", ModalityRole.BACKBONE, body)])
