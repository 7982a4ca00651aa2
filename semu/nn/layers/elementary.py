"""Elementary layers: linear, norms, embedding, activations, dropout."""

from __future__ import annotations

from semu.nn import functional as F
from semu.nn.module import Module, Parameter
from semu.nn.trace.tensor import Tensor


class Linear(Module):
    """``y = x W^T + b``.

    Args:
        in_features, out_features: global widths. bias: add b. parts: widths of the fused projections.
        bias_features: number of features with a bias; None: all.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        parts: tuple[int, ...] | None = None,
        bias_features: int | None = None,
    ) -> None:
        super().__init__()
        self.parts = parts
        self.weight = Parameter(out_features, in_features)
        self.bias = Parameter(out_features if bias_features is None else bias_features) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return F.linear(x, self.weight, self.bias, self.parts)


class LayerNorm(Module):
    """Layer norm over the last axis with weight and bias (``affine``)."""

    recompute_kind = "layernorm"

    def __init__(self, features: int, *, affine: bool = True) -> None:
        super().__init__()
        self.weight = Parameter(features) if affine else None
        self.bias = Parameter(features) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., features] -> the same."""
        return F.layer_norm(x, self.weight, self.bias)


class GroupNorm(LayerNorm):
    """Group norm over the channels of an image, with weight and bias."""

    def forward(self, x: Tensor) -> Tensor:
        """[pixels, channels] -> the same."""
        return F.group_norm(x, self.weight, self.bias)


class RMSNorm(Module):
    """RMS norm over the last axis with a weight."""

    recompute_kind = "layernorm"

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = Parameter(features)

    def forward(self, x: Tensor) -> Tensor:
        """[..., features] -> the same."""
        return F.rms_norm(x, self.weight)


class LayerScale(Module):
    """A learned number per feature, times a branch of a layer (CaiT, 2103.17239 §2)."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = Parameter(features)

    def forward(self, x: Tensor) -> Tensor:
        """[..., features] -> the same."""
        return F.scale_features(x, self.weight)


class Embedding(Module):
    """Token table [vocab, width]; with ``positions``, a learned position table is added; then dropout.

    ``scaled``: the rows are multiplied by sqrt(width) (1706.03762 §3.4; Gemma). ``norm``: a layer norm behind the table
    (BLOOM, 2211.05100).
    """

    def __init__(
        self,
        num_embeddings: int,
        width: int,
        positions: int | None = None,
        *,
        dropout: float = 0.0,
        scaled: bool = False,
        norm: bool = False,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.scaled = scaled
        self.norm = LayerNorm(width) if norm else None
        self.weight = Parameter(num_embeddings, width)
        self.positions = Parameter(positions, width) if positions is not None else None

    def forward(self, ids: Tensor) -> Tensor:
        """Ids [tokens] -> [tokens, width]."""
        x = F.embedding(ids, self.weight)
        if self.positions is not None:
            x = F.add_parameter(x, self.positions, self.positions.shape[0])
        x = F.shard_tokens(x)
        x = F.scale(x) if self.scaled else x
        return F.dropout(x if self.norm is None else self.norm(x), self.dropout)


class GELU(Module):
    """Gaussian error linear unit."""

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return F.gelu(x)


class SiLU(Module):
    """Sigmoid linear unit."""

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return F.silu(x)


class Dropout(Module):
    """Dropout with probability ``p``."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return F.dropout(x, self.p)
