"""``Simulation``: closed forms, refused edges, symbolic sizes, and pipelines of traced models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
import pytest
from engine.graph_checks import PROFILE, RULES, STEP_S, check, check_memory, seconds, simulation, work
from engine.graph_reference import Reference, Side
from engine.graph_strategies import LATENCIES, compute, latency_steps, link, seeded_graph
from engine.reference import GRID_STEPS_PER_S

import semu
from semu import nn
from semu.errors import ConfigError, GraphError
from semu.graph.dim import Poly
from semu.graph.graph import Graph
from semu.graph.operator import Operator, OpKind
from semu.graph.subgraph import Level, Replication, Subgraph
from semu.graph.tensor import Role
from semu.hardware.device import Stream
from semu.hardware.kinds import DType


# -- closed forms ------------------------------------------------------------------------------------------------
def test_a_pipeline_of_two_ranks() -> None:
    """GPipe by order of appending: m microbatches of f steps on each of 2 ranks take (m + 1) f."""
    graph = Graph()
    for number in range(4):
        with graph.subgraph(f"mb{number}", level=Level.MICROBATCH):
            with graph.subgraph("F0", level=Level.STAGE):
                first = work(graph, 0, 5)
            with graph.subgraph("F1", level=Level.STAGE):
                work(graph, 1, 5, after=(first,))
    timeline = simulation(graph).run()
    check(timeline, Reference(graph, latency_steps).run())
    assert timeline.start.tolist() == seconds([0, 5, 5, 10, 10, 15, 15, 20])
    assert timeline.makespan_s == (4 + 1) * 5 * STEP_S
    reordered = simulation(graph).run([(f"mb{number + 1}", f"mb{number}") for number in range(3)])
    assert reordered.start.tolist() == seconds([30, 35, 20, 25, 10, 15, 0, 5])


def test_a_stage_stalls_inside() -> None:
    """An edge to the first operator holds the stage back, one to the second lets it begin and wait."""
    graph = Graph()
    with graph.subgraph("slow", level=Level.STAGE):
        work(graph, 0, 10)
    with graph.subgraph("stage", level=Level.STAGE):
        first = work(graph, 1, 3)
        second = work(graph, 1, 2)
    with graph.subgraph("next", level=Level.STAGE):
        work(graph, 1, 1)
    checkpoint = simulation(graph).checkpoint()
    assert checkpoint.restore().start.tolist() == seconds([0, 0, 3, 5])
    # The stage starts and stalls: nothing else gets its stream.
    stalled = checkpoint.restore([("slow", second)])
    assert stalled.start.tolist() == seconds([0, 0, 10, 12])
    # The stage itself waits: the next one goes first.
    for side in (first, "stage", graph.subgraphs[1]):
        assert checkpoint.restore([("slow", side)]).start.tolist() == seconds([0, 10, 13, 0])
    reference = Reference(graph, latency_steps)
    check(stalled, reference.run([("slow", second)]))
    check(checkpoint.restore([("slow", first)]), reference.run([("slow", first)]))


def test_ties_go_by_priority_then_by_order() -> None:
    graph = Graph()
    for name in "abc":
        with graph.subgraph(name, level=Level.STAGE):
            work(graph, 0, 4)
    checkpoint = simulation(graph).checkpoint()
    assert checkpoint.restore().start.tolist() == seconds([0, 4, 8])
    assert checkpoint.restore(priority={"c": -1}).start.tolist() == seconds([4, 8, 0])
    assert checkpoint.restore(priority={"a": 1, "b": 1}).start.tolist() == seconds([4, 8, 0])
    assert checkpoint.restore(priority={"a": 2, "b": 1, "c": 1}).start.tolist() == seconds([8, 0, 4])
    assert checkpoint.restore([("c", "a")], {"b": 3}).start.tolist() == seconds([4, 8, 0])


def test_whoever_can_start_first_goes_first_whatever_its_priority() -> None:
    graph = Graph()
    with graph.subgraph("before", level=Level.STAGE):
        work(graph, 1, 1)
    for name in ("late", "early"):
        with graph.subgraph(name, level=Level.STAGE):
            work(graph, 0, 4)
    timeline = simulation(graph).run([("before", "late")], priority={"late": -9})
    assert timeline.start.tolist() == seconds([0, 4, 0])


def test_a_stage_holds_all_its_streams_to_its_end() -> None:
    """A short collective at the beginning keeps the link until the stage is over."""
    graph = Graph()
    with graph.subgraph("stage", level=Level.STAGE):
        reduce = work(graph, 0, 1, stream="tp")
        work(graph, 0, 9, after=(reduce,))
    work(graph, 0, 2, stream="tp")
    work(graph, 0, 2, stream="pp")
    assert simulation(graph).run().start.tolist() == seconds([0, 1, 10, 0])


def test_an_inner_end_lets_a_reduction_start_before_the_stage_is_over() -> None:
    graph = Graph()
    with graph.subgraph("stage", level=Level.STAGE):
        with graph.subgraph("layer1", level=Level.LAYER):
            work(graph, 0, 3)
        with graph.subgraph("layer0", level=Level.LAYER):
            work(graph, 0, 4)
    reduction = work(graph, 0, 5, stream="dp")
    checkpoint = simulation(graph).checkpoint()
    assert checkpoint.restore([("stage.layer1", reduction)]).start[reduction] == 3 * STEP_S
    assert checkpoint.restore([("stage.layer0", reduction)]).start[reduction] == 7 * STEP_S
    assert checkpoint.restore([("stage", reduction)]).start[reduction] == 7 * STEP_S


def test_a_chain_runs_forward_and_its_mirror_backward() -> None:
    """n layers of f, then n of b: every activation lives from its forward to its own backward."""
    n, forward, backward = 4, 2, 3
    graph = Graph()
    x = graph.add_input((7,), DType.UINT8, name="x")
    with graph.subgraph("stage", level=Level.STAGE):
        with graph.subgraph("layer", level=Level.LAYER, replicas=n, replication=Replication.CHAIN) as layer:
            saved, y = (graph.add_tensor((size,), DType.UINT8) for size in (100, 7))
            graph.add_tensor((1000,), DType.UINT8, Role.PARAMETER)
            graph.add_operator(OpKind.CUSTOM, compute(0), inputs=[x], outputs=[saved, y], mem_bytes=LATENCIES + forward)
            graph.feed(y, x)
        gradient = graph.add_tensor((7,), DType.UINT8)
        graph.add_operator(OpKind.CUSTOM, compute(0), inputs=[y], outputs=[gradient], mem_bytes=LATENCIES + 1)
        with graph.subgraph("layer_bw", replicas=n, replication=Replication.CHAIN, mirrors=layer):
            dx = graph.add_tensor((7,), DType.UINT8)
            graph.add_operator(
                OpKind.CUSTOM, compute(0), inputs=[saved, gradient], outputs=[dx], mem_bytes=LATENCIES + backward
            )
            graph.feed(dx, gradient)
    timeline = simulation(graph).run()
    check(timeline, Reference(graph, latency_steps).run())
    assert timeline.makespan_s == (n * (forward + backward) + 1) * STEP_S
    curve = timeline.memory_of("hbm")
    activations = curve.by_role[curve.roles.index(Role.ACTIVATION)]
    at_loss = activations[np.searchsorted(curve.times_s, n * forward * STEP_S, side="right") - 1]
    assert at_loss == n * 100 + 2 * 7  # all saved; the last output and the first gradient
    for done in range(1, n):
        now = (n * forward + 1 + done * backward) * STEP_S
        assert activations[np.searchsorted(curve.times_s, now, side="right") - 1] == (n - done) * 100 + 2 * 7
    assert curve.by_role[curve.roles.index(Role.PARAMETER)].tolist() == [n * 1000] * len(curve.times_s)


def forwards(graph: Graph, x: int, counts: Sequence[int]) -> tuple[int, list[Subgraph]]:
    """Layers in chains within chains, each of which is fed what the layer before it made, and the chains."""
    if not counts:
        y = graph.add_tensor((7,), DType.UINT8)
        graph.add_operator(OpKind.CUSTOM, compute(0), inputs=[x], outputs=[y], mem_bytes=LATENCIES + 2)
        return y, []
    with graph.subgraph("f", replicas=counts[0], replication=Replication.CHAIN) as chain:
        y, inner = forwards(graph, x, counts[1:])
        graph.feed(y, x)
    return y, [chain, *inner]


def backwards(graph: Graph, x: int, gradient: int, chains: Sequence[Subgraph]) -> int:
    """Their mirrors: a backward reads what its layer was fed."""
    if not chains:
        dx = graph.add_tensor((7,), DType.UINT8)
        graph.add_operator(OpKind.CUSTOM, compute(0), inputs=[x, gradient], outputs=[dx], mem_bytes=LATENCIES + 3)
        return dx
    with graph.subgraph("b", replicas=chains[0].replicas, replication=Replication.CHAIN, mirrors=chains[0]):
        dx = backwards(graph, x, gradient, chains[1:])
        graph.feed(dx, gradient)
    return dx


@pytest.mark.parametrize("counts", [(6,), (2, 3), (3, 2), (2, 2, 2), (3, 1, 2)])
def test_chains_in_chains_are_one_long_chain(counts: tuple[int, ...]) -> None:
    """What a layer was fed lives until its own backward, whichever chain's feed it came by."""
    n = prod(counts)
    graph = Graph()
    x = graph.add_input((7,), DType.UINT8, name="x")
    with graph.subgraph("stage", level=Level.STAGE):
        y, chains = forwards(graph, x, counts)
        gradient = graph.add_tensor((7,), DType.UINT8)
        graph.add_operator(OpKind.CUSTOM, compute(0), inputs=[y], outputs=[gradient], mem_bytes=LATENCIES + 1)
        backwards(graph, x, gradient, chains)
    timeline = simulation(graph).run()
    check(timeline, Reference(graph, latency_steps).run())
    curve = timeline.memory_of("hbm")
    for done in range(1, n):  # layers; the input of each is there, and the newest output or gradient
        forward, backward = done * 2 * STEP_S, (n * 2 + 1 + done * 3) * STEP_S
        assert curve.total[np.searchsorted(curve.times_s, forward, side="right") - 1] == (done + 2) * 7
        assert curve.total[np.searchsorted(curve.times_s, backward, side="right") - 1] == (n - done + 2) * 7


def test_peers_count_in_totals_only() -> None:
    graph = Graph()
    with graph.subgraph("stage", level=Level.STAGE), graph.subgraph("tp", replicas=8):
        graph.add_tensor((1000,), DType.UINT8, Role.PARAMETER)
        graph.add_operator(OpKind.CUSTOM, compute(0), flop=11, mem_bytes=LATENCIES + 3)
        work(graph, 0, 4, stream="tp")
    with graph.subgraph("alone", level=Level.STAGE):
        work(graph, 1, 5)
    timeline = simulation(graph).run()
    totals = timeline.totals()
    assert timeline.start.tolist() == seconds([0, 0, 0])
    assert timeline.memory_of("hbm").peak_bytes == 1000
    assert totals.flop == 8 * 11
    assert totals.mem_bytes == 8 * (LATENCIES + 3) + LATENCIES + 5
    assert totals.net_bytes == 8 * (LATENCIES + 4)
    assert totals.num_gpus == 9


def test_an_empty_graph() -> None:
    timeline = simulation(Graph()).run()
    assert timeline.makespan_s == 0.0
    assert timeline.start.tolist() == []
    assert timeline.totals().num_gpus == 0


# -- refused -----------------------------------------------------------------------------------------------------
def three_stages() -> Graph:
    graph = Graph()
    with graph.subgraph("mb0", level=Level.MICROBATCH):
        for name in ("F0", "F1", "F2"):
            with graph.subgraph(name, level=Level.STAGE), graph.subgraph("layer", level=Level.LAYER):
                work(graph, 0, 3)
                work(graph, 0, 2)
    return graph


def test_a_cycle_is_printed() -> None:
    checkpoint = simulation(three_stages()).checkpoint()
    with pytest.raises(GraphError, match="cycle") as caught:
        checkpoint.restore([("mb0.F0", "mb0.F1"), ("mb0.F1", "mb0.F2"), ("mb0.F2", "mb0.F0")])
    for name in ("mb0.F0", "mb0.F1", "mb0.F2"):
        assert name in caught.value.message
    assert caught.value.expected
    assert checkpoint.restore().makespan_s == 15 * STEP_S


BAD_EDGES = {
    "a stage after itself": ("mb0.F0", "mb0.F0"),
    "inside a stage": (0, 1),
    "from a layer to its stage": ("mb0.F1.layer", "mb0.F1"),
    "from a stage to the microbatch around it": ("mb0.F1", "mb0"),
    "an unknown path": ("mb0.F0", "mb0.F7"),
    "an unknown operator": (0, 6),
    "an operator before the first": (-1, 3),
    "neither number nor name": (0, 2.5),
    "None": (None, 3),
}


@pytest.mark.parametrize("name", BAD_EDGES)
def test_a_bad_edge_is_refused(name: str) -> None:
    checkpoint = simulation(three_stages()).checkpoint()
    with pytest.raises(GraphError) as caught:
        checkpoint.restore([BAD_EDGES[name]])  # type: ignore[list-item]
    assert caught.value.expected


def test_an_unknown_path_is_answered_with_the_nearest() -> None:
    checkpoint = simulation(three_stages()).checkpoint()
    with pytest.raises(GraphError) as caught:
        checkpoint.restore([("mb0.F0", "mb0.f1")])
    assert caught.value.got == "mb0.f1"
    assert caught.value.nearest == "mb0.F1"
    with pytest.raises(GraphError) as caught:
        checkpoint.restore(priority={"mb0.F0.layers": 1})
    assert caught.value.nearest == "mb0.F0.layer"


def test_a_subgraph_of_another_graph_is_refused() -> None:
    other = Graph()
    for _ in range(20):
        with other.subgraph("foreign", level=Level.STAGE):
            work(other, 0, 1)
    checkpoint = simulation(three_stages()).checkpoint()
    for group in (other.subgraphs[0], other.subgraphs[-1]):
        with pytest.raises(GraphError):
            checkpoint.restore([(group, "mb0.F1")])


def grow_by_an_operator(graph: Graph) -> None:
    work(graph, 0, 1)


def grow_by_a_subgraph(graph: Graph) -> None:
    with graph.subgraph("late"):
        pass


def grow_by_a_tensor(graph: Graph) -> None:
    graph.add_tensor((1,), DType.UINT8, Role.PARAMETER)


def change_an_output(graph: Graph) -> None:
    graph.mark_output(0)


CHANGES = [grow_by_an_operator, grow_by_a_subgraph, grow_by_a_tensor, change_an_output]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_graph_that_changed_since_the_checkpoint_is_refused(change: Callable[[Graph], None]) -> None:
    graph = three_stages()
    graph.add_tensor((3,), DType.UINT8)
    subject = simulation(graph)
    checkpoint = subject.checkpoint()
    timeline = checkpoint.restore()
    change(graph)
    for attempt in (checkpoint.restore, lambda: timeline.checkpoint().restore(), subject.run):
        with pytest.raises(GraphError, match="has changed"):
            attempt()
    assert simulation(graph).run().makespan_s >= 15 * STEP_S


def test_ranks_of_unequal_numbers_of_peers_are_refused() -> None:
    graph = Graph()
    with graph.subgraph("stage", level=Level.STAGE), graph.subgraph("tp", replicas=2):
        work(graph, 0, 1)
    work(graph, 0, 2)
    with pytest.raises(GraphError, match="peers"):
        simulation(graph).run()


def test_unknown_pool() -> None:
    timeline = simulation(seeded_graph(1)).run()
    with pytest.raises(ConfigError) as caught:
        timeline.memory_of("nowhere")
    assert caught.value.expected


# -- symbols and traced models -----------------------------------------------------------------------------------
def test_sizes_that_depend_on_the_batch() -> None:
    """One graph with symbols, simulated for several shapes."""
    graph = Graph()
    tokens = Poly.symbol("tokens")
    weight = graph.add_tensor((3,), DType.UINT8, Role.PARAMETER)
    for number in range(3):
        x = weight
        with graph.subgraph(f"mb{number}", level=Level.MICROBATCH):
            for rank in range(2):
                with graph.subgraph(f"s{rank}", level=Level.STAGE), graph.subgraph("tp", replicas=1 + rank):
                    y = graph.add_tensor((tokens,), DType.UINT8, pool=f"gpu{rank}")
                    graph.add_operator(
                        OpKind.CUSTOM, compute(rank), inputs=[x], outputs=[y], flop=tokens, mem_bytes=32 + tokens
                    )
                    x = y
    subject_of = {
        size: semu.Simulation(graph, PROFILE, shapes={"tokens": size}, latency_rules=RULES) for size in (5, 9, 14)
    }
    for size, subject in subject_of.items():
        steps = size % LATENCIES
        reference = Reference(graph, lambda operator, steps=steps: steps, shapes={"tokens": size})  # type: ignore[misc]
        timeline = subject.run([("mb2.s0", "mb0.s1")])
        expected = reference.run([("mb2.s0", "mb0.s1")])
        assert timeline.start.tolist() == seconds(expected.start)
        for pool in ("gpu0", "gpu1"):
            check_memory(timeline.memory_of(pool), expected, pool)
        totals = timeline.totals()
        assert (totals.flop, totals.mem_bytes, totals.num_gpus) == (3 * 3 * size, 3 * 3 * (32 + size), 3)


class Block(nn.Module):
    """Norm and feed-forward network."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        y: nn.Tensor = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return y


TRACED = {
    "feed-forward": lambda: semu.trace(Block(256), semu.Input((512, 256), requires_grad=True)),
    "transformer layer": lambda: semu.trace(
        nn.TransformerLayer(256, 1024, 4, rotary=True, gated=True),
        semu.Input((384, 256), requires_grad=True),
    ),
    "transformer layer, recomputed": lambda: semu.trace(
        nn.TransformerLayer(128, 512, 2), semu.Input((256, 128), requires_grad=True), full_recompute=True
    ),
}


def pipeline_of(traced: Graph, num_ranks: int, num_microbatches: int) -> Graph:
    """Each rank runs the traced graph as one stage on what the rank before sends over its link."""
    graph = Graph()
    shape, dtype = traced.tensors[traced.inputs[0]].shape, traced.tensors[traced.inputs[0]].dtype
    x = graph.add_input(shape, dtype, name="x")
    for number in range(num_microbatches):
        arrived = x
        with graph.subgraph(f"mb{number}", level=Level.MICROBATCH):
            for rank in range(num_ranks):
                left = paste(graph, traced, rank, arrived)
                if rank + 1 < num_ranks:
                    arrived = graph.add_tensor(shape, dtype, Role.COMMUNICATION, pool=f"gpu{rank + 1}")
                    size = 2 * int(np.prod([int(str(dim)) for dim in shape]))
                    graph.add_operator(
                        OpKind.P2P,
                        link(rank, "pp"),
                        inputs=[left],
                        outputs=[arrived],
                        net_bytes=size,
                        path=f"send{number}.{rank}",
                    )
    return graph


def paste(graph: Graph, traced: Graph, rank: int, arrived: int) -> int:
    """Append a traced graph as a stage; its first output is returned."""
    known: dict[int, int] = {traced.inputs[0]: arrived}
    with graph.subgraph(f"stage{rank}", level=Level.STAGE):
        for tensor in traced.tensors:
            role = traced.storages[tensor.storage].role
            if tensor.index in known:
                continue
            if tensor.base is not None:
                known[tensor.index] = graph.add_view(known[tensor.base], tensor.shape)
            elif tensor.index in traced.inputs:
                known[tensor.index] = graph.add_input(tensor.shape, tensor.dtype, name=tensor.name, role=role)
            else:
                known[tensor.index] = graph.add_tensor(tensor.shape, tensor.dtype, role, pool=f"gpu{rank}")
        first = len(graph.operators)
        for operator in traced.operators:
            graph.add_operator(
                operator.kind,
                Stream(compute(rank).device, operator.stream.name),
                inputs=[known[tensor] for tensor in operator.inputs],
                outputs=[known[tensor] for tensor in operator.outputs],
                flop=operator.flop,
                mem_bytes=operator.mem_bytes,
                dtype=operator.dtype,
                key=operator.key,
                path=operator.path,
                phase=operator.phase,
                after=[first + before for before in operator.after],
            )
    return known[traced.outputs[0]]


@pytest.mark.parametrize("name", TRACED)
def test_a_pipeline_of_a_traced_model(name: str) -> None:
    traced = TRACED[name]()
    once = semu.run(traced, PROFILE)
    steps = [int(latency * GRID_STEPS_PER_S) for latency in once.end - once.start]
    assert seconds(steps) == (once.end - once.start).tolist()
    graph = pipeline_of(traced, 3, 4)
    subject = semu.Simulation(graph, PROFILE)
    timeline = subject.run()
    send = graph.operators[len(traced.operators)]
    assert send.kind is OpKind.P2P
    transfer = int((timeline.end - timeline.start)[send.index] * GRID_STEPS_PER_S)
    assert transfer > 0
    places = [op.index - graph.subgraphs[s].first for s in stage_numbers(graph) for op in stage_operators(graph, s)]
    latency_of = dict(
        zip([op.index for s in stage_numbers(graph) for op in stage_operators(graph, s)], places, strict=True)
    )
    reference = Reference(graph, lambda op: steps[latency_of[op.index]] if op.index in latency_of else transfer)
    check(timeline, reference.run())
    edges: list[tuple[Side, Side]] = [("mb1.stage0", "mb0.stage1"), ("mb3", "mb2.stage2"), (2, "mb1.stage2")]
    check(subject.checkpoint().restore(edges, {"mb2": -1}), reference.run(edges, {"mb2": -1}))
    assert timeline.totals().flop == 12 * sum(value_of(op.flop) for op in traced.operators)


def value_of(dim: object) -> int:
    assert isinstance(dim, int)
    return dim


def stage_numbers(graph: Graph) -> list[int]:
    return [group.index for group in graph.subgraphs if group.level is Level.STAGE]


def stage_operators(graph: Graph, stage: int) -> list[Operator]:
    return [operator for operator in graph.operators if graph.subgraphs[stage].holds(operator.index)]
