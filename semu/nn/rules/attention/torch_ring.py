"""Ring attention as PyTorch runs it: keys and values of every query head, sums in fp32, operator by operator.

Queries of n heads meet keys of n heads: those of grouped-query attention are repeated before (torchtitan's
``repeat_kv``), and what goes around is n / kv_heads times what it would be. Outputs and gradients of the steps are
copied to fp32 and added there by kernels of one operation each, and gradients of keys and values travel in fp32.

Source: PyTorch, ``torch/distributed/tensor/experimental/_attention.py`` (``_templated_ring_attention`` and its
backward, ``_SDPAMerger``, ``_partial_update``, ``convert_to_f32``), keys passed from rank to rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semu.graph.dim import Dim
from semu.graph.operator import OpKind
from semu.graph.tensor import Role
from semu.hardware.kinds import DType
from semu.hardware.network import CommGroup
from semu.nn.rules.attention.context_collective import half, pass_on
from semu.nn.rules.attention.fused import AttentionKernel
from semu.nn.rules.views import copy_like
from semu.nn.trace.tensor import Tensor, laid_out_like

HALF, WHOLE = DType.BF16.size_bytes, DType.FP32.size_bytes
CONVERT = HALF + WHOLE
"""Bytes that a copy to the other type moves, an element."""
ADD = CONVERT + 3 * WHOLE
"""A gradient: to fp32, and added."""
MERGE = CONVERT + 3 * WHOLE + 2 * WHOLE + 3 * WHOLE
"""An output: to fp32, its difference from the sum, times the weight of its row, the sum less that."""
JOIN = 2 * WHOLE
"""Gradients of keys and values: into one message, or half of them beside the other half."""


def repeat_heads(x: Tensor, heads: Dim) -> Tensor:
    """Keys or values [tokens, kv_heads, d] for each of ``heads`` query heads; backward: the sum over those that share
    them."""
    if x.shape[1] == heads:
        return x
    wide = replace(x, shape=(x.shape[0], heads, *x.shape[2:]))
    traffic = x.size_bytes + wide.size_bytes
    y = replace(copy_like(wide, [x], traffic, "repeat_heads"), requires_grad=x.requires_grad)
    return x.trace.recorded([x], y, lambda grad: [copy_like(x, [grad], traffic, "repeat_heads_bw")])


def fp32_ring(
    q: Tensor, k: Tensor, v: Tensor, group: CommGroup, own: AttentionKernel, other: AttentionKernel
) -> Tensor:
    """Attention of this rank's queries to the keys of a ring.

    Args:
        q, k, v: of one rank, equally many heads each. group: the ring.
        own, other: kernels over the rank's own keys, and over another rank's: all of them, or half.
    Returns:
        [query tokens, heads, d_v]. Saves q, k, v, the output and its log-sum-exp.
    """
    trace, ranks = q.trace, group.num_ranks
    is_halved = own.key_tokens != other.key_tokens
    kv = _joined(k, v, "join_kv")
    before = trace.last_kernel
    first, statistics = own.forward(q, [k, v], "attention")
    total = _converted(first, DType.FP32, "to_fp32")
    for _ in range(1, ranks):
        (kv,) = pass_on([kv], group, "pass_kv", after=before)
        before = trace.last_kernel
        part, part_statistics = other.forward(q, [kv], "attention")
        _updated([total, statistics], [part, part_statistics], MERGE, "merge")
    y = _converted(total, first.dtype, "from_fp32")
    y = replace(y, requires_grad=trace.any_trainable([q, k, v]))

    def _backward(grad: Tensor) -> list[Tensor | None]:
        reads = [q, y, statistics, grad]
        kv, before = _joined(k, v, "join_kv_bw"), trace.last_kernel
        whole = [(x.local_shape, x.dtype) for x in (k, v)]
        cut = whole
        if is_halved:
            cut = [((half(shape[0], trace.where), *shape[1:]), dtype) for shape, dtype in whole]
        part_q, parts = own.backward(q, [*reads, k, v], "attention_bw", whole)
        grad_q = _converted(part_q, DType.FP32, "to_fp32_bw")
        grad_kv = _message(kv, parts, CONVERT + JOIN)
        for _ in range(1, ranks):
            kv, arrived = pass_on([kv, grad_kv], group, "pass_kv_grad_kv", after=before)
            before = trace.last_kernel
            part_q, parts = other.backward(q, [*reads, kv], "attention_bw", cut)
            _updated([grad_q], [part_q], ADD, "add_grad")
            for part in parts:
                _updated([arrived], [part], ADD, "add_grad")
            grad_kv = _message(arrived, [], 2 * JOIN if is_halved else JOIN)
        (grad_kv,) = pass_on([grad_kv], group, "pass_grad_kv", after=before, role=Role.ACTIVATION)
        narrow = _converted(grad_kv, k.dtype, "from_fp32_bw")
        pieces = [laid_out_like(trace.view(narrow, x.shape, x.shards), x) for x in (k, v)]
        return [_converted(grad_q, q.dtype, "from_fp32_bw"), *pieces]

    return trace.recorded([q, k, v], y, _backward)


def _joined(k: Tensor, v: Tensor, name: str) -> Tensor:
    """Keys and values in one buffer: a copy."""
    like = replace(k, shape=(*k.shape[:2], k.shape[2] + v.shape[2]))
    return copy_like(like, [k, v], 2 * like.size_bytes, name)


def _converted(x: Tensor, dtype: DType, name: str) -> Tensor:
    """The same numbers in another type."""
    return copy_like(replace(x, dtype=dtype), [x], x.numel * CONVERT, name)


def _message(like: Tensor, parts: Sequence[Tensor], traffic: int) -> Tensor:
    """Gradients of keys and values in fp32, as they travel. ``traffic``: bytes an element."""
    shaped = replace(like, dtype=DType.FP32)
    return copy_like(shaped, parts or [like], like.numel * traffic, "join_grad_kv")


def _updated(into: Sequence[Tensor], parts: Sequence[Tensor], traffic: int, name: str) -> None:
    """Add a step's result, of so many bytes an element."""
    part = parts[0]
    moved = part.numel * traffic
    part.trace.emit(OpKind.ADD, [*into, *parts], mem_bytes=moved, key=(part.numel,), updates=into, name=name)
