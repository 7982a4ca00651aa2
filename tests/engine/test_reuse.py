"""``Simulation``, checkpoints and replicas on random graphs, against every operator written out in plain Python."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import numpy as np
import pytest
from engine.graph_checks import (
    PROFILE,
    RULES,
    STEP_S,
    check,
    check_cycle,
    check_memory,
    rule,
    same,
    seconds,
    simulation,
)
from engine.graph_reference import Latency, Reference, Refused, Side
from engine.graph_strategies import (
    KINDS,
    Builder,
    Options,
    by_hypothesis,
    graphs,
    latency_steps,
    plans,
    random_edge,
    random_plan,
    seeded_graph,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import semu
from semu.costs.roofline import RuleInput
from semu.engine.unit_graph import Edges
from semu.errors import GraphError
from semu.graph.graph import Graph
from semu.graph.operator import Operator
from semu.graph.replicas import expanded
from semu.graph.subgraph import Replication, Subgraph

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = int(os.environ.get("SEMU_REUSE_EXAMPLES", "40"))
"""Random graphs per property; a slow test takes more."""
DIGEST = os.environ.get("SEMU_REUSE_DIGEST", "")
"""File for the times of the seeded graphs, for comparison with another process."""

SOME = settings(max_examples=EXAMPLES)
FEW = settings(max_examples=max(EXAMPLES // 2, 2))


# -- against the reference ---------------------------------------------------------------------------------------
@pytest.mark.slow
@SOME
@given(graphs())
def test_a_run_is_the_reference(graph: Graph) -> None:
    timeline = simulation(graph).run()
    check(timeline, Reference(graph, latency_steps).run())
    totals = timeline.totals()
    written = Reference(graph, latency_steps, peers=True).totals()
    assert (totals.flop, totals.mem_bytes, totals.net_bytes, totals.num_gpus) == written
    assert all(type(number) is int for number in (totals.flop, totals.mem_bytes, totals.net_bytes, totals.num_gpus))


@FEW
@given(graphs(Options(stages=False)))
def test_a_graph_without_stages_is_one_unit(graph: Graph) -> None:
    check(simulation(graph).run(), Reference(graph, latency_steps).run())


@pytest.mark.slow
@SOME
@given(st.data())
def test_a_restore_with_edges_is_a_run_with_edges(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    plan = data.draw(plans(graph))
    subject = simulation(graph)
    expected = Reference(graph, latency_steps).run(plan.edges, plan.priority)
    restored = subject.checkpoint().restore(edges=plan.edges, priority=plan.priority)
    check(restored, expected)
    same(simulation(graph).run(edges=plan.edges, priority=plan.priority), restored)


@pytest.mark.slow
@FEW
@given(st.data())
def test_one_checkpoint_restored_many_times_in_any_order_from_any_thread(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    chosen = [data.draw(plans(graph)) for _ in range(data.draw(st.integers(2, 4)))]
    reference = Reference(graph, latency_steps)
    expected = [reference.run(plan.edges, plan.priority) for plan in chosen]
    checkpoint = simulation(graph).checkpoint()
    order = data.draw(st.permutations(list(range(len(chosen))) * 2))
    with ThreadPoolExecutor(4) as pool:
        timelines = list(
            pool.map(lambda i: checkpoint.restore(edges=chosen[i].edges, priority=chosen[i].priority), order)
        )
    for number, timeline in zip(order, timelines, strict=True):
        check(timeline, expected[number])
    check(checkpoint.restore(), reference.run())


@FEW
@given(st.data())
def test_checkpoints_of_timelines_hold_what_was_added(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    plan = data.draw(plans(graph))
    subject = simulation(graph)
    timeline = subject.checkpoint().restore(edges=[], priority=plan.priority)
    reference = Reference(graph, latency_steps)
    for number, edge in enumerate(plan.edges, start=1):
        earlier = timeline
        timeline = earlier.checkpoint().restore(edges=[edge])
        check(timeline, reference.run(plan.edges[:number], plan.priority))
        check(earlier.checkpoint().restore(), reference.run(plan.edges[: number - 1], plan.priority))
    same(subject.run(edges=plan.edges, priority=plan.priority), timeline)
    check(subject.run(), reference.run())


@FEW
@given(st.data())
def test_priorities_of_a_later_restore_join_the_earlier_ones(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    plan = data.draw(plans(graph))
    first = dict(list(plan.priority.items())[:1])
    rest = dict(list(plan.priority.items())[1:])
    later = simulation(graph).checkpoint().restore(priority=first).checkpoint().restore(edges=plan.edges, priority=rest)
    check(later, Reference(graph, latency_steps).run(plan.edges, plan.priority))


@FEW
@given(st.data())
def test_resuming_units_only_gives_the_same_units(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    reference = Reference(graph, latency_steps)
    units = reference.written.units
    sides: list[Side] = [
        graph.subgraphs[unit.stage] if unit.stage is not None else reference.written.nodes[unit.nodes[0]].operator.index
        for unit in units
    ]
    numbers = st.integers(0, len(units) - 1)
    drawn = data.draw(st.lists(st.tuples(numbers, numbers), max_size=6))
    pairs = [(min(pair), max(pair)) if data.draw(st.booleans()) else pair for pair in drawn if pair[0] != pair[1]]
    checkpoint = simulation(graph).checkpoint()
    edges = [(sides[before], sides[after]) for before, after in pairs]
    named = np.array([[checkpoint.unit(before), checkpoint.unit(after)] for before, after in edges], dtype=np.int64)
    try:
        expected = reference.run(edges)
    except Refused:
        with pytest.raises(GraphError, match="cycle"):
            checkpoint.nodes.resume(Edges.between(named))
        return
    times = checkpoint.nodes.resume(Edges.between(named))
    assert times.start[0].tolist() == seconds(expected.unit_start)
    assert times.end[0].tolist() == seconds(expected.unit_end)


@pytest.mark.slow
@FEW
@given(st.data())
def test_peers_written_out_change_nothing(data: st.DataObject) -> None:
    """The fully expanded graph under the plain rules: every copy has the times and memory of the one simulated.

    Without priorities or with operators that all take time: a unit of no length may else let another copy's follower
    overtake.
    """
    graph = data.draw(graphs(Options(zero=data.draw(st.booleans()))))
    plan = data.draw(plans(graph))
    priority = {} if has_idle(graph) else plan.priority
    timeline = simulation(graph).checkpoint().restore(edges=plan.edges, priority=priority)
    result = Reference(graph, latency_steps, peers=True).run(plan.edges, priority)
    copies: dict[object, list[tuple[int, int]]] = defaultdict(list)
    for node, start, end in zip(result.written.nodes, result.start, result.end, strict=True):
        copies[node.operator.index, chain_copies(graph, node.context)].append((start, end))
    for times, start, end in zip(copies.values(), timeline.start, timeline.end, strict=True):
        assert {(a * STEP_S, b * STEP_S) for a, b in times} == {(start, end)}
    assert timeline.makespan_s == result.makespan * STEP_S
    for pool in timeline.pools:
        check_memory(timeline.memory_of(pool), result, pool)


def has_idle(graph: Graph) -> bool:
    return any(latency_steps(operator) == 0 for operator in graph.operators)


def chain_copies(graph: Graph, context: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    return tuple((g, c) for g, c in context if graph.subgraphs[g].replication is Replication.CHAIN)


# -- replicas written out by semu --------------------------------------------------------------------------------
@pytest.mark.slow
@SOME
@given(graphs())
def test_the_expanded_graph_has_the_same_times(graph: Graph) -> None:
    timeline = simulation(graph).run()
    every = expanded(graph)
    every.lint()
    assert {group.replicas for group in every.subgraphs} <= {1}
    full = simulation(every).run()
    check(full, Reference(every, latency_steps).run())
    num_ranks = 1 + max((o.stream.device.rank for o in graph.operators), default=0)
    assert by_rank(full, num_ranks) == by_rank(timeline, num_ranks, copies=copies_of_ranks(full, num_ranks))
    assert full.makespan_s == timeline.makespan_s
    assert full.totals() == timeline.totals()
    assert set(timeline.pools) <= set(full.pools)
    for pool in timeline.pools:
        mine, theirs = full.memory_of(pool), timeline.memory_of(pool)
        assert np.array_equal(mine.times_s, theirs.times_s)
        assert np.array_equal(mine.by_role, theirs.by_role)


Row = tuple[str, int, float, float]


def by_rank(
    timeline: semu.GraphTimeline, num_ranks: int, copies: Mapping[int, set[int]] | None = None
) -> dict[int, list[Row]]:
    """What every rank runs, in issue order; with ``copies``, once for each of these ranks."""
    rows: dict[int, list[Row]] = defaultdict(list)
    for operator, start, end in zip(timeline.graph.operators, timeline.start, timeline.end, strict=True):
        rank = operator.stream.device.rank
        work = operator.net_bytes or operator.mem_bytes
        assert isinstance(work, int)
        for copy in copies[rank] if copies is not None else (rank,):
            rows[copy].append((operator.stream.name, work, float(start), float(end)))
    return dict(rows)


def copies_of_ranks(full: semu.GraphTimeline, num_ranks: int) -> dict[int, set[int]]:
    ranks: dict[int, set[int]] = defaultdict(set)
    for operator in full.graph.operators:
        ranks[operator.stream.device.rank % num_ranks].add(operator.stream.device.rank)
    return ranks


@FEW
@given(graphs())
def test_unrolled_chains_alone_are_the_timelines_graph(graph: Graph) -> None:
    timeline = simulation(graph).run()
    chains = expanded(graph, peers=False)
    assert not any(group.is_chain for group in chains.subgraphs)
    same(simulation(chains).run(), timeline)
    if not any(group.is_chain for group in graph.subgraphs):
        assert timeline.graph is graph


# -- reuse -------------------------------------------------------------------------------------------------------
@FEW
@given(st.integers(0, 10**9), st.data())
def test_names_mean_nothing(seed: int, data: st.DataObject) -> None:
    """Equal structures under other names give the same; so does a graph that was never seen before."""
    graph, renamed = seeded_graph(seed), renamed_graph(seed)
    assert all(a.path != b.path for a, b in zip(graph.subgraphs, renamed.subgraphs, strict=True))
    plan = data.draw(plans(graph))
    edges = [(side_in(renamed, a), side_in(renamed, b)) for a, b in plan.edges]
    priority = {side_in(renamed, side): number for side, number in plan.priority.items()}
    one = simulation(graph).run(plan.edges, plan.priority)
    other = simulation(renamed).run(edges, priority)
    same(one, other)
    again = simulation(seeded_graph(seed)).run(
        [(side_in(graph, a), side_in(graph, b)) for a, b in plan.edges],
        {side_in(graph, side): number for side, number in plan.priority.items()},
    )
    same(one, again)


def renamed_graph(seed: int) -> Graph:
    return Builder(Random(seed).randint, Options(), prefix="another_").build()


def side_in(graph: Graph, side: Side) -> Side:
    """The same side of a graph that differs in names only."""
    if isinstance(side, int):
        return side
    if isinstance(side, Subgraph):
        return graph.subgraphs[side.index]
    wanted = re.sub(r"another_", "", side)
    return next(g.path for g in graph.subgraphs if re.sub(r"another_", "", g.path) == wanted)


def other_rule(seen: RuleInput) -> NDArray[np.float64]:
    """``other_steps`` on the time grid."""
    return (np.where(seen.net_bytes > 0, seen.net_bytes, seen.mem_bytes) * 7 % 11) * STEP_S


def other_steps(operator: Operator) -> int:
    amount = operator.net_bytes or operator.mem_bytes
    assert isinstance(amount, int)
    return amount * 7 % 11


@pytest.mark.slow
@FEW
@given(st.data())
def test_without_reuse_it_is_the_same(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    plan = data.draw(plans(graph))
    again = semu.Simulation(graph, PROFILE, latency_rules=RULES, reuse=False)
    same(simulation(graph).run(plan.edges, plan.priority), again.run(plan.edges, plan.priority))


@pytest.mark.slow
@FEW
@given(st.data())
def test_other_latencies_of_the_same_graph(data: st.DataObject) -> None:
    """What is kept of one simulation is never taken for another's."""
    graph = data.draw(graphs())
    plan = data.draw(plans(graph))
    cases: list[tuple[Callable[[RuleInput], NDArray[np.float64]], Latency]] = [
        (rule, latency_steps),
        (other_rule, other_steps),
        (rule, latency_steps),
    ]
    for own, steps in cases:
        subject = semu.Simulation(graph, PROFILE, latency_rules=dict.fromkeys(KINDS, own))
        check(subject.run(plan.edges, plan.priority), Reference(graph, steps).run(plan.edges, plan.priority))


def test_run_is_a_simulation_that_runs() -> None:
    for seed in range(5):
        graph = seeded_graph(seed)
        same(semu.run(graph, PROFILE, latency_rules=RULES), simulation(graph).run())


# -- refused -----------------------------------------------------------------------------------------------------
@SOME
@given(st.data())
def test_edges_that_cannot_hold_are_refused_and_the_printed_cycle_is_one(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    choose = by_hypothesis(data.draw)
    edges = [random_edge(choose, graph) for _ in range(data.draw(st.integers(1, 4)))] if graph.operators else []
    reference = Reference(graph, latency_steps)
    checkpoint = simulation(graph).checkpoint()
    try:
        expected = reference.run(edges)
    except Refused as refused:
        with pytest.raises(GraphError) as caught:
            checkpoint.restore(edges)
        if "cycle" in str(refused):
            check_cycle(caught.value.message, reference, edges)
    else:
        check(checkpoint.restore(edges), expected)
    check(checkpoint.restore(), reference.run())  # a refusal leaves no trace


# -- without compiled kernels ------------------------------------------------------------------------------------
def digest() -> dict[str, str]:
    """Times, memory and totals of some seeded graphs under seeded plans."""
    result = {}
    for seed in range(12):
        graph = seeded_graph(1000 + seed)
        plan = random_plan(Random(seed).randint, graph)
        timeline = simulation(graph).checkpoint().restore(plan.edges, plan.priority)
        held = hashlib.sha256(timeline.start.tobytes() + timeline.end.tobytes())
        for pool in timeline.pools:
            curve = timeline.memory_of(pool)
            held.update(curve.times_s.tobytes() + curve.by_role.tobytes())
        held.update(repr(timeline.totals()).encode())
        result[str(seed)] = held.hexdigest()
    return result


def test_seeded_graphs() -> None:
    held = digest()
    assert held == digest()
    assert len(Counter(held.values())) > 6
    if DIGEST:
        Path(DIGEST).write_text(json.dumps(held))


def in_a_process(**environment: str) -> None:
    """This module once more."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(Path(__file__))],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.skipif(bool(DIGEST), reason="this is the other process")
def test_compiled_or_interpreted_kernels_give_the_same(tmp_path: Path) -> None:
    """With numba switched off."""
    path = tmp_path / "digest.json"
    in_a_process(NUMBA_DISABLE_JIT="1", SEMU_REUSE_EXAMPLES="10", SEMU_REUSE_DIGEST=str(path))
    assert json.loads(path.read_text()) == digest()


@pytest.mark.slow
def test_more_random_graphs() -> None:
    in_a_process(SEMU_REUSE_EXAMPLES="150")
