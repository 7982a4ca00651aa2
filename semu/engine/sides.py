"""What the two sides of an edge mean: an operator, a subgraph or its path, as units and operators inside them.

A stage stands for its unit, a subgraph around units for all of them, a subgraph inside a unit for its operators.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from semu.engine.graph_units import GraphUnits
from semu.errors import GraphError
from semu.graph.graph import Graph
from semu.graph.replicas import Unrolled
from semu.graph.subgraph import Subgraph

Side: TypeAlias = int | str | Subgraph
"""An operator's index, a subgraph, or a subgraph's dotted path."""
Place: TypeAlias = tuple[int, int]
"""(unit, operator inside it); operator -1: the unit itself, its end or its start."""


class PlaceEdges(NamedTuple):
    """Edges by unit and operator inside it.

    Attributes:
        source, source_op, target, target_op: int32[k]; operator -1: the source's own end, the target's own start.
    """

    source: NDArray[np.int32]
    source_op: NDArray[np.int32]
    target: NDArray[np.int32]
    target_op: NDArray[np.int32]

    @classmethod
    def collect(cls, edges: Iterable[tuple[Place, Place]]) -> PlaceEdges:
        """From pairs of places."""
        table = np.array([(*before, *after) for before, after in edges], dtype=np.int32).reshape(-1, 4)
        return cls(*map(np.ascontiguousarray, table.T))

    def followed_by(self, other: PlaceEdges) -> PlaceEdges:
        """These, then the others."""
        return PlaceEdges(*map(np.concatenate, zip(self, other, strict=True)))


class Sides:
    """Resolves sides against a partition.

    Args:
        graph: the caller's graph. unrolled: its chains written out. partition: units of the latter.
    """

    def __init__(self, graph: Graph, unrolled: Unrolled, partition: GraphUnits) -> None:
        self.graph, self.unrolled, self.partition = graph, unrolled, partition
        self._by_path: dict[str, int] = {}
        self._twice: set[str] = set()
        for group in graph.subgraphs:
            if self._by_path.setdefault(group.path, group.index) != group.index:
                self._twice.add(group.path)
        self._copy_by_path: dict[str, int] = {}
        for group in unrolled.graph.subgraphs:
            self._copy_by_path.setdefault(group.path, group.index)
        self._unit_of_stage = {u.subgraph: i for i, u in enumerate(partition.units) if u.subgraph is not None}
        self._empty_stages = [
            s for s, i in self._unit_of_stage.items() if partition.units[i].first == partition.units[i].last
        ]

    def edges(self, pairs: Iterable[tuple[Side, Side]]) -> PlaceEdges:
        """Every pair as edges between places.

        Raises:
            GraphError: an unknown side, or an edge inside one unit.
        """
        result = []
        for pair in pairs:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise GraphError("not an edge", where="edges", expected="a pair (before, after)", got=repr(pair))
            before, after = pair
            sources, targets = self.sources(before), self.targets(after)
            for source in sources:
                for target in targets:
                    if source[0] == target[0]:
                        raise GraphError(
                            "an edge inside one unit",
                            where=self.partition.units[source[0]].name,
                            expected="an edge between two stages, or operators outside stages",
                            got=f"({_text(before)}, {_text(after)})",
                        )
                    result.append((source, target))
        return PlaceEdges.collect(result)

    def base(self) -> PlaceEdges:
        """The dependencies of the graph itself that lead from one unit to another."""
        partition = self.partition
        return PlaceEdges.collect(
            (self._end_of(int(before)), self._start_of(int(after)))
            for before, after in zip(partition.source, partition.target, strict=True)
        )

    def sources(self, side: Side) -> list[Place]:
        """Where an edge from this side reads.

        Raises:
            GraphError: an unknown side, or one that holds nothing.
        """
        return self._something(self._ends(side), side)

    def _ends(self, side: Side) -> list[Place]:
        if isinstance(side, int | np.integer) and not isinstance(side, bool):
            return [self._end_of(self._copies(int(side))[-1])]
        units, operators = self._inside(side)
        return [(unit, -1) for unit in units] + [self._end_of(index) for index in operators]

    def targets(self, side: Side) -> list[Place]:
        """What an edge to this side bounds."""
        if isinstance(side, int | np.integer) and not isinstance(side, bool):
            return [self._start_of(self._copies(int(side))[0])]
        units, operators = self._inside(side)
        places = [(unit, -1) for unit in units] + [self._start_of(index) for index in operators]
        return self._something(list(dict.fromkeys(places)), side)

    def priorities(self, priority: Mapping[Side, int]) -> NDArray[np.int32]:
        """int32[num_units]: place of every unit when sorted by priority, then number; equal ones keep their order."""
        values = np.zeros(len(self.partition.units), dtype=np.int64)
        for side, value in priority.items():
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or abs(int(value)) >= 2**62:
                raise GraphError("not a priority", where=_text(side), expected="an integer", got=repr(value))
            for unit, _ in self._ends(side):
                values[unit] = value
        rank = np.empty(len(values), dtype=np.int32)
        rank[np.argsort(values, kind="stable")] = np.arange(len(values), dtype=np.int32)
        return rank

    @staticmethod
    def _something(places: list[Place], side: Side) -> list[Place]:
        """A side that holds nothing would lose the edge."""
        if not places:
            raise GraphError(
                "an empty subgraph cannot wait or be waited for",
                where="edges",
                expected="a subgraph with operators, or a stage",
                got=_text(side),
            )
        return places

    def _inside(self, side: Side) -> tuple[list[int], list[int]]:
        """(units, operators inside a unit) that a subgraph stands for, over all its copies."""
        units: list[int] = []
        operators: list[int] = []
        for index in self._subgraph_copies(side):
            group = self.unrolled.graph.subgraphs[index]
            if index in self._unit_of_stage:
                units.append(self._unit_of_stage[index])
                continue
            last = group.last if group.last is not None else group.first
            empty = [self._unit_of_stage[stage] for stage in self._empty_stages if self._is_within(stage, index)]
            for unit in dict.fromkeys([*self.partition.unit_of[group.first : last].tolist(), *empty]):
                whole = self.partition.units[unit]
                if self._is_lone(unit) or (whole.subgraph is not None and self._is_within(whole.subgraph, index)):
                    units.append(unit)
                else:
                    operators.extend(range(max(whole.first, group.first), min(whole.last, last)))
        return units, operators

    def _is_lone(self, unit: int) -> bool:
        return bool(self._unit_of_stage) and self.partition.units[unit].subgraph is None

    def _is_within(self, inner: int, outer: int) -> bool:
        at: int | None = inner
        while at is not None:
            if at == outer:
                return True
            at = self.unrolled.graph.subgraphs[at].parent
        return False

    def _subgraph_copies(self, side: Side) -> tuple[int, ...]:
        if isinstance(side, Subgraph):
            known = self.graph.subgraphs
            if side.index < len(known) and known[side.index].path == side.path:
                return self.unrolled.subgraphs[side.index]
            copies = self.unrolled.graph.subgraphs
            if side.index < len(copies) and copies[side.index].path == side.path:
                return (side.index,)
            raise GraphError("a subgraph of another graph", where=side.path, expected="one of this graph's subgraphs")
        if isinstance(side, str):
            if side in self._twice:
                raise GraphError(
                    "several subgraphs have this path",
                    where="edges",
                    expected="a path of one subgraph, or the Subgraph itself",
                    got=side,
                )
            if side in self._by_path:
                return self.unrolled.subgraphs[self._by_path[side]]
            if side in self._copy_by_path:
                return (self._copy_by_path[side],)
            near = difflib.get_close_matches(side, self._by_path, n=1, cutoff=0.0)
            raise GraphError(
                "unknown subgraph",
                where="edges",
                expected="the path of a subgraph",
                got=side,
                nearest=near[0] if near else None,
            )
        raise GraphError(
            "not a side of an edge",
            where="edges",
            expected="an operator's index, a Subgraph, or a subgraph's path",
            got=repr(side),
        )

    def _copies(self, operator: int) -> tuple[int, ...]:
        last = len(self.unrolled.operators) - 1
        if not 0 <= operator <= last:
            nearest = min(max(operator, 0), last)
            raise GraphError("unknown operator", where="edges", expected=f"0 to {last}", got=operator, nearest=nearest)
        return self.unrolled.operators[operator]

    def _end_of(self, operator: int) -> Place:
        unit = int(self.partition.unit_of[operator])
        whole = self.partition.units[unit]
        return (unit, -1 if whole.last - whole.first == 1 else operator - whole.first)

    def _start_of(self, operator: int) -> Place:
        unit = int(self.partition.unit_of[operator])
        whole = self.partition.units[unit]
        inside = operator - whole.first
        return (unit, -1 if self.partition.shapes[whole.shape].is_entry[inside] else inside)


def _text(side: Side) -> str:
    return side.path if isinstance(side, Subgraph) else str(side)
