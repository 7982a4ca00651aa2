"""``trace_block``: one pipeline-able piece of a model, traced forward and backward into one graph.

A block is a member of a modality module's ``Sequential``; its inputs are what the block before returned (the carry).
The graph's first ``num_forward`` operators are the forward part, the others the backward part.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from semu.errors import GraphError
from semu.graph.dim import Dim
from semu.graph.graph import Graph
from semu.hardware.device import Stream
from semu.hardware.kinds import DType
from semu.hardware.network import CommGroup
from semu.nn.module import Module
from semu.nn.rules.gang import enter_gang, leave_gang
from semu.nn.rules.optimizer import adam_step
from semu.nn.rules.reshard import Resharding, reshard_tokens
from semu.nn.trace.autograd import backward, recompute
from semu.nn.trace.early_stop import needed_lengths
from semu.nn.trace.offload import copy_in, copy_out, saved_storages
from semu.nn.trace.options import TraceOptions
from semu.nn.trace.parameter_use import ParameterUse
from semu.nn.trace.tensor import Sequences, Tensor
from semu.nn.trace.tracing import Trace
from semu.records import dataclass


@dataclass(frozen=True)
class CarrySpec:
    """Description of a tensor between two blocks: global shape, shards, type, packing, need of a gradient.

    ``reshard``: how the block redistributes a tensor from a modality module of another parallelism.
    """

    shape: tuple[Dim, ...]
    shards: tuple[int, ...]
    dtype: DType
    requires_grad: bool
    sequences: Sequences | None
    reshard: Resharding | None = None


@dataclass(frozen=True)
class TracedBlock:
    """A block's graph and how it joins its neighbours.

    Attributes:
        graph: forward operators, then backward operators.
        num_forward: number of forward operators.
        inputs, outputs: tensor nodes of the carry in and out.
        output_specs: what the next block receives.
        output_gradients: tensor nodes of the gradients that arrive, None where none does.
        input_gradients: tensor nodes of the gradients that leave, None where none does.
        parameters: parameters as one rank holds them.
        groups: communicator of each link stream.
    """

    graph: Graph
    num_forward: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    output_specs: tuple[CarrySpec, ...]
    output_gradients: tuple[int | None, ...]
    input_gradients: tuple[int | None, ...]
    parameters: tuple[ParameterUse, ...]
    groups: dict[Stream, CommGroup]


def trace_block(
    module: Module,
    inputs: Sequence[CarrySpec],
    options: TraceOptions,
    *,
    root: str = "",
    full_recompute: bool = False,
    gradients: Sequence[bool] | None = None,
    optimizer: bool = False,
    offload: bool = False,
    run_lengths: Sequence[int] = (),
) -> TracedBlock:
    """Trace a block and differentiate it.

    Args:
        module: called with one tensor per input.
        inputs: the carry that arrives.
        options: sharding, precision, overlap.
        root: the block's path in the model, for sharding plans and messages.
        full_recompute: keep only the inputs of the forward pass and run it again in the backward. Not applied to a
            block that ends in a scalar loss (its backward follows at once) or that starts from integer data.
        gradients: per output, whether a gradient arrives for it; None: for every output that can have one.
        optimizer: end with an Adam step.
        offload: what the forward pass saves is copied to the host and back for the backward.
        run_lengths: operators of each recomputation; empty: as the options say.
    Raises:
        GraphError: the block returns something that is not a tensor, or an operator cannot exist.
    """
    again = partial(trace_block, module, inputs, options, root=root, full_recompute=full_recompute, gradients=gradients)
    saved: tuple[int, ...] = ()
    if offload:
        plain = again()
        saved = saved_storages(plain.graph, plain.num_forward)
    trace = Trace(options, module, root, run_lengths)
    arrived = [
        trace.input(s.shape, s.dtype, f"input{n}", s.shards, s.sequences, requires_grad=s.requires_grad)
        for n, s in enumerate(inputs)
    ]
    given = [t if s.reshard is None else reshard_tokens(t, s.reshard) for t, s in zip(arrived, inputs, strict=True)]
    outputs = _run_forward(trace, module, enter_gang(given), full_recompute)
    if outputs is None:
        return again(full_recompute=False, optimizer=optimizer, offload=offload, run_lengths=run_lengths)
    outputs = tuple(leave_gang(t) for t in outputs)
    if saved:
        copy_out(trace, saved)
    num_forward = len(trace.graph.operators)
    if saved:
        copy_in(trace, saved)
    arriving = [
        _incoming_gradient(trace, output, number) if gradients is None or gradients[number] else None
        for number, output in enumerate(outputs)
    ]
    sources = [
        (t, g) for t, g in zip(outputs, arriving, strict=True) if g is not None or (t.requires_grad and not t.ndim)
    ]
    leaving: list[Tensor | None] = [None] * len(arrived)
    if sources:
        leaving = backward(trace, [t for t, _ in sources], [g for _, g in sources], arrived)
    if optimizer:
        adam_step(trace, list(trace.parameters.values()))
    for tensor in outputs:
        trace.graph.mark_output(tensor.node)
    if options.stop_early and trace.second_runs.spans and not run_lengths:
        spans = trace.second_runs.spans
        lengths = needed_lengths(trace.graph, spans)
        if any(length < last - first for length, (first, last) in zip(lengths, spans, strict=True)):
            return again(optimizer=optimizer, offload=offload, run_lengths=lengths)
    return TracedBlock(
        graph=trace.graph,
        num_forward=num_forward,
        inputs=tuple(tensor.node for tensor in arrived),
        outputs=tuple(tensor.node for tensor in outputs),
        output_specs=tuple(CarrySpec(t.shape, t.shards, t.dtype, t.requires_grad, t.sequences) for t in outputs),
        output_gradients=tuple(g.node if g is not None else None for g in arriving),
        input_gradients=tuple(
            g.node if g is not None and t.requires_grad else None for g, t in zip(leaving, arrived, strict=True)
        ),
        parameters=tuple(trace.parameters.values()),
        groups=dict(trace.groups),
    )


def _run_forward(
    trace: Trace, module: Module, arrived: list[Tensor], full_recompute: bool
) -> tuple[Tensor, ...] | None:
    """What the block returns; None: it was to be recomputed and ends in a loss."""
    is_data = bool(arrived) and starts_from_data(arrived[0].dtype)
    if full_recompute and not is_data:
        returned = recompute(trace, module, arrived, keeps=trace.options.keep_products)
        if isinstance(returned, Tensor) and returned.ndim == 0:
            return None
    else:
        returned = module(*arrived)
    outputs = returned if isinstance(returned, tuple) else (returned,)
    for output in outputs:
        if not isinstance(output, Tensor):
            raise GraphError(
                "a block must return tensors", where=trace.root or type(module).__name__, got=type(output).__name__
            )
    return outputs


def starts_from_data(dtype: DType) -> bool:
    """Whether a block whose first input has this type starts from integer data, not from an activation."""
    return dtype in (DType.INT64, DType.UINT8)


def _incoming_gradient(trace: Trace, output: Tensor, number: int) -> Tensor | None:
    if not output.requires_grad or output.ndim == 0:
        return None
    return trace.input(output.shape, output.dtype, f"output{number}.grad", output.shards, output.sequences)


@dataclass(frozen=True)
class Input:
    """A tensor given to ``trace``.

    Attributes:
        shape: global shape; the first axis is tokens. dtype: element type; None: the model's.
        requires_grad: its gradient is wanted.
        sequences: how the tokens are packed; None: one sequence.
    """

    shape: tuple[Dim, ...]
    dtype: DType | None = None
    requires_grad: bool = False
    sequences: Sequences | None = None


def trace(
    module: Module,
    *inputs: Input,
    options: TraceOptions | None = None,
    full_recompute: bool = False,
    optimizer: bool = False,
) -> Graph:
    """The graph of one module's forward and backward pass.

    Args:
        module: any module. inputs: one per argument of its ``forward``.
        options: sharding and precision; default: one rank, bf16. full_recompute: see ``trace_block``.
        optimizer: end with an Adam step over the module's trainable parameters.
    Returns:
        The graph; the gradients of its inputs that were asked for are outputs.
    Raises:
        GraphError: the module computes something impossible; the operator's path is named.
    """
    chosen = options if options is not None else TraceOptions()
    specs = [
        CarrySpec(tuple(i.shape), (1,) * len(i.shape), i.dtype or chosen.tensor_dtype, i.requires_grad, i.sequences)
        for i in inputs
    ]
    block = trace_block(module, specs, chosen, full_recompute=full_recompute, optimizer=optimizer)
    for tensor in block.input_gradients:
        if tensor is not None:
            block.graph.mark_output(tensor)
    return block.graph
