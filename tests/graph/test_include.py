"""Including a graph in another: what runs, what is shared, what is refused."""

from __future__ import annotations

import pytest

import semu
from semu import nn
from semu.graph.subgraph import Level

TOKENS, HIDDEN = 512, 256


def block() -> semu.Graph:
    return semu.trace(nn.Linear(HIDDEN, HIDDEN), semu.Input((TOKENS, HIDDEN), requires_grad=True))


def parameters(part: semu.Graph) -> list[int]:
    return [t.index for t in part.tensors if part.storages[t.storage].role.is_static]


def test_an_included_graph_is_the_same_graph() -> None:
    part, graph = block(), semu.Graph()
    semu.include(graph, part, mark_outputs=True)
    assert [(op.kind, op.flop, op.mem_bytes, op.after) for op in graph.operators] == [
        (op.kind, op.flop, op.mem_bytes, op.after) for op in part.operators
    ]
    assert [(g.path, g.first, g.last) for g in graph.subgraphs] == [(g.path, g.first, g.last) for g in part.subgraphs]
    profile = semu.Cluster("h800", 1, 1).profile
    one, other = semu.run(part, profile), semu.run(graph, profile)
    assert one.start.tolist() == other.start.tolist()
    assert one.memory.total.tolist() == other.memory.total.tolist()


def test_two_microbatches_share_the_parameters_that_are_given() -> None:
    part, graph = block(), semu.Graph()
    with graph.subgraph("mb0", level=Level.STAGE):
        first = semu.include(graph, part)
    shared = {tensor: first[tensor] for tensor in parameters(part)}
    with graph.subgraph("mb1", level=Level.STAGE):
        semu.include(graph, part, tensors=shared)
    timeline = semu.Simulation(graph, semu.Cluster("h800", 1, 1).profile).run()
    alone = semu.run(part, semu.Cluster("h800", 1, 1).profile)
    assert timeline.makespan_s == 2 * alone.makespan_s
    for role, row, single in zip(alone.memory.roles, timeline.memory.by_role, alone.memory.by_role, strict=True):
        if role.is_static:
            assert (row == single[0]).all()
    assert sum(s.role.is_static for s in graph.storages) == sum(s.role.is_static for s in part.storages)


def test_forward_and_backward_stages_from_one_part() -> None:
    part, graph = block(), semu.Graph()
    num_forward = sum(op.phase is semu.Phase.FORWARD for op in part.operators)
    with graph.subgraph("F", level=Level.STAGE):
        saved = semu.include(graph, part, operators=range(num_forward), rank=3, pool="hbm3")
    graph.mark_output(saved[part.outputs[0]])
    with graph.subgraph("B", level=Level.STAGE):
        semu.include(graph, part, operators=range(num_forward, len(part.operators)), tensors=saved, rank=3, pool="hbm3")
    assert {op.stream.device.rank for op in graph.operators} == {3}
    profile = semu.Cluster("h800", 1, 1).profile
    split, whole = semu.Simulation(graph, profile).run(), semu.run(part, profile)
    assert split.start.tolist() == whole.start.tolist()
    assert split.memory_of("hbm3").peak_bytes == whole.peak.size_bytes


@pytest.mark.parametrize("operators", [range(0, 99), range(-1, 1), range(0, 2, 2)])
def test_operators_that_are_not_there(operators: range) -> None:
    with pytest.raises(semu.GraphError, match="range"):
        semu.include(semu.Graph(), block(), operators=operators)


def test_a_tensor_of_another_shape_is_refused() -> None:
    part, graph = block(), semu.Graph()
    small = graph.add_input((TOKENS, HIDDEN // 2), semu.DType.BF16, name="small")
    with pytest.raises(semu.GraphError, match="small cannot stand for"):
        semu.include(graph, part, tensors={part.inputs[0]: small})
    with pytest.raises(semu.GraphError, match="unknown tensor"):
        semu.include(graph, part, tensors={part.inputs[0]: 17})


def test_an_included_output_goes_with_its_last_reader_unless_it_is_marked() -> None:
    part = semu.trace(nn.Linear(HIDDEN, HIDDEN), semu.Input((TOKENS, HIDDEN)))
    levels = []
    for mark in (False, True):
        graph = semu.Graph()
        semu.include(graph, part, mark_outputs=mark)
        memory = semu.run(graph, semu.Cluster("h800", 1, 1).profile).memory
        levels.append(int(memory.total[-1]))
    assert levels[1] - levels[0] == TOKENS * HIDDEN * 2
