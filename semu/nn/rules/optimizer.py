"""Steps of optimizers over the parameters that one rank holds: their memory traffic, and Muon's products."""

from __future__ import annotations

from collections.abc import Sequence

from semu.graph.graph import Graph
from semu.graph.operator import OpKind, Phase
from semu.graph.tensor import Role
from semu.hardware.kinds import DType
from semu.nn.trace.parameter_use import ParameterUse
from semu.nn.trace.tracing import COMPUTE, Trace

HALF_LOADS = 6
"""What a fused step of Adam over 16 bits alone takes as long as [bytes an element], beyond its 14: a thread has four
elements of each tensor in flight whatever their size, and reaches 2.1 TB/s where one over fp32 reaches 3.0 (PyTorch's
``fused=True`` on an H100, 19 steps in ``calibration/measurements``; two types at once: nobody measured)."""


def optimizer_bytes(
    elements: int,
    moments: int = 2,
    /,
    *,
    tensor_dtype: DType,
    grad_dtype: DType,
    master_dtype: DType = DType.FP32,
    state_dtype: DType = DType.FP32,
) -> int:
    """Memory traffic of one fused step of Adam, or of an optimizer with fewer moments [bytes].

    Args:
        elements: local parameters that are stepped. moments: of each: Adam 2, SGD with momentum and Lion 1.
        tensor_dtype, grad_dtype: types of parameters and gradients. master_dtype, state_dtype: types of master weights
            and moments.
    Returns:
        Gradient, master weight and moments read; master weight, moments and the parameter written. Without master
        weights (where they have the parameters' type) the parameter itself is read and written. Where all are of 16
        bits, ``HALF_LOADS`` more.
    """
    weight = 2 * tensor_dtype.size_bytes
    if tensor_dtype is not master_dtype:
        weight = 2 * master_dtype.size_bytes + tensor_dtype.size_bytes
    loads = (tensor_dtype, grad_dtype, master_dtype, state_dtype)
    more = HALF_LOADS if moments == 2 and all(dtype.size_bytes == 2 for dtype in loads) else 0
    return elements * (grad_dtype.size_bytes + weight + 2 * moments * state_dtype.size_bytes + more)


def foreach_bytes(
    elements: int,
    moments: int = 2,
    /,
    *,
    tensor_dtype: DType,
    grad_dtype: DType,
    master_dtype: DType = DType.FP32,
    state_dtype: DType = DType.FP32,
    is_copied: bool = True,
) -> int:
    """Memory traffic of a step of which every operation is a kernel over lists of tensors, PyTorch's ``foreach``.

    Arguments and result as ``optimizer_bytes``. ``is_copied``: master weights are copied to parameters of another type.

    AdamW: the weight decays (read, written), the first moment takes the gradient in (two read, one written), the second
    is scaled, then takes the gradient's square in, its root is taken, corrected and kept from zero (read and written
    each), and the weight is stepped (weight, moment and root read, one written). SGD: the momentum is scaled, takes the
    gradient in and is added to the weight.
    """
    weight, grad, state = master_dtype.size_bytes, grad_dtype.size_bytes, state_dtype.size_bytes
    copy = 0 if tensor_dtype is master_dtype or not is_copied else weight + tensor_dtype.size_bytes
    if moments == 1:
        return elements * (2 * weight + grad + 5 * state + copy)
    return elements * (4 * weight + 2 * grad + 14 * state + copy)


def average_bytes(elements: int, master_dtype: DType = DType.FP32) -> int:
    """Memory traffic of a moving average of the weights [bytes]: the difference of both (two read, one written) is
    scaled (read, written) and taken from the average (two read, one written), as diffusers' ``EMAModel`` does."""
    return 8 * elements * master_dtype.size_bytes


def muon_bytes(
    elements: int, *, tensor_dtype: DType, grad_dtype: DType, master_dtype: DType, state_dtype: DType
) -> int:
    """Memory traffic of Muon's step over matrices, but for what ``newton_schulz`` does [bytes]; arguments as
    ``optimizer_bytes``.

    Every kernel does one thing, as in the open implementations: the weight decays (read, written), the momentum takes
    the gradient in (two read, one written), the update mixes both (two read, one fp32 number written), and is taken
    from the weight (two read, one written), which is copied to the parameter where that has another type.
    """
    weight = tensor_dtype.size_bytes if tensor_dtype is master_dtype else master_dtype.size_bytes
    copy = 0 if tensor_dtype is master_dtype else weight + tensor_dtype.size_bytes
    update = DType.FP32.size_bytes
    return elements * (2 * grad_dtype.size_bytes + 3 * state_dtype.size_bytes + 2 * update + 4 * weight + copy)


def newton_schulz(short: int, long: int, steps: int, dtype: DType) -> Graph:
    """The kernels that make one matrix X orthogonal, in order (2502.16982, eq. 2 and its text).

    Its Frobenius norm is taken and divided out; then every step computes ``A = X X^T``, ``B = b A + c A A`` and
    ``a X + B X``, each one product whose epilogue reads what is added.

    Args:
        short, long: sizes of X; every small product is [short, short]. steps: 5 in the paper.
        dtype: of the products; their operands have its size.
    """
    graph, size = Graph(), dtype.size_bytes
    x = graph.add_input((short, long), dtype, name="X")
    a, b = [graph.add_tensor((short, short), dtype, name=name) for name in "AB"]
    many, few = short * long, short * short

    def _add(
        kind: OpKind, name: str, reads: list[int], output: int, *, flop: int = 0, moved: int, key: tuple[int, ...]
    ) -> None:
        graph.add_operator(
            kind,
            COMPUTE,
            inputs=reads,
            outputs=[output],
            flop=flop,
            mem_bytes=moved * size,
            dtype=dtype,
            key=key,
            path=f"muon.{name}",
        )

    _add(OpKind.ADD, "norm", [x], x, moved=many, key=(many,))
    _add(OpKind.ADD, "divide", [x], x, moved=2 * many, key=(many,))
    for _ in range(steps):
        _add(OpKind.MATMUL, "A", [x], a, flop=2 * few * long, moved=2 * many + few, key=(short, short, long))
        _add(OpKind.MATMUL, "B", [a], b, flop=2 * few * short, moved=4 * few, key=(short, short, short))
        _add(OpKind.MATMUL, "X", [b, x], x, flop=2 * few * long, moved=few + 3 * many, key=(short, long, short))
    return graph


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
        mem_bytes=optimizer_bytes(elements, tensor_dtype=options.tensor_dtype, grad_dtype=options.grad_dtype),
        dtype=DType.FP32,
        key=(elements,),
        path="adam",
        phase=Phase.OPTIMIZER,
    )
