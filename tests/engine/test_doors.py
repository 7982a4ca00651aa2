"""What the doors of graphs and checkpoints refuse, and in which words."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import semu
from semu import nn
from semu.engine.unit_graph import Edges
from semu.graph.dim import Poly
from semu.graph.subgraph import Level, Replication
from semu.hardware.device import Device, DeviceKind, Stream

PROFILE = semu.Cluster("h800", 1, 8).profile
COMPUTE = Stream(Device(DeviceKind.COMPUTE), "compute")


def stages(*names: str) -> semu.Graph:
    graph = semu.Graph()
    for name in names:
        with graph.subgraph(name, level=Level.STAGE):
            if not name.startswith("empty"):
                graph.add_operator(semu.OpKind.ADD, COMPUTE, mem_bytes=10**7, path=name.lower())
    return graph


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([[0, 10**6]], "no such unit"),
        ([[0, -1]], "no such unit"),
        ([[0, 2]], "no such unit"),
        ([[2**32, 1]], "no such unit"),
        ([[0.0, 1.0]], "not edges between units"),
        ([[np.nan, 1]], "not edges between units"),
        ([[0, 1, 0]], "not edges between units"),
        ([0, 1], "not edges between units"),
        (["ab"], "not edges between units"),
    ],
)
def test_units_that_are_none(pairs: object, words: str) -> None:
    state = semu.Simulation(stages("A", "B"), PROFILE).checkpoint()
    with pytest.raises(semu.GraphError, match=words):
        Edges.given(pairs, state.num_units)
    assert state.nodes.resume(Edges.given([[1, 0]], state.num_units)).start[0, 0] > 0


@pytest.mark.parametrize("edge", [("A",), ("A", "B", "A"), "AB", 5])
def test_edges_that_are_none(edge: object) -> None:
    with pytest.raises(semu.GraphError, match="not an edge"):
        semu.Simulation(stages("A", "B"), PROFILE).run(edges=[edge])  # type: ignore[list-item]


@pytest.mark.parametrize("value", [0.5, np.nan, None, "x", True, 10**30])
def test_priorities_are_integers(value: object) -> None:
    with pytest.raises(semu.GraphError, match="not a priority"):
        semu.Simulation(stages("A", "B"), PROFILE).run(priority={"A": value})  # type: ignore[dict-item]


def test_a_path_of_two_subgraphs_is_no_side() -> None:
    graph = stages("S", "S", "T")
    with pytest.raises(semu.GraphError, match="several subgraphs"):
        semu.Simulation(graph, PROFILE).run(edges=[("S", "T")])
    timeline = semu.Simulation(graph, PROFILE).run(edges=[(graph.subgraphs[1], graph.subgraphs[0])])
    assert timeline.start.tolist()[0] == timeline.end.tolist()[1]


def test_an_empty_group_is_no_side_and_an_empty_stage_is_where_its_unit_is() -> None:
    graph = stages("A", "empty", "B")
    with graph.subgraph("group"):
        pass
    simulation = semu.Simulation(graph, PROFILE)
    with pytest.raises(semu.GraphError, match="empty subgraph"):
        simulation.run(edges=[("A", "group")])
    timeline = simulation.run(edges=[("A", "empty"), ("empty", "B")])
    assert timeline.span("empty").start_s == timeline.end[0] == timeline.start[1]


def test_memory_is_that_of_one_unit() -> None:
    graph = semu.Graph()
    with graph.subgraph("mb", level=Level.MICROBATCH):
        for name in ("A", "B"):
            with graph.subgraph(name, level=Level.STAGE):
                made = graph.add_tensor((500,), semu.DType.BF16)
                graph.add_operator(semu.OpKind.ADD, COMPUTE, outputs=[made], mem_bytes=10**6)
    state = semu.Simulation(graph, PROFILE).checkpoint()
    assert (state.memory("mb.A").peak, state.memory("mb.A").net) == (1000, 0)
    with pytest.raises(semu.GraphError, match="not one unit"):
        state.memory("mb")


@pytest.mark.parametrize("value", [-1, 2**62, 1.5, np.nan, "a", None])
def test_sizes_are_counts(value: object) -> None:
    graph = semu.trace(nn.Linear(8, 8), semu.Input((Poly.symbol("n"), 8)))
    with pytest.raises(semu.ConfigError, match="not values of the symbol n"):
        semu.sweep(graph, PROFILE, {"n": [value]})  # type: ignore[list-item]
    with pytest.raises(semu.ConfigError, match="not values of the symbol n"):
        semu.Simulation(graph, PROFILE, shapes={"n": value})  # type: ignore[dict-item]
    with pytest.raises(semu.ConfigError, match="no value for the symbol n"):
        semu.Simulation(graph, PROFILE, shapes={"m": 3})


@pytest.mark.parametrize(
    "options", [{"replication": "chain"}, {"level": "stage"}, {"replicas": 1.5}, {"replicas": "2"}, {"replicas": None}]
)
def test_words_are_no_enums_and_fractions_no_counts(options: dict[str, object]) -> None:
    with pytest.raises(semu.GraphError), semu.Graph().subgraph("x", **options):  # type: ignore[arg-type]
        pass


def test_numpy_counts_are_counts() -> None:
    graph = semu.Graph()
    with graph.subgraph("x", replicas=np.int64(3)):  # type: ignore[arg-type]
        pass
    assert graph.subgraphs[0].replicas == 3


def chain() -> semu.Graph:
    """A fed chain of four and its mirrored backward."""
    graph = semu.Graph()
    x = graph.add_input((1000,), semu.DType.BF16, name="x")
    with graph.subgraph("forward", replicas=4, replication=Replication.CHAIN, key="layer") as forward:
        y = graph.add_tensor((1000,), semu.DType.BF16)
        graph.add_operator(semu.OpKind.ADD, COMPUTE, inputs=[x], outputs=[y], mem_bytes=10**6)
        graph.feed(y, x)
    with graph.subgraph("backward", replicas=4, replication=Replication.CHAIN, mirrors=forward):
        graph.add_operator(semu.OpKind.ADD, COMPUTE, inputs=[y], mem_bytes=10**6)
    return graph


def test_an_included_chain_is_the_chain() -> None:
    part, graph = chain(), semu.Graph()
    semu.include(graph, part)
    direct, included = semu.run(part, PROFILE), semu.run(graph, PROFILE)
    assert included.end.tolist() == direct.end.tolist()
    assert included.peak.size_bytes == direct.peak.size_bytes > 4000
    assert [(g.replicas, g.key, g.feeds != ()) for g in graph.subgraphs] == [
        (g.replicas, g.key, g.feeds != ()) for g in part.subgraphs
    ]


@pytest.mark.parametrize("operators", [range(1, 2)])
def test_a_mirror_is_not_included_alone(operators: range) -> None:
    with pytest.raises(semu.GraphError, match="included whole"):
        semu.include(semu.Graph(), chain(), operators=operators)


def replica_of(call: Callable[[semu.JobCheckpoint], object]) -> None:
    job = semu.TrainingJob(
        model=__import__("semu_models").lm_7b(),
        cluster=semu.Cluster("h800", 1, 8),
        parallel=semu.Parallel(tp=2, pp=4),
        training=semu.Training(global_batch=4, seq_len=1024),
    )
    call(semu.prepare(job))


@pytest.mark.parametrize("replica", [-1, 1, 99, True])
def test_replicas_that_are_not_there(replica: int) -> None:
    def call(state: semu.JobCheckpoint) -> None:
        with pytest.raises(semu.ConfigError, match="no such distinct replica"):
            state.restore(state.edges_of(), replica=replica)

    replica_of(call)
