"""``Activation``: the non-linearities of feed-forward networks, and their gated forms.

All are pointwise kernels of one cost: what they read and write. Their names are those of the operators in a timeline.
"""

from __future__ import annotations

from enum import Enum

from semu.nn.rules.pointwise import activation, gated_activation
from semu.nn.trace.tensor import Tensor


class Activation(Enum):
    """A non-linearity.

    GELU (1606.08415), exact or by tanh; QUICK_GELU ``x sigmoid(1.702 x)`` (CLIP, 2103.00020); SILU (1710.05941); RELU;
    SQUARED_RELU (Primer, 2109.08668); CLAMPED_SILU of clamped operands (GPT-OSS, 2508.10925 §2.3).
    """

    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    QUICK_GELU = "quick_gelu"
    SILU = "silu"
    RELU = "relu"
    SQUARED_RELU = "squared_relu"
    CLAMPED_SILU = "clamped_silu"

    @classmethod
    def default(cls, *, gated: bool) -> Activation:
        """SILU where gated (SwiGLU), else GELU."""
        return cls.SILU if gated else cls.GELU

    @property
    def gated_name(self) -> str:
        """Of the kernel ``f(gate) * up`` (2002.05202)."""
        return _GATED.get(self, f"gated_{self.value}")

    def apply(self, x: Tensor, *, gated: bool) -> Tensor:
        """The kernel: elementwise, or of a fused [..., 2 f] tensor to [..., f]; saves its input."""
        return gated_activation(x, self.gated_name) if gated else activation(x, self.value)


_GATED = {
    Activation.SILU: "swiglu",
    Activation.GELU: "geglu",
    Activation.GELU_TANH: "geglu",
    Activation.RELU: "reglu",
    Activation.CLAMPED_SILU: "clamped_swiglu",
}
