"""Backward by autograd: a walk over the tape that appends input-gradient and weight-gradient operators.

Exactly the forward tensors that backward operators read are saved (DESIGN §3.6). ``recompute`` is activation
recomputation: keep only a function's inputs, run the function again before its backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from semu.errors import GraphError
from semu.graph.operator import OpKind, Phase
from semu.nn.trace.keep import Ledger
from semu.nn.trace.tensor import Tensor
from semu.nn.trace.tracing import TapeStep, Trace


def backward(
    trace: Trace, outputs: Sequence[Tensor], gradients: Sequence[Tensor | None], wanted: Sequence[Tensor]
) -> list[Tensor | None]:
    """Append the backward pass of everything on the trace's tape, and empty the tape.

    Args:
        trace: the trace that made ``outputs``.
        outputs: tensors to differentiate.
        gradients: gradient of each output; None: the output is a scalar loss (or needs none).
        wanted: tensors whose gradients are asked for.
    Returns:
        Gradient of each wanted tensor, None where none flows.
    """
    tape, trace.tape = trace.tape, []
    flowing: dict[int, Tensor | None] = {}
    for output, gradient in zip(outputs, gradients, strict=True):
        _accumulate(trace, flowing, output, gradient)
    for step in reversed(tape):
        incoming = [flowing.get(id(output)) for output in step.outputs]
        if not any(id(output) in flowing for output in step.outputs):
            continue
        with trace.at(step.path, Phase.INPUT_GRADIENT, in_fp8_region=step.in_fp8_region):
            results = step.backward(incoming)
            _distribute(trace, flowing, step, results)
    return [flowing.get(id(tensor)) for tensor in wanted]


def _distribute(
    trace: Trace, flowing: dict[int, Tensor | None], step: TapeStep, results: Sequence[Tensor | None]
) -> None:
    if len(results) != len(step.inputs):
        raise GraphError(
            "a backward rule returned the wrong number of gradients",
            where=step.path,
            expected=str(len(step.inputs)),
            got=len(results),
        )
    for tensor, gradient in zip(step.inputs, results, strict=True):
        if gradient is not None and tensor.requires_grad:
            _accumulate(trace, flowing, tensor, gradient)


def _accumulate(trace: Trace, flowing: dict[int, Tensor | None], tensor: Tensor, gradient: Tensor | None) -> None:
    """Add a gradient to what has already arrived; the sum is a separate kernel, as in PyTorch."""
    arrived = flowing.get(id(tensor))
    if arrived is not None and gradient is None:
        return
    if arrived is not None and gradient is not None:
        gradient = trace.emit(
            OpKind.ADD,
            [arrived, gradient],
            like=gradient,
            mem_bytes=3 * gradient.size_bytes,
            phase=Phase.INPUT_GRADIENT,
            name="accumulate_grad",
        )
    flowing[id(tensor)] = gradient


def recompute(
    trace: Trace,
    function: Callable[..., Tensor | tuple[Tensor, ...]],
    inputs: Sequence[Tensor],
    *,
    keeps: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """Run ``function`` keeping only its inputs; its forward runs again, whole, just before its backward.

    Args:
        trace: the trace of the inputs.
        function: tensors -> one tensor or a tuple of tensors.
        inputs: its arguments.
        keeps: some outputs are kept and not computed again (``semu.nn.trace.keep``).
    Returns:
        What the function returns.
    Source:
        Chen et al., 1604.06174 §4. The second forward runs to its end as in Megatron-LM's CheckpointFunction, unless
        the trace stops it early (``semu.nn.trace.early_stop``).
    """
    ledger = Ledger() if keeps else None
    with trace.no_grad(), trace.watch_trainable() as trainable:
        returned = _run(trace, function, inputs, ledger)
        has_trainable = trainable()
    outputs = returned if isinstance(returned, tuple) else (returned,)
    needs = has_trainable or any(tensor.requires_grad for tensor in inputs)
    passed = {tensor.node: tensor.requires_grad for tensor in inputs}
    marked = tuple(replace(output, requires_grad=passed.get(output.node, needs)) for output in outputs)

    def _run_again(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        leaves = [replace(tensor) for tensor in inputs]
        outer, trace.tape = trace.tape, []
        trace.phase = Phase.RECOMPUTE
        with trace.second_runs.one(trace.graph):
            again = _run(trace, function, leaves, ledger.again() if ledger is not None else None)
        trace.phase = Phase.INPUT_GRADIENT
        outputs_again = again if isinstance(again, tuple) else (again,)
        arrived = [(t, g) for t, g in zip(outputs_again, gradients, strict=True) if g is not None or t.ndim == 0]
        results = backward(trace, [t for t, _ in arrived], [g for _, g in arrived], leaves)
        trace.tape = outer
        return results

    trace.record(inputs, marked, _run_again)
    return marked if isinstance(returned, tuple) else marked[0]


def _run(
    trace: Trace,
    function: Callable[..., Tensor | tuple[Tensor, ...]],
    inputs: Sequence[Tensor],
    ledger: Ledger | None,
) -> Tensor | tuple[Tensor, ...]:
    """Run a function with a ledger of what it keeps; None: the ledger of the function around it, if any."""
    if ledger is None:
        return function(*inputs)
    outer, trace.ledger = trace.ledger, ledger
    try:
        return function(*inputs)
    finally:
        trace.ledger = outer
