"""The Adam step over the parameters that one rank holds."""

from __future__ import annotations

from collections.abc import Sequence

from semu.graph.operator import OpKind, Phase
from semu.graph.tensor import Role
from semu.hardware.kinds import DType
from semu.nn.trace.tracing import COMPUTE, ParameterUse, Trace


def adam_bytes(
    elements: int,
    *,
    tensor_dtype: DType,
    grad_dtype: DType,
    master_dtype: DType = DType.FP32,
    state_dtype: DType = DType.FP32,
) -> int:
    """Memory traffic of one fused Adam step [bytes].

    Args:
        elements: local parameters that are stepped. tensor_dtype, grad_dtype: types of parameters and gradients.
        master_dtype, state_dtype: types of master weights and moments.
    Returns:
        Gradient, master weight and both moments read; master weight, both moments and the parameter written. Without
        master weights (where they have the parameters' type) the parameter itself is read and written.
    """
    weight = 2 * tensor_dtype.size_bytes
    if tensor_dtype is not master_dtype:
        weight = 2 * master_dtype.size_bytes + tensor_dtype.size_bytes
    return elements * (grad_dtype.size_bytes + weight + 4 * state_dtype.size_bytes)


def adam_step(trace: Trace, parameters: Sequence[ParameterUse]) -> None:
    """Append one fused Adam step over the trainable parameters, with their optimizer state; nothing if none trains."""
    trained = [use for use in parameters if use.gradient is not None]
    elements = sum(use.numel for use in trained)
    if not elements:
        return
    graph, options = trace.graph, trace.options
    has_master = options.tensor_dtype is not DType.FP32
    names = ["moment1", "moment2", *(["master"] if has_master else [])]
    state = [graph.add_tensor((elements,), DType.FP32, Role.OPTIMIZER_STATE, name=f"adam.{name}") for name in names]
    graph.add_operator(
        OpKind.OPTIMIZER,
        COMPUTE,
        inputs=[use.gradient for use in trained if use.gradient is not None] + state,
        outputs=[use.tensor for use in trained] + state,
        mem_bytes=adam_bytes(elements, tensor_dtype=options.tensor_dtype, grad_dtype=options.grad_dtype),
        dtype=DType.FP32,
        key=(elements,),
        path="adam",
        phase=Phase.OPTIMIZER,
    )
