"""Collectives of the tensor-parallel group and their backward.

Wire bytes per rank are f x buffer, the buffer as nccl-tests counts it (DESIGN §2). The forward rules below append
operators only; the layer rules that call them know the matching backward.
"""

from __future__ import annotations

from dataclasses import replace

from semu.errors import GraphError
from semu.graph.dim import Dim, divide
from semu.graph.operator import OpKind
from semu.graph.tensor import Role
from semu.hardware.network import CommGroup, wire_factor
from semu.nn.trace.tensor import Tensor


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
    ledger = x.trace.ledger
    if ledger is not None and ledger.place is not None:
        known = ledger.next()
        assert known is not None
        return replace(known[0], requires_grad=x.requires_grad)
    y = _collective(OpKind.REDUCE_SCATTER, x, token_shards=x.trace.options.plan.tp, buffer="input")
    if ledger is not None:
        ledger.kept.append((y,))
    return y


def all_reduce(x: Tensor) -> Tensor:
    """Sum over the ranks, everywhere; in place, as NCCL is used by Megatron-LM."""
    trace = x.trace
    group = trace.options.tp_group
    trace.emit(
        OpKind.ALL_REDUCE,
        [x],
        net_bytes=wire_bytes(OpKind.ALL_REDUCE, x.size_bytes, group, trace.where),
        key=(group.num_ranks, group.num_nodes),
        stream=trace.communication_stream(group),
        name="all_reduce",
        updates=[x],
    )
    return x


def all_to_all(x: Tensor, *, gather: int, scatter: int) -> Tensor:
    """Exchange shards so that axis ``gather`` becomes whole and axis ``scatter`` split (DeepSpeed-Ulysses, 2309.14509).

    Args:
        x: split over the group on axis ``gather`` only. gather, scatter: axes.
    Backward: the opposite exchange.
    Raises:
        GraphError: ``gather`` is not split, or ``scatter`` is, or does not divide.
    """
    trace, group = x.trace, x.trace.options.tp_group
    if group.num_ranks == 1:
        return x
    if x.shards[gather] != group.num_ranks or x.shards[scatter] != 1:
        raise GraphError(
            "nothing to exchange",
            where=trace.where,
            expected=f"axis {gather} split {group.num_ranks} ways, axis {scatter} whole",
            got=x.shards,
        )

    def exchange(source: Tensor, whole: int, split: int) -> Tensor:
        shards = list(source.shards)
        shards[whole], shards[split] = 1, group.num_ranks
        return trace.emit(
            OpKind.ALL_TO_ALL,
            [source],
            source.shape,
            shards=shards,
            like=source,
            net_bytes=wire_bytes(OpKind.ALL_TO_ALL, source.size_bytes, group, trace.where),
            key=(group.num_ranks, group.num_nodes),
            stream=trace.communication_stream(group),
            name="all_to_all",
        )

    y = exchange(x, gather, scatter)
    return trace.recorded([x], y, lambda grad: [exchange(grad, scatter, gather)])


def send(x: Tensor, group: CommGroup) -> Tensor:
    """Move a tensor to a peer over the pair's link; backward sends the gradient back.

    Args:
        x: any tensor. group: the pair of ranks.
    """
    trace = x.trace

    def move(source: Tensor, name: str) -> Tensor:
        return trace.emit(
            OpKind.P2P,
            [source],
            like=source,
            net_bytes=wire_bytes(OpKind.P2P, source.size_bytes, group, trace.where),
            key=(group.num_ranks, group.num_nodes),
            stream=trace.communication_stream(group),
            role=Role.COMMUNICATION,
            name=name,
        )

    y = move(x, "send")
    return trace.recorded([x], y, lambda grad: [move(grad, "send_bw")])


def _collective(kind: OpKind, x: Tensor, *, token_shards: int, buffer: str) -> Tensor:
    trace = x.trace
    group = trace.options.tp_group
    if x.ndim == 0:
        raise GraphError("a scalar has no tokens to gather or scatter", where=trace.where)
    whole = x.size_bytes * x.shards[0] if buffer == "output" else x.size_bytes
    return trace.emit(
        kind,
        [x],
        x.shape,
        shards=(token_shards, *x.shards[1:]),
        like=x,
        net_bytes=wire_bytes(kind, whole, group, trace.where),
        key=(group.num_ranks, group.num_nodes),
        stream=trace.communication_stream(group),
        role=Role.COMMUNICATION if kind is OpKind.ALL_GATHER else Role.ACTIVATION,
        name=kind.value,
    )
