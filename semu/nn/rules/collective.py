"""Collectives: how one is appended, and those of the tensor-parallel group.

Wire bytes per rank are f x buffer, the buffer as nccl-tests counts it (DESIGN §2). Gathers, scatters and all-reduces
append operators only; the layer rules that call them record the backward.

NCCL gathers along the first axis, rank after rank. Under DTensor tokens lie on the second, behind the sequences of a
microbatch: what was gathered is copied so that every sequence's parts are neighbours, what is to be scattered so that
every rank's are (``has_dtensor``; PyTorch, ``torch/distributed/_functional_collectives.py``: ``torch.cat`` of
``torch.chunk`` in ``all_gather_tensor`` and ``reduce_scatter_tensor`` wherever the axis is not the first). Its
asynchronous tensor parallelism moves the axis for nothing, but sums what the ranks sent in a kernel of its own
(``torch/distributed/_symmetric_memory``: ``stacked_partials`` of ``fused_matmul_reduce_scatter``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semu.errors import GraphError
from semu.graph.dim import Dim, divide
from semu.graph.operator import OpKind
from semu.graph.tensor import Role
from semu.hardware.kinds import DType
from semu.hardware.network import CommGroup, wire_factor
from semu.nn.rules.views import copy_like
from semu.nn.trace.tensor import Tensor


def wire_bytes(kind: OpKind, buffer_bytes: Dim, group: CommGroup, where: str) -> Dim:
    """Bytes that each rank sends: f x buffer, exactly.

    Args:
        kind: a collective. buffer_bytes: the whole buffer as nccl-tests counts it. group: its ranks.
        where: path for the error when f x buffer is not a whole number of bytes.
    """
    factor = wire_factor(kind, group.num_ranks)
    return divide(buffer_bytes * factor.numerator, factor.denominator, "a communication buffer", where)


def communicate(
    kind: OpKind,
    inputs: Sequence[Tensor],
    buffer_bytes: Dim,
    group: CommGroup,
    name: str,
    *,
    like: Tensor | None = None,
    updates: Sequence[Tensor] = (),
    role: Role = Role.ACTIVATION,
    extra_outputs: Sequence[tuple[Sequence[Dim], DType]] = (),
    beside: Sequence[int] | None = None,
) -> Tensor:
    """Append a collective or a transfer on the stream of its group.

    Args:
        buffer_bytes: the whole buffer as nccl-tests counts it. The other arguments: as ``Trace.emit``.
    """
    trace = inputs[0].trace
    return trace.emit(
        kind,
        inputs,
        like=like,
        net_bytes=wire_bytes(kind, buffer_bytes, group, trace.where),
        key=(group.num_ranks, group.num_nodes),
        stream=trace.communication_stream(group),
        role=role,
        updates=updates,
        name=name,
        extra_outputs=extra_outputs,
        beside=beside,
    )


def all_gather_tokens(x: Tensor) -> Tensor:
    """Gather the shards of axis 0: [tokens/tp, ...] on each rank becomes [tokens, ...]."""
    return _spread_anew(OpKind.ALL_GATHER, x, 1, Role.COMMUNICATION)


def reduce_scatter_tokens(x: Tensor) -> Tensor:
    """Sum over the ranks and keep one shard of axis 0."""
    ledger = x.trace.ledger
    if ledger is not None and ledger.place is not None:
        known = ledger.next()
        assert known is not None
        return replace(known[0], requires_grad=x.requires_grad)
    y = _spread_anew(OpKind.REDUCE_SCATTER, x, x.trace.options.plan.tp, Role.ACTIVATION)
    if ledger is not None:
        ledger.kept.append((y,))
    return y


def all_reduce(x: Tensor, group: CommGroup | None = None, name: str = "all_reduce") -> Tensor:
    """Sum over the ranks of a group (None: the tensor-parallel one); in place, as NCCL is used by Megatron-LM."""
    group = group if group is not None else x.trace.options.tp_group
    return communicate(OpKind.ALL_REDUCE, [x], x.size_bytes, group, name, updates=[x])


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

    def _exchange(source: Tensor, whole: int, split: int) -> Tensor:
        shards = list(source.shards)
        shards[whole], shards[split] = 1, group.num_ranks
        like = replace(source, shards=tuple(shards))
        return communicate(OpKind.ALL_TO_ALL, [source], source.size_bytes, group, "all_to_all", like=like)

    y = _exchange(x, gather, scatter)
    return trace.recorded([x], y, lambda grad: [_exchange(grad, scatter, gather)])


def send(x: Tensor, group: CommGroup) -> Tensor:
    """Move a tensor to a peer over the pair's link; backward sends the gradient back.

    Args:
        x: any tensor. group: the pair of ranks.
    """

    def _move(source: Tensor, name: str) -> Tensor:
        role = Role.COMMUNICATION
        return communicate(OpKind.P2P, [source], source.size_bytes, group, name, like=source, role=role)

    y = _move(x, "send")
    return x.trace.recorded([x], y, lambda grad: [_move(grad, "send_bw")])


def _spread_anew(kind: OpKind, x: Tensor, token_shards: int, role: Role) -> Tensor:
    """Gather or scatter axis 0 over the tensor-parallel group; the buffer is the whole tensor."""
    if x.ndim == 0:
        raise GraphError("a scalar has no tokens to gather or scatter", where=x.trace.where)
    like = replace(x, shards=(token_shards, *x.shards[1:]))
    options, whole = x.trace.options, x.size_bytes * x.shards[0]
    is_scatter, copies = kind is OpKind.REDUCE_SCATTER, options.has_dtensor and not options.overlap_tp
    if copies and is_scatter:
        x = copy_like(x, [x], 2 * x.size_bytes, f"{kind.value}.copy")
    y = communicate(kind, [x], whole, options.tp_group, kind.value, like=like, role=role)
    if copies and not is_scatter:
        y = copy_like(y, [y], 2 * y.size_bytes, f"{kind.value}.copy")
    if options.has_dtensor and options.overlap_tp and is_scatter:
        y = copy_like(y, [y], x.size_bytes + y.size_bytes, f"{kind.value}.sum")
    return y
