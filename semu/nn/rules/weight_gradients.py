"""Gradients of weights and biases: products into the gradient buffers, and reductions."""

from __future__ import annotations

from collections.abc import Sequence

from semu.graph.dim import Dim
from semu.graph.operator import OpKind, Phase
from semu.hardware.kinds import DType
from semu.nn.trace.eager import ACCUMULATE, BIAS_BACKWARD, eager_moves
from semu.nn.trace.parameter_use import ParameterUse
from semu.nn.trace.tensor import Tensor


def accumulate_weight_gradient(
    grad: Tensor,
    operands: Sequence[Tensor | None],
    weight: ParameterUse,
    bias: ParameterUse | None,
    sizes: tuple[Dim, int, int],
    read_bytes: Dim,
    arithmetic: DType | None = None,
    *,
    kind: OpKind = OpKind.MATMUL,
    groups: int | None = None,
    prefix: str = "",
) -> None:
    """Append the gradients of a weight and its bias, where they train.

    The weight's: a product into the gradient buffer (read and written), or, where accumulation is not fused, into a
    tensor of the parameters' type, which a further kernel adds to the buffer; autocast copies it to fp32 before. The
    bias's is fused into the product, but for eager mode; where the weight is frozen it is a reduction. Where gradients
    are summed twice, autograd adds the tensor to one of the parameters' type, which is cast and added to the buffer
    and then cleared.

    Args:
        grad: of the layer's result. operands: what the product reads; not None where the weight trains.
        sizes: m, n, k. read_bytes: of the operands. arithmetic: precision; None: the options' plain one.
        kind, groups: a product of so many experts' weights, each n x k, with m rows in all; None: of one weight.
        prefix: of the kernels' names.
    Source:
        Megatron-LM's ``--no-gradient-accumulation-fusion``: ``param.main_grad.add_(param.grad)`` in its DDP hook.
        Twice: DeepSpeed's ``BF16_Optimizer``, ``hp_grad.data.add_(lp.grad.data.to(hp_grad.dtype))`` and
        ``clear_lp_grads`` in every microbatch of a pipeline.
    """
    trace, (m, n, k) = grad.trace, sizes
    writes = [use for use in (weight, bias) if use is not None and use.gradient is not None]
    if weight.gradient is None:
        if writes:
            reduce_rows(grad, writes, grad.size_bytes, f"{prefix}bias_bw")
        return
    size, grad_size = trace.options.tensor_dtype.size_bytes, trace.options.grad_dtype.size_bytes
    is_cast = trace.options.casts_parameters
    is_fused = trace.options.fused_accumulation and not is_cast
    if bias in writes:
        eager_moves(grad, BIAS_BACKWARD, f"{prefix}bias_bw", Phase.WEIGHT_GRADIENT)
    numel = n * k * (groups or 1)
    product_of = trace.emit(
        kind,
        [operand for operand in operands if operand is not None],
        None if is_fused else (n, k) if groups is None else (numel,),
        dtype=None if is_fused else trace.options.tensor_dtype,
        gradients=writes if is_fused else (),
        flop=2 * m * n * k,
        mem_bytes=read_bytes + (2 * grad_size if is_fused else size) * numel,
        key=(n, k, m) if groups is None else (n, k, m, 1, groups),
        phase=Phase.WEIGHT_GRADIENT,
        name=f"{prefix}weight_bw",
        arithmetic=arithmetic,
    )
    if not is_fused:
        add_to_gradient(product_of, writes, numel, f"{prefix}{ACCUMULATE}")


def add_to_gradient(made: Tensor, writes: Sequence[ParameterUse], numel: int, name: str) -> None:
    """Append what adds a gradient of the parameters' type to the buffer: under autocast and where gradients are summed
    twice, with its copy in the buffer's type.

    Args:
        made: the gradient, of ``numel`` elements. writes: parameters whose buffers it is added to.
    """
    options = made.trace.options
    size, grad_size = options.tensor_dtype.size_bytes, options.grad_dtype.size_bytes
    is_twice = options.sums_gradients_twice
    narrow, wide = (5, 4) if is_twice else (1, 2 if options.autocast is None else 4)
    made.trace.emit(
        OpKind.ADD,
        [made],
        gradients=writes,
        mem_bytes=(narrow * size + wide * grad_size) * numel,
        key=(numel,),
        phase=Phase.WEIGHT_GRADIENT,
        name=name,
        extra_outputs=[((numel,), options.grad_dtype)] if is_twice else (),
    )


def reduce_rows(grad: Tensor, writes: Sequence[ParameterUse], mem_bytes: Dim, name: str) -> None:
    """Append a sum over rows of ``grad`` into gradient buffers."""
    phase = Phase.WEIGHT_GRADIENT
    grad.trace.emit(OpKind.CUSTOM, [grad], gradients=writes, mem_bytes=mem_bytes, phase=phase, name=name)
