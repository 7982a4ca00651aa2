"""Scaling by a constant, or by a learned number per feature: memory-bound kernels, one each way."""

from __future__ import annotations

from semu.errors import GraphError
from semu.graph.operator import OpKind, Phase
from semu.nn.module import Parameter
from semu.nn.trace.tensor import Tensor


def scale(x: Tensor) -> Tensor:
    """A tensor times a constant (e.g. Gemma's embeddings times sqrt(h)). Saves nothing."""

    def _scaled(source: Tensor, name: str) -> Tensor:
        return x.trace.emit(OpKind.ADD, [source], like=x, mem_bytes=2 * x.size_bytes, name=name)

    return x.trace.recorded([x], _scaled(x, "scale"), lambda grad: [_scaled(grad, "scale_bw")])


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
    y = x.trace.emit(OpKind.ADD, [x, use], like=x, mem_bytes=2 * x.size_bytes, name="scale_features")

    def _backward(grad: Tensor) -> list[Tensor | None]:
        if not trained and not x.requires_grad:
            return [None]
        grad_x = x.trace.emit(
            OpKind.ADD,
            [x, grad, use] if trained else [grad, use],
            like=x if x.requires_grad else None,
            gradients=trained,
            mem_bytes=(len(trained) + (2 if x.requires_grad else 1)) * x.size_bytes,
            key=(x.numel,),
            phase=None if x.requires_grad else Phase.WEIGHT_GRADIENT,
            name="scale_features_bw",
        )
        return [grad_x if x.requires_grad else None]

    return x.trace.recorded([x], y, _backward)
