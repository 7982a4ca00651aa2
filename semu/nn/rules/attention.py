"""Scaled-dot-product attention over packed sequences: the kernels that a trace's options ask for."""

from __future__ import annotations

from semu.nn.autograd import recompute
from semu.nn.rules.attention_kernel import fused_attention
from semu.nn.rules.context_attention import context_attention
from semu.nn.rules.unfused_attention import unfused_attention
from semu.nn.tensor import Tensor


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
        if trace.options.cp_group.num_ranks > 1:
            return context_attention(*parts, causal=causal)
        if trace.options.fused_attention:
            return fused_attention(*parts, causal=causal)
        return unfused_attention(*parts, causal=causal, dropout=dropout)

    if "core_attn" not in trace.options.recompute.kinds:
        return core(q, k, v)
    result = recompute(trace, core, (q, k, v))
    assert isinstance(result, Tensor)
    return result
