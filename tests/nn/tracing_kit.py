"""Traces single modules with concrete sizes and reads the result back as plain tuples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from semu.graph.dim import Dim
from semu.graph.operator import Operator, OpKind, Phase
from semu.hardware.device import DeviceKind
from semu.hardware.kinds import DType
from semu.hardware.network import CommGroup
from semu.nn import Model, Module, Sequences, Tensor
from semu.nn.trace.block import CarrySpec, TracedBlock, trace_block
from semu.nn.trace.options import TraceOptions
from semu.nn.trace.sharding import ShardingPlan, ShardingStyle
from semu.parallel.config import Parallel
from semu.parallel.tensor import megatron_plan

F, D, W, R = Phase.FORWARD, Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT, Phase.RECOMPUTE

Row = tuple[str, str, int, int, int]
"""Kind, letter of the phase, FLOP, memory bytes, wire bytes of one operator."""


class Apply(Module):
    """A function on tensors as a module."""

    def __init__(self, function: Callable[..., Tensor | tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.function(*inputs)


def spec(
    *shape: Dim,
    shards: Sequence[int] | None = None,
    dtype: DType = DType.BF16,
    grad: bool = True,
    sequences: Sequences | None = None,
) -> CarrySpec:
    """A tensor that arrives; by default bf16, whole on every rank, and its gradient is wanted."""
    return CarrySpec(tuple(shape), tuple(shards or (1,) * len(shape)), dtype, grad, sequences)


def options(
    tp: int = 1,
    *,
    sp: bool = False,
    styles: Mapping[str, ShardingStyle] | None = None,
    overlap_tp: bool = False,
    tensor_dtype: DType = DType.BF16,
    grad_dtype: DType = DType.FP32,
) -> TraceOptions:
    return TraceOptions(
        plan=ShardingPlan(tp, sp and tp > 1, styles or {}),
        tp_group=CommGroup("tp", tp, 1),
        overlap_tp=overlap_tp,
        tensor_dtype=tensor_dtype,
        grad_dtype=grad_dtype,
    )


def run(
    module: Module,
    *inputs: CarrySpec,
    tp: int = 1,
    sp: bool = False,
    style: ShardingStyle | None = None,
    full_recompute: bool = False,
) -> TracedBlock:
    """Trace one module that stands at the root, in the given style."""
    chosen = options(tp, sp=sp, styles={} if style is None else {"": style})
    block = trace_block(module, inputs, chosen, full_recompute=full_recompute)
    block.graph.lint()
    return block


def run_megatron(
    module: Module, *inputs: CarrySpec, tp: int = 1, sp: bool = False, full_recompute: bool = False
) -> TracedBlock:
    """Trace one module under Megatron's plan."""
    model = Model.from_module(module, name="block")
    chosen = TraceOptions(
        plan=megatron_plan(model, Parallel(tp=tp, sequence_parallel=sp)), tp_group=CommGroup("tp", tp, 1)
    )
    block = trace_block(module, inputs, chosen, root="block", full_recompute=full_recompute)
    block.graph.lint()
    return block


def forward(block: TracedBlock) -> list[Operator]:
    return block.graph.operators[: block.num_forward]


def backward(block: TracedBlock) -> list[Operator]:
    return block.graph.operators[block.num_forward :]


def number(dim: Dim) -> int:
    assert isinstance(dim, int), f"{dim} depends on the batch"
    return dim


def row(operator: Operator) -> Row:
    return (
        operator.kind.value,
        operator.phase.value,
        number(operator.flop),
        number(operator.mem_bytes),
        number(operator.net_bytes),
    )


def rows(operators: Sequence[Operator]) -> list[Row]:
    return [row(operator) for operator in operators]


def flop(operators: Sequence[Operator], *, phase: Phase | None = None, kind: OpKind | None = None) -> int:
    return sum(
        number(operator.flop)
        for operator in operators
        if phase in (None, operator.phase) and kind in (None, operator.kind)
    )


def wire(operators: Sequence[Operator]) -> list[tuple[str, int]]:
    """Kind and wire bytes of every collective, in order."""
    return [
        (operator.kind.value, number(operator.net_bytes))
        for operator in operators
        if operator.stream.device.kind is DeviceKind.LINK
    ]


def saved(block: TracedBlock) -> dict[str, int]:
    """Bytes kept from forward to backward, by the name of what is kept.

    Kept is a storage that is not static, exists after the forward half (written by it, or carried in) and is read by
    the backward half.
    """
    graph = block.graph
    here = {graph.tensors[tensor].storage for tensor in block.inputs}
    here |= {graph.tensors[tensor].storage for operator in forward(block) for tensor in operator.outputs}
    read = [graph.tensors[tensor].storage for operator in backward(block) for tensor in operator.inputs]
    kept: dict[str, int] = {}
    for storage in dict.fromkeys(read):
        node = graph.storages[storage]
        if storage in here and not node.role.is_static:
            name = node.path
            while name in kept:
                name += "'"
            kept[name] = number(node.size_bytes)
    return kept


def saved_bytes(block: TracedBlock) -> int:
    return sum(saved(block).values())


def gradients_written(block: TracedBlock) -> dict[str, int]:
    """How often the backward half writes each parameter's gradient buffer, by the parameter's path."""
    written = [tensor for operator in backward(block) for tensor in operator.outputs]
    return {use.path: written.count(use.gradient) for use in block.parameters if use.gradient is not None}
