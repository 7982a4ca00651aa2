"""Changes of a tensor's type: what ``torch.autocast`` puts before and behind its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from semu.graph.operator import OpKind
from semu.hardware.kinds import DType
from semu.nn.trace.parameter_use import ParameterUse
from semu.nn.trace.tensor import Tensor


def cast(x: Tensor, dtype: DType) -> Tensor:
    """A tensor in another type: one kernel, and one for its gradient; a tensor of that type is itself."""
    if x.dtype is dtype:
        return x

    def _convert(source: Tensor, to: DType, name: str) -> Tensor:
        traffic = source.size_bytes + source.numel * to.size_bytes
        return x.trace.emit(OpKind.CAST, [source], like=source, dtype=to, mem_bytes=traffic, name=name)

    y = replace(_convert(x, dtype, "cast"), requires_grad=x.requires_grad)
    return x.trace.recorded([x], y, lambda grad: [_convert(grad, x.dtype, "cast_bw")])


def for_products(x: Tensor) -> Tensor:
    """What a product reads of ``x``: under autocast, its copy in 16 bits."""
    options = x.trace.options
    return x if options.autocast is None else cast(x, options.tensor_dtype)


def for_norms(x: Tensor) -> Tensor:
    """What a layer or group norm reads of ``x``: its fp32 copy where autocast computes norms in fp32 (PyTorch's list of
    operators that autocast to float32)."""
    autocast = x.trace.options.autocast
    return cast(x, DType.FP32) if autocast is not None and autocast.has_fp32_norms else x


def cast_weights(x: Tensor, uses: Sequence[ParameterUse]) -> None:
    """Append the kernel that copies fp32 weights into 16 bits before a forward product with ``x``, where autocast does.

    The copy lives to the backward pass (autocast caches it); it is what semu counts as the parameter, beside the fp32
    weight, which it counts as the master. A frozen weight is taken to be stored in 16 bits.
    """
    elements = sum(use.numel for use in uses if use.gradient is not None)
    if elements and x.trace.options.casts_parameters:
        traffic = elements * (DType.FP32.size_bytes + x.trace.options.tensor_dtype.size_bytes)
        x.trace.emit(OpKind.CAST, [x, *uses], mem_bytes=traffic, key=(elements,), name="cast_weight")
