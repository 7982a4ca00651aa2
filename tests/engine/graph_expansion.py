"""Every replica of a graph written out in plain Python: chains copy after copy, peers on ranks of their own.

An operator is written out once per *context*: the copy of each replicated subgraph around it. Which copy of a tensor
an operator reads follows from the two contexts alone; nothing is shared with ``semu.graph.replicas``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod

from semu.graph.dim import Dim, Poly
from semu.graph.graph import Graph
from semu.graph.operator import Operator
from semu.graph.subgraph import Level, Replication, Subgraph
from semu.graph.tensor import Role
from semu.hardware.device import Stream

Context = tuple[tuple[int, int], ...]
"""(replicated subgraph, copy), outermost first."""

Lane = tuple[Stream, int]
"""A stream and which peer's it is."""


@dataclass
class Node:
    """One operator written out; ``after`` are nodes, ``homes`` what it touches."""

    operator: Operator
    context: Context
    lane: Lane
    unit: int
    inside: frozenset[int]
    after: set[int] = field(default_factory=set)
    homes: set[int] = field(default_factory=set)


@dataclass
class Home:
    """One storage written out: ``peer`` 0 is in the pool of the graph, others in pools of their own."""

    size: int
    role: Role
    pool: str
    peer: int
    is_input: bool
    is_output: bool


@dataclass
class Unit:
    """What is dispatched at once: a stage, or an operator outside stages; ``inside`` are all subgraphs around."""

    stage: int | None
    inside: frozenset[int]
    nodes: list[int]


@dataclass
class Written:
    """A graph without replicas."""

    nodes: list[Node]
    homes: list[Home]
    units: list[Unit]


def value(dim: Dim, shapes: Mapping[str, int]) -> int:
    """The number that a size is."""
    if isinstance(dim, Poly):
        return sum(c * prod(shapes[name] for name in names) for names, c in dim.terms.items())
    return dim


def write_out(graph: Graph, *, peers: bool, shapes: Mapping[str, int] | None = None) -> Written:
    """The graph with its chains, and with ``peers`` its peers too, written out."""
    unrolled = _Writer(graph, peers=False, shapes=shapes or {})
    unrolled.write()
    unrolled.connect_by_data()
    if not peers:
        return unrolled.written
    everything = _Writer(graph, peers=True, shapes=shapes or {})
    everything.write()
    everything.connect_like(unrolled)
    return everything.written


class _Writer:
    def __init__(self, graph: Graph, *, peers: bool, shapes: Mapping[str, int]) -> None:
        self.graph, self.peers, self.shapes = graph, peers, shapes
        self.written = Written([], [], [])
        self.has_stages = any(group.level is Level.STAGE for group in graph.subgraphs)
        self.node_of: dict[tuple[int, Context], int] = {}
        self.home_of: dict[tuple[int, Context], int] = {}

    # -- walking -------------------------------------------------------------------------------------------------
    def write(self) -> None:
        """All homes, nodes and units, not yet connected."""
        outputs = {self.resolve(tensor, ()) for tensor in self.graph.outputs}
        given = {self.graph.tensors[tensor].storage for tensor in self.graph.inputs}
        for tensor in self.graph.tensors:
            if tensor.base is None:
                storage = self.graph.storages[tensor.storage]
                for context in self.contexts([g for g in self.graph.subgraphs if g.made(tensor.index)]):
                    self.home_of[tensor.index, context] = len(self.written.homes)
                    home = Home(
                        size=value(storage.size_bytes, self.shapes),
                        role=storage.role,
                        pool=storage.pool,
                        peer=self.peer(context),
                        is_input=storage.index in given,
                        is_output=(tensor.index, self.without_peers(context)) in outputs,
                    )
                    self.written.homes.append(home)
        if not self.has_stages:
            self.written.units.append(Unit(None, frozenset(), []))
        self.walk(None, (), None if self.has_stages else 0, frozenset())

    def walk(self, parent: int | None, context: Context, unit: int | None, inside: frozenset[int]) -> None:
        for item in self.items(parent):
            if isinstance(item, Operator):
                self.emit(item, context, unit, inside)
                continue
            here = inside | {item.index}
            for copy in range(item.replicas if self.is_written(item) else 1):
                deeper = (*context, (item.index, copy)) if self.is_written(item) else context
                own = unit
                if item.level is Level.STAGE:
                    own = len(self.written.units)
                    self.written.units.append(Unit(item.index, here, []))
                self.walk(item.index, deeper, own, here)

    def items(self, parent: int | None) -> list[Operator | Subgraph]:
        """What stands directly in a subgraph, in order; an empty subgraph stands before the operator after it."""
        groups = [group for group in self.graph.subgraphs if group.parent == parent]
        outer = None if parent is None else self.graph.subgraphs[parent]
        own = [
            operator
            for operator in self.graph.operators
            if (outer is None or outer.holds(operator.index)) and not any(g.holds(operator.index) for g in groups)
        ]
        places = [(g.first, g.last or 0, g.index) for g in groups] + [(o.index, o.index + 1, -1) for o in own]
        known = {(o.index, o.index + 1, -1): o for o in own}
        return [known[place] if place in known else self.graph.subgraphs[place[2]] for place in sorted(places)]

    def emit(self, operator: Operator, context: Context, unit: int | None, inside: frozenset[int]) -> None:
        index = len(self.written.nodes)
        if unit is None:
            unit = len(self.written.units)
            self.written.units.append(Unit(None, inside, []))
        self.written.units[unit].nodes.append(index)
        lane = (operator.stream, self.peer(context))
        self.written.nodes.append(Node(operator, context, lane, unit, inside))
        self.node_of[operator.index, context] = index

    def is_written(self, group: Subgraph) -> bool:
        return group.replicas > 1 and (self.peers or group.replication is Replication.CHAIN)

    def contexts(self, groups: list[Subgraph]) -> list[Context]:
        written = [group for group in groups if self.is_written(group)]
        ranges = [[(group.index, copy) for copy in range(group.replicas)] for group in written]
        return [tuple(choice) for choice in product(*ranges)]

    def peer(self, context: Context) -> int:
        number = 0
        for group, copy in context:
            if self.graph.subgraphs[group].replication is Replication.PEERS:
                number = number * self.graph.subgraphs[group].replicas + copy
        return number

    # -- chains --------------------------------------------------------------------------------------------------
    def chain_copy(self, chain: Subgraph, reader: Mapping[int, int]) -> int | None:
        """The copy of a chain that a reader is in or mirrors; None where it is after the chain."""
        if chain.index in reader:
            return reader[chain.index]
        for index, copy in reader.items():
            if self.graph.subgraphs[index].mirrors == chain.index:
                return chain.replicas - 1 - copy
        return None

    def seen(self, groups: list[Subgraph], reader: Mapping[int, int]) -> Context:
        """The context that a reader sees of something in these subgraphs, chains only."""
        chains = [g for g in groups if g.replicas > 1 and g.replication is Replication.CHAIN]
        copies = [(chain, self.chain_copy(chain, reader)) for chain in chains]
        return tuple((chain.index, chain.replicas - 1 if copy is None else copy) for chain, copy in copies)

    def resolve(self, tensor: int, reader: Context) -> tuple[int, Context]:
        """The first tensor of the storage that a reader in this context means, and which copy of it (chains only)."""
        at = dict(reader)
        near = [index for index, _ in reversed(reader)]
        mirrored = [self.graph.subgraphs[index].mirrors for index in near]
        for index in [*near, *(m for m in mirrored if m is not None)]:
            chain = self.graph.subgraphs[index]
            copy = self.chain_copy(chain, at) if chain.replication is Replication.CHAIN else None
            for given, output in chain.feeds if copy else ():
                if given == tensor and copy is not None:
                    return self.resolve(output, (*self.seen(self.around(chain), at), (index, copy - 1)))
        context = self.seen([g for g in self.graph.subgraphs if g.made(tensor)], at)
        base = self.graph.tensors[tensor].base
        return (tensor, context) if base is None else self.resolve(base, context)

    def around(self, group: Subgraph) -> list[Subgraph]:
        """The subgraphs around one, outermost first."""
        if group.parent is None:
            return []
        outer = self.graph.subgraphs[group.parent]
        return [*self.around(outer), outer]

    def connect_by_data(self) -> None:
        """What nodes touch and follow, as if every copy had been appended by hand."""
        was: dict[int, int] = {}
        writer: dict[int, int] = {}
        data = []
        for operator in self.graph.operators:
            storages = [self.graph.tensors[tensor].storage for tensor in operator.inputs]
            data.append({was[storage] for storage in storages if storage in was})
            was.update((self.graph.tensors[tensor].storage, operator.index) for tensor in operator.outputs)
        for index, node in enumerate(self.written.nodes):
            reads = [self.home_of[self.resolve(tensor, node.context)] for tensor in node.operator.inputs]
            writes = [self.home_of[self.resolve(tensor, node.context)] for tensor in node.operator.outputs]
            node.homes = {*reads, *writes}
            node.after = {writer[home] for home in reads if home in writer}
            for before in set(node.operator.after) - data[node.operator.index]:
                around = [g for g in self.graph.subgraphs if g.holds(before)]
                node.after.add(self.node_of[before, self.seen(around, dict(node.context))])
            writer.update((home, index) for home in writes)

    # -- peers ---------------------------------------------------------------------------------------------------
    def without_peers(self, context: Context) -> Context:
        return tuple((group, copy) for group, copy in context if not self.is_peers(group))

    def connect_like(self, unrolled: _Writer) -> None:
        """Every copy touches and follows the copies of what its original touches and follows."""
        homes: dict[int, list[tuple[Context, int]]] = {}
        for (tensor, context), home in self.home_of.items():
            one = unrolled.home_of[tensor, self.without_peers(context)]
            homes.setdefault(one, []).append((context, home))
        nodes: dict[int, list[tuple[Context, int]]] = {}
        for (operator, context), index in self.node_of.items():
            one = unrolled.node_of[operator, self.without_peers(context)]
            nodes.setdefault(one, []).append((context, index))
        for index, node in enumerate(self.written.nodes):
            one = unrolled.node_of[node.operator.index, self.without_peers(node.context)]
            original = unrolled.written.nodes[one]
            node.homes = {i for h in original.homes for c, i in homes[h] if self.is_met(node.context, c)}
            node.after = {i for a in original.after for c, i in nodes[a] if self.is_met(node.context, c)}
            assert all(before < index for before in node.after)

    def is_met(self, reader: Context, other: Context) -> bool:
        """Whether a reader meets this copy: its own where both are in the same, or equally many, peers; else all."""
        mine, theirs = ({g: c for g, c in context if self.is_peers(g)} for context in (reader, other))
        free = [group for group in mine if group not in theirs]
        for group, copy in theirs.items():
            count = self.graph.subgraphs[group].replicas
            match = group if group in mine else next((g for g in free if self.graph.subgraphs[g].replicas == count), -1)
            if match in free:
                free.remove(match)
            if match in mine and mine[match] != copy:
                return False
        return True

    def is_peers(self, group: int) -> bool:
        return self.graph.subgraphs[group].replication is Replication.PEERS
