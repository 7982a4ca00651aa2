"""What enters and leaves a block that several pipeline ranks run together.

Either each rank has a part of the block's weights: the tensor that arrives is at one of the ranks, and so is the
gradient of what leaves, which are broadcast to the others. NCCL's broadcast sends every byte once along its ring (the
factor of nccl-tests is 1); it is costed by the coefficients of an all-gather of as many wire bytes. The way back is
free: the rule of the split product sums over the ranks already.

Or all ranks run the same, each for a gradient of its own: every tensor that arrives is at another rank, and an
all-gather gives all to all. The way back is free: every rank has the gradient of what was its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from semu.graph.dim import Dim, Poly, divide
from semu.graph.operator import OpKind
from semu.graph.rounding import rounded
from semu.hardware.kinds import DType
from semu.nn.trace.tensor import Tensor


def enter_gang(given: Sequence[Tensor]) -> list[Tensor]:
    """Give what arrives to all ranks; backward: the gradients, as they are."""
    if not given or given[0].trace.options.gang_group is None:
        return list(given)
    trace, group = given[0].trace, given[0].trace.options.gang_group
    moved = [x for x in given if x.dtype not in (DType.INT64, DType.UINT8)]
    if trace.options.gang_gathers and moved:
        sent = [_share(x.size_bytes, group.num_ranks, trace.where) for x in moved]
        _exchange(moved, sum(sent[1:], start=sent[0]), "gather")
    elif not trace.options.gang_gathers:
        for x in moved:
            _exchange([x], x.size_bytes, "broadcast")
    return [trace.recorded([x], trace.view(x, x.shape, x.shards), _unchanged) if x in moved else x for x in given]


def _unchanged(grad: Tensor) -> list[Tensor | None]:
    return [grad]


def leave_gang(y: Tensor) -> Tensor:
    """What leaves, which is the same on all ranks; backward: broadcast its gradient."""
    trace = y.trace
    if trace.options.gang_group is None or not y.requires_grad or not y.ndim:
        return y
    return trace.recorded(
        [y],
        trace.view(y, y.shape, y.shards),
        lambda grad: [_exchange([grad], grad.size_bytes, "broadcast_bw")],
    )


def _share(size: Dim, count: int, where: str) -> Dim:
    """(n - 1) / n of a size, rounded up: what a mean rank sends of a tensor that a ring brings from one of n to all."""
    share = Fraction(count - 1, count)
    terms = size.terms.values() if isinstance(size, Poly) else [size]
    if all(term % count == 0 for term in terms):
        return divide(size * (count - 1), count, "features", where)
    return rounded(size, share, mean=share, where=where)


def _exchange(tensors: Sequence[Tensor], net_bytes: Dim, name: str) -> Tensor:
    """In place: who has a tensor sends it, the others receive it into a buffer of their own."""
    trace, group = tensors[0].trace, tensors[0].trace.options.gang_group
    assert group is not None
    return trace.emit(
        OpKind.ALL_GATHER,
        tensors,
        net_bytes=net_bytes,
        key=(group.num_ranks, group.num_nodes),
        stream=trace.communication_stream(group),
        updates=tensors,
        name=name,
    )
