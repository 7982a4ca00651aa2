"""``check_graph``: the invariants that building keeps, checked on a finished graph (``Graph.lint``)."""

from __future__ import annotations

from semu.errors import GraphError
from semu.graph.costs import check_costs
from semu.graph.nodes import GraphNodes
from semu.graph.operator import Operator


def check_graph(graph: GraphNodes) -> None:
    """Check references, dependencies, lifetimes and nesting.

    Raises:
        GraphError: a dangling reference, a dependency that does not point back, a tensor read before it is written,
            costs that a device cannot serve, subgraphs that overlap without nesting, a rank whose operators have
            different numbers of peers.
    """
    for tensor in graph.tensors:
        if not 0 <= tensor.storage < len(graph.storages):
            raise GraphError(
                "unknown storage", where=tensor.name, expected=f"< {len(graph.storages)}", got=tensor.storage
            )
    written = {graph.tensors[tensor].storage for tensor in graph.inputs}
    for operator in graph.operators:
        _check_operator(graph, operator, written)
        written.update(graph.tensors[tensor].storage for tensor in operator.outputs)
    _check_nesting(graph)
    _check_peers(graph)


def _check_operator(graph: GraphNodes, operator: Operator, written: set[int]) -> None:
    where = operator.path or f"operator {operator.index}"
    check_costs(operator.stream, operator.flop, operator.mem_bytes, operator.net_bytes, where)
    if any(not 0 <= before < operator.index for before in operator.after):
        raise GraphError(
            "a dependency does not point back", where=where, expected=f"< {operator.index}", got=operator.after
        )
    for tensor in (*operator.inputs, *operator.outputs):
        if not 0 <= tensor < len(graph.tensors):
            raise GraphError("unknown tensor", where=where, expected=f"< {len(graph.tensors)}", got=tensor)
    for tensor in operator.inputs:
        storage = graph.storages[graph.tensors[tensor].storage]
        if storage.index not in written and not storage.role.is_static:
            name = graph.tensors[tensor].name or f"tensor {tensor}"
            raise GraphError(f"{name} is read before it is written", where=where)


def _check_nesting(graph: GraphNodes) -> None:
    for group in graph.subgraphs:
        if group.last is None:
            raise GraphError("subgraph still open", where=group.path)
        if group.parent is not None:
            outer = graph.subgraphs[group.parent]
            if outer.last is None or not (outer.first <= group.first and group.last <= outer.last):
                raise GraphError("subgraph reaches out of its parent", where=group.path)
    around: list[tuple[int, str]] = []
    for first, negative_last, path in sorted((g.first, -(g.last or 0), g.path) for g in graph.subgraphs):
        last = -negative_last
        while around and around[-1][0] <= first:
            around.pop()
        if around and last > around[-1][0]:
            raise GraphError("two subgraphs overlap without nesting", where=path, got=around[-1][1])
        around.append((last, path))


def _check_peers(graph: GraphNodes) -> None:
    """All operators of a rank have equally many peers: a GPU exists once or n times."""
    first_of_rank: dict[int, tuple[tuple[int, ...], str]] = {}
    replicated = [group for group in graph.subgraphs if group.has_peers]
    for operator in graph.operators if replicated else ():
        peers = tuple(group.replicas for group in replicated if group.holds(operator.index))
        where = operator.path or f"operator {operator.index}"
        expected, other = first_of_rank.setdefault(operator.stream.device.rank, (peers, where))
        if peers != expected:
            raise GraphError(
                f"rank {operator.stream.device.rank} has different numbers of peers in one graph",
                where=where,
                expected=f"{_peers_text(expected)}, as for {other}",
                got=_peers_text(peers),
            )


def _peers_text(peers: tuple[int, ...]) -> str:
    return " x ".join(map(str, peers)) + " peers" if peers else "no peers"
