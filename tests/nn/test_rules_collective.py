"""Collectives of the tensor-parallel group: f x buffer, with the buffer counted as nccl-tests does."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from nn.tracing_kit import Apply, forward, options, row, rows, spec

from semu.errors import GraphError
from semu.graph.graph import Graph
from semu.graph.operator import OpKind
from semu.graph.tensor import Role
from semu.hardware.network import CommGroup
from semu.nn import Linear, Tensor, functional
from semu.nn.rules.collective import all_gather_tokens, all_reduce, all_to_all, reduce_scatter_tokens, send, wire_bytes
from semu.nn.trace.block import TracedBlock, trace_block
from semu.nn.trace.options import TraceOptions
from semu.nn.trace.sharding import ShardingPlan, ShardingStyle

M, H = 48, 16
X = 2 * M * H


def collect(function: object, tp: int, shards: tuple[int, int]) -> TracedBlock:
    chosen = options(tp, sp=True)
    return trace_block(Apply(function), [spec(M, H, shards=shards, grad=False)], chosen)  # type: ignore[arg-type]


@pytest.mark.parametrize("tp", [2, 3, 4, 8])
def test_ring_volumes(tp: int) -> None:
    """By simulating the ring: a buffer cut into tp pieces; tp - 1 steps, one piece a step, each way once or twice."""
    piece = X // tp
    steps = sum(piece for _ in range(tp - 1))
    gather = collect(all_gather_tokens, tp, (tp, 1))
    scatter = collect(reduce_scatter_tokens, tp, (1, 1))
    reduce = collect(all_reduce, tp, (1, 1))
    assert rows(forward(gather)) == [("all_gather", "F", 0, 0, steps)]
    assert rows(forward(scatter)) == [("reduce_scatter", "F", 0, 0, steps)]
    assert rows(forward(reduce)) == [("all_reduce", "F", 0, 0, 2 * steps)]


@pytest.mark.parametrize("tp", [2, 4])
def test_shapes_and_roles(tp: int) -> None:
    gather = collect(all_gather_tokens, tp, (tp, 1))
    assert node_shape(gather.graph, gather.outputs[0]) == (M, H)
    assert gather.graph.storages[gather.graph.tensors[gather.outputs[0]].storage].role is Role.COMMUNICATION
    scatter = collect(reduce_scatter_tokens, tp, (1, 1))
    assert node_shape(scatter.graph, scatter.outputs[0]) == (M // tp, H)
    assert scatter.output_specs[0].shards == (tp, 1)


def node_shape(graph: Graph, tensor: int) -> tuple[object, ...]:
    return graph.tensors[tensor].shape


def test_all_reduce_works_in_place() -> None:
    block = collect(all_reduce, 4, (1, 1))
    assert block.outputs == block.inputs
    assert len(block.graph.storages) == 1
    assert block.graph.operators[0].outputs == block.inputs


def test_gather_of_a_tensor_split_on_both_axes_gathers_its_columns() -> None:
    block = trace_block(Apply(all_gather_tokens), [spec(M, H, shards=(4, 2), grad=False)], options(4, sp=True))
    assert row(block.graph.operators[0])[4] == X // 2 * 3 // 4
    assert block.output_specs[0].shards == (1, 2)


def test_the_port_of_the_group_decides_the_link() -> None:
    """A group across nodes talks over the NIC."""
    names = {}
    for nodes in (1, 2):
        chosen = TraceOptions(plan=ShardingPlan(4, True), tp_group=CommGroup("tp", 4, nodes))
        block = trace_block(Apply(all_reduce), [spec(M, H, grad=False)], chosen)
        operator = block.graph.operators[0]
        names[nodes] = operator.stream.device.name
        assert operator.key == (4, nodes)
        assert block.groups[operator.stream] == CommGroup("tp", 4, nodes)
    assert names == {1: "gpu0.nvlink.out", 2: "gpu0.nic.out"}


def test_wire_bytes_are_exact_or_refused() -> None:
    group = CommGroup("tp", 8, 1)
    for buffer in range(0, 200, 4):
        exact = Fraction(2 * 7, 8) * buffer
        assert wire_bytes(OpKind.ALL_REDUCE, buffer, group, "here") == exact
    with pytest.raises(GraphError, match="a communication buffer cannot be split 4 ways") as caught:
        wire_bytes(OpKind.ALL_REDUCE, 30, group, "llm.mlp.down")
    assert caught.value.where == "llm.mlp.down"


def test_a_scalar_cannot_be_gathered() -> None:
    with pytest.raises(GraphError, match="a scalar has no tokens"):
        trace_block(Apply(all_gather_tokens), [spec()], options(2, sp=True))


# -- overlap -----------------------------------------------------------------------------------------------------
def column(overlap_tp: bool) -> TracedBlock:
    chosen = options(2, sp=True, styles={"": ShardingStyle.COLUMN}, overlap_tp=overlap_tp)
    return trace_block(Linear(H, 2 * H), [spec(M, H, shards=(2, 1))], chosen)


def test_without_overlap_the_streams_take_turns() -> None:
    operators = column(False).graph.operators
    for before, operator in pairwise(operators):
        assert (before.index in operator.after) or before.stream == operator.stream
    assert len({op.stream for op in operators}) == 2


@pytest.mark.parametrize("overlap_tp", [False, True])
def test_what_has_nothing_to_do_with_a_collective_waits_for_it_unless_overlapped(overlap_tp: bool) -> None:
    def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return all_reduce(x), functional.gelu(y)

    x = spec(M, H, grad=False)
    block = trace_block(Apply(both), [x, x], options(2, overlap_tp=overlap_tp))
    assert [op.after for op in block.graph.operators] == [(), () if overlap_tp else (0,)]


def test_with_overlap_only_data_is_waited_for() -> None:
    block = column(True)
    for operator in block.graph.operators:
        writers = {
            op.index
            for op in block.graph.operators[: operator.index]
            for tensor in op.outputs
            if tensor in operator.inputs
        }
        assert set(operator.after) == writers
    names = [op.kind.value for op in block.graph.operators]
    assert names == ["all_gather", "matmul", "all_gather", "matmul", "reduce_scatter", "matmul"]
    weight = block.graph.operators[5]
    assert 4 not in weight.after  # the weight gradient runs beside the reduce-scatter
    assert 2 in weight.after  # but needs the input that was gathered again


def test_both_ways_issue_the_same_operators() -> None:
    assert rows(column(False).graph.operators) == rows(column(True).graph.operators)


def test_a_trace_without_collectives_has_no_communicator() -> None:
    assert trace_block(Linear(H, H), [spec(M, H)], options(2)).groups == {}


# -- exchanges with peers ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("tp", [2, 4])
def test_all_to_all_turns_a_split_of_tokens_into_one_of_heads_and_back(tp: int) -> None:
    """2309.14509 §3: each rank keeps 1 / tp of its shard and sends the rest."""
    x = spec(M, 8, 4, shards=(tp, 1, 1))
    block = trace_block(Apply(lambda x: all_to_all(x, gather=0, scatter=1)), [x], options(tp, sp=True))
    shard = 2 * M * 8 * 4 // tp
    sent = shard - shard // tp
    assert rows(block.graph.operators) == [("all_to_all", "F", 0, 0, sent), ("all_to_all", "I", 0, 0, sent)]
    assert block.output_specs[0].shards == (1, tp, 1)
    (gradient,) = block.input_gradients
    assert gradient is not None
    assert node_shape(block.graph, gradient) == (M // tp, 8, 4)
    assert node_shape(block.graph, block.outputs[0]) == (M, 8 // tp, 4)


def test_all_to_all_alone_is_nothing_and_of_the_wrong_axis_is_refused() -> None:
    alone = trace_block(Apply(lambda x: all_to_all(x, gather=0, scatter=1)), [spec(M, 8, 4)], options(1))
    assert alone.graph.operators == []
    with pytest.raises(GraphError, match="nothing to exchange; expected axis 0 split 2 ways, axis 1 whole"):
        trace_block(Apply(lambda x: all_to_all(x, gather=0, scatter=1)), [spec(M, 8, 4)], options(2))
    with pytest.raises(GraphError, match="cannot be split"):
        odd = spec(M, 3, 4, shards=(2, 1, 1))
        trace_block(Apply(lambda x: all_to_all(x, gather=0, scatter=1)), [odd], options(2))


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_send_moves_the_tensor_there_and_its_gradient_back(nodes: int) -> None:
    pair = CommGroup("pp", 2, nodes)
    block = trace_block(Apply(lambda x: send(x, pair)), [spec(M, H)], options())
    assert rows(block.graph.operators) == [("p2p", "F", 0, 0, X), ("p2p", "I", 0, 0, X)]
    assert {op.stream.name for op in block.graph.operators} == {"pp"}
    assert list(block.groups.values()) == [pair]
    assert block.output_specs[0].shape == (M, H)


def test_the_gradient_of_an_all_reduce_is_handed_on_unchanged() -> None:
    """Megatron's g: a sum forward, the identity backward (1909.08053 §3)."""
    block = trace_block(Apply(functional.all_reduce), [spec(M, H)], options(2))
    assert len(block.graph.operators) == 1
    assert block.input_gradients == block.output_gradients
    assert block.input_gradients[0] is not None
