"""``Conv1d``: a convolution along every sequence of a token stream."""

from __future__ import annotations

from semu.nn import functional as F
from semu.nn.module import Module, Parameter
from semu.nn.trace.tensor import Tensor


class Conv1d(Module):
    """A convolution over time, padded so that ceil(length / stride) tokens come out of a sequence.

    Args:
        in_features, out_features: channels. kernel: tokens that one sees. stride: tokens that become one.
    """

    def __init__(self, in_features: int, out_features: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.stride = stride
        self.weight = Parameter(out_features, in_features * kernel)
        self.bias = Parameter(out_features)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, in] -> [tokens / stride, out]."""
        return F.convolve_tokens(x, self.weight, self.bias, self.stride)
