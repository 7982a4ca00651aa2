"""Collectives of the context-parallel group: gather and reduce-scatter of tokens, all-to-all, the ring's transfers.

A context rank's graph shows the tokens of that rank; gathered tensors have cp times as many. Since a rank's two chunks
are not neighbours, a copy puts arriving rows in order, and another packs rows that leave for other ranks
(Transformer Engine's ``get_seq_chunk_ids_for_reordering_before_attn`` and ``flash_attn_a2a_communicate``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semu.graph.dim import Dim, divide
from semu.graph.operator import OpKind
from semu.graph.tensor import Role
from semu.hardware.network import CommGroup
from semu.nn.rules.collective import communicate
from semu.nn.rules.views import copy_like
from semu.nn.trace.tensor import Sequences, Tensor


def gather_context(x: Tensor, group: CommGroup, name: str) -> Tensor:
    """[tokens, ...] of every rank of a group of n, put in order: [n x tokens, ...]."""
    like = replace(x, shape=(group.num_ranks * x.shape[0], *x.shape[1:]), sequences=whole_sequences(x, group))
    whole = communicate(
        OpKind.ALL_GATHER, [x], group.num_ranks * x.size_bytes, group, name, like=like, role=Role.COMMUNICATION
    )
    return _rearranged(whole, f"{name}_order")


def reduce_scatter_context(x: Tensor, like: Tensor, group: CommGroup, name: str) -> Tensor:
    """Sum [n x tokens, ...] over a group's n ranks and keep one rank's [tokens, ...], laid out as ``like``."""
    x = _rearranged(x, f"{name}_pack")
    return communicate(OpKind.REDUCE_SCATTER, [x], x.size_bytes, group, name, like=like)


def heads_for_tokens(x: Tensor, group: CommGroup, name: str) -> Tensor:
    """Exchange so that each rank has some heads of all tokens: [tokens, heads, d] -> [cp x tokens, heads, d], the heads
    split over the context group, or the part of it that ``group`` is, too. Backward: the opposite exchange (2309.14509
    §3.1)."""
    ranks = group.num_ranks
    shape, shards = (ranks * x.shape[0], *x.shape[1:]), (x.shards[0], x.shards[1] * ranks, *x.shards[2:])
    there = replace(x, shape=shape, shards=shards, sequences=whole_sequences(x, group))
    return _exchanged(x, there, group, name, copies=True)


def tokens_for_heads(x: Tensor, like: Tensor, group: CommGroup, name: str) -> Tensor:
    """The opposite of ``heads_for_tokens``: all heads of this rank's tokens, tokens and heads as in ``like``."""
    there = replace(x, shape=(like.shape[0], *x.shape[1:]), shards=like.shards, sequences=like.sequences)
    return _exchanged(x, there, group, name, copies=True)


def redistribute_tokens(x: Tensor) -> Tensor:
    """Move rows to the context ranks that need them: an all-to-all each way, as large as ``x``."""
    return _exchanged(x, x, x.trace.options.cp_group, "redistribute", copies=False)


def pass_on(
    parts: Sequence[Tensor],
    group: CommGroup,
    name: str,
    *,
    after: int,
    role: Role = Role.COMMUNICATION,
    behind: Sequence[Tensor] = (),
) -> tuple[Tensor, ...]:
    """Send tensors to the next rank of the ring as one message, and receive those of the rank before.

    It runs beside the computation: only readers of the received tensors wait for it.

    Args:
        parts: what is sent. group: the ring. name: of the operator. role: of what is received.
        after: operator that it waits for, so that at most two buffers are in use; -1: none.
        behind: further tensors that it waits for.
    """
    first, *others = parts
    received = communicate(
        OpKind.P2P,
        [*parts, *behind],
        sum((x.size_bytes for x in others), first.size_bytes),
        group,
        name,
        like=first,
        role=role,
        extra_outputs=[(x.local_shape, x.dtype) for x in others],
        beside=[after],
    )
    sides = first.trace.side_outputs(len(others)) if others else []
    return (received, *(replace(side, shape=x.shape, shards=x.shards) for side, x in zip(sides, others, strict=True)))


def whole_sequences(x: Tensor, group: CommGroup) -> Sequences | None:
    """Packing of all tokens of a group's ranks together."""
    ranks, own = group.num_ranks, x.sequences
    if own is None:
        return None
    length = None if own.length is None else ranks * own.length
    return replace(
        own, tokens=ranks * own.tokens, pairs=ranks * own.pairs, length=length, pair_unit=ranks * own.pair_unit
    )


def _exchanged(x: Tensor, there: Tensor, group: CommGroup, name: str, *, copies: bool) -> Tensor:
    """An all-to-all to another layout of equal size; backward: the opposite exchange.

    Args:
        x: what is exchanged. there: the result's layout. group: between whom. name: of the operators.
        copies: rows are packed before the exchange and put in order after it.
    """

    def _exchange(source: Tensor, to: Tensor, label: str) -> Tensor:
        source = _rearranged(source, f"{label}_pack") if copies else source
        received = communicate(OpKind.ALL_TO_ALL, [source], source.size_bytes, group, label, like=to)
        return _rearranged(received, f"{label}_order") if copies else received

    y = _exchange(x, there, name)
    return x.trace.recorded([x], y, lambda grad: [_exchange(grad, x, f"{name}_bw")])


def _rearranged(x: Tensor, name: str) -> Tensor:
    """The same rows in another order: one copy."""
    return copy_like(x, [x], 2 * x.size_bytes, name)


def half(dim: Dim, where: str) -> Dim:
    """One of a rank's two chunks."""
    return divide(dim, 2, "a context rank's tokens", where)
