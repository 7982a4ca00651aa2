"""The builder: append-only, refuses what cannot exist, and its three readings (lint, text, networkx) agree with it."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, replace

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semu.errors import GraphError
from semu.graph.dim import Dim, Poly
from semu.graph.graph import Graph
from semu.graph.operator import OpKind, Phase
from semu.graph.subgraph import Subgraph
from semu.graph.tensor import Role
from semu.hardware.device import Device, DeviceKind, Direction, Stream
from semu.hardware.kinds import DType, Port

COMPUTE = Stream(Device(DeviceKind.COMPUTE), "compute")
LINK = Stream(Device(DeviceKind.LINK, port=Port.NVLINK, direction=Direction.OUT), "tp")
HOST = Stream(Device(DeviceKind.HOST), "offload")


def chain() -> Graph:
    """x -> matmul -> y -> all-reduce in place -> gelu -> z."""
    graph = Graph()
    x = graph.add_input((4, 8), DType.BF16, name="x")
    weight = graph.add_tensor((16, 8), DType.BF16, Role.PARAMETER, name="weight")
    y = graph.add_tensor((4, 16), DType.BF16, name="y")
    with graph.subgraph("mlp"):
        with graph.subgraph("up"):
            graph.add_operator(
                OpKind.MATMUL, COMPUTE, inputs=[x, weight], outputs=[y], flop=1024, mem_bytes=448, path="mlp.up"
            )
        graph.add_operator(OpKind.ALL_REDUCE, LINK, inputs=[y], outputs=[y], net_bytes=128, path="mlp.reduce")
    z = graph.add_tensor((4, 16), DType.BF16, name="z")
    graph.add_operator(OpKind.ACTIVATION, COMPUTE, inputs=[y], outputs=[z], mem_bytes=256, path="gelu")
    graph.mark_output(z)
    return graph


# -- building ----------------------------------------------------------------------------------------------------
def test_appending_changes_nothing_that_is_there() -> None:
    graph = chain()
    before = [list(nodes) for nodes in (graph.operators, graph.tensors, graph.storages, graph.subgraphs)]
    new = graph.add_tensor((2,), DType.FP32, name="new")
    with graph.subgraph("late"):
        graph.add_operator(OpKind.ADD, COMPUTE, inputs=[0, 3], outputs=[new, 2])
    after = (graph.operators, graph.tensors, graph.storages, graph.subgraphs)
    for old, now in zip(before, after, strict=True):
        assert len(now) == len(old) + 1
        assert all(a is b for a, b in zip(old, now, strict=False))


def test_nodes_are_numbered_in_order_and_cannot_be_changed() -> None:
    graph = chain()
    for nodes in (graph.operators, graph.tensors, graph.storages, graph.subgraphs):
        assert [node.index for node in nodes] == list(range(len(nodes)))
        with pytest.raises(FrozenInstanceError):
            nodes[0].index = 5


def test_an_operator_follows_the_last_writer_of_what_it_reads() -> None:
    graph = chain()
    assert [operator.after for operator in graph.operators] == [(), (0,), (1,)]
    assert graph.producer(2) == 1
    assert graph.producer(0) is None
    extra = graph.add_operator(OpKind.ADD, COMPUTE, inputs=[2, 2], after=[2, 0, 2])
    assert graph.operators[extra].after == (0, 1, 2)


def test_storages_hold_the_bytes_of_their_tensors() -> None:
    graph = Graph()
    tokens = Poly.symbol("text.shard")
    for shape, dtype, size in (
        ((3, 5), DType.FP32, 60),
        ((3, 5), DType.BF16, 30),
        ((3, 5), DType.UINT8, 15),
        ((7,), DType.INT64, 56),
        ((), DType.FP32, 4),
        ((tokens, 8), DType.BF16, 16 * tokens),
    ):
        tensor = graph.add_tensor(shape, dtype)
        assert graph.storages[graph.tensors[tensor].storage].size_bytes == size


def test_a_view_shares_the_storage_and_the_producer() -> None:
    graph = chain()
    view = graph.add_view(2, (4, 2, 8))
    assert graph.tensors[view].storage == graph.tensors[2].storage
    assert graph.tensors[view].shape == (4, 2, 8)
    assert len(graph.storages) == 4
    reader = graph.add_operator(OpKind.ROPE, COMPUTE, inputs=[view])
    assert graph.operators[reader].after == (1,)


@dataclass(frozen=True)
class Refused:
    """An operator that cannot exist, and what the message must say."""

    stream: Stream
    message: str
    flop: Dim = 0
    mem_bytes: Dim = 0
    net_bytes: Dim = 0
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


REFUSED = {
    "network bytes on a GPU": Refused(COMPUTE, "network bytes on a device that has no network", net_bytes=1),
    "symbolic network bytes": Refused(COMPUTE, "network bytes on a device", net_bytes=Poly.symbol("text.shard")),
    "network bytes on a host": Refused(HOST, "network bytes on a device that has no network", net_bytes=1),
    "arithmetic on a link": Refused(LINK, "arithmetic on a link", flop=1),
    "symbolic arithmetic": Refused(LINK, "arithmetic on a link", flop=Poly.symbol("text.shard")),
    "negative FLOP": Refused(COMPUTE, "negative flop", flop=-1),
    "negative memory": Refused(COMPUTE, "negative mem_bytes", mem_bytes=-1),
    "negative network": Refused(LINK, "negative net_bytes", net_bytes=-1),
    "unknown input": Refused(COMPUTE, "unknown tensor", inputs=(99,)),
    "unknown output": Refused(COMPUTE, "unknown tensor", outputs=(-1,)),
    "follows itself": Refused(COMPUTE, "can only follow operators that exist", after=(3,)),
    "follows nothing": Refused(COMPUTE, "can only follow operators that exist", after=(-1,)),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_an_impossible_operator_is_refused_with_its_path_and_leaves_no_trace(case: Refused) -> None:
    graph = chain()
    with pytest.raises(GraphError, match=case.message) as caught:
        graph.add_operator(
            OpKind.CUSTOM,
            case.stream,
            inputs=case.inputs,
            outputs=case.outputs,
            flop=case.flop,
            mem_bytes=case.mem_bytes,
            net_bytes=case.net_bytes,
            after=case.after,
            path="llm.layers.3.mlp",
        )
    assert caught.value.where == "llm.layers.3.mlp"
    assert str(caught.value).startswith("llm.layers.3.mlp: ")
    assert caught.value.expected
    assert len(graph.operators) == 3
    graph.lint()


def test_without_a_path_an_error_names_number_and_kind() -> None:
    with pytest.raises(GraphError, match=r"^operator 3 \(norm\): "):
        chain().add_operator(OpKind.NORM, COMPUTE, net_bytes=5)


def test_negative_sizes_are_refused() -> None:
    graph = chain()
    with pytest.raises(GraphError, match="negative size"):
        graph.add_tensor((4, -1), DType.BF16, name="bad")
    with pytest.raises(GraphError, match="negative size"):
        graph.add_view(0, (-4, -8))
    with pytest.raises(GraphError, match="unknown tensor"):
        graph.add_view(99, (1,))
    with pytest.raises(GraphError, match="unknown tensor"):
        graph.mark_output(99)
    assert len(graph.tensors) == 4


def test_an_empty_tensor_is_allowed() -> None:
    graph = Graph()
    graph.add_view(graph.add_tensor((0, 8), DType.BF16), (8, 0))
    assert graph.storages[0].size_bytes == 0


def test_subgraphs_nest_and_say_where_they_begin_and_end() -> None:
    graph = chain()
    assert [(g.path, g.parent, g.first, g.last) for g in graph.subgraphs] == [("mlp", None, 0, 2), ("mlp.up", 0, 0, 1)]
    assert [graph.subgraphs[0].holds(i) for i in range(3)] == [True, True, False]
    assert [graph.subgraphs[1].holds(i) for i in range(3)] == [True, False, False]


def test_a_subgraph_is_closed_when_building_it_fails() -> None:
    graph = Graph()
    with pytest.raises(GraphError), graph.subgraph("outer"), graph.subgraph("inner"):
        graph.add_operator(OpKind.ADD, COMPUTE)
        graph.add_operator(OpKind.ADD, COMPUTE, net_bytes=1)
    assert [(g.path, g.first, g.last) for g in graph.subgraphs] == [("outer", 0, 1), ("outer.inner", 0, 1)]
    with graph.subgraph("next") as following:
        assert following.parent is None
    graph.lint()


# -- lint --------------------------------------------------------------------------------------------------------
def change_operator(graph: Graph, index: int, **changes: object) -> None:
    graph.operators[index] = replace(graph.operators[index], **changes)  # type: ignore[arg-type]


def break_dependency_forward(graph: Graph) -> None:
    change_operator(graph, 1, after=(2,))


def break_dependency_self(graph: Graph) -> None:
    change_operator(graph, 1, after=(1,))


def break_dependency_negative(graph: Graph) -> None:
    change_operator(graph, 1, after=(-1,))


def break_read_before_write(graph: Graph) -> None:
    graph.operators[0] = replace(graph.operators[0], inputs=(3,))


def break_dangling_input(graph: Graph) -> None:
    change_operator(graph, 2, inputs=(7,))


def break_dangling_output(graph: Graph) -> None:
    change_operator(graph, 2, outputs=(7,))


def break_dangling_storage(graph: Graph) -> None:
    graph.tensors[2] = replace(graph.tensors[2], storage=9)


def break_link_arithmetic(graph: Graph) -> None:
    change_operator(graph, 1, flop=3)


def break_compute_network(graph: Graph) -> None:
    change_operator(graph, 0, net_bytes=3)


def break_negative_cost(graph: Graph) -> None:
    change_operator(graph, 0, mem_bytes=-3)


def break_open_subgraph(graph: Graph) -> None:
    graph.subgraphs[0] = replace(graph.subgraphs[0], last=None)


def break_child_outside(graph: Graph) -> None:
    graph.subgraphs[1] = replace(graph.subgraphs[1], last=3)


def break_overlap(graph: Graph) -> None:
    """mlp holds operators 0 and 1, the stranger 1 and 2, and neither is in the other."""
    graph.subgraphs.append(Subgraph(2, "stranger", "stranger", None, 1, 3))


BREAKS = {
    "dependency on a later operator": (break_dependency_forward, "a dependency does not point back"),
    "dependency on itself": (break_dependency_self, "a dependency does not point back"),
    "dependency on no operator": (break_dependency_negative, "a dependency does not point back"),
    "read before written": (break_read_before_write, "read before it is written"),
    "dangling input": (break_dangling_input, "unknown tensor"),
    "dangling output": (break_dangling_output, "unknown tensor"),
    "dangling storage": (break_dangling_storage, "storage"),
    "arithmetic on a link": (break_link_arithmetic, "arithmetic on a link"),
    "network bytes on a GPU": (break_compute_network, "network bytes"),
    "negative cost": (break_negative_cost, "negative mem_bytes"),
    "open subgraph": (break_open_subgraph, "still open"),
    "child outside its parent": (break_child_outside, "reaches out of its parent"),
    "overlap without nesting": (break_overlap, "overlap"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_lint_finds(name: str) -> None:
    damage, message = BREAKS[name]
    graph = chain()
    graph.lint()
    damage(graph)
    with pytest.raises(GraphError, match=message):
        graph.lint()


def test_lint_names_the_operator() -> None:
    graph = chain()
    break_dependency_forward(graph)
    with pytest.raises(GraphError, match=r"^mlp\.reduce: "):
        graph.lint()
    change_operator(graph, 1, path="")
    with pytest.raises(GraphError, match=r"^operator 1: "):
        graph.lint()


def test_lint_lets_static_tensors_be_read_unwritten() -> None:
    graph = Graph()
    for role in (Role.PARAMETER, Role.GRADIENT, Role.OPTIMIZER_STATE):
        graph.add_operator(OpKind.COPY, COMPUTE, inputs=[graph.add_tensor((1,), DType.FP32, role)])
    graph.lint()
    graph.add_operator(OpKind.COPY, COMPUTE, inputs=[graph.add_tensor((1,), DType.FP32, Role.WORKSPACE)])
    with pytest.raises(GraphError, match="read before it is written"):
        graph.lint()


# -- readings ----------------------------------------------------------------------------------------------------
def test_text_form() -> None:
    graph = chain()
    free = graph.add_operator(
        OpKind.CUSTOM, LINK, inputs=[], after=[0], net_bytes=2 * Poly.symbol("text.shard"), phase=Phase.WEIGHT_GRADIENT
    )
    assert free == 3
    assert graph.to_text().splitlines() == [
        "mlp:",
        "  up:",
        "    %0 forward matmul(x:bf16[4 x 8], weight:bf16[16 x 8]) -> y:bf16[4 x 16] on gpu0/compute"
        " [flop 1024; mem 448]",
        "  %1 forward all_reduce(y:bf16[4 x 16]) -> y:bf16[4 x 16] on gpu0.nvlink.out/tp [net 128] after [0]",
        "%2 forward activation(y:bf16[4 x 16]) -> z:bf16[4 x 16] on gpu0/compute [mem 256] after [1]",
        "%3 weight_gradient custom() -> nothing on gpu0.nvlink.out/tp [net 2*text.shard] after [0]",
    ]


def test_text_form_indents_a_heading_as_far_as_what_stands_below_it() -> None:
    """Members of a Sequential may have dots in their own names (``layers.0``)."""
    graph = Graph()
    with graph.subgraph("layers.0"), graph.subgraph("mlp"):
        graph.add_operator(OpKind.ADD, COMPUTE)
    indents = [len(line) - len(line.lstrip()) for line in graph.to_text().splitlines()]
    assert indents == [0, 2, 4]


def test_streams_in_order_of_first_use() -> None:
    assert chain().streams() == [COMPUTE, LINK]


@st.composite
def graphs(draw: st.DrawFn, *, views: bool, updates: bool) -> Graph:
    """Random graphs: operators read what is there; optionally through views, optionally writing in place."""
    graph = Graph()
    readable = [graph.add_input((4, 6), DType.BF16, name=f"x{i}") for i in range(draw(st.integers(1, 3)))]
    for _ in range(draw(st.integers(1, 12))):
        reads = draw(st.lists(st.sampled_from(readable), max_size=3))
        outputs = [graph.add_tensor((4, 6), DType.BF16) for _ in range(draw(st.integers(1, 2)))]
        if updates and reads and draw(st.booleans()):
            outputs.append(reads[0])
        if views:
            reads = [graph.add_view(tensor, (24,)) if draw(st.booleans()) else tensor for tensor in reads]
        earlier = range(len(graph.operators))
        after = draw(st.lists(st.sampled_from(earlier), max_size=2)) if earlier else []
        graph.add_operator(OpKind.CUSTOM, COMPUTE, inputs=reads, outputs=outputs, after=after)
        readable += outputs
    return graph


def check_networkx(graph: Graph) -> None:
    """Acyclic, and every dependency of the graph is a path, so any topological order is a legal order of running."""
    result = graph.to_networkx()
    assert networkx.is_directed_acyclic_graph(result)
    position = {node: i for i, node in enumerate(networkx.topological_sort(result))}
    for operator in graph.operators:
        for before in operator.after:
            assert position["operator", before] < position["operator", operator.index]
            assert networkx.has_path(result, ("operator", before), ("operator", operator.index))
    for operator in graph.operators:
        assert result.nodes["operator", operator.index]["data"] is operator
    for tensor in graph.tensors:
        assert result.nodes["tensor", tensor.index]["data"] is tensor


@pytest.mark.slow
@given(graphs(views=True, updates=True))
def test_random_graphs_are_clean_and_every_reader_follows_the_last_writer(graph: Graph) -> None:
    graph.lint()
    written: dict[int, int] = {}
    for operator in graph.operators:
        storages = {graph.tensors[tensor].storage for tensor in operator.inputs}
        assert {written[s] for s in storages if s in written} <= set(operator.after)
        assert all(before < operator.index for before in operator.after)
        written.update((graph.tensors[tensor].storage, operator.index) for tensor in operator.outputs)


@pytest.mark.parametrize("through_view", [True, False], ids=("written through a view", "viewed, then written"))
def test_a_storage_written_by_another_name_is_waited_for(through_view: bool) -> None:
    """Two tensors over one storage: who reads one of them waits for who wrote the other."""
    graph = Graph()
    base = graph.add_tensor((4, 6), DType.BF16)
    graph.add_operator(OpKind.MATMUL, COMPUTE, outputs=[base])
    view = graph.add_view(base, (24,))
    written, read = (view, base) if through_view else (base, view)
    update = graph.add_operator(OpKind.ALL_REDUCE, LINK, inputs=[written], outputs=[written], net_bytes=48)
    reader = graph.add_operator(OpKind.COPY, COMPUTE, inputs=[read])
    assert update in graph.operators[reader].after


@pytest.mark.slow
@given(graphs(views=False, updates=False))
def test_networkx_of_plain_graphs(graph: Graph) -> None:
    check_networkx(graph)


@pytest.mark.slow
@given(graphs(views=True, updates=False))
def test_networkx_keeps_dependencies_through_views(graph: Graph) -> None:
    check_networkx(graph)


@pytest.mark.slow
@given(graphs(views=False, updates=True))
def test_networkx_of_operators_that_write_in_place_has_no_cycle(graph: Graph) -> None:
    check_networkx(graph)


def test_networkx_has_an_edge_per_use() -> None:
    graph = Graph()
    x = graph.add_input((2,), DType.FP32, name="x")
    y = graph.add_tensor((2,), DType.FP32, name="y")
    first = graph.add_operator(OpKind.COPY, COMPUTE, inputs=[x], outputs=[y])
    second = graph.add_operator(OpKind.COPY, COMPUTE, inputs=[y])
    third = graph.add_operator(OpKind.COPY, COMPUTE, after=[second])
    assert set(graph.to_networkx().edges) == {
        (("tensor", x), ("operator", first)),
        (("operator", first), ("tensor", y)),
        (("tensor", y), ("operator", second)),
        (("operator", second), ("operator", third)),
    }
