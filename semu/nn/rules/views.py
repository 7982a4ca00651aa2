"""Views: other shapes of the same storage; they cost nothing forward. The backward of a split is one copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semu.errors import GraphError
from semu.graph.dim import Dim
from semu.graph.operator import OpKind
from semu.nn.trace.eager import JOIN, eager_moves
from semu.nn.trace.parameter_use import ParameterUse
from semu.nn.trace.tensor import Sequences, Tensor


def copy_like(
    like: Tensor, sources: Sequence[Tensor | ParameterUse], mem_bytes: Dim, name: str, elements: Dim | None = None
) -> Tensor:
    """Append a copying kernel whose result looks like another tensor.

    Args:
        like: shape, shards, type and packing of the result. sources: what is read. mem_bytes: bytes moved on one rank.
        elements: the shape key; None: those of the result.
    """
    key = () if elements is None else (elements,)
    return like.trace.emit(OpKind.COPY, sources, like=like, mem_bytes=mem_bytes, key=key, name=name)


def copy_both(a: Tensor, b: Tensor, shape: Sequence[Dim], name: str, sequences: Sequences | None = None) -> Tensor:
    """Append the copy of two tensors into one of a shape; its packing is that of ``a``, or ``sequences``."""
    return a.trace.emit(
        OpKind.COPY,
        [a, b],
        shape,
        like=a,
        sequences=sequences,
        mem_bytes=2 * (a.size_bytes + b.size_bytes),
        key=(a.numel + b.numel,),
        name=name,
    )


def split(x: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Views of consecutive parts of the last axis.

    A view keeps the whole storage alive, as in PyTorch. Where x is split over the group, each part is split the same
    way (the layout of a fused QKV or gate-up weight). Backward: one concatenating copy.

    Args:
        x: [..., n]. sizes: global sizes, summing to n.
    Raises:
        GraphError: sizes that do not sum to n, or a part that the group does not divide.
    """
    if sum(sizes) != x.shape[-1]:
        raise GraphError(
            "the parts do not make up the axis",
            where=x.trace.where,
            expected=f"a sum of {x.shape[-1]}",
            got=list(sizes),
        )
    parts = tuple(x.trace.view(x, (*x.shape[:-1], size), x.shards) for size in sizes)

    def _backward(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        arrived = [gradient for gradient in gradients if gradient is not None]
        return [copy_like(x, arrived, 2 * x.size_bytes, "concatenate_grad")]

    x.trace.record([x], parts, _backward)
    return parts


def concatenate(a: Tensor, b: Tensor) -> Tensor:
    """Two tensors side by side along the last axis: one copy; the gradients are views of the one that arrives.

    Args:
        a, b: [..., n] and [..., m], split alike over the group, the last axis whole.
    Raises:
        GraphError: other axes that differ, or a last one that is split.
    """
    if a.shape[:-1] != b.shape[:-1] or a.shards != b.shards or a.shards[-1] != 1:
        raise GraphError(
            "tensors that do not lie side by side",
            where=a.trace.where,
            expected=f"{a.shape} split {a.shards}, but for the last axis, which is whole",
            got=f"{b.shape} split {b.shards}",
        )
    y = copy_both(a, b, (*a.shape[:-1], a.shape[-1] + b.shape[-1]), "concatenate")
    return a.trace.recorded([a, b], y, lambda grad: [a.trace.view(grad, part.shape, part.shards) for part in (a, b)])


def joined_gradient(x: Tensor) -> Tensor:
    """``x``, whose halves eager mode reads apart (``chunk``): their gradients are copied into one."""

    def _backward(grad: Tensor) -> list[Tensor | None]:
        eager_moves(grad, JOIN, "join_bw", kind=OpKind.COPY)
        return [grad]

    return x.trace.recorded([x], replace(x), _backward)


def unflatten(x: Tensor, outer: int, inner: int) -> Tensor:
    """View [..., outer x inner] as [..., outer, inner]; a shard of the last axis becomes one of ``outer``.

    Raises:
        GraphError: the sizes do not match, or the group does not divide ``outer`` (e.g. heads by tp).
    """
    if x.shape[-1] != outer * inner:
        raise GraphError(
            "the axis does not unfold", where=x.trace.where, expected=f"{outer} x {inner}", got=x.shape[-1]
        )
    _check_heads(outer, x)
    return _reshape(x, (*x.shape[:-1], outer, inner), (*x.shards, 1))


def split_heads(x: Tensor, heads: Sequence[int], head_dim: int) -> tuple[Tensor, ...]:
    """Views of a fused projection [..., sum(heads) x head_dim] as [..., heads_i, head_dim], one per part.

    Args:
        x: the projection, split over the group or not. heads: global heads of each part (queries, keys, values).
    Raises:
        GraphError: sizes that do not match, or heads that the group does not divide.
    """
    for count in heads:
        _check_heads(count, x, "heads" if count == heads[0] else "key-value heads")
    parts = split(x, [count * head_dim for count in heads])
    return tuple(unflatten(part, count, head_dim) for part, count in zip(parts, heads, strict=True))


def _check_heads(heads: int, x: Tensor, what: str = "heads") -> None:
    shards = x.shards[-1]
    if heads % shards:
        raise GraphError(
            f"{heads} {what} cannot be split over a tensor-parallel group of {shards}",
            where=x.trace.where,
            expected=f"a divisor of {heads}",
            got=f"tp = {shards}",
            nearest=max(n for n in range(1, shards + 1) if heads % n == 0),
        )


def flatten(x: Tensor) -> Tensor:
    """View [..., a, b] as [..., a x b]."""
    if x.ndim < 2 or x.shards[-1] != 1:
        raise GraphError("nothing to flatten", where=x.trace.where, expected="[..., a, b], b whole", got=x.shape)
    return _reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1]), x.shards[:-1])


def _reshape(x: Tensor, shape: Sequence[Dim], shards: Sequence[int]) -> Tensor:
    view = x.trace.view(x, shape, shards)
    return x.trace.recorded([x], view, lambda grad: [x.trace.view(grad, x.shape, x.shards)])
