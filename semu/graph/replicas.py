"""Replicas written out: ``unrolled`` (chains only, for the engine), ``expanded`` (peers too, for checks and exports).

A copy of a chain reads the tensors that it made; where it is fed, those of the copy before; of a mirrored chain, those
of the opposite copy. A reader outside a chain reads the last copy. Each copy of a peer runs on separate GPUs and reads
the tensors that it made; a reader outside waits for all peers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

from semu.graph.graph import Graph
from semu.graph.subgraph import Replication, Subgraph
from semu.hardware.device import Stream
from semu.records import dataclass

_Copies = dict[int, int]
"""Open replicated subgraph -> number of the copy that is being written, outermost first."""


@dataclass(frozen=True)
class Unrolled:
    """A graph with replicas written out.

    Attributes:
        graph: the new graph; the given one where there was nothing to write out.
        operators: per operator of the given graph, its copies in the new one.
        subgraphs: per subgraph of the given graph, its copies in the new one.
    """

    graph: Graph
    operators: tuple[tuple[int, ...], ...]
    subgraphs: tuple[tuple[int, ...], ...]


def unrolled(graph: Graph) -> Unrolled:
    """Write out chains; peers stay replicas."""
    if not any(group.is_chain for group in graph.subgraphs):
        operators = tuple((index,) for index in range(len(graph.operators)))
        return Unrolled(graph, operators, tuple((index,) for index in range(len(graph.subgraphs))))
    return _Writer(graph, with_peers=False).write()


def expanded(graph: Graph, *, peers: bool = True) -> Graph:
    """The graph without replicas: every copy is there.

    Args:
        graph: any finished graph. peers: false: only chains are written out.
    Returns:
        A new graph. Copy k > 0 of a peer runs on rank ``r + k R`` (R: ranks of the given graph; nested peers count in
        mixed radix), its pools are named ``pool+k``; further copies of a subgraph are named ``name#k``.
    """
    return _Writer(graph, with_peers=peers).write().graph


class _Writer:
    def __init__(self, graph: Graph, *, with_peers: bool) -> None:
        self.old, self.new = graph, Graph()
        self.with_peers = with_peers
        self.num_ranks = 1 + max((op.stream.device.rank for op in graph.operators), default=0)
        self.replicated = [g for g in graph.subgraphs if g.is_chain or (with_peers and g.has_peers)]
        self.tensor_owners = [tuple(g for g in self.replicated if g.made(t)) for t in range(len(graph.tensors))]
        self.operator_owners = [tuple(g for g in self.replicated if g.holds(i)) for i in range(len(graph.operators))]
        self.tensors: dict[tuple[int, tuple[int, ...]], int] = {}
        self.operators: dict[tuple[int, tuple[int, ...]], int] = {}
        self.subgraphs: list[list[int]] = [[] for _ in graph.subgraphs]
        self.children: dict[int | None, list[Subgraph]] = {}
        for group in graph.subgraphs:
            self.children.setdefault(group.parent, []).append(group)
        self.producers = _data_producers(graph)

    def write(self) -> Unrolled:
        """The graph without replicas, and where each of its operators came from."""
        self._region(None, 0, len(self.old.operators), {})
        for tensor in range(len(self.old.tensors)):  # those that no operator touches
            for copies in self._all_copies(self.tensor_owners[tensor]):
                self._tensor(tensor, copies)
        for tensor in self.old.outputs:
            for made in self._reads(tensor, {}):
                self.new.mark_output(made)
        return Unrolled(
            self.new,
            tuple(
                tuple(self.operators[i, tuple(c.values())] for c in self._all_copies(owners))
                for i, owners in enumerate(self.operator_owners)
            ),
            tuple(tuple(copies) for copies in self.subgraphs),
        )

    @staticmethod
    def _all_copies(owners: tuple[Subgraph, ...]) -> Iterator[_Copies]:
        for numbers in itertools.product(*(range(g.replicas) for g in owners)):
            yield {g.index: k for g, k in zip(owners, numbers, strict=True)}

    # -- subgraphs and operators ---------------------------------------------------------------------------------
    def _region(self, group: Subgraph | None, first: int, last: int, copies: _Copies) -> None:
        """Write the operators and subgraphs directly inside a subgraph."""
        at = first
        for child in self.children.get(group.index if group is not None else None, ()):
            for index in range(at, child.first):
                self._operator(index, copies)
            self._subgraph(child, copies)
            at = child.last if child.last is not None else last
        for index in range(at, last):
            self._operator(index, copies)

    def _subgraph(self, group: Subgraph, copies: _Copies) -> None:
        is_written_out = group in self.replicated
        for k in range(group.replicas if is_written_out else 1):
            inside = {**copies, group.index: k} if is_written_out else copies
            name = group.name if k == 0 else f"{group.name}#{k}"
            left = 1 if is_written_out else group.replicas
            with self.new.subgraph(name, level=group.level, replicas=left, replication=Replication.PEERS) as opened:
                self.subgraphs[group.index].append(opened.index)
                self._region(group, group.first, group.last if group.last is not None else 0, inside)

    def _operator(self, index: int, copies: _Copies) -> None:
        operator = self.old.operators[index]
        read = [self._reads(tensor, copies) for tensor in operator.inputs]
        outputs = [self._read(tensor, copies) for tensor in operator.outputs]
        explicit = (before for before in operator.after if before not in self.producers[index])
        waits = [new for before in explicit for new in self._waits(before, copies)]
        made = (self.new.producer(tensor) for instances in read for tensor in instances)
        device = operator.stream.device
        moved = replace(device, rank=device.rank + self._peer(copies) * self.num_ranks)
        own = tuple(copies[g.index] for g in self.operator_owners[index])
        self.operators[index, own] = self.new.add_copy(
            operator,
            Stream(moved, operator.stream.name),
            [instances[0] for instances in read],
            outputs,
            [*waits, *(before for before in made if before is not None)],
        )

    def _waits(self, before: int, copies: _Copies) -> list[int]:
        """Copies of an earlier operator that an operator waits for without reading their outputs."""
        owners = self.operator_owners[before]
        chosen, every = self._choose(owners, copies)
        return [
            self.operators[before, tuple(candidate.values())]
            for candidate in self._all_copies(owners)
            if all(candidate[index] == k for index, k in chosen.items() if index not in every)
        ]

    def _choose(self, owners: tuple[Subgraph, ...], copies: Mapping[int, int]) -> tuple[_Copies, set[int]]:
        """Which copy of each owner a reader sees, and the owners of which it sees every copy (peers from outside)."""
        open_groups = [self.old.subgraphs[index] for index in copies]
        owned = {owner.index for owner in owners}
        peers = [group for group in open_groups if group.has_peers and group.index not in owned]
        chosen: _Copies = {}
        every: set[int] = set()
        for owner in owners:
            mirror = next((g for g in open_groups if g.mirrors == owner.index), None)
            peer = next((g for g in peers if g.replicas == owner.replicas), None)
            if owner.index in copies:
                chosen[owner.index] = copies[owner.index]
            elif mirror is not None:
                chosen[owner.index] = owner.replicas - 1 - copies[mirror.index]
            elif owner.has_peers and peer is not None:
                chosen[owner.index] = copies[peer.index]
                peers.remove(peer)
            elif owner.has_peers:
                chosen[owner.index] = 0
                every.add(owner.index)
            else:
                chosen[owner.index] = owner.replicas - 1
        return chosen, every

    def _peer(self, copies: Mapping[int, int]) -> int:
        """Number of the peers' copy: mixed radix over the open peers, the outermost counts most."""
        number = 0
        for index, k in copies.items():
            group = self.old.subgraphs[index]
            if group.has_peers:
                number = number * group.replicas + k
        return number

    # -- tensors -------------------------------------------------------------------------------------------------
    def _read(self, tensor: int, copies: _Copies) -> int:
        """The instance of a tensor that an operator (or a view) in these copies means."""
        return self._reads(tensor, copies)[0]

    def _reads(self, tensor: int, copies: _Copies, *, is_fed: bool = True) -> list[int]:
        """That instance, and those of the other peers where a reader from outside waits for all of them."""
        for position, (index, k) in enumerate(reversed(copies.items()) if is_fed else ()):
            fed = dict(self.old.subgraphs[index].feeds).get(tensor)
            if fed is not None and k > 0:
                inner = list(copies)[len(copies) - position :]  # who is in a further chain reads the last copy there
                around = {g: n for g, n in copies.items() if g not in inner or self.old.subgraphs[g].has_peers}
                return self._reads(fed, {**around, index: k - 1}, is_fed=False)
        for mirrored, opposite in reversed(self._opposites(copies).items()) if is_fed else ():
            fed = dict(self.old.subgraphs[mirrored].feeds).get(tensor)
            if fed is not None and opposite > 0:  # what the mirrored copy itself was fed
                around = {g: n for g, n in copies.items() if not self._mirrors_inside(g, mirrored)}
                return self._reads(fed, {**around, mirrored: opposite - 1}, is_fed=False)
        chosen, every = self._choose(self.tensor_owners[tensor], copies)
        numbers = itertools.product(*(range(self.old.subgraphs[owner].replicas) for owner in sorted(every)))
        return [self._tensor(tensor, {**chosen, **dict(zip(sorted(every), each, strict=True))}) for each in numbers]

    def _opposites(self, copies: _Copies) -> _Copies:
        """Mirrored chain -> the copy of it that belongs to the open copies."""
        result: _Copies = {}
        for index, k in copies.items():
            group = self.old.subgraphs[index]
            if group.mirrors is not None:
                result.setdefault(group.mirrors, group.replicas - 1 - k)
        return result

    def _mirrors_inside(self, group: int, chain: int) -> bool:
        """Whether a subgraph mirrors a chain that stands inside another."""
        mirrored = self.old.subgraphs[group].mirrors
        around = None if mirrored is None else self.old.subgraphs[mirrored].parent
        while around is not None and around != chain:
            around = self.old.subgraphs[around].parent
        return around is not None

    def _tensor(self, tensor: int, own: _Copies) -> int:
        """The instance of a tensor in the given copies of its owners; made on first use."""
        key = (tensor, tuple(own.values()))
        if key not in self.tensors:
            node = self.old.tensors[tensor]
            storage = self.old.storages[node.storage]
            if node.base is not None:
                made = self.new.add_view(self._read(node.base, own), node.shape)
            else:
                peer = self._peer(own)
                pool = storage.pool if peer == 0 else f"{storage.pool}+{peer}"
                made = self.new.add_tensor(node.shape, node.dtype, storage.role, name=node.name, pool=pool)
                if tensor in self.old.inputs:
                    self.new.inputs.append(made)
            self.tensors[key] = made
        return self.tensors[key]


def _data_producers(graph: Graph) -> list[set[int]]:
    """Per operator, the last writers of the tensors that it reads."""
    writer: dict[int, int] = {}
    result: list[set[int]] = []
    for operator in graph.operators:
        stores = (graph.tensors[tensor].storage for tensor in operator.inputs)
        result.append({writer[store] for store in stores if store in writer})
        writer.update((graph.tensors[tensor].storage, operator.index) for tensor in operator.outputs)
    return result
