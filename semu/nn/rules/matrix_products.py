"""Linear layers: plain, and split over a tensor-parallel group by columns or rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semu.errors import GraphError
from semu.graph.dim import Dim, product
from semu.graph.operator import OpKind, Phase
from semu.nn.module import Parameter
from semu.nn.rules.casts import cast_weights, for_products
from semu.nn.rules.collective import all_gather_tokens
from semu.nn.rules.fp8 import fp8_linear
from semu.nn.rules.linear_split import LinearSplit
from semu.nn.rules.weight_gradients import accumulate_weight_gradient
from semu.nn.trace.eager import BIAS, eager_moves
from semu.nn.trace.keep import kept_product
from semu.nn.trace.parameter_use import ParameterUse
from semu.nn.trace.sharding import ShardingStyle
from semu.nn.trace.tensor import Tensor
from semu.nn.trace.tracing import Trace


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
        parts: widths of the fused projections; None: there is one.
        style: None: the module's. may_be_fp8: false: in the plain precision even where linears run in fp8.
    Returns:
        [..., out]; its last axis is split over the group under COLUMN, its tokens under ROW with sequence parallelism.
    Raises:
        GraphError: ``in`` differs, or a sharding that does not fit (heads or features not divisible).
    Source:
        Column and row split: 1909.08053 §3; gather and reduce-scatter over tokens: 2205.05198 §4.2.2, where the
        gathered input is not kept but gathered again for the weight gradient, unless ``keeps_gathered``.
    """
    trace = x.trace
    if x.shape[-1] != weight.shape[1]:
        raise GraphError(
            "the input does not fit the weight", where=trace.where, expected=f"[..., {weight.shape[1]}]", got=x.shape
        )
    style = trace.style if style is None else style
    split = LinearSplit.of(x, style)
    if trace.is_fp8 and may_be_fp8:
        return fp8_linear(x, weight, bias, split, parts)
    x = for_products(x)
    w = trace.parameter(weight, (split.out_shards, split.in_shards), parts=parts, is_packed=trace.packs(weight))
    b = trace.parameter(bias, (split.out_shards,)) if bias is not None else None
    read = [w] if b is None else [w, b]
    cast_weights(x, read)
    with trace.no_grad():
        gathered = split.gathered(x)
        y = split.reduced(_forward_product(gathered, [*read, *_unpacked(trace, w)], split.out_shards, parts))
    if b is not None and trace.options.bias_kernels and style is not ShardingStyle.ROW:
        eager_moves(y, BIAS, "bias")
    y = replace(y, requires_grad=trace.grad_enabled and trace.any_trainable([x, *read]))

    def _backward(grad: Tensor) -> list[Tensor | None]:
        whole = all_gather_tokens(grad) if split.is_scattered else grad
        again = x if w.gradient is None else gathered if trace.options.keeps_gathered else split.gathered(x)
        grad_x = split.reduced_gradient(_input_gradient(whole, w, split.in_shards)) if x.requires_grad else None
        m, n, k = sizes = _sizes(whole, w)
        accumulate_weight_gradient(
            whole, [whole, again], w, b, sizes, trace.options.tensor_dtype.size_bytes * (m * n + m * k)
        )
        return [grad_x]

    return trace.recorded([x], y, _backward)


def _unpacked(trace: Trace, w: ParameterUse, phase: Phase | None = None) -> list[Tensor]:
    """A packed weight in 16 bits, for one product: a kernel that reads the one and writes the other; else nothing."""
    frozen = trace.options.frozen_weights
    if not w.is_packed or frozen is None:
        return []
    traffic = frozen.packed_bytes(w.numel) + w.numel * trace.options.tensor_dtype.size_bytes
    return [trace.emit(OpKind.CAST, [w], (w.numel,), mem_bytes=traffic, key=(w.numel,), phase=phase, name="unpack")]


def _sizes(x: Tensor, weight: ParameterUse) -> tuple[Dim, int, int]:
    n, k = (int(d) for d in x.trace.graph.tensors[weight.tensor].shape if isinstance(d, int))
    return product(x.local_shape[:-1]), n, k


def _forward_product(
    x: Tensor, read: Sequence[ParameterUse | Tensor], out_shards: int, parts: Sequence[int] | None = None
) -> Tensor:
    """Append ``x W^T (+ b)``: FLOP 2 m n k, bytes of both operands and the result; the bias is fused."""
    trace, weight = x.trace, read[0]
    assert isinstance(weight, ParameterUse)
    m, n, k = _sizes(x, weight)
    if trace.ledger is not None:
        return kept_product(x, [x, *read], out_shards, (m, n, k), parts or (n,))
    return trace.emit(
        OpKind.MATMUL,
        [x, *read],
        (*x.shape[:-1], n * out_shards),
        shards=(*x.shards[:-1], out_shards),
        sequences=x.sequences,
        flop=2 * m * n * k,
        mem_bytes=trace.options.tensor_dtype.size_bytes * (m * k + k * n + m * n),
        key=(m, n, k),
    )


def _input_gradient(grad: Tensor, weight: ParameterUse, in_shards: int) -> Tensor:
    """Append ``dX = dY W``."""
    m, n, k = _sizes(grad, weight)
    size = grad.trace.options.tensor_dtype.size_bytes
    return grad.trace.emit(
        OpKind.MATMUL,
        [grad, weight, *_unpacked(grad.trace, weight, Phase.INPUT_GRADIENT)],
        (*grad.shape[:-1], k * in_shards),
        shards=(*grad.shards[:-1], in_shards),
        sequences=grad.sequences,
        flop=2 * m * n * k,
        mem_bytes=size * (m * k + k * n + m * n),
        key=(m, k, n),
        phase=Phase.INPUT_GRADIENT,
        name="grad_bw",
    )


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

    def _multiply(
        inputs: Sequence[Tensor], like: Sequence[Dim], key: tuple[Dim, ...], phase: Phase | None, name: str
    ) -> Tensor:
        return trace.emit(
            OpKind.MATMUL, inputs, like, dtype=a.dtype, flop=cost, mem_bytes=traffic, key=key, phase=phase, name=name
        )

    c = _multiply([a, b], (*a.shape[:-1], n), (batch * m, n, k), None, "matmul")

    def _backward(grad: Tensor) -> list[Tensor | None]:
        phase = Phase.INPUT_GRADIENT
        grad_a = _multiply([grad, b], a.shape, (batch * m, k, n), phase, "left_bw") if a.requires_grad else None
        grad_b = _multiply([a, grad], b.shape, (batch * k, n, m), phase, "right_bw") if b.requires_grad else None
        return [grad_a, grad_b]

    return trace.recorded([a, b], c, _backward)
