"""Scaling by a constant, or by a learned number per feature: memory-bound kernels, one each way."""

from __future__ import annotations

from collections.abc import Sequence

from semu.errors import GraphError
from semu.graph.operator import OpKind, Phase
from semu.nn.module import Parameter
from semu.nn.trace.tensor import Tensor
from semu.nn.trace.tracing import ParameterUse


def scale(x: Tensor) -> Tensor:
    """A tensor times a constant (e.g. Gemma's embeddings times sqrt(h)). Saves nothing."""
    y = _emit(x, [x], 2, "scale")
    return x.trace.recorded([x], y, lambda grad: [_emit(x, [grad], 2, "scale_bw")])


def scale_features(x: Tensor, weight: Parameter) -> Tensor:
    """Every feature times a learned number (layer scale, CaiT, 2103.17239 §2).

    Args:
        x: [..., h], h whole on each rank. weight: [h].
    Saves x where the weight trains; backward: one kernel for the gradients of x and weight.
    """
    if x.shards[-1] != 1 or weight.shape != (x.shape[-1],):
        raise GraphError(
            "one number per feature", where=x.trace.where, expected=f"[{x.shape[-1]}], whole rows", got=weight.shape
        )
    use = x.trace.parameter(weight)
    trained = [use] if use.gradient is not None else []
    y = _emit(x, [x, use], 2, "scale_features")

    def _backward(grad: Tensor) -> list[Tensor | None]:
        if not trained and not x.requires_grad:
            return [None]
        reads: list[Tensor | ParameterUse] = [*([x] if trained else []), grad, use]
        passes = len(trained) + (2 if x.requires_grad else 1)
        grad_x = _emit(x, reads, passes, "scale_features_bw", trained, has_output=x.requires_grad)
        return [grad_x if x.requires_grad else None]

    return x.trace.recorded([x], y, _backward)


def _emit(
    x: Tensor,
    inputs: Sequence[Tensor | ParameterUse],
    passes: int,
    name: str,
    gradients: Sequence[ParameterUse] = (),
    *,
    has_output: bool = True,
) -> Tensor:
    """Append a kernel that moves the bytes of ``x``, ``passes`` times; its result looks like ``x``."""
    return x.trace.emit(
        OpKind.ADD,
        inputs,
        like=x if has_output else None,
        gradients=gradients,
        mem_bytes=passes * x.size_bytes,
        key=(x.numel,),
        phase=None if has_output else Phase.WEIGHT_GRADIENT,
        name=name,
    )
