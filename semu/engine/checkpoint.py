"""``Checkpoint``: the state of a graph's simulation, to be restored with further edges (PipeWeaver §4.2).

A checkpoint holds every unit simulated alone and the edges so far. It never changes: any number may be held, restored
in any order and from several threads. ``restore`` times the units as single nodes; only where a new edge binds inside
one are its operators timed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING

from semu.engine.nodes import added_edges, node_graph
from semu.engine.sides import PlaceEdges, Side
from semu.engine.unit_graph import Edges, UnitGraph
from semu.errors import GraphError
from semu.records import dataclass

if TYPE_CHECKING:
    from semu.engine.consolidation import Consolidated, UnitMemory
    from semu.engine.graph_timeline import GraphTimeline  # circle: it restores to a timeline, which names it
    from semu.engine.simulator import Simulation  # circle: a checkpoint names its simulation, which makes it


@dataclass(frozen=True)
class Checkpoint:
    """A state that can be restored.

    Attributes:
        simulation: of which graph. alone: its units simulated alone.
        places: all edges so far. nodes: the units with these edges. priority: of the sides given so far.
    """

    simulation: Simulation
    alone: Consolidated
    places: PlaceEdges
    nodes: UnitGraph
    priority: Mapping[Side, int] = field(default_factory=dict)

    @property
    def num_units(self) -> int:
        """Units: stages, and operators outside them."""
        return self.nodes.num_units

    def memory(self, stage: str) -> UnitMemory:
        """Memory profile of a consolidated stage: what it alone touches, relative to its beginning.

        Raises:
            GraphError: no such stage.
        """
        return self.alone.memory[int(self.alone.variant[self.unit(stage)])]

    def unit(self, side: Side) -> int:
        """Number of the unit of a stage, or of an operator outside stages.

        Raises:
            GraphError: anything else.
        """
        places = self.simulation.sides.sources(side)
        if len(places) != 1 or places[0][1] >= 0:
            raise GraphError(
                "not one unit",
                where="unit",
                expected="a stage, or an operator outside stages",
                got=f"{side}, which is {len(places)} units or lies inside one",
            )
        return places[0][0]

    def restore(
        self, edges: Iterable[tuple[Side, Side]] = (), priority: Mapping[Side, int] | None = None
    ) -> GraphTimeline:
        """Go on from here with new edges between subgraphs, for instance a schedule.

        Args:
            edges: (before, after): operators' indices, subgraphs or their paths.
            priority: of two units that could start together the lower value goes first; default 0.
        Returns:
            The timeline; equal, bit for bit, to simulating everything with these edges from the start.
        Raises:
            GraphError: the graph has changed since the checkpoint, an unknown side, edges that close a cycle (printed).
        """
        from semu.engine.graph_timeline import GraphTimeline  # circle: it restores to a timeline, which names it

        self.simulation.check_unchanged()
        sides = self.simulation.sides
        wanted = {**self.priority, **(priority or {})}
        new = sides.edges(edges)
        rank = sides.priorities(wanted) if wanted else None
        added = added_edges(self.alone, new)
        places = self.places.followed_by(new)
        if added is None:
            nodes = node_graph(self.alone, places)
            times = nodes.resume(
                rank=rank, marked=frozenset(zip(new.source.tolist(), new.target.tolist(), strict=True))
            )
        else:
            nodes, times = _joined(self.nodes, added), self.nodes.resume(added, rank=rank)
        state = self
        if nodes is not self.nodes or wanted != self.priority:
            state = replace(self, places=places, nodes=nodes, priority=wanted)
        return GraphTimeline(self.simulation, state, self.alone, times)


def _joined(nodes: UnitGraph, added: Edges) -> UnitGraph:
    """The units with further edges for good."""
    if not len(added.source):
        return nodes
    return UnitGraph.build(
        nodes.latency,
        (nodes.hold_ptr, nodes.hold),
        nodes.num_streams,
        nodes.edges.followed_by(added),
        nodes.name,
        nodes.slots,
    )
