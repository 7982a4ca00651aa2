"""Functional face of the operator rules (``import semu.nn.functional as F``), by PyTorch's names where it has one."""

from __future__ import annotations

from semu.nn.module import Parameter
from semu.nn.rules.attention.joint import concatenate_features, concatenate_tokens, split_tokens
from semu.nn.rules.attention.scaled_dot_product import attention
from semu.nn.rules.attention.shared_heads import share_heads
from semu.nn.rules.collective import all_reduce, all_to_all, send
from semu.nn.rules.embeddings import embedding, merge_tokens, scatter_tokens, shard_tokens
from semu.nn.rules.few_channels import as_convolution
from semu.nn.rules.loss import add_losses, cross_entropy, mean_squared_error
from semu.nn.rules.matrix_products import linear, matmul
from semu.nn.rules.norms import norm
from semu.nn.rules.pointwise import (
    activation,
    add,
    add_parameter,
    add_rows,
    dropout,
    gated_activation,
    gated_add,
    modulate,
    multiply,
    rope,
    softcap,
)
from semu.nn.rules.rows import mean_rows
from semu.nn.rules.scaling import scale, scale_features
from semu.nn.rules.tokens import (
    between_layouts,
    convolve_tokens,
    drop_tokens,
    first_tokens,
    pool_tokens,
    prepend_token,
    rename_tokens,
    repeat_token,
    repeat_tokens,
    select_tokens,
)
from semu.nn.rules.views import concatenate, flatten, joined_gradient, split, split_heads, unflatten
from semu.nn.trace.tensor import Tensor

__all__ = [
    "activation",
    "add",
    "add_losses",
    "add_parameter",
    "add_rows",
    "all_reduce",
    "all_to_all",
    "as_convolution",
    "attention",
    "between_layouts",
    "concatenate",
    "concatenate_features",
    "concatenate_tokens",
    "convolve_tokens",
    "cross_entropy",
    "drop_tokens",
    "dropout",
    "embedding",
    "first_tokens",
    "flatten",
    "gated_activation",
    "gated_add",
    "gelu",
    "group_norm",
    "joined_gradient",
    "layer_norm",
    "linear",
    "matmul",
    "mean_rows",
    "mean_squared_error",
    "merge_tokens",
    "modulate",
    "multiply",
    "norm",
    "pool_tokens",
    "prepend_token",
    "rename_tokens",
    "repeat_token",
    "repeat_tokens",
    "rms_norm",
    "rope",
    "scale",
    "scale_features",
    "scatter_tokens",
    "select_tokens",
    "send",
    "shard_tokens",
    "share_heads",
    "silu",
    "softcap",
    "split",
    "split_heads",
    "split_tokens",
    "swiglu",
    "unflatten",
]


def gelu(x: Tensor) -> Tensor:
    """Gaussian error linear unit; saves its input."""
    return activation(x, "gelu")


def silu(x: Tensor) -> Tensor:
    """Sigmoid linear unit; saves its input."""
    return activation(x, "silu")


def swiglu(x: Tensor) -> Tensor:
    """``silu(gate) * up`` of a fused [..., 2 f] tensor; saves its input."""
    return gated_activation(x, "swiglu")


def layer_norm(x: Tensor, weight: Parameter | None = None, bias: Parameter | None = None) -> Tensor:
    """Layer norm over the last axis; saves x, mean and deviation."""
    return norm(x, weight, bias, num_statistics=2, name="layer_norm")


def group_norm(x: Tensor, weight: Parameter | None = None, bias: Parameter | None = None) -> Tensor:
    """Group norm over groups of channels of an image [pixels, channels] (1803.08494); saves x, means and deviations."""
    return norm(x, weight, bias, num_statistics=2, name="group_norm")


def rms_norm(x: Tensor, weight: Parameter | None = None) -> Tensor:
    """RMS norm over the last axis; saves x and one statistic per row."""
    return norm(x, weight, None, num_statistics=1, name="rms_norm")
