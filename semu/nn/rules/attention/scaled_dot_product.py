"""Scaled-dot-product attention over packed sequences: the kernels that a trace's options ask for."""

from __future__ import annotations

from semu.errors import GraphError
from semu.nn.module import Parameter
from semu.nn.rules.attention.context import context_attention
from semu.nn.rules.attention.fused import fused_attention
from semu.nn.rules.attention.masked import counts_tiles, masked_attention
from semu.nn.rules.attention.unfused import unfused_attention
from semu.nn.rules.casts import for_products
from semu.nn.trace.autograd import recompute
from semu.nn.trace.parameter_use import ParameterUse
from semu.nn.trace.tensor import Tensor
from semu.nn.window import Window


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    dropout: float = 0.0,
    window: Window | None = None,
    sinks: Parameter | None = None,
    softcap: float | None = None,
) -> Tensor:
    """softmax(q k^T) v inside each sequence: one fused kernel, or separate ones, as the trace's options say.

    Args:
        q, k, v, causal: see ``fused_attention``.
        dropout: probability on the attention probabilities; the fused kernel draws it again in its backward.
        window: how far a token sees; None: the whole sequence.
        sinks: [heads], a learned logit per head that takes part in the softmax and has no value (GPT-OSS).
        softcap: scores are capped by ``softcap x tanh(scores / softcap)`` (Gemma 2, 2408.00118 §2); free inside a fused
            kernel.
    Returns:
        [query tokens, heads, d_v]. Under recomputation of ``core_attn`` only q, k and v are kept (2205.05198 §5).
    Raises:
        ConfigError: a mask that this way of context parallelism does not go with.
    """
    trace = q.trace
    use = _sinks(q, sinks) if sinks is not None else None

    def _core(*parts: Tensor) -> Tensor:
        if counts_tiles(*parts, causal=causal, window=window):
            return masked_attention(*parts, causal=causal, window=window, sinks=use)
        if trace.options.cp_group.num_ranks > 1:
            return context_attention(*parts, causal=causal, sinks=use)
        if trace.options.fused_attention:
            return fused_attention(*parts, causal=causal, window=window, sinks=use)
        return unfused_attention(*parts, causal=causal, dropout=dropout, window=window, sinks=use, softcap=softcap)

    q, k, v = (for_products(part) for part in (q, k, v))
    if "core_attn" not in trace.options.recompute.kinds:
        return _core(q, k, v)
    result = recompute(trace, _core, (q, k, v))
    assert isinstance(result, Tensor)
    return result


def _sinks(q: Tensor, sinks: Parameter) -> ParameterUse:
    """The logits of this rank's heads."""
    if sinks.shape != (q.shape[1],):
        raise GraphError("one sink per head", where=q.trace.where, expected=f"[{q.shape[1]}]", got=list(sinks.shape))
    return q.trace.parameter(sinks, (q.shards[1],))
