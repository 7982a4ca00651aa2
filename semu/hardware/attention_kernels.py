"""``AttentionKernel``: which fused attention kernel a run calls, and ``AttentionFactors``: its time on a device.

A profile's attention coefficients are those of the kernels that its measurements hold (mostly what inference engines
call). Another kernel takes so many times as long on long sequences, forward and backward apart, and loses more or less
on short ones (``s0_tokens``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum

from semu.checks import check_number
from semu.hardware.efficiency import Efficiency
from semu.hardware.kinds import OpKind, Provenance
from semu.hardware.number import Number, worst_provenance
from semu.hardware.software import Software, slowed
from semu.records import dataclass


class AttentionKernel(Enum):
    """A fused attention kernel; the value is run.toml's word.

    FA1: the first FlashAttention, also what xFormers ran. TRITON_FA1: its Triton kernel. FA2, FA3: FlashAttention-2 and
    -3. CUDNN: cuDNN's. SDPA: PyTorch's ``scaled_dot_product_attention`` with its flash backend. FLEX: PyTorch's
    FlexAttention. TE: what Transformer Engine picks.
    """

    FA1 = "fa1"
    TRITON_FA1 = "triton-fa1"
    FA2 = "fa2"
    FA3 = "fa3"
    CUDNN = "cudnn"
    SDPA = "sdpa"
    FLEX = "flex"
    TE = "te"


RELATIVES: Mapping[AttentionKernel, AttentionKernel] = {
    AttentionKernel.FA1: AttentionKernel.FA2,
    AttentionKernel.SDPA: AttentionKernel.FA2,
    AttentionKernel.FLEX: AttentionKernel.FA2,
    AttentionKernel.TE: AttentionKernel.CUDNN,
}
"""Kernels that a profile may leave out -> the kernel whose factors they then take: PyTorch's flash backend is
FlashAttention-2, FlexAttention's Triton kernel was made to match it, Transformer Engine prefers cuDNN. The first
FlashAttention is ``FIRST_FLASH`` times as slow as its relative."""

FIRST_FLASH = Number(
    2.0,
    Provenance.SPEC,
    "FlashAttention / FlashAttention-2: around 2 x (2307.08691, abstract; 1.7 to 3.0 over the shapes of its section 4)",
)

_HEAD_DIMS: Mapping[AttentionKernel, tuple[int, ...]] = {
    AttentionKernel.FA1: (32, 64, 128),
    AttentionKernel.TRITON_FA1: (16, 32, 64, 128, 256),
    AttentionKernel.FA2: (32, 64, 96, 128, 160, 192, 224, 256),
    AttentionKernel.FA3: (64, 96, 128, 192, 256),
}
"""Sizes of a head that a kernel is compiled for (flash-attention's ``static_switch.h``, Triton's ``BLOCK_HEADDIM``): a
head of another size is computed as one of the next, with zeros. Of cuDNN's kernels no such steps are known."""

FA2_IN_TORCH = "2024-01"
"""PyTorch 2.2, whose flash backend is FlashAttention-2; before it was the first."""

FA2_SINCE = "2023-08"
"""Month after FlashAttention-2 was published; frameworks that called the package had the first before."""

COMPARED: Mapping[AttentionKernel, AttentionKernel] = {AttentionKernel.TRITON_FA1: AttentionKernel.FA2}
"""Kernels whose factors are relative to those of another kernel: both are made of Ampere's instructions (``mma.sync``),
on Hopper too, so that what one takes of the other's time is the same on either."""

OWN_P = 3.0
"""How softly computing and memory meet in a kernel with a curve of its own, as in the measured backward kernels."""
OWN_MEM = 0.8
"""Share of the memory bandwidth that such a kernel reaches, where it is bound by memory: as element-wise kernels."""
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
        forward, backward: on long sequences, > 0.
        forward_s0_tokens, backward_s0_tokens: what short sequences lose, >= 0
            (``semu.hardware.shape_terms.attention_factor``); None: as by the profile's coefficients.
    """

    forward: Number
    backward: Number
    forward_s0_tokens: Number | None = None
    backward_s0_tokens: Number | None = None

    def __post_init__(self) -> None:
        for name in PASSES:
            check_number(getattr(self, name).value, name, is_above=True)
        for name in SHORT:
            if (number := getattr(self, name)) is not None:
                check_number(number.value, name)

    def of_kind(self, kind: OpKind) -> Number | None:
        """The factor of a kind of operator; None: it is no attention kernel."""
        return {OpKind.ATTENTION_FORWARD: self.forward, OpKind.ATTENTION_BACKWARD: self.backward}.get(kind)

    def slow(self, kind: OpKind, item: Efficiency, factor: Number) -> Efficiency:
        """A kind's coefficients with this kernel, in a run that slows it by a further factor."""
        of_kernel = self.of_kind(kind)
        if of_kernel is None:
            return slowed(item, factor)
        is_forward = kind is OpKind.ATTENTION_FORWARD
        short = self.forward_s0_tokens if is_forward else self.backward_s0_tokens
        if short is None:
            return slowed(item, times(of_kernel, factor))
        return replace(slowed(own_curve(item, short.value), times(of_kernel, factor)), mem=OWN_MEM)

    def of_times(self, other: AttentionFactors) -> AttentionFactors:
        """Factors of a kernel that takes these multiples of another one's time."""
        return AttentionFactors(
            times(self.forward, other.forward),
            times(self.backward, other.backward),
            self.forward_s0_tokens or other.forward_s0_tokens,
            self.backward_s0_tokens or other.backward_s0_tokens,
        )

    def deterministic(self) -> AttentionFactors:
        """Those of the kernel in its deterministic mode."""
        return replace(self, backward=times(self.backward, DETERMINISTIC_BACKWARD))


def own_curve(item: Efficiency, s0_tokens: float) -> Efficiency:
    """The coefficients of a kernel with a curve of its own: what short sequences lose, and no term for last tiles.

    Its memory traffic is that of any kernel: the factor is one of computing.
    """
    return replace(item, s0_tokens=s0_tokens, tile_rest=0.0, p=OWN_P, mem=OWN_MEM)


PASSES = ("forward", "backward")
SHORT = ("forward_s0_tokens", "backward_s0_tokens")
_SAME = Number(1.0, Provenance.DEFAULT, "as the profile's attention coefficients")
SAME = AttentionFactors(_SAME, _SAME)


def head_dims(kernel: AttentionKernel | None) -> tuple[int, ...]:
    """Sizes of a head that a kernel, or else its relative, is compiled for, ascending; empty: any."""
    if kernel is None or kernel in _HEAD_DIMS:
        return () if kernel is None else _HEAD_DIMS[kernel]
    return head_dims(RELATIVES.get(kernel))


def computed_head_dim(sizes: tuple[int, ...], head_dim: int) -> int:
    """The size that a head is computed as: the least of ``sizes`` that holds it; itself where none does."""
    return next((size for size in sizes if size >= head_dim), head_dim)


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
        return AttentionKernel.FA1 if date is not None and date < FA2_IN_TORCH else AttentionKernel.SDPA
    if date is not None and date < FA2_SINCE:
        return AttentionKernel.FA1
    return AttentionKernel.FA2 if date is not None and date < CUDNN_SINCE else AttentionKernel.TE
