"""Memory-bound elementwise kernels: add, activations, dropout, rotary embedding, modulation.

They carry bytes only: their arithmetic is not tensor-core work and never binds. Each names what its backward reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from semu.errors import GraphError
from semu.graph.dim import Dim, divide
from semu.graph.operator import OpKind, Phase
from semu.hardware.kinds import DType
from semu.nn.module import Parameter
from semu.nn.trace.eager import GATE, GATE_BACKWARD, ROTARY, ROTARY_BACKWARD, eager_passes
from semu.nn.trace.tensor import Tensor, laid_out_like


def _like(
    x: Tensor,
    kind: OpKind,
    inputs: Sequence[Tensor],
    mem_bytes: Dim,
    name: str,
    *,
    phase: Phase | None = None,
    shape: Sequence[Dim] | None = None,
    extra_outputs: Sequence[tuple[Sequence[Dim], DType]] = (),
) -> Tensor:
    """Append a kernel whose result looks like ``x`` (or has ``shape``)."""
    return x.trace.emit(
        kind,
        inputs,
        shape,
        like=x,
        mem_bytes=mem_bytes,
        key=(x.numel,),
        phase=phase,
        name=name,
        extra_outputs=extra_outputs,
    )


def _same_layout(a: Tensor, b: Tensor, what: str) -> None:
    if a.shape != b.shape or a.shards != b.shards:
        raise GraphError(
            f"{what} needs two tensors alike",
            where=a.trace.where,
            expected=f"{a.shape} split {a.shards}",
            got=f"{b.shape} split {b.shards}",
        )


def add(a: Tensor, b: Tensor) -> Tensor:
    """Residual add. Saves nothing; the gradient goes to both unchanged."""
    _same_layout(a, b, "an addition")
    y = _like(a, OpKind.ADD, [a, b], 3 * a.size_bytes, "add")

    def backward(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        return [gradients[0], gradients[0]]

    a.trace.record([a, b], [y], backward)
    return y


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Elementwise product. Saves both operands."""
    _same_layout(a, b, "a multiplication")
    y = _like(a, OpKind.ADD, [a, b], 3 * a.size_bytes, "multiply")

    def backward(grad: Tensor) -> list[Tensor | None]:
        return [
            _like(a, OpKind.ADD, [grad, other], 3 * a.size_bytes, "multiply_bw") if wanted.requires_grad else None
            for wanted, other in ((a, b), (b, a))
        ]

    return a.trace.recorded([a, b], y, backward)


def add_parameter(x: Tensor, parameter: Parameter, rows: int) -> Tensor:
    """Add a learned table to every token (position embedding): x [tokens, h] + table [rows, h].

    ``rows`` is the table's height, each token reads one row. Backward: a reduction into the table's gradient.
    """
    use = x.trace.parameter(parameter)
    if tuple(parameter.shape) != (rows, x.shape[-1]):
        raise GraphError("the table does not fit", where=x.trace.where, expected=f"{x.shape}", got=parameter.shape)
    y = x.trace.emit(
        OpKind.ADD,
        [x, use],
        like=x,
        mem_bytes=3 * x.size_bytes,
        key=(x.numel,),
        name="add_table",
    )

    def backward(grad: Tensor) -> list[Tensor | None]:
        if use.gradient is not None:
            size = x.trace.options.grad_dtype.size_bytes
            x.trace.emit(
                OpKind.EMBEDDING,
                [grad],
                gradients=[use],
                mem_bytes=grad.size_bytes + 2 * size * grad.numel,
                key=(grad.numel,),
                phase=Phase.WEIGHT_GRADIENT,
                name="table_bw",
            )
        return [grad]

    return x.trace.recorded([x], y, backward)


def softcap(x: Tensor) -> Tensor:
    """``cap x tanh(x / cap)`` (Gemma 2, 2408.00118 §2), one kernel. Saves its input."""
    return activation(x, "softcap", is_droppable=False)


def activation(x: Tensor, name: str, *, is_droppable: bool = True) -> Tensor:
    """An elementwise non-linearity (``gelu``, ``silu``, ...). Saves its input.

    ``is_droppable``: the kind ``act`` of selective recomputation means it.
    """

    def apply() -> Tensor:
        return _like(x, OpKind.ACTIVATION, [x], 2 * x.size_bytes, name)

    y = apply()
    if is_droppable:
        x.trace.drop_output("act", y, apply)

    def backward(grad: Tensor) -> list[Tensor | None]:
        return [_like(x, OpKind.ACTIVATION, [x, grad], 3 * x.size_bytes, f"{name}_bw")]

    return x.trace.recorded([x], y, backward)


def gated_activation(x: Tensor, name: str) -> Tensor:
    """``f(gate) * up`` of a fused [..., 2 f] tensor (SwiGLU, GeGLU: 2002.05202), one kernel. Saves its input."""
    width = x.shape[-1]
    if not isinstance(width, int) or width % 2:
        raise GraphError(
            "a gated activation halves its input", where=x.trace.where, expected="an even width", got=width
        )
    half = (*x.shape[:-1], width // 2)
    out_bytes = x.size_bytes

    def apply() -> Tensor:
        return _like(x, OpKind.ACTIVATION, [x], out_bytes + _half(out_bytes), name, shape=half)

    y = apply()
    eager_passes(y, GATE, name)
    x.trace.drop_output("act", y, apply)

    def backward(grad: Tensor) -> list[Tensor | None]:
        eager_passes(grad, GATE_BACKWARD, f"{name}_bw")
        return [_like(x, OpKind.ACTIVATION, [x, grad], 2 * out_bytes + _half(out_bytes), f"{name}_bw")]

    return x.trace.recorded([x], y, backward)


def _half(dim: Dim) -> Dim:
    return divide(dim, 2, "a gated tensor", "gated activation")


def dropout(x: Tensor, p: float) -> Tensor:
    """Dropout with probability ``p``; nothing at 0. Saves a mask of one byte an element."""
    if not 0 <= p < 1:
        raise GraphError("not a dropout probability", where=x.trace.where, expected="0 <= p < 1", got=p, nearest=0)
    if p == 0:
        return x
    mask_bytes = x.numel
    y = _like(
        x, OpKind.DROPOUT, [x], 2 * x.size_bytes + mask_bytes, "dropout", extra_outputs=[(x.local_shape, DType.UINT8)]
    )
    (mask,) = x.trace.side_outputs(1)

    def backward(grad: Tensor) -> list[Tensor | None]:
        return [_like(x, OpKind.DROPOUT, [mask, grad], 2 * x.size_bytes + mask_bytes, "dropout_bw")]

    return x.trace.recorded([x], y, backward)


def rope(x: Tensor) -> Tensor:
    """Rotary position embedding of [tokens, heads, dim] (2104.09864). Saves nothing; backward rotates back."""
    eager_passes(x, ROTARY, "rope")
    y = _like(x, OpKind.ROPE, [x], 2 * x.size_bytes, "rope")

    def backward(grad: Tensor) -> list[Tensor | None]:
        eager_passes(grad, ROTARY_BACKWARD, "rope_bw")
        return [_like(grad, OpKind.ROPE, [grad], 2 * grad.size_bytes, "rope_bw")]

    return x.trace.recorded([x], y, backward)


def modulate(x: Tensor, condition: Tensor) -> Tensor:
    """AdaLN modulation ``x (1 + scale) + shift`` with one scale and shift per sequence (2212.09748 §3.2).

    Args:
        x: [tokens, h]. condition: [sequences, 2 h]; it is small, the kernel's bytes are those of x.
    Saves x and the condition; backward gives both gradients in one kernel. Where tokens are sharded, the condition's
    gradient is this rank's part of the sum; backward is linear in it, so the parts are summed once, with the gradients
    of the replicated parameters that it reaches.
    """
    y = _like(x, OpKind.MODULATE, [x, condition], 2 * x.size_bytes + condition.size_bytes, "modulate")

    def backward(grad: Tensor) -> list[Tensor | None]:
        inner = [(condition.local_shape, condition.dtype)] if condition.requires_grad else []
        grad_x = _like(
            x,
            OpKind.MODULATE,
            [x, condition, grad],
            3 * x.size_bytes + 2 * condition.size_bytes,
            "modulate_bw",
            extra_outputs=inner,
        )
        grad_condition = laid_out_like(x.trace.side_outputs(1)[0], condition) if inner else None
        return [grad_x, grad_condition]

    return x.trace.recorded([x, condition], y, backward)


def gated_add(x: Tensor, branch: Tensor, gate: Tensor) -> Tensor:
    """``x + gate * branch`` with one gate per sequence (AdaLN-Zero, 2212.09748 §3.2).

    Args:
        x, branch: [tokens, h]. gate: [sequences, h].
    Saves branch and gate.
    """
    _same_layout(x, branch, "a gated addition")
    y = _like(x, OpKind.MODULATE, [x, branch, gate], 3 * x.size_bytes + gate.size_bytes, "gated_add")

    def backward(grad: Tensor) -> list[Tensor | None]:
        inner = [(gate.local_shape, gate.dtype)] if gate.requires_grad else []
        grad_branch = _like(
            branch,
            OpKind.MODULATE,
            [branch, gate, grad],
            3 * x.size_bytes + 2 * gate.size_bytes,
            "gated_add_bw",
            extra_outputs=inner,
        )
        grad_gate = laid_out_like(x.trace.side_outputs(1)[0], gate) if inner else None
        return [grad, grad_branch, grad_gate]

    return x.trace.recorded([x, branch, gate], y, backward)
