"""Falcon (2311.16867): attention and feed-forward network side by side, few key heads, no gate, tied tables.

Falcon 7B has one norm for both branches and one key head (2023), the larger ones have a norm for each, or one again
(11B), and grouped queries; the RefinedWeb models (2306.01116) are sequential, with biases and ALiBi.

Under tensor parallelism each branch is gathered and reduced by itself here; code that adds the branches before it
reduces them sends half as much.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from semu.errors import ConfigError
from semu.nn import MLP, Activation, LayerNorm, Model, Module, SelfAttention, Tensor
from semu.records import dataclass
from semu_models.text.decoder import ConfiguredDecoder, DecoderConfig, DecoderStyle, decoder_model


@dataclass(frozen=True)
class FalconConfig(DecoderConfig):
    """Sizes of a Falcon.

    Attributes:
        norms: of a layer: 1 for both branches, 2 for one each. parallel: the branches are side by side; where they are
            not, ``norms`` is 2.
        rotary: rotary positions; false: ALiBi, which costs nothing of its own (see ``semu_models.text.bloom``).
        activation: of the feed-forward network.
    """

    vocab: int = 65024
    tied: bool = True
    norms: int = 1
    parallel: bool = True
    rotary: bool = True
    activation: Activation = Activation.GELU
    STYLE: ClassVar[DecoderStyle] = DecoderStyle(rms_norm=False, gated=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        legal = (1, 2) if self.parallel else (2,)
        if self.norms not in legal:
            raise ConfigError(
                "another number of norms than a layer can have",
                where="FalconConfig.norms",
                expected=" or ".join(map(str, legal)),
                got=self.norms,
                nearest=2,
            )

    @property
    def style(self) -> DecoderStyle:
        """With positions and activation."""
        return replace(self.STYLE, rotary=self.rotary, activation=self.activation)

    def layer(self, number: int) -> Module:
        """A new layer. ``number``: from 0."""
        return ParallelLayer(self) if self.parallel else super().layer(number)


class ParallelLayer(Module):
    """``x + attention(norm(x)) + mlp(norm(x))``."""

    fp8_region = True

    def __init__(self, config: FalconConfig) -> None:
        super().__init__()
        hidden = config.hidden
        self.attention_norm = LayerNorm(hidden)
        self.attention = SelfAttention(
            hidden,
            config.heads,
            config.kv_heads,
            head_dim=config.head_dim,
            rotary=config.rotary,
            rotary_dim=config.rotary_dim,
            bias=config.attention_bias,
        )
        self.mlp_norm = LayerNorm(hidden) if config.norms == 2 else None
        self.mlp = MLP(hidden, config.ffn, bias=config.mlp_bias, activation=config.activation)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]."""
        normed = self.attention_norm(x)
        wide = self.mlp(normed if self.mlp_norm is None else self.mlp_norm(x))
        out: Tensor = x + (self.attention(normed) + wide)
        return out


FALCON_7B = FalconConfig(layers=32, hidden=4544, ffn=18176, heads=71, kv_heads=1)
"""Falcon 7B (2311.16867 Table 14; config.json of falcon-7b)."""
FALCON_40B = FalconConfig(layers=60, hidden=8192, ffn=32768, heads=128, kv_heads=8, norms=2)
"""Falcon 40B (2311.16867 Table 14; config.json of falcon-40b)."""


def falcon_7b() -> Model:
    """Falcon 7B."""
    return decoder_model("falcon-7b", ConfiguredDecoder(FALCON_7B))


def falcon_40b() -> Model:
    """Falcon 40B."""
    return decoder_model("falcon-40b", ConfiguredDecoder(FALCON_40B))
