"""Attention over a context-parallel group: each rank holds two of the 2 cp chunks of every sequence.

Rank r holds chunks r and 2 cp - 1 - r, of c tokens each. Under a causal mask each step of each rank then computes
2 c^2 scores: all queries of rank r with the first chunk of a rank s < r (2 c x c), the lower half of its queries with
its keys (2 c x 2 c), the later chunk's queries with all keys of a rank s > r (c x 2 c) (Megatron-LM's context
parallelism; Llama 3, 2407.21783 §3.3.2; striping for the same end: 2311.09431). The last rank is costed: its steps all
read all its queries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from semu.errors import ConfigError
from semu.graph.dim import Dim, divide
from semu.graph.operator import OpKind
from semu.graph.tensor import Role
from semu.hardware.network import CommGroup
from semu.nn.rules.attention.context_collective import (
    gather_context,
    half,
    heads_for_tokens,
    pass_on,
    reduce_scatter_context,
    tokens_for_heads,
)
from semu.nn.rules.attention.fused import AttentionKernel, fused_attention
from semu.nn.rules.attention.torch_ring import fp32_ring, repeat_heads
from semu.nn.rules.views import copy_both
from semu.nn.trace.parameter_use import ParameterUse
from semu.nn.trace.sharding import ContextKind
from semu.nn.trace.tensor import Tensor, laid_out_like


def context_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, sinks: ParameterUse | None = None) -> Tensor:
    """Attention of this rank's queries to the keys of all context ranks.

    Args:
        q, k, v, causal, sinks: as ``fused_attention``, the tokens of one context rank; a ring's first kernel reads the
            sinks.
    Returns:
        [query tokens, heads, d_v].
    Raises:
        ConfigError: heads that the group does not divide (all-to-all).
    """
    kind, group = q.trace.options.cp_kind, q.trace.options.cp_group
    if kind is ContextKind.ALL_GATHER:
        return _gathered(q, k, v, causal=causal, sinks=sinks)
    if kind is ContextKind.ALL_TO_ALL:
        return by_heads(q, k, v, group, partial(fused_attention, causal=causal, sinks=sinks))
    levels = q.trace.options.cp_levels
    if levels is None:  # also where what is needed is sent: no tiles are counted here, and all keys are needed
        return _ring(q, k, v, group, causal=causal, sinks=sinks)
    inner, ring = levels
    return by_heads(q, k, v, inner, partial(_ring, group=ring, causal=causal, sinks=sinks))


def _ring(
    q: Tensor, k: Tensor, v: Tensor, group: CommGroup, *, causal: bool, sinks: ParameterUse | None = None
) -> Tensor:
    """Keys and values go around (Ring Attention, 2310.01889 §3), as in Transformer Engine's ``AttnFuncWithCPAndKVP2P``;
    under PyTorch's FSDP as in ``fp32_ring``.

    Forward: K and V are joined into one buffer; in each of cp steps the buffer is sent on beside the kernel that reads
    it, and the step's output is merged into the sum by its log-sum-exp. Saves q, the last K and V to arrive, the output
    and its log-sum-exp. Backward: starts with the saved K and V and ends with those of this rank; dK and dV follow one
    step behind. Each way moves K and V cp - 1 times, the backward also dK and dV.
    """
    is_torch = q.trace.options.has_dtensor
    if is_torch:
        k, v = (repeat_heads(x, q.shape[1]) for x in (k, v))
    own, other = _ring_kernels(q, k, v, group.num_ranks, causal=causal)
    own = replace(own, sinks=sinks)
    if is_torch:
        return fp32_ring(q, k, v, group, own, other)
    return recorded(q, k, v, around_ring(q, k, v, group, lambda step: other if step else own, is_halved=causal))


Exchanged = tuple[Tensor, Callable[[Tensor], list[Tensor | None]]]
"""An attention's output, and its backward: gradient of the output -> those of q, k and v."""


def recorded(q: Tensor, k: Tensor, v: Tensor, exchanged: Exchanged) -> Tensor:
    """The output of an attention whose backward is put on the tape."""
    return q.trace.recorded([q, k, v], *exchanged)


def around_ring(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    group: CommGroup,
    kernel_at: Callable[[int], AttentionKernel],
    *,
    is_halved: bool,
    into: tuple[Tensor, Tensor] | None = None,
) -> Exchanged:
    """``_ring`` with any kernels.

    Args:
        q, k, v: of one rank. group: the ring. kernel_at: step -> kernel over the keys of the rank so many before.
        is_halved: dK and dV of another rank's keys may be those of its first chunk.
        into: output and log-sum-exps that are there already; None: they are made.
    """
    trace, ranks = q.trace, group.num_ranks
    own = kernel_at(0)
    kv = copy_both(k, v, (*k.shape[:2], k.shape[2] + v.shape[2]), "join_kv")
    before = trace.last_kernel
    y, statistics = own.forward(q, [kv], "attention", into)
    own.aggregate(q, y)
    for step in range(1, ranks):
        role = Role.ACTIVATION if step == ranks - 1 else Role.COMMUNICATION
        (kv,) = pass_on([kv], group, "pass_kv", after=before, role=role)
        before = trace.last_kernel
        part, part_statistics = kernel_at(step).forward(q, [kv], "attention")
        kernel_at(step).aggregate(q, part)
        merge(q, [y, statistics], [part, part_statistics], own.out_bytes(q) + own.statistics_bytes)
    last = kv

    def _backward(grad: Tensor) -> list[Tensor | None]:
        reads = [q, y, statistics, grad]
        buffer, part_kv = (last.local_shape, last.dtype), (last.local_shape, last.dtype)
        if is_halved:
            part_kv = ((half(last.local_shape[0], trace.where), *last.local_shape[1:]), last.dtype)
        before = trace.last_kernel
        grad_q, (grad_kv,) = kernel_at(ranks - 1).backward(q, [*reads, last], "attention_bw", [buffer])
        grad_kv = laid_out_like(grad_kv, last)
        (kv,) = pass_on([last], group, "pass_kv_bw", after=before, behind=[grad])
        for step in range(1, ranks):
            is_own = step == ranks - 1
            before = trace.last_kernel
            kernel = kernel_at(ranks - 1 - step)
            part_q, (part,) = kernel.backward(q, [*reads, kv], "attention_bw", [buffer if is_own else part_kv])
            add_into(grad_q, part_q)
            if is_own:
                (arrived,) = pass_on([grad_kv], group, "pass_grad_kv", after=before, role=Role.ACTIVATION)
            else:
                kv, arrived = pass_on([kv, grad_kv], group, "pass_kv_grad_kv", after=before)
            add_into(arrived, part)
            grad_kv = arrived
        return [grad_q, *parted(grad_kv, k, v)]

    return y, _backward


def parted(grad_kv: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """The gradients of keys and of values in a joined one."""
    trace = k.trace
    return [laid_out_like(trace.view(grad_kv, x.shape, x.shards), x) for x in (k, v)]


def _ring_kernels(
    q: Tensor, k: Tensor, v: Tensor, ranks: int, *, causal: bool
) -> tuple[AttentionKernel, AttentionKernel]:
    """The kernels over the keys of this rank, and over those of another rank of a ring."""
    where = q.trace.where
    whole = AttentionKernel.of(q, k, v, causal=causal)
    block = divide(whole.pairs, ranks, "the pairs of a context rank", where)
    own = replace(whole, pairs=block)
    if not causal:
        return own, own
    other = replace(
        own, key_tokens=half(own.key_tokens, where), pairs=divide(block, 2, "a block of pairs", where), is_masked=False
    )
    return own, other


def merge(q: Tensor, into: Sequence[Tensor], part: Sequence[Tensor], size_bytes: Dim) -> None:
    """Add a step's output to the sum, both weighted by their log-sum-exps, in place.

    Args:
        q: queries. into, part: output and log-sum-exps. size_bytes: of those that are added.
    """
    q.trace.emit(
        OpKind.ADD,
        [*into, *part],
        mem_bytes=3 * size_bytes,
        key=(into[0].numel,),
        updates=into,
        name="merge",
    )


def add_into(into: Tensor, part: Tensor, size_bytes: Dim | None = None) -> None:
    """Add to a gradient in place. ``size_bytes``: of what is added; None: all of ``part``."""
    traffic, key = 3 * (part.size_bytes if size_bytes is None else size_bytes), (part.numel,)
    into.trace.emit(OpKind.ADD, [into, part], mem_bytes=traffic, key=key, updates=[into], name="add_grad")


def _gathered(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, sinks: ParameterUse | None) -> Tensor:
    """K and V are gathered before the kernel; in the backward they are gathered again, and dK and dV reduce-scattered.

    Saves q, k, v, the output and its log-sum-exp, not the gathered tensors (Transformer Engine's
    ``AttnFuncWithCPAndKVAllGather``; the exchange is exposed: 2407.21783 §3.3.2).
    """
    ranks = q.trace.options.cp_group.num_ranks
    own = AttentionKernel.of(q, k, v, causal=causal, sinks=sinks)
    kernel = replace(own, key_tokens=ranks * own.key_tokens)
    return recorded(q, k, v, with_gathered(q, k, v, kernel, q.trace.options.cp_group))


def with_own(
    q: Tensor, k: Tensor, v: Tensor, kernel: AttentionKernel, into: tuple[Tensor, Tensor] | None = None
) -> Exchanged:
    """Attention to the rank's own keys, where it needs no others. ``into``: as ``around_ring``."""
    y, statistics = kernel.forward(q, [k, v], "attention", into)
    kernel.aggregate(q, y)

    def _backward(grad: Tensor) -> list[Tensor | None]:
        written = [(k.local_shape, k.dtype), (v.local_shape, v.dtype)]
        grad_q, (grad_k, grad_v) = kernel.backward(q, [q, k, v, y, statistics, grad], "attention_bw", written)
        return [grad_q, laid_out_like(grad_k, k), laid_out_like(grad_v, v)]

    return y, _backward


def with_gathered(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kernel: AttentionKernel,
    group: CommGroup,
    into: tuple[Tensor, Tensor] | None = None,
) -> Exchanged:
    """``_gathered`` with any kernel. ``group``: whose keys. ``into``: as ``around_ring``."""
    gathered = [gather_context(k, group, "gather_k"), gather_context(v, group, "gather_v")]
    y, statistics = kernel.forward(q, gathered, "attention", into)
    kernel.aggregate(q, y)

    def _backward(grad: Tensor) -> list[Tensor | None]:
        keys, values = gather_context(k, group, "gather_k_bw"), gather_context(v, group, "gather_v_bw")
        written = [(keys.local_shape, k.dtype), (values.local_shape, v.dtype)]
        reads = [q, keys, values, y, statistics, grad]
        grad_q, (grad_k, grad_v) = kernel.backward(q, reads, "attention_bw", written)
        return [
            grad_q,
            reduce_scatter_context(laid_out_like(grad_k, keys), k, group, "scatter_grad_k"),
            reduce_scatter_context(laid_out_like(grad_v, values), v, group, "scatter_grad_v"),
        ]

    return y, _backward


def by_heads(
    q: Tensor, k: Tensor, v: Tensor, group: CommGroup, attend: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Tensor:
    """Each rank of a group gets all its tokens of some heads, and gives its output back (DeepSpeed-Ulysses, 2309.14509
    §3.1): an all-to-all of q, k, v and of the output, and of their gradients. Where the group is part of the context
    ranks, keys and values then go around between such groups (Megatron-LM's ``a2a+p2p``)."""
    for name, x in (("heads", q), ("kv_heads", k)):
        _check_heads(name, x, group.num_ranks)
    parts = [heads_for_tokens(x, group, f"exchange_{name}") for name, x in (("q", q), ("k", k), ("v", v))]
    return tokens_for_heads(attend(*parts), q, group, "exchange_out")


def _check_heads(name: str, x: Tensor, ranks: int) -> None:
    heads = x.local_shape[1]
    assert isinstance(heads, int)
    if heads % ranks:
        split = f" / tp = {x.shape[1]} / {x.shards[1]}" if x.shards[1] > 1 else ""
        raise ConfigError(
            f"{name}{split} = {heads} cannot be split over a context-parallel group of {ranks}",
            where=x.trace.where,
            expected=f"a divisor of {heads}, or cp_kind = ring or all_gather without cp_inner",
            got=f"cp = {ranks}",
            nearest=max(n for n in range(1, ranks + 1) if heads % n == 0),
        )
