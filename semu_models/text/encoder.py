"""Parts that encoders share: embeddings of patches, pooling heads, projectors, and tensors held but not used."""

from __future__ import annotations

from semu.graph.dim import Poly, divide
from semu.nn import MLP, CrossAttention, LayerNorm, Linear, Module, Parameter, Tensor
from semu.nn import functional as F
from semu.nn.merging import Merging, Rounding
from semu.nn.streams import renamed
from semu.nn.trace.tensor import Sequences

VISION_STREAM = "vision"
"""Patches, one sequence per image, tile or frame of a video."""
VISION_TOKENS = "vision_tokens"
"""Merged patches, one sequence per image: what a backbone receives."""


class ImageEmbedding(Module):
    """Colour values of patches -> features: the convolution with stride = kernel, a class token, positions, a norm.

    Args:
        features: colour values of a patch. hidden: width. bias: of the convolution.
        positions: rows of the learned table, the class token's included; None: no table.
        class_token: a learned token before every image. pre_norm: a norm behind the positions (CLIP).
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        positions: int | None = None,
        *,
        bias: bool = True,
        class_token: bool = False,
        pre_norm: bool = False,
    ) -> None:
        super().__init__()
        self.features = features
        self.projection = Linear(features, hidden, bias=bias)
        self.class_token = Parameter(1, hidden) if class_token else None
        self.positions = Parameter(positions, hidden) if positions is not None else None
        self.norm = LayerNorm(hidden) if pre_norm else None

    def forward(self, patches: Tensor) -> Tensor:
        """[patches, features] -> [patches (+ images), hidden]."""
        x = F.as_convolution(self.projection(F.shard_tokens(patches)), self.features)
        if self.class_token is not None:
            x = F.prepend_token(x, self.class_token)
        if self.positions is not None:
            x = F.add_parameter(x, self.positions, self.positions.shape[0])
        out: Tensor = x if self.norm is None else self.norm(x)
        return out


class Norm(Module):
    """A norm as a pipeline block."""

    def __init__(self, norm: Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> the same."""
        out: Tensor = self.norm(x)
        return out


class AttentionPooling(Module):
    """One token per image: a learned query attends to all patches, then a feed-forward network (SigLIP, 2303.15343).

    Args:
        hidden, ffn, heads: sizes. mlp: the feed-forward network's activation comes with it.
    """

    def __init__(self, hidden: int, heads: int, mlp: MLP) -> None:
        super().__init__()
        self.probe = Parameter(1, hidden)
        self.attention = CrossAttention(hidden, heads)
        self.norm = LayerNorm(hidden)
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:
        """[patches, hidden] -> [images, hidden]."""
        pooled = self.attention(F.repeat_token(x, self.probe), x)
        out: Tensor = pooled + self.mlp(self.norm(pooled))
        return out


class FeatureLoss(Module):
    """What a tower learns that is trained alone: features of a teacher, by squared error (2208.06366 §3.1)."""

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> scalar loss."""
        return F.mean_squared_error(x)


class Held(Module):
    """Parameters that a published model has and its training never uses: frozen weights in memory, no work.

    Every tensor-parallel rank holds them whole.

    Args:
        parts: modules whose parameters they are.
    """

    is_held_only = True

    def __init__(self, *parts: Module) -> None:
        super().__init__()
        for number, part in enumerate(parts):
            setattr(self, f"part{number}", part)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """The same tensor."""
        for _, parameter in self.named_parameters():
            x.trace.parameter(parameter)
        return x


def merged_images(group: int, length: int | None = None, item: str = "image") -> Merging:
    """Images of which ``group`` patches make a token. ``length``: patches of every image; None: any number."""
    steps = ((group, Rounding.EXACT),) if group > 1 else ()
    return Merging(VISION_STREAM, VISION_TOKENS, steps, length, item=item)


def tokens_of(x: Tensor, stream: str, group: int = 1) -> Sequences:
    """Packing of the backbone's tokens that ``x`` becomes: in the symbols of ``stream``, or ``group`` times fewer.

    Args:
        x: [tokens, ...]. stream: of the result. group: tokens of ``x`` that become one.
    Raises:
        GraphError: a concrete number of tokens that is no multiple of ``group``.
    """
    where, packing = x.trace.path, x.sequences
    if packing is not None and isinstance(packing.tokens, Poly):
        return renamed(packing, stream)
    tokens = divide(packing.tokens if packing is not None else x.shape[0], group, "an image", where)
    if packing is None:
        return Sequences(stream, tokens, tokens * tokens, 1, tokens)
    length = divide(packing.length, group, "an image", where) if packing.length is not None else None
    pairs = divide(packing.pairs, group * group, "an image", where)
    return Sequences(stream, tokens, pairs, packing.count, length, packing.pair_unit, packing.module)
