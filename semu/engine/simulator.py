"""``Simulation``: one graph on the devices of a profile; ``run``: the short way.

This is the engine's door for graphs built by hand or traced from modules; ``semu.simulate`` runs whole jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.compile.template import TemplateLibrary, compile_template
from semu.costs.roofline import CostModel, LatencyRules
from semu.engine.checkpoint import Checkpoint
from semu.engine.consolidation import Consolidated, consolidate
from semu.engine.graph_timeline import GraphSpan, GraphTimeline, Totals
from semu.engine.graph_units import GraphUnits
from semu.engine.nodes import node_graph
from semu.engine.sides import Side, Sides
from semu.engine.symbols import check_sizes, check_symbols
from semu.errors import GraphError
from semu.graph.graph import Graph
from semu.graph.replicas import Unrolled, unrolled
from semu.hardware.capabilities import DeviceProfile
from semu.hardware.device import Stream
from semu.hardware.network import CommGroup

__all__ = ["GraphSpan", "GraphTimeline", "Simulation", "Totals", "run"]


class Simulation:
    """A graph to be simulated.

    Args:
        graph: operators in issue order; stages are atomic units, between units the one that can start first goes first.
        profile: the device, e.g. ``Cluster("h100").profile``.
        shapes: value of each symbol, for a graph with symbolic sizes.
        groups: communicator of each link stream, for collectives.
        latency_rules: custom latencies by operator kind.
        reuse: false: equal units are simulated again and again (for comparison).
    Raises:
        GraphError: the graph breaks an invariant (``Graph.lint``).
        ConfigError: a symbol without a value, or a value that is no size.
    """

    def __init__(
        self,
        graph: Graph,
        profile: DeviceProfile,
        *,
        shapes: Mapping[str, int] | None = None,
        groups: Mapping[Stream, CommGroup] | None = None,
        latency_rules: LatencyRules | None = None,
        reuse: bool = True,
    ) -> None:
        graph.lint()
        for name, value in (shapes or {}).items():
            check_sizes(name, [value])
        check_symbols(graph, shapes or {})
        self.graph, self.profile, self.shapes = graph, profile, dict(shapes or {})
        self._groups, self._rules, self._reuse = dict(groups or {}), latency_rules, reuse
        self._seen = _snapshot(graph)

    @property
    def capacity_bytes(self) -> int:
        """Size of a GPU's memory pool."""
        return int(self.profile.memory_bytes.value)

    @cached_property
    def _unrolled(self) -> Unrolled:
        return unrolled(self.graph)

    @cached_property
    def _costs(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Latency [s] of every operator and size [bytes] of every storage of the unrolled graph."""
        graph = self._unrolled.graph
        template = compile_template(
            graph, len(graph.operators), inputs=graph.inputs, outputs=graph.outputs, groups=self._groups
        )
        library = TemplateLibrary([template])
        columns = library.evaluate({name: np.array([value], dtype=np.int64) for name, value in self.shapes.items()})
        latency = CostModel(library, self.profile, self._rules).latencies(columns)[:, 0]
        return np.ascontiguousarray(latency), np.ascontiguousarray(columns.size_bytes[:, 0])

    @property
    def size_bytes(self) -> NDArray[np.int64]:
        """Size of every storage of the graph with chains written out: int64[num_storages] [bytes]."""
        return self._costs[1]

    @cached_property
    def alone(self) -> Consolidated:
        """Every unit simulated alone; equal ones once."""
        return consolidate(GraphUnits(self._unrolled.graph), *self._costs, reuse=self._reuse)

    @cached_property
    def sides(self) -> Sides:
        """What operators, subgraphs and paths mean as sides of edges."""
        return Sides(self.graph, self._unrolled, self.alone.partition)

    @cached_property
    def _state(self) -> Checkpoint:
        self.check_unchanged()
        places = self.sides.base()
        return Checkpoint(self, self.alone, places, node_graph(self.alone, places))

    def checkpoint(self) -> Checkpoint:
        """Every unit simulated alone and consolidated, with no edges but those of the graph."""
        self.check_unchanged()
        return self._state

    def run(self, edges: Iterable[tuple[Side, Side]] = (), priority: Mapping[Side, int] | None = None) -> GraphTimeline:
        """Simulate with further edges and priorities: see ``Checkpoint.restore``."""
        return self.checkpoint().restore(edges, priority)

    def check_unchanged(self) -> None:
        """Refuse a graph that has grown or was changed since the simulation was made.

        Raises:
            GraphError: it did; what there was and what there is.
        """
        now = _snapshot(self.graph)
        if now != self._seen:
            changed = "" if _words(now) != _words(self._seen) else ", some of them replaced"
            raise GraphError(
                "the graph has changed since this simulation was made",
                where="restore",
                expected=_words(self._seen),
                got=_words(now) + changed,
                nearest="a new Simulation of the graph, and a new checkpoint",
            )


_Snapshot = tuple[list[object], ...]


def _snapshot(graph: Graph) -> _Snapshot:
    """The graph's nodes as they are now; they never change, so comparing is comparing identities."""
    return tuple(
        list(nodes)
        for nodes in (graph.operators, graph.tensors, graph.storages, graph.subgraphs, graph.inputs, graph.outputs)
    )


def _words(snapshot: _Snapshot) -> str:
    names = ("operators", "tensors", "storages", "subgraphs", "inputs", "outputs")
    return ", ".join(f"{len(nodes)} {name}" for nodes, name in zip(snapshot, names, strict=True))


def run(
    graph: Graph,
    profile: DeviceProfile,
    *,
    shapes: Mapping[str, int] | None = None,
    groups: Mapping[Stream, CommGroup] | None = None,
    latency_rules: LatencyRules | None = None,
) -> GraphTimeline:
    """Simulate a graph once: ``Simulation(graph, profile, ...).run()``."""
    return Simulation(graph, profile, shapes=shapes, groups=groups, latency_rules=latency_rules).run()
