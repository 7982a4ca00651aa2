"""Attention under a mask whose tiles are counted: other masks than a causal one, windows and policies of context ranks.

FLOP that a kernel computes are those of its tiles, 2 x 128^2 heads (d + d_v) each; those of the model are of allowed
pairs alone. What differs between context ranks comes with the batch (``semu.nn.masked_kernel``). Sinks and caps of
scores cost nothing more than without context parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from semu.errors import ConfigError, GraphError
from semu.graph.dim import Dim, Poly, divide
from semu.graph.operator import OpKind
from semu.graph.tensor import Role
from semu.hardware.kinds import DType
from semu.hardware.network import CommGroup
from semu.nn.masked_kernel import GATHERED, OTHERS, OWN, TILE_EDGE, WHOLE, WIDTH, MaskedKernel, gated
from semu.nn.rules.attention.context import Exchanged, around_ring, by_heads, recorded, with_gathered, with_own
from semu.nn.rules.attention.fused import AttentionKernel, fused_attention
from semu.nn.rules.attention.needed import with_needed
from semu.nn.rules.collective import communicate
from semu.nn.rules.views import copy_like
from semu.nn.trace.options import TraceOptions
from semu.nn.trace.parameter_use import ParameterUse
from semu.nn.trace.sharding import EXCHANGES, ContextKind
from semu.nn.trace.tensor import Tensor, laid_out_like
from semu.nn.window import Window
from semu.records import dataclass


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
        ConfigError: separate kernels.
    """
    options, ranks = q.trace.options, q.trace.options.cp_group.num_ranks
    _check(q, options.fused_attention)
    if ranks > 1 and options.cp_kind is ContextKind.ALL_TO_ALL:
        whole = partial(_whole, causal=causal, window=window, sinks=sinks)
        return by_heads(q, k, v, options.cp_group, whole)
    if ranks == 1:
        return _whole(q, k, v, causal=causal, window=window, sinks=sinks)
    if options.masking.by_head:
        return _head_by_head(q, k, v, causal=causal, window=window, sinks=sinks)
    reach = causal, window, sinks
    ways = _ways(options)
    if len(ways) > 1:
        return _of_several(q, k, v, reach, ways)
    if options.cp_levels is None:
        return recorded(q, k, v, _exchanged(ways[0], q, k, v, reach))
    group, ring = options.cp_levels

    def _between_groups(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return recorded(q, k, v, _around(q, k, v, reach, ring, f"/{group.num_ranks}"))

    return by_heads(q, k, v, group, _between_groups)


Reach = tuple[bool, Window | None, ParameterUse | None]
"""Causality, window and sinks of an attention."""


@dataclass(frozen=True)
class _Way:
    """An exchange of keys.

    Attributes:
        kind: which. group: between whom. is_part: only of what lies on groups of so many ranks.
    """

    kind: ContextKind
    group: CommGroup
    is_part: bool = False

    @property
    def suffix(self) -> str:
        """End of the scopes of its kernels."""
        return f"{WIDTH}{self.group.num_ranks}" if self.is_part else ""


def _ways(options: TraceOptions) -> list[_Way]:
    """The exchanges that a stage has operators for: one, or those that a microbatch chooses from; each, but for
    what is needed, in groups of every size, where stretches of text lie on such."""
    kinds = EXCHANGES if options.cp_kind is ContextKind.AUTO else (options.cp_kind,)
    found = []
    for kind in kinds:
        if kind is ContextKind.NEEDED or not options.cp_parts:
            found.append(_Way(kind, options.cp_group))
        else:
            found += [_Way(kind, group, is_part=True) for group in options.cp_parts]
    return found


def _exchanged(
    way: _Way, q: Tensor, k: Tensor, v: Tensor, reach: Reach, into: tuple[Tensor, Tensor] | None = None
) -> Exchanged:
    """Attention with one exchange. ``into``: as ``around_ring``."""
    if way.kind is ContextKind.NEEDED:
        own = _kernel(q, k, v, OWN, *reach)
        return with_needed(q, k, v, way.group, own, _kernel(q, k, v, OTHERS, *reach[:2], None), into)
    if way.group.num_ranks == 1:
        scope = GATHERED if way.kind is ContextKind.ALL_GATHER else "0"
        return with_own(q, k, v, _kernel(q, k, v, f"{scope}{way.suffix}", *reach), into)
    if way.kind is ContextKind.RING:
        return _around(q, k, v, reach, way.group, way.suffix, into)
    return with_gathered(q, k, v, _kernel(q, k, v, f"{GATHERED}{way.suffix}", *reach), way.group, into)


def _around(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    reach: Reach,
    ring: CommGroup,
    groups: str,
    into: tuple[Tensor, Tensor] | None = None,
) -> Exchanged:
    """A ring of ranks, of groups of them, or in every group. ``groups``: end of a step's scope."""

    def _kernel_at(step: int) -> AttentionKernel:
        return _kernel(q, k, v, f"{step}{groups}", *reach[:2], reach[2] if step == 0 else None)

    return around_ring(q, k, v, ring, _kernel_at, is_halved=False, into=into)


def _of_several(q: Tensor, k: Tensor, v: Tensor, reach: Reach, ways: Sequence[_Way]) -> Tensor:
    """Several exchanges, one behind the other: the operators of all of them, of which those that a microbatch chooses,
    and whose groups hold something, have work and the others neither work nor bytes."""
    trace, packing = q.trace, q.sequences
    assert packing is not None
    statistics = [(q.local_shape[:2], DType.FP32)]
    shape = (q.shape[0], q.shape[1], v.shape[2])
    y = trace.emit(OpKind.COPY, [q], shape, like=q, extra_outputs=statistics, name="output")
    (log_sum_exp,) = trace.side_outputs(1)
    parts = _shared_out(q, k, v, ways)
    backwards = [_exchanged(way, *own, reach, (y, log_sum_exp))[1] for way, own in zip(ways, parts, strict=True)]

    def _backward(grad: Tensor) -> list[Tensor | None]:
        every = [backward(grad) for backward in backwards]
        found: list[Tensor | None] = []
        for x, ways in zip((q, k, v), zip(*every, strict=True), strict=True):
            found.append(trace.emit(OpKind.COPY, [way for way in ways if way is not None], like=x, name="gradient"))
        return found

    return trace.recorded([q, k, v], y, _backward)


def _shared_out(q: Tensor, k: Tensor, v: Tensor, ways: Sequence[_Way]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The tokens of every exchange as tensors of their own, whose storages are alike those of q, k and v: a kernel may
    have written them so, and what one exchange needs no longer is let go. Takes no time."""
    trace, packing = q.trace, q.sequences
    assert packing is not None

    def _of(dim: Dim, way: _Way) -> Dim:
        return gated(dim, packing.stream, f"{way.kind.value}{way.suffix}")

    parts: dict[int, list[Tensor]] = {}
    found: list[list[Tensor]] = [[] for _ in ways]
    for x in (q, k, v):
        root = trace.graph.tensors[x.node]
        while root.base is not None:
            root = trace.graph.tensors[root.base]
        if root.index not in parts:
            local = [(tuple(_of(dim, way) for dim in root.shape), root.dtype) for way in ways]
            trace.emit(OpKind.COPY, [x], key=(x.numel,), extra_outputs=local, name="share")
            parts[root.index] = trace.side_outputs(len(ways))
        for way, own, side in zip(ways, found, parts[root.index], strict=True):
            shape = (_of(x.shape[0], way), *x.shape[1:])
            of_way = replace(packing, tokens=_of(packing.tokens, way))
            own.append(replace(trace.view(side, shape, x.shards), sequences=of_way))
    return [(own[0], own[1], own[2]) for own in found]


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
    ranks = (tiles.width or trace.options.cp_group.num_ranks) if tiles.is_gathered else 1
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


def _check(q: Tensor, is_fused: bool) -> None:
    if not is_fused:
        raise ConfigError(
            "masks in separate kernels are not modelled by this version",
            where="training.attention",
            expected='"fused", or training.attention_mask = "causal"',
            got="unfused",
            nearest="fused",
        )
