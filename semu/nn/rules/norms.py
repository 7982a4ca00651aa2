"""Layer, group and RMS normalisation: one fused kernel each way, more in eager mode, in fp32 under autocast."""

from __future__ import annotations

from semu.errors import GraphError
from semu.graph.dim import product
from semu.graph.operator import OpKind, Phase
from semu.hardware.kinds import DType
from semu.nn.module import Parameter
from semu.nn.rules.casts import for_norms
from semu.nn.trace.eager import (
    FLASH,
    GROUP_NORM,
    GROUP_NORM_BACKWARD,
    GROUP_NORM_LAYOUT,
    LAYER_NORM_BACKWARD,
    RMS_NORM,
    RMS_NORM_BACKWARD,
    eager_moves,
    eager_passes,
)
from semu.nn.trace.tensor import Tensor


def norm(x: Tensor, weight: Parameter | None, bias: Parameter | None, *, num_statistics: int, name: str) -> Tensor:
    """Normalise the last axis.

    Args:
        x: [..., h], h whole on each rank. weight, bias: [h] or None.
        num_statistics: fp32 numbers kept per row: 2 for layer norm (mean, 1/deviation), 1 for RMS norm. A group norm
            has fewer, and is counted as a layer norm.
        name: ``layer_norm``, ``group_norm`` or ``rms_norm``. A group does not fit into a block of threads, so its
            kernels read their inputs twice: for the moments, or for the sums that the gradients need, and to write.
    Saves x and the statistics. Backward: one kernel for the gradients of x, weight and bias.
    """
    trace = x.trace
    is_rms, is_group = num_statistics == 1, name == "group_norm"
    x = x if is_rms else for_norms(x)
    if x.shards[-1] != 1:
        raise GraphError("a norm needs whole rows", where=trace.where, expected="an unsplit last axis", got=x.shards)
    uses = [trace.parameter(parameter) for parameter in (weight, bias) if parameter is not None]
    rows = product(x.local_shape[:-1])
    statistics = rows * num_statistics * DType.FP32.size_bytes

    is_flash = is_rms and trace.options.calls_flash
    kernel = f"{FLASH}{name}" if is_flash else name
    again = 1 if is_group else 0

    def _normalise() -> Tensor:
        return trace.emit(
            OpKind.NORM,
            [x, *uses],
            like=x,
            mem_bytes=(2 + again) * x.size_bytes + statistics,
            key=(rows, x.shape[-1]),
            name=kernel,
            extra_outputs=[((rows, num_statistics), DType.FP32)],
        )

    y = _normalise()
    (saved,) = trace.side_outputs(1)
    if is_rms and not is_flash:
        eager_passes(y, RMS_NORM, name)
    if is_group:
        _group_passes(x, GROUP_NORM, name)
        if not trace.options.channels_first:
            eager_passes(x, GROUP_NORM_LAYOUT, name)
    trace.drop_output("layernorm", y, _normalise)

    def _backward(grad: Tensor) -> list[Tensor | None]:
        trained = [use for use in uses if use.gradient is not None]
        if not x.requires_grad and not trained:
            return [None]
        grad_x = trace.emit(
            OpKind.NORM,
            [x, saved, grad, *uses],
            like=x if x.requires_grad else None,
            gradients=trained,
            mem_bytes=((3 if x.requires_grad else 2) + 2 * again) * x.size_bytes + statistics,
            key=(rows, x.shape[-1]),
            phase=Phase.INPUT_GRADIENT if x.requires_grad else Phase.WEIGHT_GRADIENT,
            name=f"{kernel}_bw",
        )
        if is_rms and not is_flash and x.requires_grad:
            eager_passes(grad_x, RMS_NORM_BACKWARD, f"{name}_bw", Phase.INPUT_GRADIENT)
        if is_group:
            _group_passes(grad, GROUP_NORM_BACKWARD, f"{name}_bw", Phase.INPUT_GRADIENT)
        elif trained and not is_rms:
            eager_moves(grad, LAYER_NORM_BACKWARD, f"{name}_bw", Phase.INPUT_GRADIENT)
        return [grad_x if x.requires_grad else None]

    return trace.recorded([x], y, _backward)


def _group_passes(x: Tensor, bytes_per_element: int, name: str, phase: Phase | None = None) -> None:
    """What PyTorch's kernels over groups take longer, as traffic; fp32 tensors keep them busy."""
    if x.dtype.size_bytes < DType.FP32.size_bytes:
        eager_passes(x, bytes_per_element, name, phase)
