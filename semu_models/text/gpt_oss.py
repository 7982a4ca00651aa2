"""GPT-OSS: experts with biases, clamped SwiGLU, windows of 128 tokens in every other layer, sinks (2508.10925 §2).

A sink is a learned logit per head in the denominator of the softmax, so that a head may attend to nothing. All
projections have biases, the router's too. Heads are 64 wide, of which 64 are more than hidden. The released weights of
the experts are quantised; here they have the precision that is trained.
"""

from __future__ import annotations

from typing import ClassVar

from semu.nn import Activation, MixtureOfExperts, Model
from semu.records import dataclass
from semu_models.text.decoder import ConfiguredDecoder, DecoderConfig, DecoderStyle, decoder_model


@dataclass(frozen=True, kw_only=True)
class GptOssConfig(DecoderConfig):
    """Sizes of a GPT-OSS.

    Attributes:
        ffn: inner width of an expert. experts, top_k: how many there are, how many a token uses.
    """

    hidden: int = 2880
    ffn: int = 2880
    heads: int = 64
    kv_heads: int = 8
    head_dim: int | None = 64
    vocab: int = 201088
    attention_bias: bool = True
    window: int | None = 128
    experts: int
    top_k: int = 4
    STYLE: ClassVar[DecoderStyle] = DecoderStyle(sinks=True, full_every=2)

    def mixture(self, layer: int) -> MixtureOfExperts:
        """In every layer."""
        return MixtureOfExperts(
            self.hidden, self.ffn, self.experts, self.top_k, bias=True, activation=Activation.CLAMPED_SILU
        )


GPT_OSS_20B = GptOssConfig(layers=24, experts=32)
"""gpt-oss-20b (2508.10925 Table 1; widths: config.json of the released checkpoint)."""
GPT_OSS_120B = GptOssConfig(layers=36, experts=128)
"""gpt-oss-120b (2508.10925 Table 1; widths: config.json of the released checkpoint)."""


class GptOss(ConfiguredDecoder):
    """Token ids [tokens] of the text stream -> scalar loss."""

    def __init__(self, config: GptOssConfig) -> None:
        super().__init__(config)


def gpt_oss_20b() -> Model:
    """gpt-oss-20b."""
    return decoder_model("gpt-oss-20b", GptOss(GPT_OSS_20B))


def gpt_oss_120b() -> Model:
    """gpt-oss-120b."""
    return decoder_model("gpt-oss-120b", GptOss(GPT_OSS_120B))
