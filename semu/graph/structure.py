"""The structure of a subgraph: all but its place in the graph and the sizes of its tensors (DESIGN §4).

Two subgraphs of equal structure have the same operators (kind, phase, stream, precision), the same dependencies, the
same use of storages and the same replicas inside; sizes and costs, the parameters of a template, may differ.
"""

from __future__ import annotations

from typing import TypeAlias

from semu.graph.nodes import GraphNodes
from semu.graph.subgraph import Subgraph

Structure: TypeAlias = tuple[tuple[object, ...], ...]


def structure_of(graph: GraphNodes, subgraph: Subgraph) -> Structure:
    """A hashable value, equal for subgraphs of equal structure: one row per operator, then one per subgraph inside.

    Names, ranks, positions, sizes and the origin of inputs do not enter.
    """
    first, last = subgraph.first, subgraph.last if subgraph.last is not None else len(graph.operators)
    ranks: dict[int, int] = {}
    storages: dict[int, int] = {}
    rows: list[tuple[object, ...]] = []
    for operator in graph.operators[first:last]:
        device = operator.stream.device
        place = ranks.setdefault(device.rank, len(ranks))
        rows.append(
            (
                operator.kind,
                operator.phase,
                (device.kind, place, device.port, device.direction, operator.stream.name),
                operator.dtype,
                operator.copies,
                tuple(before - first for before in operator.after if before >= first),
                tuple(_use(graph, storages, tensor) for tensor in operator.inputs),
                tuple(_use(graph, storages, tensor) for tensor in operator.outputs),
            )
        )
    inner = (g for g in graph.subgraphs if g.index > subgraph.index and first <= g.first and (g.last or last) <= last)
    rows += [
        (g.first - first, (g.last or last) - first, g.level, g.replicas, g.replication, len(g.feeds))
        for g in inner
        if g.replicas > 1 or g.level is not None
    ]
    feeds = tuple((_use(graph, storages, given), _use(graph, storages, output)) for given, output in subgraph.feeds)
    rows.append((subgraph.replicas, subgraph.replication, subgraph.mirrors is not None, feeds))
    return tuple(rows)


def _use(graph: GraphNodes, storages: dict[int, int], tensor: int) -> tuple[object, ...]:
    storage = graph.storages[graph.tensors[tensor].storage]
    return (storages.setdefault(storage.index, len(storages)), storage.role, graph.tensors[tensor].dtype)


def describe_difference(graph: GraphNodes, one: Subgraph, other: Subgraph) -> str:
    """Where two structures first differ, for people."""
    a, b = structure_of(graph, one), structure_of(graph, other)
    num_a, num_b = (one.last or 0) - one.first, (other.last or 0) - other.first
    if num_a != num_b:
        return f"{num_b} operators instead of {num_a}"
    for position, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right and position < num_a:
            here, there = graph.operators[one.first + position], graph.operators[other.first + position]
            is_now, was = _words(there.path, there.kind.value), _words(here.path, here.kind.value)
            return f"operator {position} is {is_now}, where it was {was}, or it is connected otherwise"
    return "other subgraphs or replicas inside"


def _words(path: str, kind: str) -> str:
    return f"{path} ({kind})" if path else kind
