"""Grouped matrix products: every expert of a rank multiplies its rows, all in one kernel; bf16 or fp8."""

from __future__ import annotations

from collections.abc import Sequence

from semu.errors import GraphError
from semu.graph.dim import Dim, divide
from semu.graph.operator import OpKind, Phase
from semu.hardware.kinds import DType
from semu.nn.layers.activation import Activation
from semu.nn.module import Parameter
from semu.nn.rules.fp8 import WIDTH_MULTIPLE
from semu.nn.rules.fp8 import _cast as cast
from semu.nn.rules.fp8 import _cast_weight as cast_weight
from semu.nn.rules.pointwise import emit_both_gradients
from semu.nn.rules.weight_gradients import accumulate_weight_gradient
from semu.nn.trace.parameter_use import ParameterUse
from semu.nn.trace.tensor import Tensor


def grouped_linear(
    x: Tensor, weight: Parameter, bias: Parameter | None = None, *, split_out: bool, may_be_fp8: bool = True
) -> Tensor:
    """``y_e = x_e W_e^T (+ b_e)`` for the rows of every local expert e; the bias and its gradient are fused.

    Args:
        x: [rows, in / (etp where the input is split)], rows of this rank's experts, sorted.
        weight: [experts, out, in]; a rank holds experts / ep of them. bias: [experts, out].
        split_out: expert tensor parallelism splits ``out``, else ``in``.
        may_be_fp8: false: in the plain precision even where linears run in fp8.
    Returns:
        [rows, out / (etp where it is split)]: FLOP 2 rows n k of local widths. Saves x (under fp8 its transposed copy).
    Raises:
        GraphError: a width that does not fit; under fp8 one that is no multiple of 16.
    """
    trace, plan = x.trace, x.trace.options.experts
    cut = (plan.ep, plan.etp if split_out else 1, 1 if split_out else plan.etp)
    is_expert = plan.ep > 1 or plan.etp != trace.options.plan.tp  # else reduced with all other gradients
    use = trace.parameter(weight, cut, is_fp8=trace.is_fp8 and may_be_fp8, is_expert=is_expert)
    added = trace.parameter(bias, cut[:2], is_expert=is_expert) if bias is not None else None
    _, n, k = (dim // parts for dim, parts in zip(weight.shape, cut, strict=True))
    if x.shape[-1] != k:
        raise GraphError("the rows do not fit the experts", where=trace.where, expected=f"[..., {k}]", got=x.shape)
    if trace.is_fp8 and may_be_fp8:
        return _fp8(x, use, added, cut, n, k)
    name, groups = weight.name, weight.shape[0] // plan.ep
    y = _product(x, use, groups, n, (x.local_shape[0], n, k), DType.BF16, name=name, bias=added)

    def _backward(grad: Tensor) -> list[Tensor | None]:
        grad_x = None
        if x.requires_grad:
            key = (x.local_shape[0], k, n)
            grad_x = _product(grad, use, groups, k, key, DType.BF16, phase=Phase.INPUT_GRADIENT, name=f"{name}.grad_bw")
        _weight_gradient(grad, [grad, x], use, added, (n, k), None)
        return [grad_x]

    return trace.recorded([x], y, _backward)


def _fp8(x: Tensor, use: ParameterUse, added: ParameterUse | None, cut: tuple[int, ...], n: int, k: int) -> Tensor:
    """``grouped_linear`` with fp8 operands, cast as in ``fp8_linear``."""
    trace = x.trace
    if n % WIDTH_MULTIPLE or k % WIDTH_MULTIPLE:
        raise GraphError(
            "experts that fp8 products cannot take",
            where=trace.where,
            expected=f"both axes multiples of {WIDTH_MULTIPLE} on every rank (or precision bf16)",
            got=f"[{n}, {k}]",
        )
    trains, needs, name = use.gradient is not None, x.requires_grad, use.parameter.name
    groups = use.numel // (n * k)
    is_single = trace.options.fp8_copies == 1
    x8 = cast(x, plain=True, transposed=trains and trace.grad_enabled and not is_single, name=f"{name}.cast")
    w8 = cast_weight(trace, use, cut, transposed=needs and trace.grad_enabled and not is_single)
    assert x8.plain is not None
    y = _product(x8.plain, w8[0], groups, n, (x.local_shape[0], n, k), DType.FP8, name=name, bias=added)

    def _backward(grad: Tensor) -> list[Tensor | None]:
        if not trains:
            _weight_gradient(grad, [grad, x], use, added, (n, k), None)
        if not (trains or needs):
            return [None]
        phase = Phase.INPUT_GRADIENT if needs else Phase.WEIGHT_GRADIENT
        g8 = cast(
            grad,
            plain=needs or is_single,
            transposed=trains and not is_single,
            name=f"{name}.grad_cast",
            phase=phase,
        )
        grad_x = None
        if needs:
            assert g8.plain is not None
            key = (x.local_shape[0], k, n)
            grad_x = _product(
                g8.plain, w8[1], groups, k, key, DType.FP8, phase=Phase.INPUT_GRADIENT, name=f"{name}.grad_bw"
            )
        if trains:
            rows, columns = (g8.plain, x8.plain) if is_single else (g8.transposed, x8.transposed)
            assert rows is not None and columns is not None
            _weight_gradient(grad, [rows, columns], use, added, (n, k), DType.FP8)
        return [grad_x]

    return trace.recorded([x], y, _backward)


def _product(
    a: Tensor,
    weight: Tensor | ParameterUse,
    groups: int,
    width: int,
    key: tuple[Dim, Dim, Dim],
    operand: DType,
    *,
    name: str,
    phase: Phase | None = None,
    bias: ParameterUse | None = None,
) -> Tensor:
    """Append rows times the experts' weights: FLOP 2 m n k, bytes of rows, of all local weights and of the result.

    The shape key tells that m is split over the local experts.
    """
    trace = a.trace
    m, n, k = key
    size = trace.options.tensor_dtype.size_bytes
    is_fp8 = operand is DType.FP8
    return trace.emit(
        trace.options.experts.product,
        [a, weight] if bias is None else [a, weight, bias],
        (a.shape[0], width),
        shards=a.shards,
        flop=2 * m * n * k,
        mem_bytes=(1 if is_fp8 else size) * (m * k + groups * n * k) + size * m * n,
        key=(*key, groups, 1),
        phase=phase,
        name=name,
        arithmetic=DType.FP8 if is_fp8 else None,
    )


def _weight_gradient(
    grad: Tensor,
    operands: Sequence[Tensor],
    use: ParameterUse,
    added: ParameterUse | None,
    widths: tuple[int, int],
    arithmetic: DType | None,
) -> None:
    """Append ``dW_e += dY_e^T X_e`` into the gradient buffers of all local experts, and the biases' gradients."""
    (n, k), rows = widths, grad.local_shape[0]
    accumulate_weight_gradient(
        grad,
        operands,
        use,
        added,
        (rows, n, k),
        operands[0].dtype.size_bytes * rows * n + operands[1].dtype.size_bytes * rows * k,
        arithmetic,
        kind=grad.trace.options.experts.product,
        groups=use.numel // (n * k),
        prefix=f"{use.parameter.name}.",
    )


def weighted_activation(
    x: Tensor, probabilities: Tensor, *, gated: bool, activation: Activation | None = None
) -> Tensor:
    """The expert's non-linearity times the row's probability.

    Args:
        x: [rows, 2 f] where gated, else [rows, f]. probabilities: [rows]. activation: default as in ``MLP``.
    Saves its inputs (kind ``moe_act`` drops the output). An ungated activation and the product are two kernels, and the
    second saves its inputs too (Megatron-LM's TEGroupedMLP fuses only gated ones), except under ``moe_act``.
    """
    trace = x.trace
    function = activation if activation is not None else Activation.default(gated=gated)
    kind, name = OpKind.ACTIVATION, f"weighted_{function.gated_name if gated else function.value}"
    if not gated and "moe_act" not in trace.options.recompute.kinds:
        x, kind, name = function.apply(x, gated=False), OpKind.ADD, "weight_rows"
    width, size = x.shape[-1], x.size_bytes
    assert isinstance(width, int)
    shape = (*x.shape[:-1], width // 2 if gated else width)
    traffic = size + (divide(size, 2, "a gated tensor", trace.where) if gated else size) + probabilities.size_bytes

    def _apply() -> Tensor:
        return trace.emit(kind, [x, probabilities], shape, like=x, mem_bytes=traffic, name=name)

    y = _apply()
    trace.drop_output("moe_act", y, _apply)

    def _backward(grad: Tensor) -> list[Tensor | None]:
        more = traffic + size + probabilities.size_bytes
        return emit_both_gradients(kind, x, probabilities, grad, more, f"{name}_bw")

    return trace.recorded([x, probabilities], y, _backward)
