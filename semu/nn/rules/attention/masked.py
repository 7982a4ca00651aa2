"""Attention under a mask whose tiles are counted: other masks than a causal one, windows and policies of context ranks.

FLOP that a kernel computes are those of its tiles, 2 x 128^2 heads (d + d_v) each; those of the model are of allowed
pairs alone. What differs between context ranks comes with the batch (``semu.nn.masked_kernel``). Sinks and caps of
scores cost nothing more than without context parallelism.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from semu.errors import ConfigError, GraphError
from semu.graph.dim import Poly, divide
from semu.graph.operator import OpKind
from semu.graph.tensor import Role
from semu.nn.masked_kernel import GATHERED, TILE_EDGE, WHOLE, MaskedKernel
from semu.nn.rules.attention.context import around_ring, by_heads, with_gathered
from semu.nn.rules.attention.fused import AttentionKernel, fused_attention
from semu.nn.rules.collective import communicate
from semu.nn.rules.views import copy_like
from semu.nn.trace.parameter_use import ParameterUse
from semu.nn.trace.sharding import ContextKind
from semu.nn.trace.tensor import Tensor, laid_out_like
from semu.nn.window import Window


def counts_tiles(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: Window | None) -> bool:
    """Whether tiles decide what an attention costs: it is over a data stream's own tokens, and its mask, its window or
    the policy of context ranks ask for it."""
    packing, options = q.sequences, q.trace.options
    if packing is None or packing != k.sequences or not isinstance(packing.pairs, Poly) or packing.module:
        return False
    ranks = options.cp_group.num_ranks
    return options.masking.counts(packing.stream, causal=causal, window=window, ranks=ranks)


def masked_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: Window | None, sinks: ParameterUse | None
) -> Tensor:
    """Attention of this rank's queries, the keys reached as ``cp_kind`` says.

    Args:
        q, k, v, causal, window, sinks: as ``fused_attention``.
    Returns:
        [query tokens, heads, d_v].
    Raises:
        ConfigError: separate kernels, or a ring between groups of context ranks.
    """
    trace = q.trace
    options, ranks = trace.options, trace.options.cp_group.num_ranks
    _check(q, options.fused_attention, options.cp_levels is not None)
    if ranks > 1 and options.cp_kind is ContextKind.ALL_TO_ALL:
        whole = partial(_whole, causal=causal, window=window, sinks=sinks)
        return by_heads(q, k, v, options.cp_group, whole)
    if ranks == 1:
        return _whole(q, k, v, causal=causal, window=window, sinks=sinks)
    if options.cp_kind is ContextKind.RING:

        def _kernel_at(step: int) -> AttentionKernel:
            return _kernel(q, k, v, str(step), causal, window, sinks if step == 0 else None)

        return around_ring(q, k, v, options.cp_group, _kernel_at, is_halved=False)
    if options.masking.by_head:
        return _head_by_head(q, k, v, causal=causal, window=window, sinks=sinks)
    return with_gathered(q, k, v, _kernel(q, k, v, GATHERED, causal, window, sinks))


def _whole(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: Window | None, sinks: ParameterUse | None
) -> Tensor:
    """All queries and keys of some heads on one rank."""
    return fused_attention(q, k, v, causal=causal, kernel=_kernel(q, k, v, WHOLE, causal, window, sinks))


def _kernel(
    q: Tensor, k: Tensor, v: Tensor, scope: str, causal: bool, window: Window | None, sinks: ParameterUse | None
) -> AttentionKernel:
    """The kernel of a scope (``semu.nn.masked_kernel``)."""
    trace = q.trace
    masking, packing = trace.options.masking, q.sequences
    assert packing is not None
    plain = AttentionKernel.of(q, k, v, causal=causal, sinks=sinks)
    label = masking.label(packing.stream, causal=causal)
    tiles = MaskedKernel(
        packing.stream, label, window.label if window is not None else "", plain.heads, masking.split, scope
    )
    ranks = trace.options.cp_group.num_ranks if scope == GATHERED else 1
    pairs = TILE_EDGE**2 * tiles.size("tiles")
    return replace(plain, tiles=tiles, pairs=pairs, key_tokens=ranks * plain.key_tokens, is_masked=False)


def _head_by_head(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, window: Window | None, sinks: ParameterUse | None
) -> Tensor:
    """Keys and values of a head are gathered under the kernels of the head before (Cornstarch, 3.4.3).

    One message for every head of keys, or of queries (``cp_gather_heads``): t = gather(first) + sum over heads of
    max(kernel of h, gather of h + 1). Backward: the same again, and after every head dK and dV are reduced and
    scattered while the kernels wait, as in its implementation. Gathered tensors are read as they arrive.
    """
    trace = q.trace
    group, masking = trace.options.cp_group, trace.options.masking
    whole = _kernel(q, k, v, GATHERED, causal, window, sinks)
    heads = whole.heads if masking.query_heads else whole.kv_heads
    tiles = whole.tiles
    assert tiles is not None
    kernel = replace(
        whole,
        heads=_divide_heads(whole.heads, heads, q),
        kv_heads=1,
        tiles=replace(tiles, heads=_divide_heads(whole.heads, heads, q)),
    )
    part_bytes = divide(k.size_bytes + v.size_bytes, whole.kv_heads, "keys and values of a head", trace.where)
    ranks = group.num_ranks
    one = replace(k, shape=(ranks * k.shape[0], k.shards[1], k.shape[2] + v.shape[2]), sequences=None)

    def _gather(name: str, after: int | None) -> Tensor:
        beside = None if after is None else [after]
        return communicate(
            *(OpKind.ALL_GATHER, [k, v], ranks * part_bytes, group, name),
            like=one,
            role=Role.COMMUNICATION,
            beside=beside,
        )

    before, arrived = trace.last_kernel, _gather("gather_kv", None)
    made: tuple[Tensor, Tensor] | None = None
    for number in range(heads):
        here, after = arrived, trace.last_kernel
        if number < heads - 1:
            arrived, before = _gather("gather_kv", before), after
        made = kernel.forward(q, [here], "attention", made)
        kernel.aggregate(q, made[0])
    assert made is not None
    y, statistics = made

    def _backward(grad: Tensor) -> list[Tensor | None]:
        grad_q: Tensor | None = None
        scattered = []
        for _ in range(heads):
            keys = _gather("gather_kv_bw", None)
            reads = [q, keys, y, statistics, grad]
            written = [(keys.local_shape, k.dtype)]
            grad_q, (part,) = kernel.backward(q, reads, "attention_bw", written, grad_q)
            of_rank = replace(one, shape=(k.shape[0], *one.shape[1:]))
            part = laid_out_like(part, one)
            scattered.append(
                communicate(OpKind.REDUCE_SCATTER, [part], part.size_bytes, group, "scatter_grad_kv", like=of_rank)
            )
        return [grad_q, *(copy_like(x, scattered, 2 * x.size_bytes, f"join_grad_{n}") for n, x in (("k", k), ("v", v)))]

    return trace.recorded([q, k, v], y, _backward)


def _divide_heads(heads: int, parts: int, q: Tensor) -> int:
    """Heads of one of several kernels."""
    if heads % parts:
        raise GraphError("heads that do not divide", where=q.trace.where, expected=f"a multiple of {parts}", got=heads)
    return heads // parts


def _check(q: Tensor, is_fused: bool, has_levels: bool) -> None:
    if not is_fused:
        raise ConfigError(
            "masks in separate kernels are not modelled by this version",
            where="training.attention",
            expected='"fused", or training.attention_mask = "causal"',
            got="unfused",
            nearest="fused",
        )
    if has_levels:
        raise ConfigError(
            f"masks, windows and policies ({q.trace.where}) with a ring between groups of context ranks are not "
            "modelled by this version",
            where="parallel.cp_inner",
            expected="1, or all context ranks",
            got="groups",
            nearest=1,
        )
