"""Subgraphs: levels, replicas, keys and feeds, and what cannot be nested, replicated or named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from semu.errors import GraphError
from semu.graph.graph import Graph
from semu.graph.operator import OpKind
from semu.graph.subgraph import Level, Replication, Subgraph
from semu.graph.tensor import Role
from semu.hardware.device import Device, DeviceKind, Direction, Stream
from semu.hardware.kinds import DType, Port

COMPUTE = Stream(Device(DeviceKind.COMPUTE), "compute")
LINK = Stream(Device(DeviceKind.LINK, port=Port.NVLINK, direction=Direction.OUT), "tp")
SIZES = (4, 8)

ORDER = [Level.OPERATOR, Level.LAYER, Level.CHUNK, Level.STAGE, Level.MICROBATCH, Level.ITERATION]


def layer(graph: Graph, x: int, *, kind: OpKind = OpKind.MATMUL, stream: Stream = COMPUTE, size: int = 64) -> int:
    """y = kind(x, weight), with a weight of its own."""
    weight = graph.add_tensor(SIZES, DType.BF16, Role.PARAMETER, name="weight")
    y = graph.add_tensor(SIZES, DType.BF16, name="y")
    graph.add_operator(kind, stream, inputs=[x, weight], outputs=[y], mem_bytes=size)
    return y


def chain(graph: Graph, x: int, replicas: int = 3) -> tuple[Subgraph, int]:
    with graph.subgraph("layer", level=Level.LAYER, replicas=replicas, replication=Replication.CHAIN) as opened:
        y = layer(graph, x)
        graph.feed(y, x)
    return graph.subgraphs[opened.index], y


def started() -> tuple[Graph, int]:
    graph = Graph()
    return graph, graph.add_input(SIZES, DType.BF16, name="x")


# -- levels ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("outer", [None, *ORDER[1:]])
@pytest.mark.parametrize("inner", [None, *ORDER[1:]])
@pytest.mark.parametrize("is_direct", [True, False], ids=["directly", "with a group between"])
def test_a_level_lies_inside_larger_ones_only(outer: Level | None, inner: Level | None, is_direct: bool) -> None:
    graph, x = started()

    def build() -> None:
        with graph.subgraph("outer", level=outer):
            if is_direct:
                with graph.subgraph("inner", level=inner):
                    layer(graph, x)
            else:
                with graph.subgraph("group"), graph.subgraph("inner", level=inner):
                    layer(graph, x)

    is_part = outer is inner is Level.LAYER  # a layer's attention is a layer too
    if outer is None or inner is None or is_part or ORDER.index(inner) < ORDER.index(outer):
        build()
        assert [(g.name, g.level) for g in graph.subgraphs if g.name != "group"] == [("outer", outer), ("inner", inner)]
        graph.lint()
    else:
        with pytest.raises(GraphError, match=f"a {inner.value} inside a {outer.value}") as caught:
            build()
        assert caught.value.where in ("outer.inner", "outer.group.inner")
        assert caught.value.expected
        assert "inner" not in [g.name for g in graph.subgraphs]


def test_one_level_more_after_another_is_no_nesting() -> None:
    graph, x = started()
    for level in reversed(ORDER[1:]):
        with graph.subgraph(level.value, level=level):
            layer(graph, x)
    for level in ORDER[1:]:
        with graph.subgraph(level.value, level=level):
            layer(graph, x)
    assert [g.level for g in graph.subgraphs] == [*reversed(ORDER[1:]), *ORDER[1:]]
    graph.lint()


def test_levels_are_ordered() -> None:
    for i, low in enumerate(ORDER):
        for j, high in enumerate(ORDER):
            assert low.is_inside(high) == (i < j)
    assert [level.depth for level in ORDER] == list(range(6))
    assert [level.value for level in Level] == ["operator", "layer", "chunk", "stage", "microbatch", "iteration"]


def test_an_operator_is_no_subgraph() -> None:
    graph, _ = started()
    with pytest.raises(GraphError, match="larger than an operator"), graph.subgraph("o", level=Level.OPERATOR):
        pass


def test_without_arguments_a_subgraph_only_groups() -> None:
    graph, x = started()
    with graph.subgraph("plain"):
        layer(graph, x)
    plain = graph.subgraphs[0]
    assert (plain.level, plain.replicas, plain.replication) == (None, 1, Replication.PEERS)
    assert (plain.key, plain.mirrors, plain.feeds) == ("", None, ())
    assert not plain.is_chain
    assert not plain.has_peers


# -- replicas ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("replication", Replication)
@pytest.mark.parametrize("count", [1, 2, 8])
def test_replicas_are_kept(replication: Replication, count: int) -> None:
    graph, x = started()
    with graph.subgraph("r", replicas=count, replication=replication):
        layer(graph, x)
    group = graph.subgraphs[0]
    assert (group.replicas, group.replication) == (count, replication)
    assert group.is_chain == (count > 1 and replication is Replication.CHAIN)
    assert group.has_peers == (count > 1 and replication is Replication.PEERS)
    assert len(graph.operators) == 1


@pytest.mark.parametrize("replication", Replication)
@pytest.mark.parametrize("count", [0, -1, 1.5, "3", True, None])
def test_replicas_are_a_count(replication: Replication, count: object) -> None:
    graph, _ = started()
    with (
        pytest.raises(GraphError, match="at least one replica") as caught,
        graph.subgraph("r", replicas=count, replication=replication),  # type: ignore[arg-type]
    ):
        pass
    assert (caught.value.where, caught.value.got, caught.value.nearest) == ("r", count, 1)
    assert graph.subgraphs == []
    with graph.subgraph("next") as following:  # the refused one is not around it
        assert following.parent is None


@pytest.mark.parametrize("level", [Level.STAGE, Level.MICROBATCH, Level.ITERATION])
def test_a_chain_is_inside_a_stage(level: Level) -> None:
    graph, x = started()
    with pytest.raises(GraphError, match="chain"), graph.subgraph("c", replicas=2, replication=Replication.CHAIN):  # noqa: SIM117
        with graph.subgraph("inner", level=level):
            layer(graph, x)


def test_a_chain_of_stages_is_refused() -> None:
    graph, x = started()
    with pytest.raises(GraphError, match="chain"), graph.subgraph("mb", level=Level.MICROBATCH):  # noqa: SIM117
        with graph.subgraph("c", level=Level.STAGE, replicas=2, replication=Replication.CHAIN):
            layer(graph, x)


def test_peers_may_be_anywhere() -> None:
    graph, x = started()
    for level in (*ORDER[1:], None):
        with graph.subgraph("peers", level=level, replicas=4):
            layer(graph, x)
    graph.lint()


# -- feeds -------------------------------------------------------------------------------------------------------
def test_a_chain_holds_its_feeds() -> None:
    graph, x = started()
    opened, y = chain(graph, x)
    assert opened.feeds == ((x, y),)
    assert opened.made(y)
    assert not opened.made(x)


def test_a_feed_belongs_to_the_innermost_chain() -> None:
    graph, x = started()
    with graph.subgraph("outer", replicas=2, replication=Replication.CHAIN):
        inner, y = chain(graph, x)
        with graph.subgraph("group"):
            z = layer(graph, y)
            graph.feed(z, x)
    assert inner.feeds == ((x, y),)
    assert graph.subgraphs[0].feeds == ((x, z),)


def feed_without_chain(graph: Graph, x: int) -> None:
    graph.feed(layer(graph, x), x)


def feed_in_peers(graph: Graph, x: int) -> None:
    with graph.subgraph("peers", replicas=2):
        graph.feed(layer(graph, x), x)


def feed_after_the_chain(graph: Graph, x: int) -> None:
    _, y = chain(graph, x)
    graph.feed(y, x)


def feed_another_shape(graph: Graph, x: int) -> None:
    with graph.subgraph("c", replicas=2, replication=Replication.CHAIN):
        graph.feed(graph.add_tensor((8, 4), DType.BF16), x)


def feed_another_type(graph: Graph, x: int) -> None:
    with graph.subgraph("c", replicas=2, replication=Replication.CHAIN):
        graph.feed(graph.add_tensor(SIZES, DType.FP16), x)


def feed_from_outside(graph: Graph, x: int) -> None:
    y = layer(graph, x)
    with graph.subgraph("c", replicas=2, replication=Replication.CHAIN):
        graph.feed(y, x)


def feed_into_itself(graph: Graph, x: int) -> None:
    with graph.subgraph("c", replicas=2, replication=Replication.CHAIN):
        y = layer(graph, x)
        graph.feed(layer(graph, y), y)


def feed_twice(graph: Graph, x: int) -> None:
    with graph.subgraph("c", replicas=2, replication=Replication.CHAIN):
        y = layer(graph, x)
        graph.feed(y, x)
        graph.feed(layer(graph, y), x)


def feed_unknown_output(graph: Graph, x: int) -> None:
    with graph.subgraph("c", replicas=2, replication=Replication.CHAIN):
        graph.feed(99, x)


def feed_unknown_input(graph: Graph, x: int) -> None:
    with graph.subgraph("c", replicas=2, replication=Replication.CHAIN):
        graph.feed(layer(graph, x), -1)


BAD_FEEDS = {
    "no chain": (feed_without_chain, "only a chain feeds"),
    "peers": (feed_in_peers, "only a chain feeds"),
    "a closed chain": (feed_after_the_chain, "only a chain feeds"),
    "another shape": (feed_another_shape, "does not fit"),
    "another type": (feed_another_type, "does not fit"),
    "an output from outside": (feed_from_outside, "made inside"),
    "an input from inside": (feed_into_itself, "made outside"),
    "two outputs for one input": (feed_twice, "fed twice"),
    "an unknown output": (feed_unknown_output, "unknown tensor"),
    "an unknown input": (feed_unknown_input, "unknown tensor"),
}


@pytest.mark.parametrize("name", BAD_FEEDS)
def test_a_feed_that_cannot_be_is_refused(name: str) -> None:
    build, message = BAD_FEEDS[name]
    graph, x = started()
    with pytest.raises(GraphError, match=message) as caught:
        build(graph, x)
    assert caught.value.expected
    assert sum(len(group.feeds) for group in graph.subgraphs) <= 1


# -- mirrors -----------------------------------------------------------------------------------------------------
def test_a_backward_mirrors_its_forward() -> None:
    graph, x = started()
    forward, y = chain(graph, x)
    with graph.subgraph("backward", replicas=3, replication=Replication.CHAIN, mirrors=forward):
        layer(graph, y)
    assert graph.subgraphs[1].mirrors == forward.index


def mirror_peers(graph: Graph, x: int) -> None:
    with graph.subgraph("f", replicas=3) as forward:
        layer(graph, x)
    with graph.subgraph("b", replicas=3, replication=Replication.CHAIN, mirrors=forward):
        layer(graph, x)


def mirror_as_peers(graph: Graph, x: int) -> None:
    forward, _ = chain(graph, x)
    with graph.subgraph("b", replicas=3, mirrors=forward):
        layer(graph, x)


def mirror_another_count(graph: Graph, x: int) -> None:
    forward, _ = chain(graph, x)
    with graph.subgraph("b", replicas=2, replication=Replication.CHAIN, mirrors=forward):
        layer(graph, x)


def mirror_an_open_chain(graph: Graph, x: int) -> None:
    with (
        graph.subgraph("f", replicas=2, replication=Replication.CHAIN) as forward,
        graph.subgraph("b", replicas=2, replication=Replication.CHAIN, mirrors=forward),
    ):
        layer(graph, x)


MIRRORS = [mirror_peers, mirror_as_peers, mirror_another_count, mirror_an_open_chain]


@pytest.mark.parametrize("build", MIRRORS, ids=lambda build: build.__name__)
def test_only_a_chain_mirrors_a_closed_chain_of_as_many_copies(build: Callable[[Graph, int], None]) -> None:
    graph, x = started()
    with pytest.raises(GraphError, match="mirrors a closed chain") as caught:
        build(graph, x)
    assert caught.value.where in ("b", "f.b")


# -- keys --------------------------------------------------------------------------------------------------------
def test_one_key_for_equal_structures() -> None:
    """Other names, tensors, weights and sizes are the same structure; so is another rank."""
    graph, x = started()
    x = layer(graph, x)
    other = Stream(Device(DeviceKind.COMPUTE, 3), "compute")
    for name, stream, size in (("a", COMPUTE, 64), ("b", COMPUTE, 1000), ("c", other, 64)):
        with graph.subgraph(name, key="layer"):
            x = layer(graph, x, stream=stream, size=size)
    assert [group.key for group in graph.subgraphs] == ["layer"] * 3


def another_kind(graph: Graph, x: int) -> None:
    layer(graph, x, kind=OpKind.ADD)


def another_stream(graph: Graph, x: int) -> None:
    layer(graph, x, stream=Stream(Device(DeviceKind.COMPUTE), "side"))


def another_operator(graph: Graph, x: int) -> None:
    layer(graph, layer(graph, x))


def nothing_at_all(graph: Graph, x: int) -> None:
    pass


def another_use(graph: Graph, x: int) -> None:
    """The same operator, but it writes what it reads."""
    weight = graph.add_tensor(SIZES, DType.BF16, Role.PARAMETER)
    graph.add_operator(OpKind.MATMUL, COMPUTE, inputs=[x, weight], outputs=[x], mem_bytes=64)


def replicas_inside(graph: Graph, x: int) -> None:
    with graph.subgraph("inside", replicas=2, replication=Replication.CHAIN):
        layer(graph, x)


OTHERS = [another_kind, another_stream, another_operator, nothing_at_all, another_use, replicas_inside]


@pytest.mark.parametrize("build", OTHERS, ids=lambda build: build.__name__)
def test_a_key_with_another_structure_is_refused(build: Callable[[Graph, int], None]) -> None:
    graph, x = started()
    with graph.subgraph("first", key="layer"):
        layer(graph, x)
    with pytest.raises(GraphError, match="'layer' already names another structure, that of first") as caught:  # noqa: SIM117
        with graph.subgraph("group"), graph.subgraph("second", key="layer"):
            build(graph, x)
    assert caught.value.where == "group.second"
    assert caught.value.got
    with (
        pytest.raises(GraphError, match="that of first"),  # the first one keeps the name
        graph.subgraph("third", key="layer"),
    ):
        build(graph, x)


def test_keys_tell_apart_how_operators_hang_together() -> None:
    """The same two operators, the second on the first's result or beside it."""
    graph, x = started()
    with graph.subgraph("one after another", key="pair"):
        layer(graph, layer(graph, x))
    with pytest.raises(GraphError, match="another structure"), graph.subgraph("side by side", key="pair"):
        layer(graph, x)
        layer(graph, x)


@pytest.mark.parametrize("replicas", [(2, Replication.CHAIN), (3, Replication.PEERS), (1, Replication.PEERS)])
def test_keys_tell_replicas_apart(replicas: tuple[int, Replication]) -> None:
    graph, x = started()
    with graph.subgraph("three", key="layer", replicas=3, replication=Replication.CHAIN):
        layer(graph, x)
    with (
        pytest.raises(GraphError, match="another structure"),
        graph.subgraph("others", key="layer", replicas=replicas[0], replication=replicas[1]),
    ):
        layer(graph, x)


def test_keys_tell_feeds_apart() -> None:
    graph, x = started()
    with graph.subgraph("fed", key="layer", replicas=3, replication=Replication.CHAIN):
        graph.feed(layer(graph, x), x)
    with (
        pytest.raises(GraphError, match="another structure"),
        graph.subgraph("not fed", key="layer", replicas=3, replication=Replication.CHAIN),
    ):
        layer(graph, x)


# -- readings ----------------------------------------------------------------------------------------------------
def test_text_form_mentions_replicas() -> None:
    graph, x = started()
    with graph.subgraph("stage", level=Level.STAGE), graph.subgraph("tp", replicas=8):
        _, y = chain(graph, x, 32)
        with graph.subgraph("one", replication=Replication.CHAIN):
            layer(graph, y)
    assert [line for line in graph.to_text().splitlines() if line.endswith(":")] == [
        "stage:",
        "  tp x 8 peers:",
        "    layer x 32 in a chain:",
        "    one:",
    ]


def test_a_subgraph_knows_what_was_made_in_it() -> None:
    graph, x = started()
    with graph.subgraph("outer") as outer:
        y = layer(graph, x)
        with graph.subgraph("inner") as inner:
            z = layer(graph, y)
            assert inner.made(z)
    late = graph.add_tensor(SIZES, DType.BF16)
    around, inside = graph.subgraphs[outer.index], graph.subgraphs[inner.index]
    assert [around.made(t) for t in (x, y, z, late)] == [False, True, True, False]
    assert [inside.made(t) for t in (x, y, z, late)] == [False, False, True, False]
    view = graph.add_view(z, (32,))
    assert graph.tensors[view].base == z
    assert graph.tensors[z].base is None
    assert not around.made(view)


def test_a_failure_inside_a_chain_leaves_the_graph_closed() -> None:
    graph, x = started()
    with pytest.raises(GraphError, match="network bytes"), graph.subgraph("s", level=Level.STAGE):  # noqa: SIM117
        with graph.subgraph("c", replicas=2, replication=Replication.CHAIN):
            graph.feed(layer(graph, x), x)
            graph.add_operator(OpKind.ADD, COMPUTE, net_bytes=1)
    assert [(g.path, g.first, g.last, len(g.feeds)) for g in graph.subgraphs] == [("s", 0, 1, 0), ("s.c", 0, 1, 1)]
    graph.lint()
    with pytest.raises(GraphError, match="only a chain feeds"):
        graph.feed(x, x)
