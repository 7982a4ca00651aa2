"""Backward passes in two parts for the slow reference: which operators are I, which W, said of tensors."""

from __future__ import annotations

from semu.graph.operator import Operator, Phase
from semu.nn.trace.block import TracedBlock
from semu.schedule import Schedule


def orders_of(schedule: Schedule) -> list[list[tuple[int, str, int]]]:
    """Stages of every rank as the reference names them."""
    return [[(stage.chunk, stage.phase.value, stage.microbatch) for stage in order] for order in schedule.orders]


def part(trace: TracedBlock, letter: str) -> list[Operator]:
    """Operators of the input gradients ("I") or the weight gradients ("W") of a block.

    W are those of that phase, and transfers whose results only they read, or such transfers.
    """
    graph, backward = trace.graph, trace.graph.operators[trace.num_forward :]

    def places(tensors: tuple[int, ...]) -> set[int]:
        found = {graph.tensors[tensor].storage for tensor in tensors}
        return {storage for storage in found if not graph.storages[storage].role.is_static}

    weights = {operator.index for operator in backward if operator.phase is Phase.WEIGHT_GRADIENT}
    leaving = places(tuple(tensor for tensor in trace.input_gradients if tensor is not None))
    for operator in reversed(backward):  # readers before what they read
        if not operator.kind.is_communication or operator.phase is not Phase.INPUT_GRADIENT:
            continue
        made = places(operator.outputs)
        readers = {other.index for other in backward if other is not operator and made & places(other.inputs)}
        if readers and readers <= weights and not made & leaving:
            weights.add(operator.index)
    return [operator for operator in backward if (operator.index in weights) == (letter == "W")]
