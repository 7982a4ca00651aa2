"""A slow second opinion on ``semu.Simulation``: every replica written out, one unit dispatched at a time.

Times are whole steps of the time grid. There is no array, no kernel and no cache; what is taken from semu is the
``Graph`` alone. The rules are those of ``semu.engine.simulator``, written as loops over everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.graph_expansion import Written, value, write_out

from semu.graph.graph import Graph
from semu.graph.operator import Operator
from semu.graph.subgraph import Level, Subgraph
from semu.graph.tensor import Role
from semu.hardware.device import DeviceKind

Side = int | str | Subgraph
"""An operator by index, a subgraph, or a subgraph's path."""

Edge = tuple[Side, Side]

Latency = Callable[[Operator], int]
"""Grid steps that an operator takes."""


class Refused(Exception):
    """Edges that cannot hold: from a unit to itself, or in a cycle; ``units`` are the units of the cycles."""

    def __init__(self, message: str, units: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.units = set(units)


@dataclass(frozen=True)
class Point:
    """A moment that an edge names: start or end of a unit (``node`` is None), or of one of its operators."""

    unit: int
    node: int | None


@dataclass(frozen=True)
class Moment:
    """What a pool holds at one moment [bytes]: after what ends there, after what begins there, and from then on."""

    low: int
    high: int
    after: int
    by_role: Mapping[Role, int]


@dataclass
class Result:
    """Grid steps of every node and unit, in the order of ``Written``."""

    written: Written
    start: list[int]
    end: list[int]
    unit_start: list[int]
    unit_end: list[int]
    order: list[int]

    @property
    def makespan(self) -> int:
        return max(self.end, default=0)

    def pools(self) -> set[tuple[str, int]]:
        return {(home.pool, home.peer) for home in self.written.homes}

    def memory(self, pool: str, peer: int = 0) -> dict[int, Moment]:
        """Moment -> bytes, at every moment at which something begins or ends; brute force over lifetimes."""
        static: dict[Role, int] = dict.fromkeys(Role, 0)
        lives: list[tuple[int, int | None, int, Role]] = []
        for index, home in enumerate(self.written.homes):
            if (home.pool, home.peer) != (pool, peer):
                continue
            users = [i for i, node in enumerate(self.written.nodes) if index in node.homes]
            if home.role.is_static:
                static[home.role] += home.size
            elif home.is_input or users:
                begin = 0 if home.is_input else min(self.start[i] for i in users)
                last = max((self.end[i] for i in users), default=0)
                lives.append((begin, None if home.is_output else last, home.size, home.role))
        moments = {0, *(b for b, _, _, _ in lives), *(e for _, e, _, _ in lives if e is not None)}
        return {moment: _moment(moment, lives, static) for moment in sorted(moments)}


def _moment(now: int, lives: Sequence[tuple[int, int | None, int, Role]], static: Mapping[Role, int]) -> Moment:
    low, high, after = sum(static.values()), sum(static.values()), dict(static)
    for begin, end, size, role in lives:
        is_over = end is not None and end <= now
        if begin < now and not is_over:
            low += size
        if (begin < now and not is_over) or begin == now:
            high += size
        if begin <= now and not is_over:
            after[role] += size
    return Moment(low, high, sum(after.values()), after)


@dataclass
class Bounds:
    """What waits for what: entry edges of units, releases of nodes, and the units behind both."""

    entries: list[list[Point]]
    releases: list[list[Point]]
    sources: list[set[int]]


class Reference:
    """One graph, written out.

    Args:
        latency: of an operator, the same for its copies. peers: write out peers too.
    """

    def __init__(
        self, graph: Graph, latency: Latency, *, peers: bool = False, shapes: Mapping[str, int] | None = None
    ) -> None:
        self.graph = graph
        self.written = write_out(graph, peers=peers, shapes=shapes)
        self.latency = [latency(node.operator) for node in self.written.nodes]

    # -- edges ---------------------------------------------------------------------------------------------------
    def subgraph(self, side: str | Subgraph) -> Subgraph:
        if isinstance(side, Subgraph):
            return self.graph.subgraphs[side.index]
        (found,) = [group for group in self.graph.subgraphs if group.path == side]
        return found

    def points(self, side: Side) -> list[Point]:
        """What a side stands for."""
        nodes, units = self.written.nodes, self.written.units
        if isinstance(side, int):
            return [Point(node.unit, i) for i, node in enumerate(nodes) if node.operator.index == side]
        group = self.subgraph(side)
        if group.level is Level.STAGE:
            return [Point(u, None) for u, unit in enumerate(units) if unit.stage == group.index]
        if self.is_in_unit(group):
            return [Point(node.unit, i) for i, node in enumerate(nodes) if group.index in node.inside]
        return [Point(u, None) for u, unit in enumerate(units) if group.index in unit.inside]

    def is_in_unit(self, group: Subgraph) -> bool:
        parent = None if group.parent is None else self.graph.subgraphs[group.parent]
        if parent is None:
            return all(other.level is not Level.STAGE for other in self.graph.subgraphs)
        return parent.level is Level.STAGE or self.is_in_unit(parent)

    def is_entry(self, index: int) -> bool:
        """No predecessor inside its unit, and the first of its stream there."""
        node = self.written.nodes[index]
        others = self.written.units[node.unit].nodes
        return not node.after & set(others) and all(
            self.written.nodes[other].lane != node.lane for other in others if other < index
        )

    def bounds(self, edges: Sequence[Edge]) -> Bounds:
        nodes, units = self.written.nodes, self.written.units
        found = Bounds([[] for _ in units], [[] for _ in nodes], [set() for _ in units])
        pairs = [
            (Point(nodes[b].unit, b), Point(node.unit, i))
            for i, node in enumerate(nodes)
            for b in node.after
            if nodes[b].unit != node.unit
        ]
        for edge in edges:
            if not self.points(edge[0]) or not self.points(edge[1]):
                raise Refused("nothing on one side", [])
            for before in self.points(edge[0]):
                for after in self.points(edge[1]):
                    if before.unit == after.unit:
                        raise Refused("a unit after itself", [after.unit])
                    pairs.append((before, after))
        for before, after in pairs:
            found.sources[after.unit].add(before.unit)
            if after.node is None or self.is_entry(after.node):
                found.entries[after.unit].append(before)
            else:
                found.releases[after.node].append(before)
        return found

    def priorities(self, priority: Mapping[Side, int]) -> list[int]:
        result = [0] * len(self.written.units)
        for side, number in priority.items():
            for point in self.points(side):
                result[point.unit] = number
        return result

    # -- times ---------------------------------------------------------------------------------------------------
    def run(self, edges: Sequence[Edge] = (), priority: Mapping[Side, int] | None = None) -> Result:
        """Dispatch unit after unit.

        Raises:
            Refused: an edge from a unit to itself, or with nothing on one side, or a cycle.
        """
        nodes, units = self.written.nodes, self.written.units
        bounds, ranks = self.bounds(edges), self.priorities(priority or {})
        done = Result(self.written, [-1] * len(nodes), [-1] * len(nodes), [-1] * len(units), [-1] * len(units), [])
        free: dict[object, int] = {}

        def time_of(point: Point) -> int:
            return done.unit_end[point.unit] if point.node is None else done.end[point.node]

        while len(done.order) < len(units):
            choices = []
            for u, unit in enumerate(units):
                if u not in done.order and bounds.sources[u] <= set(done.order):
                    held = [free.get(nodes[i].lane, 0) for i in unit.nodes]
                    choices.append((max([0, *held, *map(time_of, bounds.entries[u])]), ranks[u], u))
            if not choices:
                raise Refused("a cycle", self.on_cycles(bounds, set(range(len(units))) - set(done.order)))
            begin, _, u = min(choices)
            done.unit_start[u] = begin
            busy: dict[object, int] = {}
            for i in units[u].nodes:
                own = [done.end[b] for b in nodes[i].after if nodes[b].unit == u]
                waits = [busy.get(nodes[i].lane, begin), *own, *map(time_of, bounds.releases[i])]
                done.start[i] = max(begin, *waits)
                done.end[i] = busy[nodes[i].lane] = done.start[i] + self.latency[i]
            done.unit_end[u] = max([begin, *(done.end[i] for i in units[u].nodes)])
            free.update((nodes[i].lane, done.unit_end[u]) for i in units[u].nodes)
            done.order.append(u)
        return done

    def on_cycles(self, bounds: Bounds, left: set[int]) -> list[int]:
        """Units that can be reached from themselves."""
        result = []
        for start in left:
            seen: set[int] = set()
            front = set(bounds.sources[start])
            while front:
                seen |= front
                front = {source for unit in front for source in bounds.sources[unit]} - seen
            if start in seen:
                result.append(start)
        return result

    # -- totals --------------------------------------------------------------------------------------------------
    def totals(self, shapes: Mapping[str, int] | None = None) -> tuple[int, int, int, int]:
        """FLOP, memory bytes, network bytes, GPUs; a reference with peers written out counts them one by one."""
        operators = [node.operator for node in self.written.nodes]
        gpus = {
            (node.lane[0].device.rank, node.lane[1])
            for node in self.written.nodes
            if node.lane[0].device.kind is not DeviceKind.HOST
        }
        return (
            sum(value(operator.flop, shapes or {}) for operator in operators),
            sum(value(operator.mem_bytes, shapes or {}) for operator in operators),
            sum(value(operator.net_bytes, shapes or {}) for operator in operators),
            len(gpus),
        )
