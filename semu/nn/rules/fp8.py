"""Linear layers whose three products run in fp8: per-tensor scaling, E4M3 forward, E5M2 gradients (2209.05433).

As Transformer Engine runs them on Hopper, whose fp8 products want both operands along the summed axis: every operand
of two products is cast once and written twice, plain and transposed, by one memory-bound kernel that also finds the
largest magnitude for the next scale (delayed scaling). What is kept for the backward pass is the fp8 input. Token
gathers of sequence parallelism move the fp8 copy. Outputs, and everything outside such linears, stay in bf16.

Under blockwise scaling (``Fp8Recipe``) the scales follow the copy, row by row: they are written, read, gathered and
kept with it, and a transposed copy is quantised along the other axis.

Blackwell's products take either layout: per-tensor scaling then needs one copy (``fp8_copies``). MXFP8 still writes
two, scaled along either axis, and what it gathers it gathers in the copy that the product at hand reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semu.errors import GraphError
from semu.graph.dim import Dim, product
from semu.graph.operator import OpKind, Phase
from semu.hardware.fp8 import Fp8Recipe
from semu.hardware.kinds import DType
from semu.nn.module import Parameter
from semu.nn.rules.collective import all_gather_tokens
from semu.nn.rules.linear_split import LinearSplit
from semu.nn.rules.weight_gradients import accumulate_weight_gradient
from semu.nn.trace.keep import kept_product
from semu.nn.trace.parameter_use import ParameterUse
from semu.nn.trace.tensor import Tensor, laid_out_like
from semu.nn.trace.tracing import Trace
from semu.records import dataclass

WIDTH_MULTIPLE = 16
"""Both axes of an fp8 weight are multiples of this on every rank (Transformer Engine's check; cuBLASLt's alignment)."""


@dataclass(frozen=True)
class Cast:
    """fp8 copies of a tensor with their scales, plain and transposed; None: the copy has no reader."""

    plain: Tensor | None
    transposed: Tensor | None


def fp8_linear(
    x: Tensor,
    weight: Parameter,
    bias: Parameter | None,
    split: LinearSplit,
    parts: Sequence[int] | None = None,
) -> Tensor:
    """``y = x W^T + b`` in fp8; arguments, result and FLOP as ``semu.nn.rules.matrix_products.linear``.

    Raises:
        GraphError: a weight whose local axes are no multiples of 16.
    """
    trace, in_shards, out_shards = x.trace, split.in_shards, split.out_shards
    w = trace.parameter(weight, (out_shards, in_shards), is_fp8=True, parts=parts)
    b = trace.parameter(bias, (out_shards,)) if bias is not None else None
    n, k = _widths(trace, weight, (out_shards, in_shards))
    trains = w.gradient is not None
    is_single, is_mx = trace.options.fp8_copies == 1, trace.options.fp8_recipe is Fp8Recipe.MXFP8
    keeps, needs_weight_again = trains and trace.grad_enabled, x.requires_grad and trace.grad_enabled
    with trace.no_grad():
        x8 = _cast(x, plain=True, transposed=keeps and (is_mx or not split.is_gathered) and not is_single, name="cast")
        w8 = _cast_weight(trace, w, (out_shards, in_shards), transposed=needs_weight_again and not is_single)
        assert x8.plain is not None
        whole = split.gathered(x8.plain)
        if trace.ledger is None:
            y = _product(whole, w8[0], (*x.shape[:-1], n * out_shards), out_shards, (n, k), also=b)
        else:
            inputs = [whole, w8[0], *([b] if b is not None else [])]
            sizes = product(whole.local_shape[:-1]), n, k
            y = kept_product(whole, inputs, out_shards, sizes, parts or (n,), DType.FP8)
        y = split.reduced(y)
    y = replace(y, requires_grad=trace.grad_enabled and trace.any_trainable([x, w] if b is None else [x, w, b]))

    def _backward(grad: Tensor) -> list[Tensor | None]:
        needs = x.requires_grad
        phase = Phase.INPUT_GRADIENT if needs else Phase.WEIGHT_GRADIENT
        if is_mx and split.is_scattered:
            g8 = _cast(grad, plain=needs, transposed=trains, name="grad_cast", phase=phase)
            g8 = Cast(*(None if copy is None else all_gather_tokens(copy) for copy in (g8.plain, g8.transposed)))
        elif split.is_scattered:
            rows = _cast(grad, plain=needs or trains, transposed=False, name="grad_cast", phase=phase).plain
            rows = all_gather_tokens(rows) if rows is not None else None
            is_turned = rows is not None and trains and not is_single
            g8 = Cast(rows, _transpose(rows, "grad_transpose") if rows is not None and is_turned else rows)
        elif is_single:
            rows = _cast(grad, plain=needs or trains, transposed=False, name="grad_cast", phase=phase).plain
            g8 = Cast(rows, rows)
        else:
            g8 = _cast(grad, plain=needs, transposed=trains, name="grad_cast", phase=phase)
        columns = x8.plain if is_single else x8.transposed
        if split.is_gathered and trains:
            again = x8.transposed if is_mx else x8.plain
            assert again is not None
            columns = whole if trace.options.keeps_gathered and not is_mx else split.gathered(again)
            if not is_mx and not is_single:
                columns = _transpose(columns, "transpose")
        grad_x = None
        if needs:
            assert g8.plain is not None
            shape = (*grad.shape[:-1], k * in_shards)
            grad_x = _product(g8.plain, w8[1], shape, in_shards, (k, n), phase=phase, name="grad_bw")
            grad_x = split.reduced_gradient(grad_x)
        operands = [g8.transposed, columns]
        m = product(g8.transposed.local_shape[:-1]) if g8.transposed is not None else 0
        read_bytes = sum((operand.size_bytes for operand in operands if operand is not None), start=0)
        accumulate_weight_gradient(grad, operands, w, b, (m, n, k), read_bytes, DType.FP8)
        return [grad_x]

    return trace.recorded([x], y, _backward)


def _widths(trace: Trace, weight: Parameter, cut: tuple[int, int]) -> tuple[int, int]:
    """Local axes [n, k] of a weight."""
    n, k = (dim // parts for dim, parts in zip(weight.shape, cut, strict=True))
    if n % WIDTH_MULTIPLE or k % WIDTH_MULTIPLE:
        raise GraphError(
            "a weight that fp8 products cannot take",
            where=trace.where,
            expected=f"both axes multiples of {WIDTH_MULTIPLE} on every rank (or precision bf16)",
            got=f"[{n}, {k}]",
        )
    return n, k


def _cast(x: Tensor, *, plain: bool, transposed: bool, name: str, phase: Phase | None = None) -> Cast:
    """Append one kernel that reads a tensor and writes the wanted fp8 copies."""
    copies = plain + transposed
    if not copies:
        return Cast(None, None)
    rows, width = x.local_shape[:-1], x.local_shape[-1]
    assert isinstance(width, int)
    packed = x.trace.options.fp8_recipe.row_bytes(width)
    first = x.trace.emit(
        OpKind.CAST,
        [x],
        (*x.shape[:-1], packed * x.shards[-1]),
        like=x,
        dtype=DType.FP8,
        mem_bytes=x.size_bytes + copies * packed * product(rows),
        phase=phase,
        name=name,
        extra_outputs=[((*rows, packed), DType.FP8)] * (copies - 1),
    )
    if copies == 2:
        return Cast(first, laid_out_like(x.trace.side_outputs(1)[0], first))
    return Cast(first, None) if plain else Cast(None, first)


def _transpose(x: Tensor, name: str) -> Tensor:
    """Append the transposition of a gathered fp8 tensor: read once, written once."""
    phase = Phase.WEIGHT_GRADIENT
    return x.trace.emit(OpKind.CAST, [x], like=x, mem_bytes=2 * x.size_bytes, phase=phase, name=name)


def _cast_weight(
    trace: Trace, w: ParameterUse, cut: tuple[int, ...], *, transposed: bool
) -> tuple[Tensor | ParameterUse, Tensor | ParameterUse]:
    """What the forward and the input-gradient product read: copies made per microbatch, or once an iteration; of
    weights that come in fp8 the transposed copy alone."""
    copies, parts = 1 + transposed, cut[0] * cut[1]
    packed = w.numel + trace.options.fp8_recipe.scale_bytes(w.numel)
    if not trace.options.cast_weights:
        if not (trace.options.transpose_weights and transposed):
            return w, w
        turned = trace.emit(
            OpKind.CAST,
            [w],
            (packed * parts,),
            shards=(parts,),
            dtype=DType.FP8,
            mem_bytes=2 * packed,
            key=(w.numel,),
            name="weight_transpose",
        )
        return w, turned
    first = trace.emit(
        OpKind.CAST,
        [w],
        (packed * parts,),
        shards=(parts,),
        dtype=DType.FP8,
        mem_bytes=w.numel * trace.options.tensor_dtype.size_bytes + copies * packed,
        key=(w.numel,),
        name="weight_cast",
        extra_outputs=[((packed,), DType.FP8)] * (copies - 1),
    )
    return first, trace.side_outputs(1)[0] if transposed else first


def _product(
    a: Tensor,
    weight: Tensor | ParameterUse,
    shape: tuple[Dim, ...],
    shards: int,
    widths: tuple[int, int],
    *,
    also: ParameterUse | None = None,
    phase: Phase | None = None,
    name: str = "",
) -> Tensor:
    """Append an fp8 product with a weight: operands of one byte, the result in the model's type.

    Args:
        a: [..., k] with its scales. shape: of the result, [..., n]. shards: of its last axis. widths: (n, k).
        also: a fused bias.
    """
    trace = a.trace
    n, k = widths
    m = product(a.local_shape[:-1])
    return trace.emit(
        OpKind.MATMUL,
        [a, weight, *([also] if also is not None else [])],
        shape,
        shards=(*a.shards[:-1], shards),
        sequences=a.sequences,
        flop=2 * m * n * k,
        mem_bytes=a.size_bytes
        + (k * n + trace.options.fp8_recipe.scale_bytes(k * n))
        + trace.options.tensor_dtype.size_bytes * m * n,
        key=(m, n, k),
        phase=phase,
        name=name,
        arithmetic=DType.FP8,
    )
