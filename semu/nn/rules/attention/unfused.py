"""Attention as separate kernels that write the scores to memory, as Megatron-LM did before FlashAttention.

Saved per layer beside q, k and v: the softmax's output, the dropout's mask (1 byte) and its output, 5 a s^2 b bytes in
16-bit precision (2205.05198 §4.1, eq. 1). The products compute whole squares of scores, also those that a causal mask
hides; the masked half is no model FLOP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from semu.errors import GraphError
from semu.graph.dim import Dim
from semu.graph.operator import OpKind
from semu.hardware.kinds import DType
from semu.nn.rules.pointwise import dropout as apply_dropout
from semu.nn.rules.pointwise import softcap as apply_softcap
from semu.nn.rules.views import copy_like
from semu.nn.trace.parameter_use import ParameterUse
from semu.nn.trace.tensor import Sequences, Tensor
from semu.nn.window import Window


def unfused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    dropout: float,
    window: Window | None = None,
    sinks: ParameterUse | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Scores (batched product with the scale fused), masked softmax (one kernel), dropout, context (batched product).

    Args:
        q: [query tokens, heads, d]. k, v: [key tokens, kv heads, d or d_v]; all split alike over heads. With fewer
            key heads than heads, k and v are copied once for every query head (``repeat_interleave``) and kept so.
        causal: a token attends to those before it. dropout: probability on the probabilities.
        window: hides computed scores, as the causal mask does.
        sinks: one logit per head in the softmax's denominator. softcap: a kernel between scores and softmax.
    Returns:
        [query tokens, heads, d_v].
    FLOP:
        forward 2 pairs heads (d + d_v), backward twice that, pairs = sum of query x key lengths.
    """
    heads, kv_heads, _, _, pairs = attention_sizes(q, k, v)
    tokens = q.local_shape[0], k.local_shape[0]
    if kv_heads < heads:
        k, v = (_repeat_heads(x, heads) for x in (k, v))
    seen = pairs if window is None else attention_sizes(q, k, v, window)[-1]
    table = replace(q, shape=(pairs, heads), shards=(1, q.shards[1]), sequences=None)
    scores = _product(q, k, "scores", table, pairs, seen, tokens, causal=causal)
    if softcap is not None:
        scores = apply_softcap(scores)
    weights = apply_dropout(_softmax(scores, (pairs, tokens[0]), sinks), dropout)
    context = replace(q, shape=(q.shape[0], heads, v.shape[2]))
    return _product(weights, v, "context", context, pairs, seen, tokens, causal=causal)


def _product(
    a: Tensor,
    b: Tensor,
    name: str,
    like: Tensor,
    pairs: Dim,
    seen: Dim,
    tokens: tuple[Dim, Dim],
    *,
    causal: bool,
) -> Tensor:
    """A batched product over sequences and heads, with its two gradients. Saves both operands.

    ``b`` is [key tokens, heads, width]; each of the three products costs 2 x pairs x heads x width on a rank, of which
    the ``seen`` pairs are needed, half of them under a causal mask. ``tokens``: of queries and of keys.
    """
    trace = a.trace
    heads, width = b.local_shape[1:]
    work = 2 * pairs * heads * width
    masked = seen * heads * width if causal else 0
    wasted = work - 2 * seen * heads * width + masked

    def _multiply(left: Tensor, right: Tensor, result: Tensor, label: str) -> Tensor:
        return trace.emit(
            OpKind.MATMUL,
            [left, right],
            like=result,
            flop=work,
            recomputed_flop=wasted,
            causal_flop=masked,
            mem_bytes=left.size_bytes + right.size_bytes + result.size_bytes,
            key=(*(tokens[::-1] if result is b else tokens), pairs, heads, width, int(result.ndim == 2)),
            name=label,
        )

    y = _multiply(a, b, like, name)

    def _backward(grad: Tensor) -> list[Tensor | None]:
        return [
            _multiply(grad, b, a, f"{name}_left_bw") if a.requires_grad else None,
            _multiply(a, grad, b, f"{name}_right_bw") if b.requires_grad else None,
        ]

    return trace.recorded([a, b], y, _backward)


def _softmax(scores: Tensor, rows: tuple[Dim, Dim], sinks: ParameterUse | None = None) -> Tensor:
    """Scale, mask and softmax in one kernel over the rows of ``scores`` [pairs, heads], or separate kernels.

    Separate, where PyTorch runs or Megatron-LM's kernel does not take the length (``has_fused_softmax``): a copy in
    fp32, PyTorch's softmax, a copy back, and the same for the gradients; PyTorch alone scales and masks apart, and
    writes fp32 from 16 bits in the softmax itself.

    Saves its output. The fused backward works in place of the gradient (Megatron-LM's fused softmax) and sums the
    gradient of the sinks over the rows that it reads. Costed as a norm: both read rows, reduce them and write them.

    Args:
        scores: [pairs, heads]. rows: pairs and tokens of queries, of one head.
    """
    trace, size, wide = scores.trace, scores.dtype.size_bytes, DType.FP32.size_bytes
    trained = [sinks] if sinks is not None and sinks.gradient is not None else []
    copies = 2 * (size + wide)
    separate, separate_bw = copies + 2 * wide, copies + 3 * wide
    if trace.options.separate_softmax:
        separate = separate_bw = copies + 4 * size
    fused = 2 * size if not trace.options.separate_softmax else separate
    fused_bw = 3 * size if not trace.options.separate_softmax else separate_bw

    def _pass(reads: Sequence[Tensor | ParameterUse], moved: int, other: int, name: str, **written: Any) -> Tensor:
        key = (*rows, other, moved)
        return trace.emit(OpKind.SOFTMAX, reads, mem_bytes=moved * scores.numel, key=key, name=name, **written)

    y = _pass([scores] if sinks is None else [scores, sinks], fused, separate, "softmax", like=scores)

    def _backward(grad: Tensor) -> list[Tensor | None]:
        return [_pass([grad, y], fused_bw, separate_bw, "softmax_bw", updates=[grad], gradients=trained)]

    return trace.recorded([scores], y, _backward)


def _repeat_heads(x: Tensor, heads: int) -> Tensor:
    """[tokens, kv heads, d] -> [tokens, heads, d], each key head repeated for its query heads: a copy each way."""
    repeated = replace(x, shape=(x.shape[0], heads, x.shape[2]))
    traffic = x.size_bytes + repeated.size_bytes

    def _copy(source: Tensor, like: Tensor, name: str) -> Tensor:
        return copy_like(like, [source], traffic, name, source.numel)

    y = _copy(x, repeated, "repeat_heads")
    return x.trace.recorded([x], y, lambda grad: [_copy(grad, x, "sum_heads")])


def attention_sizes(q: Tensor, k: Tensor, v: Tensor, window: Window | None = None) -> tuple[int, int, int, int, Dim]:
    """Heads, key heads, d, d_v and pairs (inside the window where there is one) of an attention.

    Raises:
        GraphError: operands that do not fit together, a window over two different packings.
    """
    heads, kv_heads = _heads(q, k, v)
    d, d_v = _int(q.shape[2], q), _int(v.shape[2], v)
    packing, keys = q.sequences or _one_sequence(q), k.sequences or _one_sequence(k)
    if window is None:
        return heads, kv_heads, d, d_v, packing.pairs_with(keys, q.trace.where)
    if packing != keys:
        raise GraphError(
            "a window is for self-attention",
            where=q.trace.where,
            expected=f"keys of the stream {packing.stream!r}",
            got=keys.stream,
        )
    return heads, kv_heads, d, d_v, packing.pairs_within(window, q.trace.where)


def _heads(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, int]:
    where = q.trace.where
    if not (q.ndim == k.ndim == v.ndim == 3):
        raise GraphError("attention needs [tokens, heads, dim]", where=where, got=f"{q.shape}, {k.shape}, {v.shape}")
    heads, kv_heads = _int(q.shape[1], q), _int(k.shape[1], k)
    if k.shape[:2] != v.shape[:2] or q.shape[2] != k.shape[2]:
        raise GraphError("q, k and v do not fit together", where=where, got=f"{q.shape}, {k.shape}, {v.shape}")
    if heads % kv_heads:
        raise GraphError(
            "query heads per key head must be whole", where=where, expected=f"a multiple of {kv_heads}", got=heads
        )
    if q.shards != k.shards or q.shards != v.shards or q.shards[0] != 1 or q.shards[2] != 1:
        raise GraphError(
            "q, k and v must be split over heads alike, tokens whole",
            where=where,
            got=f"{q.shards}, {k.shards}, {v.shards}",
        )
    return heads, kv_heads


def _int(dim: Dim, x: Tensor) -> int:
    if not isinstance(dim, int):
        raise GraphError("heads and head size must not depend on the batch", where=x.trace.where, got=dim)
    return dim


def _one_sequence(x: Tensor) -> Sequences:
    tokens = x.shape[0]
    return Sequences("tokens", tokens, tokens * tokens, 1, tokens)
