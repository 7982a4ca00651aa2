"""Blocks of convolutional diffusion networks: residual blocks, spatial transformers, changes of resolution.

Pixels of a latent are the tokens of a sequence, row by row, so that a 3 x 3 convolution costs what one of nine taps
along the sequence costs; one of stride 2 makes a token of four.
"""

from __future__ import annotations

from semu.errors import GraphError
from semu.nn import MLP, Activation, CrossAttention, GroupNorm, LayerNorm, Linear, Module, SelfAttention, Tensor, Window
from semu.nn import functional as F
from semu.nn.layers.convolution import Conv1d

TAPS = 9
"""Of a 3 x 3 convolution."""
HALF = 4
"""Pixels that become one where both sides are halved."""


def conv3(inputs: int, outputs: int, stride: int = 1) -> Conv1d:
    """A 3 x 3 convolution; ``stride``: of the tokens, 1 or ``HALF``."""
    return Conv1d(inputs, outputs, TAPS, stride)


class ResBlock(Module):
    """Twice group norm, SiLU and convolution, beside the input (1505.04597 with 1512.03385; 2105.05233 §3).

    Args:
        inputs, outputs: channels. time: width of the timestep's embedding, added between; None: there is none.
    """

    def __init__(self, inputs: int, outputs: int, time: int | None) -> None:
        super().__init__()
        self.norm1, self.conv1 = GroupNorm(inputs), conv3(inputs, outputs)
        self.time = Linear(time, outputs) if time is not None else None
        self.norm2, self.conv2 = GroupNorm(outputs), conv3(outputs, outputs)
        self.skip = Conv1d(inputs, outputs, 1) if inputs != outputs else None

    def forward(self, x: Tensor, time: Tensor | None = None) -> Tensor:
        """[pixels, inputs], [images, time] -> [pixels, outputs]."""
        y = self.conv1(F.silu(self.norm1(x)))
        if self.time is not None and time is not None:
            y = F.add_rows(y, self.time(F.silu(time)))
        y = self.conv2(F.silu(self.norm2(y)))
        return y + (x if self.skip is None else self.skip(x))  # type: ignore[no-any-return]


class BiaslessCrossAttention(CrossAttention):
    """Cross-attention whose projections have no biases but for the last."""

    def __init__(self, hidden: int, heads: int, context: int) -> None:
        super().__init__(hidden, heads, context, bias=False)
        self.out = Linear(hidden, hidden)


class ChunkedMLP(MLP):
    """A gated feed-forward network whose gate and values are chunks of one product (diffusers' GEGLU)."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 4 * width, gated=True, activation=Activation.GELU)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, width] -> the same."""
        out: Tensor = self.down(self.activation.apply(F.joined_gradient(self.up(x)), gated=True))
        return out


class BasicTransformer(Module):
    """Self-attention, cross-attention on the caption and a gated feed-forward network, each behind a layer norm."""

    fp8_region = True

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.norm1, self.attention = LayerNorm(width), SelfAttention(width, heads, causal=False, qkv_bias=False)
        self.norm2, self.cross_attention = LayerNorm(width), BiaslessCrossAttention(width, heads, context)
        self.norm3, self.mlp = LayerNorm(width), ChunkedMLP(width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """[pixels, width], [text tokens, context] -> [pixels, width]."""
        x = x + self.attention(self.norm1(x))
        x = x + self.cross_attention(self.norm2(x), context)
        return x + self.mlp(self.norm3(x))  # type: ignore[no-any-return]


class SpatialTransformer(Module):
    """Group norm and a projection, transformer layers over all pixels, a projection; beside the input (2112.10752)."""

    def __init__(self, width: int, heads: int, context: int, depth: int) -> None:
        super().__init__()
        self.norm, self.inward, self.outward = GroupNorm(width), Linear(width, width), Linear(width, width)
        self.depth = depth
        for number in range(depth):
            setattr(self, f"layer{number}", BasicTransformer(width, heads, context))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """[pixels, width], [text tokens, context] -> [pixels, width]."""
        y = self.inward(F.between_layouts(self.norm(x)))
        for number in range(self.depth):
            y = getattr(self, f"layer{number}")(y, context)
        return x + F.between_layouts(self.outward(y))


class Upsample(Module):
    """Every pixel four times, and a convolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = conv3(width, width)

    def forward(self, x: Tensor, like: Tensor) -> Tensor:
        """[pixels, width] -> as many pixels as ``like``, which is not read.

        Raises:
            GraphError: ``like`` is no stream.
        """
        if like.sequences is None:
            raise GraphError("pixels without a packing", where=x.trace.where, expected="a data stream")
        out: Tensor = self.conv(F.repeat_tokens(x, like.sequences))
        return out


class PixelAttention(Module):
    """One head over all pixels behind a group norm, beside the input.

    ``image``: pixels that see one another; None: all of a sequence.
    """

    def __init__(self, width: int, image: int | None = None) -> None:
        super().__init__()
        window = Window.chunked(image) if image is not None else None
        self.norm, self.attention = GroupNorm(width), SelfAttention(width, 1, causal=False, window=window)

    def forward(self, x: Tensor) -> Tensor:
        """[pixels, width] -> the same."""
        return x + self.attention(self.norm(x))  # type: ignore[no-any-return]
