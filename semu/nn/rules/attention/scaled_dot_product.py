"""Scaled-dot-product attention over packed sequences: the kernels that a trace's options ask for."""

from __future__ import annotations

from semu.errors import ConfigError, GraphError
from semu.nn.module import Parameter
from semu.nn.rules.attention.context import context_attention
from semu.nn.rules.attention.fused import fused_attention
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
        ConfigError: a window, sinks or a cap under context parallelism.
    """
    trace = q.trace
    use = _sinks(q, sinks) if sinks is not None else None

    def _core(*parts: Tensor) -> Tensor:
        if trace.options.cp_group.num_ranks > 1:
            _refuse_special(q, window, sinks, softcap)
            return context_attention(*parts, causal=causal)
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


def _refuse_special(q: Tensor, window: Window | None, sinks: Parameter | None, softcap: float | None) -> None:
    """Context parallelism is modelled for plain attention only."""
    named = {"a window": window, "sinks": sinks, "a soft cap": softcap}
    special = next((name for name, value in named.items() if value is not None), None)
    if special is not None:
        ranks = q.trace.options.cp_group.num_ranks
        raise ConfigError(
            f"attention with {special} ({q.trace.where}) under context parallelism is not modelled by this version",
            where="parallel.cp",
            expected=f"cp = 1, or attention without {special}",
            got=ranks,
            nearest=1,
        )
