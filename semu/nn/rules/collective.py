"""Collectives of the tensor-parallel group and their backward.

Wire bytes per rank are f x buffer, the buffer as nccl-tests counts it (DESIGN §2). The forward rules below append
operators only; the layer rules that call them know the matching backward.
"""

from __future__ import annotations

from semu.errors import GraphError
from semu.graph.dim import Dim, divide
from semu.graph.operator import OpKind
from semu.graph.tensor import Role
from semu.hardware.network import CommGroup, wire_factor
from semu.nn.tensor import Tensor


def wire_bytes(kind: OpKind, buffer_bytes: Dim, group: CommGroup, where: str) -> Dim:
    """Bytes that each rank sends: f x buffer, exactly.

    Args:
        kind: a collective. buffer_bytes: the whole buffer as nccl-tests counts it. group: its ranks.
        where: path for the error when f x buffer is not a whole number of bytes.
    """
    factor = wire_factor(kind, group.num_ranks)
    return divide(buffer_bytes * factor.numerator, factor.denominator, "a communication buffer", where)


def all_gather_tokens(x: Tensor) -> Tensor:
    """Gather the shards of axis 0: [tokens/tp, ...] on each rank becomes [tokens, ...]."""
    return _collective(OpKind.ALL_GATHER, x, token_shards=1, buffer="output")


def reduce_scatter_tokens(x: Tensor) -> Tensor:
    """Sum over the ranks and keep one shard of axis 0."""
    return _collective(OpKind.REDUCE_SCATTER, x, token_shards=x.trace.options.plan.tp, buffer="input")


def all_reduce(x: Tensor) -> Tensor:
    """Sum over the ranks, everywhere; in place, as NCCL is used by Megatron-LM."""
    trace = x.trace
    group = trace.options.tp_group
    trace.emit(
        OpKind.ALL_REDUCE,
        [x],
        net_bytes=wire_bytes(OpKind.ALL_REDUCE, x.size_bytes, group, trace.path),
        key=(group.num_ranks, group.num_nodes),
        stream=trace.communication_stream(group),
        name="all_reduce",
        updates=[x],
    )
    return x


def _collective(kind: OpKind, x: Tensor, *, token_shards: int, buffer: str) -> Tensor:
    trace = x.trace
    group = trace.options.tp_group
    if x.ndim == 0:
        raise GraphError("a scalar has no tokens to gather or scatter", where=trace.path)
    whole = x.size_bytes * x.shards[0] if buffer == "output" else x.size_bytes
    return trace.emit(
        kind,
        [x],
        x.shape,
        shards=(token_shards, *x.shards[1:]),
        dtype=x.dtype,
        sequences=x.sequences,
        net_bytes=wire_bytes(kind, whole, group, trace.path),
        key=(group.num_ranks, group.num_nodes),
        stream=trace.communication_stream(group),
        role=Role.COMMUNICATION if kind is OpKind.ALL_GATHER else Role.ACTIVATION,
        name=kind.value,
    )
