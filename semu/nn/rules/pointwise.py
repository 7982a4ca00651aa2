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
from semu.nn.rules.casts import cast
from semu.nn.trace.eager import (
    COMPOSED,
    FLASH,
    FLASH_JOIN,
    FLASH_KEYS,
    FLASH_KEYS_BACKWARD,
    FLASH_QUERIES,
    FLASH_QUERIES_BACKWARD,
    GATE,
    GATE_BACKWARD,
    GATED_ADD,
    GATED_ADD_BACKWARD,
    KEPT,
    MODULATE,
    MODULATE_BACKWARD,
    ROTARY,
    ROTARY_BACKWARD,
    ROTARY_JOIN,
    eager_moves,
    eager_passes,
)
from semu.nn.trace.tensor import Tensor, laid_out_like


def emit_both_gradients(
    kind: OpKind, x: Tensor, other: Tensor, grad: Tensor, mem_bytes: Dim, name: str, *, writes_other: bool = True
) -> list[Tensor | None]:
    """Append the backward of a kernel that combines a large operand with a small one: both are read, and the gradient.

    Args:
        x: the large operand. other: the small one. mem_bytes: of the kernel. name: of the kernel.
        writes_other: the gradient of ``other`` is wanted.
    Returns:
        Gradients of both, None for ``other`` where it is not wanted.
    """
    sides = [(other.local_shape, other.dtype)] if writes_other else []
    grad_x = x.trace.emit(kind, [x, other, grad], like=x, mem_bytes=mem_bytes, name=name, extra_outputs=sides)
    return [grad_x, laid_out_like(x.trace.side_outputs(1)[0], other) if writes_other else None]


def _same_layout(a: Tensor, b: Tensor, what: str) -> None:
    if a.shape != b.shape or a.shards != b.shards:
        raise GraphError(
            f"{what} needs two tensors alike",
            where=a.trace.where,
            expected=f"{a.shape} split {a.shards}",
            got=f"{b.shape} split {b.shards}",
        )


def add(a: Tensor, b: Tensor) -> Tensor:
    """Residual add. Saves nothing; the gradient goes to both unchanged. Of 16 bits and fp32 comes fp32."""
    _same_layout(a, b, "an addition")
    like = a if a.dtype.size_bytes >= b.dtype.size_bytes else b
    traffic = a.size_bytes + b.size_bytes + like.size_bytes
    y = a.trace.emit(OpKind.ADD, [a, b], like=a, dtype=like.dtype, mem_bytes=traffic, name="add")

    def _backward(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        (grad,) = gradients
        return [None if grad is None else cast(grad, operand.dtype) for operand in (a, b)]

    a.trace.record([a, b], [y], _backward)
    return y


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Elementwise product. Saves both operands."""
    _same_layout(a, b, "a multiplication")

    def _product(left: Tensor, right: Tensor, name: str) -> Tensor:
        return a.trace.emit(OpKind.ADD, [left, right], like=a, mem_bytes=3 * a.size_bytes, name=name)

    y = _product(a, b, "multiply")

    def _backward(grad: Tensor) -> list[Tensor | None]:
        pairs = ((a, b), (b, a))
        return [_product(grad, other, "multiply_bw") if wanted.requires_grad else None for wanted, other in pairs]

    return a.trace.recorded([a, b], y, _backward)


def add_parameter(x: Tensor, parameter: Parameter, rows: int) -> Tensor:
    """Add a learned table to every token (position embedding): x [tokens, h] + table [rows, h].

    ``rows`` is the table's height, each token reads one row. Backward: a reduction into the table's gradient.
    """
    use = x.trace.parameter(parameter)
    if tuple(parameter.shape) != (rows, x.shape[-1]):
        raise GraphError("the table does not fit", where=x.trace.where, expected=f"{x.shape}", got=parameter.shape)
    y = x.trace.emit(OpKind.ADD, [x, use], like=x, mem_bytes=3 * x.size_bytes, name="add_table")

    def _backward(grad: Tensor) -> list[Tensor | None]:
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

    return x.trace.recorded([x], y, _backward)


def softcap(x: Tensor) -> Tensor:
    """``cap x tanh(x / cap)`` (Gemma 2, 2408.00118 §2), one kernel. Saves its input."""
    return activation(x, "softcap", is_droppable=False)


def activation(x: Tensor, name: str, *, is_droppable: bool = True) -> Tensor:
    """An elementwise non-linearity (``gelu``, ``silu``, ...). Saves its input; composed in eager mode, more
    (``semu.nn.trace.eager.KEPT``).

    ``is_droppable``: the kind ``act`` of selective recomputation means it.
    """

    def _apply() -> Tensor:
        return x.trace.emit(OpKind.ACTIVATION, [x], like=x, mem_bytes=2 * x.size_bytes, name=name)

    forward, backward = COMPOSED.get(name, (0, 0))
    is_dropped = is_droppable and "act" in x.trace.options.recompute.kinds
    y = _apply()
    kept = eager_moves(y, forward, name, keeps=name in KEPT and not is_dropped) if forward else []
    if is_droppable:
        x.trace.drop_output("act", y, _apply)

    def _backward(grad: Tensor) -> list[Tensor | None]:
        traffic = 3 * x.size_bytes
        if backward:
            eager_moves(grad, backward, f"{name}_bw")
        return [x.trace.emit(OpKind.ACTIVATION, [x, *kept, grad], like=x, mem_bytes=traffic, name=f"{name}_bw")]

    return x.trace.recorded([x], y, _backward)


def gated_activation(x: Tensor, name: str) -> Tensor:
    """``f(gate) * up`` of a fused [..., 2 f] tensor (SwiGLU, GeGLU: 2002.05202), one kernel.

    Saves its input; in eager mode, the activated gate as well.

    With ``fp8_gates`` it saves a copy in fp8 and casts it back, unless the kernel runs again from its input anyway.
    """
    width = x.shape[-1]
    if not isinstance(width, int) or width % 2:
        raise GraphError(
            "a gated activation halves its input", where=x.trace.where, expected="an even width", got=width
        )
    half, size = (*x.shape[:-1], width // 2), x.size_bytes
    half_size = divide(size, 2, "a gated tensor", "gated activation")

    def _apply() -> Tensor:
        return x.trace.emit(OpKind.ACTIVATION, [x], half, like=x, mem_bytes=size + half_size, name=name)

    def _recast(source: Tensor, dtype: DType, of: str) -> Tensor:
        traffic = source.size_bytes + source.numel * dtype.size_bytes
        return x.trace.emit(OpKind.CAST, [source], like=source, dtype=dtype, mem_bytes=traffic, name=of)

    options = x.trace.options
    y = _apply()
    is_dropped = "act" in options.recompute.kinds
    activated = eager_passes(y, GATE, name, keeps=not (is_dropped or options.calls_flash))
    x.trace.drop_output("act", y, _apply)
    is_packed = options.fp8_gates and not is_dropped and x.trace.grad_enabled
    packed = _recast(x, DType.FP8, f"{name}_store") if is_packed else None

    def _backward(grad: Tensor) -> list[Tensor | None]:
        joined = FLASH_JOIN if x.trace.options.calls_flash else 0
        eager_passes(grad, GATE_BACKWARD + joined, f"{name}_bw")
        traffic = 2 * size + half_size
        kept = x if packed is None else _recast(packed, x.dtype, f"{name}_load")
        reads = [kept, *activated, grad]
        return [x.trace.emit(OpKind.ACTIVATION, reads, like=x, mem_bytes=traffic, name=f"{name}_bw")]

    return x.trace.recorded([x], y, _backward)


def dropout(x: Tensor, p: float) -> Tensor:
    """Dropout with probability ``p``; nothing at 0. Saves a mask of one byte an element."""
    if not 0 <= p < 1:
        raise GraphError("not a dropout probability", where=x.trace.where, expected="0 <= p < 1", got=p, nearest=0)
    if p == 0:
        return x
    traffic, sides = 2 * x.size_bytes + x.numel, [(x.local_shape, DType.UINT8)]
    y = x.trace.emit(OpKind.DROPOUT, [x], like=x, mem_bytes=traffic, name="dropout", extra_outputs=sides)
    (mask,) = x.trace.side_outputs(1)

    def _backward(grad: Tensor) -> list[Tensor | None]:
        return [x.trace.emit(OpKind.DROPOUT, [mask, grad], like=x, mem_bytes=traffic, name="dropout_bw")]

    return x.trace.recorded([x], y, _backward)


def rope(x: Tensor, rotated: int | None = None, *, with_values: bool = False) -> Tensor:
    """Rotary position embedding of [tokens, heads, dim] (2104.09864). Saves nothing; backward rotates back.

    ``rotated``: features of a head that are rotated (None: all). One kernel writes all of them, and copies the rest
    (Transformer Engine's fused kernel); eager mode works on those features alone, then joins them with the rest.
    ``with_values``: these are keys, which flash-attn's kernel takes packed with as many values.
    """
    features = x.shape[-1]
    share = rotated / features if rotated is not None and isinstance(features, int) else 1.0
    join = 0 if share == 1.0 else ROTARY_JOIN

    is_flash = x.trace.options.calls_flash
    copies = (FLASH_KEYS, FLASH_KEYS_BACKWARD) if with_values else (FLASH_QUERIES, FLASH_QUERIES_BACKWARD)

    def _rotate(source: Tensor, eager_bytes: int, name: str) -> Tensor:
        if not is_flash:
            eager_bytes = round((eager_bytes + join) * share)
        eager_passes(source, eager_bytes, name)
        kernel = f"{FLASH}{name}" if is_flash else name
        return x.trace.emit(OpKind.ROPE, [source], like=source, mem_bytes=2 * source.size_bytes, name=kernel)

    forward, backward = copies if is_flash else (ROTARY, ROTARY_BACKWARD)
    y = _rotate(x, forward, "rope")
    return x.trace.recorded([x], y, lambda grad: [_rotate(grad, backward, "rope_bw")])


def modulate(x: Tensor, condition: Tensor) -> Tensor:
    """AdaLN modulation ``x (1 + scale) + shift`` with one scale and shift per sequence (2212.09748 §3.2).

    Args:
        x: [tokens, h]. condition: [sequences, 2 h]; it is small, the kernel's bytes are those of x.
    Saves x and the condition; backward gives both gradients in one kernel. Where tokens are sharded, the condition's
    gradient is this rank's part of the sum; backward is linear in it, so the parts are summed once, with the gradients
    of the replicated parameters that it reaches.
    """
    traffic = 2 * x.size_bytes + condition.size_bytes
    y = x.trace.emit(OpKind.MODULATE, [x, condition], like=x, mem_bytes=traffic, name="modulate")
    eager_moves(y, MODULATE, "modulate")

    def _backward(grad: Tensor) -> list[Tensor | None]:
        eager_moves(grad, MODULATE_BACKWARD, "modulate_bw")
        traffic, wanted = 3 * x.size_bytes + 2 * condition.size_bytes, condition.requires_grad
        return emit_both_gradients(OpKind.MODULATE, x, condition, grad, traffic, "modulate_bw", writes_other=wanted)

    return x.trace.recorded([x, condition], y, _backward)


def add_rows(x: Tensor, rows: Tensor) -> Tensor:
    """``x`` and one row per sequence, added.

    Args:
        x: [tokens, h]. rows: [sequences, h].
    Saves nothing; the gradient of ``x`` is that of the result, that of the rows a sum over each sequence.
    """
    y = x.trace.emit(OpKind.MODULATE, [x, rows], like=x, mem_bytes=2 * x.size_bytes + rows.size_bytes, name="add_rows")

    def _backward(grad: Tensor) -> list[Tensor | None]:
        summed = None
        if rows.requires_grad:
            traffic = grad.size_bytes + rows.size_bytes
            summed = x.trace.emit(
                OpKind.MODULATE, [grad], like=rows, mem_bytes=traffic, phase=Phase.INPUT_GRADIENT, name="add_rows_bw"
            )
        return [grad if x.requires_grad else None, summed]

    return x.trace.recorded([x, rows], y, _backward)


def gated_add(x: Tensor, branch: Tensor, gate: Tensor) -> Tensor:
    """``x + gate * branch`` with one gate per sequence (AdaLN-Zero, 2212.09748 §3.2).

    Args:
        x, branch: [tokens, h]. gate: [sequences, h].
    Saves branch and gate.
    """
    _same_layout(x, branch, "a gated addition")
    traffic = 3 * x.size_bytes + gate.size_bytes
    y = x.trace.emit(OpKind.MODULATE, [x, branch, gate], like=x, mem_bytes=traffic, name="gated_add")
    eager_moves(y, GATED_ADD, "gated_add")

    def _backward(grad: Tensor) -> list[Tensor | None]:
        eager_moves(grad, GATED_ADD_BACKWARD, "gated_add_bw")
        traffic, wanted = 3 * x.size_bytes + 2 * gate.size_bytes, gate.requires_grad
        gradients = emit_both_gradients(
            OpKind.MODULATE, branch, gate, grad, traffic, "gated_add_bw", writes_other=wanted
        )
        return [grad, *gradients]

    return x.trace.recorded([x, branch, gate], y, _backward)
