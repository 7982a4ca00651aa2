"""What enters and leaves a block that several pipeline ranks run together, each with its part of the weights.

The tensor that arrives is at one of the ranks, and so is the gradient of what leaves: it is broadcast to the others.
NCCL's broadcast sends every byte once along its ring (the factor of nccl-tests is 1); it is costed by the coefficients
of an all-gather of as many wire bytes. The way back is free: the rule of the split product sums over the ranks already.
"""

from __future__ import annotations

from semu.graph.operator import OpKind
from semu.hardware.kinds import DType
from semu.nn.trace.tensor import Tensor


def enter_gang(x: Tensor) -> Tensor:
    """Broadcast what arrives; backward: the gradient, which is the same on all ranks."""
    trace = x.trace
    if trace.options.gang_group is None or x.dtype in (DType.INT64, DType.UINT8):
        return x
    _broadcast(x, "broadcast")
    return trace.recorded([x], trace.view(x, x.shape, x.shards), lambda grad: [grad])


def leave_gang(y: Tensor) -> Tensor:
    """What leaves, which is the same on all ranks; backward: broadcast its gradient."""
    trace = y.trace
    if trace.options.gang_group is None or not y.requires_grad or not y.ndim:
        return y
    return trace.recorded([y], trace.view(y, y.shape, y.shards), lambda grad: [_broadcast(grad, "broadcast_bw")])


def _broadcast(x: Tensor, name: str) -> Tensor:
    """In place: one rank sends, the others receive into a buffer of their own."""
    trace, group = x.trace, x.trace.options.gang_group
    assert group is not None
    return trace.emit(
        OpKind.ALL_GATHER,
        [x],
        net_bytes=x.size_bytes,
        key=(group.num_ranks, group.num_nodes),
        stream=trace.communication_stream(group),
        updates=[x],
        name=name,
    )
