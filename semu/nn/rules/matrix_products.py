"""Linear layers: plain, and split over a tensor-parallel group by columns or rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semu.errors import GraphError
from semu.graph.dim import Dim, product
from semu.graph.operator import OpKind, Phase
from semu.nn.module import Parameter
from semu.nn.rules.collective import all_gather_tokens, all_reduce, reduce_scatter_tokens
from semu.nn.rules.fp8 import fp8_linear
from semu.nn.rules.weight_gradients import accumulate_product, reduce_bias
from semu.nn.trace.keep import kept_product
from semu.nn.trace.sharding import ShardingStyle
from semu.nn.trace.tensor import Tensor
from semu.nn.trace.tracing import ParameterUse


def linear(
    x: Tensor,
    weight: Parameter,
    bias: Parameter | None = None,
    parts: Sequence[int] | None = None,
    *,
    style: ShardingStyle | None = None,
    may_be_fp8: bool = True,
) -> Tensor:
    """``y = x W^T + b`` under the current module's sharding style.

    Args:
        x: [..., in]. weight: [out, in]. bias: [out] or None.
        parts: widths of the projections that it fuses; None: it is one.
        style: in place of the module's. may_be_fp8: false: in the plain precision even where linears run in fp8.
    Returns:
        [..., out]; its last axis is split over the group under COLUMN, its tokens under ROW with sequence parallelism.
    Raises:
        GraphError: ``in`` differs, or a sharding that does not fit (heads or features not divisible).
    Source:
        Column and row split: 1909.08053 §3; gather and reduce-scatter over tokens: 2205.05198 §4.2.2, where the
        gathered input is not kept but gathered again for the weight gradient.
    """
    trace = x.trace
    if x.shape[-1] != weight.shape[1]:
        raise GraphError(
            "the input does not fit the weight", where=trace.where, expected=f"[..., {weight.shape[1]}]", got=x.shape
        )
    if trace.options.plan.tp == 1:
        style = ShardingStyle.REPLICATED
    elif style is None:
        style = trace.style
    if trace.is_fp8 and may_be_fp8:
        return fp8_linear(x, weight, bias, style, parts)
    if style in (ShardingStyle.COLUMN, ShardingStyle.VOCABULARY):
        return _column(x, weight, bias, parts)
    if style is ShardingStyle.ROW:
        return _row(x, weight, bias)
    if x.shards[-1] != 1:
        raise GraphError(
            "a split activation meets a whole weight",
            where=trace.where,
            expected="style row after style column",
            got=style.value,
        )
    return _plain(x, trace.parameter(weight), trace.parameter(bias) if bias is not None else None, 1, parts)


def _sizes(x: Tensor, weight: ParameterUse) -> tuple[Dim, int, int]:
    n, k = (int(d) for d in x.trace.graph.tensors[weight.tensor].shape if isinstance(d, int))
    return product(x.local_shape[:-1]), n, k


def _plain(
    x: Tensor, weight: ParameterUse, bias: ParameterUse | None, out_shards: int, parts: Sequence[int] | None = None
) -> Tensor:
    """The local product of a whole or column-split weight, with its two gradients."""
    y = forward_product(x, weight, bias, out_shards, parts=parts)

    def backward(grad: Tensor) -> list[Tensor | None]:
        grad_x = input_gradient(grad, weight, x.shards[-1]) if x.requires_grad else None
        weight_gradient(grad, x, weight, bias)
        return [grad_x]

    return x.trace.recorded([x], y, backward)


def _column(x: Tensor, weight: Parameter, bias: Parameter | None, parts: Sequence[int] | None = None) -> Tensor:
    trace, tp = x.trace, x.trace.options.plan.tp
    w = trace.parameter(weight, (tp, 1))
    b = trace.parameter(bias, (tp,)) if bias is not None else None
    is_split = x.shards[0] > 1
    with trace.no_grad():
        whole = all_gather_tokens(x) if is_split else x
    y = forward_product(whole, w, b, tp, requires_grad_like=x, parts=parts)

    def backward(grad: Tensor) -> list[Tensor | None]:
        needs_weight = w.gradient is not None
        again = all_gather_tokens(x) if is_split and needs_weight else x
        grad_x = None
        if x.requires_grad:
            grad_x = input_gradient(grad, w, 1)
            grad_x = reduce_scatter_tokens(grad_x) if is_split else all_reduce(grad_x)
        weight_gradient(grad, again, w, b)
        return [grad_x]

    return trace.recorded([x], y, backward)


def _row(x: Tensor, weight: Parameter, bias: Parameter | None) -> Tensor:
    trace, tp = x.trace, x.trace.options.plan.tp
    if x.shards[-1] != tp:
        raise GraphError(
            "a row-split weight needs an input split over features",
            where=trace.where,
            expected=f"an input split {tp} ways, from a column-split layer",
            got=f"{x.shards[-1]}",
        )
    w = trace.parameter(weight, (1, tp))
    b = trace.parameter(bias) if bias is not None else None
    scatter = trace.options.plan.sequence_parallel
    with trace.no_grad():
        partial = forward_product(x, w, b, 1)
        reduced = reduce_scatter_tokens(partial) if scatter else all_reduce(partial)
    y = _mark(reduced, x, w, b)

    def backward(grad: Tensor) -> list[Tensor | None]:
        whole = all_gather_tokens(grad) if scatter else grad
        grad_x = input_gradient(whole, w, tp) if x.requires_grad else None
        weight_gradient(whole, x, w, b)
        return [grad_x]

    return trace.recorded([x], y, backward)


def _mark(y: Tensor, x: Tensor, weight: ParameterUse, bias: ParameterUse | None) -> Tensor:
    """``y`` with the gradient flag that a step from ``x`` and the parameters gives it."""
    trains = any(use.parameter.requires_grad for use in (weight, bias) if use is not None)
    return replace(y, requires_grad=x.requires_grad or trains)


def forward_product(
    x: Tensor,
    weight: ParameterUse,
    bias: ParameterUse | None,
    out_shards: int,
    requires_grad_like: Tensor | None = None,
    parts: Sequence[int] | None = None,
) -> Tensor:
    """Append ``x W^T (+ b)``: FLOP 2 m n k, bytes of both operands and the result; the bias is fused."""
    trace = x.trace
    m, n, k = _sizes(x, weight)
    inputs: list[Tensor | ParameterUse] = [x, weight, *([bias] if bias is not None else [])]
    if trace.ledger is not None:
        y = kept_product(x, inputs, out_shards, (m, n, k), parts or (n,))
        return _mark(y, requires_grad_like, weight, bias) if requires_grad_like is not None else y
    size = trace.options.tensor_dtype.size_bytes
    y = trace.emit(
        OpKind.MATMUL,
        inputs,
        (*x.shape[:-1], n * out_shards),
        shards=(*x.shards[:-1], out_shards),
        sequences=x.sequences,
        flop=2 * m * n * k,
        mem_bytes=size * (m * k + k * n + m * n),
        key=(m, n, k),
    )
    return _mark(y, requires_grad_like, weight, bias) if requires_grad_like is not None else y


def input_gradient(grad: Tensor, weight: ParameterUse, in_shards: int) -> Tensor:
    """Append ``dX = dY W``."""
    m, n, k = _sizes(grad, weight)
    size = grad.trace.options.tensor_dtype.size_bytes
    return grad.trace.emit(
        OpKind.MATMUL,
        [grad, weight],
        (*grad.shape[:-1], k * in_shards),
        shards=(*grad.shards[:-1], in_shards),
        sequences=grad.sequences,
        flop=2 * m * n * k,
        mem_bytes=size * (m * k + k * n + m * n),
        key=(m, k, n),
        phase=Phase.INPUT_GRADIENT,
        name="grad_bw",
    )


def weight_gradient(grad: Tensor, x: Tensor, weight: ParameterUse, bias: ParameterUse | None) -> None:
    """Append ``dW += dY^T X`` into the gradient buffer, where W trains.

    The bias gradient is fused into it; with a frozen weight and a training bias it is a separate reduction.
    """
    trace = grad.trace
    m, n, k = _sizes(grad, weight)
    size = trace.options.tensor_dtype.size_bytes
    writes = [use for use in (weight, bias) if use is not None and use.gradient is not None]
    if weight.gradient is not None:
        accumulate_product([grad, x], writes, (m, n, k), size * (m * n + m * k))
    elif writes:
        reduce_bias(grad, writes)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Product of two activations, ``a b``.

    Args:
        a: [..., m, k]. b: [..., k, n] with the same leading axes; neither split.
    Returns:
        [..., m, n]. Saves what the gradients ``dC B^T`` and ``A^T dC`` read.
    Raises:
        GraphError: shapes that do not fit, or a split operand.
    """
    trace = a.trace
    if a.ndim < 2 or a.ndim != b.ndim or a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        raise GraphError(
            "operands do not fit",
            where=trace.where,
            expected="[..., m, k] and [..., k, n]",
            got=f"{a.shape}, {b.shape}",
        )
    if any(n > 1 for n in (*a.shards, *b.shards)):
        raise GraphError(
            "operands must be whole", where=trace.where, expected="no split axis", got=f"{a.shards}, {b.shards}"
        )
    batch, (m, k), n = product(a.shape[:-2]), a.shape[-2:], b.shape[-1]
    cost = 2 * batch * m * n * k
    traffic = a.dtype.size_bytes * batch * (m * k + k * n + m * n)

    def multiply(
        inputs: Sequence[Tensor], like: Sequence[Dim], key: tuple[Dim, ...], phase: Phase | None, name: str
    ) -> Tensor:
        return trace.emit(
            OpKind.MATMUL, inputs, like, dtype=a.dtype, flop=cost, mem_bytes=traffic, key=key, phase=phase, name=name
        )

    c = multiply([a, b], (*a.shape[:-1], n), (batch * m, n, k), None, "matmul")

    def backward(grad: Tensor) -> list[Tensor | None]:
        phase = Phase.INPUT_GRADIENT
        grad_a = multiply([grad, b], a.shape, (batch * m, k, n), phase, "left_bw") if a.requires_grad else None
        grad_b = multiply([a, grad], b.shape, (batch * k, n, m), phase, "right_bw") if b.requires_grad else None
        return [grad_a, grad_b]

    return trace.recorded([a, b], c, backward)
