"""Encoders that run frozen in the loop of a diffusion model: captions, and images to latents."""

from __future__ import annotations

from semu.checks import check_divides, check_sizes
from semu.nn import (
    Embedding,
    GroupNorm,
    InputSpec,
    LayerNorm,
    Linear,
    ModalityModule,
    ModalityRole,
    Module,
    Sequential,
    Tensor,
    TransformerLayer,
)
from semu.nn import functional as F
from semu.records import dataclass
from semu_models.generation.unet_layers import HALF, PixelAttention, ResBlock, conv3
from semu_models.text.encoder import VISION_STREAM


@dataclass(frozen=True)
class TextEncoderConfig:
    """Sizes of a text encoder.

    Attributes:
        layers, hidden, ffn, heads: of the transformer. vocab: rows of its token table.
        head_dim: None: hidden / heads. gated: its feed-forward networks (T5 1.1, 1910.10683).
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    vocab: int = 49408
    head_dim: int | None = None
    gated: bool = False

    def __post_init__(self) -> None:
        check_sizes(self, "layers", "hidden", "ffn", "heads", "vocab")
        if self.head_dim is None:
            check_divides(self, "hidden", "heads")


T5_XXL = TextEncoderConfig(layers=24, hidden=4096, ffn=10240, heads=64, vocab=32128, head_dim=64, gated=True)
"""The encoder of T5 1.1 XXL (1910.10683), 4.76 B parameters."""


class CaptionHead(Module):
    """Final norm; where the decoder reads another width, features side by side with other encoders', as a map."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.norm = LayerNorm(hidden)
        self.projection = Linear(hidden, width, bias=False) if width != hidden else None

    def forward(self, x: Tensor) -> Tensor:
        """[text tokens, hidden] -> [text tokens, width]."""
        x = self.norm(x)
        out: Tensor = x if self.projection is None else self.projection(x)
        return out


def caption_module(name: str, config: TextEncoderConfig, width: int | None) -> ModalityModule:
    """A text encoder, frozen.

    Args:
        name: of the module. config: sizes. width: of the features that the decoder reads; None: as they are.
    """
    layers = {
        f"layers.{i}": TransformerLayer(
            config.hidden, config.ffn, config.heads, head_dim=config.head_dim, causal=False, gated=config.gated
        )
        for i in range(config.layers)
    }
    embedding = Embedding(config.vocab, config.hidden)
    body = Sequential({"embedding": embedding, **layers, "head": CaptionHead(config.hidden, width or config.hidden)})
    body.requires_grad_(False)
    return ModalityModule(name, ModalityRole.ENCODER, body)


class PixelEncoder(Module):
    """Stable Diffusion's autoencoder, the half that encodes (2112.10752): 34.2 M parameters, 64 pixels a latent.

    ``image``: latents of one image, where a sequence holds several (the frames of a clip); None: it is one.
    """

    def __init__(
        self,
        width: int = 128,
        mult: tuple[int, ...] = (1, 2, 4, 4),
        latent_channels: int = 4,
        image: int | None = None,
    ) -> None:
        super().__init__()
        blocks: list[Module] = [conv3(3, width)]
        inputs = width
        for level, factor in enumerate(mult):
            for _ in range(2):
                blocks.append(ResBlock(inputs, factor * width, None))
                inputs = factor * width
            if level < len(mult) - 1:
                blocks.append(conv3(inputs, inputs, HALF))
        blocks += [ResBlock(inputs, inputs, None), PixelAttention(inputs, image), ResBlock(inputs, inputs, None)]
        self.count = len(blocks)
        for number, block in enumerate(blocks):
            setattr(self, f"block{number}", block)
        self.norm, self.conv = GroupNorm(inputs), conv3(inputs, 2 * latent_channels)
        self.moments = Linear(2 * latent_channels, 2 * latent_channels)

    def forward(self, pixels: Tensor) -> Tensor:
        """[pixels, 3] -> [pixels / 64, 2 latent channels]."""
        x = pixels
        for number in range(self.count):
            x = getattr(self, f"block{number}")(x)
        out: Tensor = self.moments(self.conv(F.silu(self.norm(x))))
        return out


def pixel_module(image: int | None = None) -> ModalityModule:
    """The autoencoder's half, frozen; images are sequences of pixels in the stream ``vision``.

    ``image``: latents of each of several images in a sequence; None: a sequence is one image.
    """
    body = Sequential({"encoder": PixelEncoder(image=image)})
    body.requires_grad_(False)
    return ModalityModule("vae", ModalityRole.ENCODER, body, (InputSpec(VISION_STREAM, 3),))
