"""Fused scaled-dot-product attention over packed sequences (FlashAttention: 2205.14135, 2307.08691)."""

from __future__ import annotations

from collections.abc import Sequence

from semu.errors import GraphError
from semu.graph.dim import Dim, divide
from semu.graph.operator import OpKind
from semu.hardware.kinds import DType
from semu.nn.tensor import Sequences, Tensor, laid_out_like


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """softmax(q k^T) v inside each sequence.

    Args:
        q: [query tokens, heads, d]. k: [key tokens, kv heads, d]. v: [key tokens, kv heads, d_v]; heads a multiple of
            kv heads (GQA, 2305.13245). All split alike over heads.
        causal: a token attends to those before it; the count is halved.
    Returns:
        [query tokens, heads, d_v].
    FLOP:
        forward 2 pairs heads (d + d_v), backward 2 pairs heads (3 d + 2 d_v), pairs = sum of query x key lengths over
        the packed sequences, halved where causal (FlashAttention computes the lower half only). The backward's third
        q k^T is recomputation inside the kernel and no model FLOP.
    Saves q, k, v, the output and one fp32 log-sum-exp per query and head.
    """
    trace = q.trace
    heads, kv_heads = _heads(q, k, v)
    d, d_v = _int(q.shape[2], q), _int(v.shape[2], v)
    packing = q.sequences or _one_sequence(q)
    pairs = packing.pairs_with(k.sequences or _one_sequence(k), trace.where)
    share = 2 if causal else 1
    local_heads = heads // q.shards[1]
    forward_flop = divide(2 * pairs * local_heads * (d + d_v), share, "attention FLOP", trace.where)
    backward_flop = divide(2 * pairs * local_heads * (3 * d + 2 * d_v), share, "attention FLOP", trace.where)
    scores_flop = divide(2 * pairs * local_heads * d, share, "attention FLOP", trace.where)
    tokens, key_tokens = q.local_shape[0], k.local_shape[0]
    key = (tokens, key_tokens, pairs, local_heads, kv_heads // k.shards[1], d, d_v, share)
    statistics = tokens * local_heads * DType.FP32.size_bytes
    out_bytes = tokens * local_heads * d_v * q.dtype.size_bytes
    y = trace.emit(
        OpKind.ATTENTION_FORWARD,
        [q, k, v],
        (q.shape[0], heads, d_v),
        shards=q.shards,
        dtype=q.dtype,
        sequences=q.sequences,
        flop=forward_flop,
        causal_flop=forward_flop if causal else 0,
        mem_bytes=q.size_bytes + k.size_bytes + v.size_bytes + out_bytes + statistics,
        key=key,
        name="attention",
        extra_outputs=[((tokens, local_heads), DType.FP32)],
    )
    (log_sum_exp,) = trace.side_outputs(1)

    def backward(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        (grad,) = gradients
        assert grad is not None
        grad_q = trace.emit(
            OpKind.ATTENTION_BACKWARD,
            [q, k, v, y, log_sum_exp, grad],
            q.shape,
            shards=q.shards,
            dtype=q.dtype,
            sequences=q.sequences,
            flop=backward_flop,
            recomputed_flop=scores_flop,
            causal_flop=backward_flop - scores_flop if causal else 0,
            mem_bytes=2 * (q.size_bytes + k.size_bytes + v.size_bytes + out_bytes) + statistics,
            key=key,
            name="attention_bw",
            extra_outputs=[(k.local_shape, k.dtype), (v.local_shape, v.dtype)],
        )
        grad_k, grad_v = trace.side_outputs(2)
        return [grad_q, laid_out_like(grad_k, k), laid_out_like(grad_v, v)]

    trace.record([q, k, v], [y], backward)
    return y


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
