"""``AttentionKernel``: which fused attention kernel a run calls, and ``AttentionFactors``: its time on a device.

A profile's attention coefficients are those of the fastest kernel that its measurements hold (on Hopper cuDNN's and
FlashAttention-3, on Ampere FlashAttention-2). Another kernel takes so many times as long, forward and backward apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from semu.checks import check_number
from semu.hardware.kinds import OpKind, Provenance
from semu.hardware.number import Number, worst_provenance
from semu.hardware.software import Software


class AttentionKernel(Enum):
    """A fused attention kernel; the value is run.toml's word.

    TRITON_FA1: the Triton kernel of the first FlashAttention. FA2, FA3: FlashAttention-2 and -3. CUDNN: cuDNN's. SDPA:
    PyTorch's ``scaled_dot_product_attention`` with its flash backend. FLEX: PyTorch's FlexAttention. TE: what
    Transformer Engine picks.
    """

    TRITON_FA1 = "triton-fa1"
    FA2 = "fa2"
    FA3 = "fa3"
    CUDNN = "cudnn"
    SDPA = "sdpa"
    FLEX = "flex"
    TE = "te"


RELATIVES: Mapping[AttentionKernel, AttentionKernel] = {
    AttentionKernel.SDPA: AttentionKernel.FA2,
    AttentionKernel.FLEX: AttentionKernel.FA2,
    AttentionKernel.TE: AttentionKernel.CUDNN,
}
"""Kernels that a profile may leave out -> the kernel whose factors they then take: PyTorch's flash backend is
FlashAttention-2, FlexAttention's Triton kernel was made to match it, Transformer Engine prefers cuDNN."""

CUDNN_SINCE = "2024-07"
"""Transformer Engine called FlashAttention-2 where it was installed before this date, and cuDNN on Hopper since."""

DETERMINISTIC_BACKWARD = Number(
    1.7,
    Provenance.DEFAULT,
    "deterministic attention backward / usual one: the dQ of blocks are added in a fixed order, not atomically",
)


@dataclass(frozen=True)
class AttentionFactors:
    """Time of a kernel / time by the profile's attention coefficients.

    Attributes:
        forward, backward: > 0.
    """

    forward: Number
    backward: Number

    def __post_init__(self) -> None:
        for name in PASSES:
            check_number(getattr(self, name).value, name, is_above=True)

    def of_kind(self, kind: OpKind) -> Number | None:
        """The factor of a kind of operator; None: it is no attention kernel."""
        return {OpKind.ATTENTION_FORWARD: self.forward, OpKind.ATTENTION_BACKWARD: self.backward}.get(kind)

    def deterministic(self) -> AttentionFactors:
        """Those of the kernel in its deterministic mode."""
        return replace(self, backward=times(self.backward, DETERMINISTIC_BACKWARD))


PASSES = ("forward", "backward")
_SAME = Number(1.0, Provenance.DEFAULT, "as the profile's attention coefficients")
SAME = AttentionFactors(_SAME, _SAME)


def times(one: Number, other: Number) -> Number:
    """The product of two factors; a factor of 1 leaves the other as it is."""
    if one.value == 1:
        return other
    if other.value == 1:
        return one
    provenance = worst_provenance(one.provenance, other.provenance)
    return Number(one.value * other.value, provenance, f"{one.source}; {other.source}")


def usual_kernel(software: Software, date: str | None) -> AttentionKernel | None:
    """The kernel that a framework called at a date.

    Args:
        software: the framework. date: YYYY-MM; None: today.
    Returns:
        None: kernels by themselves, as the profile has them.
    """
    if software is Software.KERNELS:
        return None
    if software.kernels is Software.TORCH:
        return AttentionKernel.SDPA
    return AttentionKernel.FA2 if date is not None and date < CUDNN_SINCE else AttentionKernel.TE
