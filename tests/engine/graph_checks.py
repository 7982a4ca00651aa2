"""What ``Simulation`` and the slow reference must agree on: times, memory at every moment, printed cycles."""

from __future__ import annotations

import re

import numpy as np
from engine.graph_reference import Edge, Reference, Result
from engine.graph_strategies import KINDS, LATENCIES, compute, link
from engine.reference import GRID_STEPS_PER_S
from numpy.typing import NDArray

import semu
from semu.costs.roofline import RuleInput
from semu.graph.graph import Graph
from semu.graph.operator import OpKind

PROFILE = semu.Cluster("h100").profile
STEP_S = 1.0 / GRID_STEPS_PER_S


def rule(seen: RuleInput) -> NDArray[np.float64]:
    """``latency_steps`` on the time grid."""
    amount = np.where(seen.net_bytes > 0, seen.net_bytes, seen.mem_bytes)
    return (amount % LATENCIES) * STEP_S


RULES = dict.fromkeys(KINDS, rule)


def simulation(graph: Graph, **options: object) -> semu.Simulation:
    return semu.Simulation(graph, PROFILE, latency_rules=RULES, **options)  # type: ignore[arg-type]


def seconds(steps: list[int]) -> list[float]:
    return [step * STEP_S for step in steps]


def check(timeline: semu.GraphTimeline, expected: Result) -> None:
    """Every operator, every moment of every pool: equal, bit for bit."""
    nodes = expected.written.nodes
    assert [(o.kind, o.stream, o.flop, o.mem_bytes, o.net_bytes) for o in timeline.graph.operators] == [
        (n.operator.kind, n.operator.stream, n.operator.flop, n.operator.mem_bytes, n.operator.net_bytes) for n in nodes
    ]
    assert timeline.start.tolist() == seconds(expected.start)
    assert timeline.end.tolist() == seconds(expected.end)
    assert timeline.makespan_s == expected.makespan * STEP_S
    assert {(pool, 0) for pool in timeline.pools} == expected.pools()
    for pool in timeline.pools:
        check_memory(timeline.memory_of(pool), expected, pool)


def check_memory(curve: semu.MemoryCurve, expected: Result, pool: str) -> None:
    moments = expected.memory(pool)
    times, total = curve.times_s, curve.total
    assert times[0] == 0.0
    assert (np.diff(times) >= 0).all()
    assert set(times.tolist()) <= set(seconds(list(moments)))
    assert np.array_equal(curve.by_role.sum(axis=0), total)
    previous = 0
    for step, moment in moments.items():
        here = times == step * STEP_S
        last = int(np.searchsorted(times, step * STEP_S, side="right")) - 1
        assert total[last] == moment.after
        for row, role in enumerate(curve.roles):
            assert curve.by_role[row, last] == moment.by_role[role]
        assert max([previous, *total[here].tolist()]) == max(previous, moment.high)
        previous = moment.after
    assert curve.peak_bytes == max(moment.high for moment in moments.values())


def same(one: semu.GraphTimeline, other: semu.GraphTimeline) -> None:
    """Two timelines of one graph, or of graphs that differ in names only."""
    assert np.array_equal(one.start, other.start)
    assert np.array_equal(one.end, other.end)
    assert one.makespan_s == other.makespan_s
    assert sorted(one.pools) == sorted(other.pools)
    for pool in one.pools:
        mine, theirs = one.memory_of(pool), other.memory_of(pool)
        assert np.array_equal(mine.times_s, theirs.times_s)
        assert np.array_equal(mine.by_role, theirs.by_role)
    assert one.totals() == other.totals()


def check_cycle(message: str, reference: Reference, edges: list[Edge]) -> None:
    """Each printed unit waits for the one before; a double arrow is an added edge."""
    (text,) = re.findall(r"cycle: (.*) \(=>", message)
    names = re.split(r" [-=]> ", text)
    arrows = re.findall(r" ([-=]>) ", text)
    assert names[0] == names[-1]
    assert len(names) >= 3
    if "..." in text:
        return
    numbers = [unit_named(reference, name) for name in names]
    assert len(set(numbers)) == len(numbers) - 1
    sources = reference.bounds(edges).sources
    added = {
        (a.unit, b.unit) for before, after in edges for a in reference.points(before) for b in reference.points(after)
    }
    for source, arrow, target in zip(numbers, arrows, numbers[1:], strict=False):
        assert source in sources[target]
        assert arrow == "->" or (source, target) in added


def unit_named(reference: Reference, name: str) -> int:
    """A stage by its path, a lone operator by its own."""
    for number, unit in enumerate(reference.written.units):
        if unit.stage is not None:
            own = reference.graph.subgraphs[unit.stage].path
        else:
            own = reference.written.nodes[unit.nodes[0]].operator.path
        if own == name:
            return number
    raise AssertionError(f"no unit is called {name}")


def work(graph: Graph, rank: int, steps: int, *, after: tuple[int, ...] = (), stream: str = "") -> int:
    """One operator of so many steps; without a stream's name on the compute stream."""
    if stream:
        kind = OpKind.ALL_REDUCE if stream == "tp" else OpKind.P2P
        return graph.add_operator(kind, link(rank, stream), net_bytes=LATENCIES + steps, key=(2, 1), after=after)
    return graph.add_operator(OpKind.CUSTOM, compute(rank), mem_bytes=LATENCIES + steps, after=after)
