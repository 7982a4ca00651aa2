"""Fused scaled-dot-product attention over packed sequences (FlashAttention: 2205.14135, 2307.08691)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semu.graph.dim import divide
from semu.graph.operator import OpKind
from semu.hardware.kinds import DType
from semu.nn.autograd import recompute
from semu.nn.rules.unfused_attention import attention_sizes, unfused_attention
from semu.nn.tensor import Tensor, laid_out_like


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, dropout: float = 0.0) -> Tensor:
    """softmax(q k^T) v inside each sequence: one fused kernel, or separate ones, as the trace's options say.

    Args:
        q, k, v, causal: see ``fused_attention``.
        dropout: probability on the attention probabilities; the fused kernel draws it again in its backward.
    Returns:
        [query tokens, heads, d_v]. Under recomputation of ``core_attn`` only q, k and v are kept (2205.05198 §5).
    """
    trace = q.trace

    def core(*parts: Tensor) -> Tensor:
        if trace.options.fused_attention:
            return fused_attention(*parts, causal=causal)
        return unfused_attention(*parts, causal=causal, dropout=dropout)

    if "core_attn" not in trace.options.recompute.kinds:
        return core(q, k, v)
    result = recompute(trace, core, (q, k, v))
    assert isinstance(result, Tensor)
    return result


def fused_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """One kernel each way.

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
    heads, kv_heads, d, d_v, pairs = attention_sizes(q, k, v)
    share = 2 if causal else 1
    local_heads = heads // q.shards[1]
    forward_flop = divide(2 * pairs * local_heads * (d + d_v), share, "attention FLOP", trace.where)
    backward_flop = divide(2 * pairs * local_heads * (3 * d + 2 * d_v), share, "attention FLOP", trace.where)
    scores_flop = divide(2 * pairs * local_heads * d, share, "attention FLOP", trace.where)
    tokens, key_tokens = q.local_shape[0], k.local_shape[0]
    key = (tokens, key_tokens, pairs, local_heads, kv_heads // k.shards[1], d, d_v, share)
    statistics = tokens * local_heads * DType.FP32.size_bytes
    out_bytes = tokens * local_heads * d_v * q.dtype.size_bytes

    def run() -> tuple[Tensor, Tensor]:
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
        (statistic,) = trace.side_outputs(1)
        return y, statistic

    ledger = trace.ledger
    kept = ledger.next() if ledger is not None and ledger.place is not None else None
    if kept is not None:
        y, log_sum_exp = replace(kept[0], requires_grad=trace.any_trainable([q, k, v])), kept[1]
    else:
        y, log_sum_exp = run()
        if ledger is not None:
            ledger.kept.append((y, log_sum_exp))

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
