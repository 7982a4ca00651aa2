"""A graph for people and for other tools: ``to_text``, ``to_networkx``."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from semu.graph.nodes import GraphNodes
from semu.graph.subgraph import Replication, Subgraph

if TYPE_CHECKING:
    import networkx


def to_text(graph: GraphNodes) -> str:
    """Readable form: one line per operator, indented by subgraph."""
    openings: dict[int, list[Subgraph]] = {}
    for group in graph.subgraphs:
        openings.setdefault(group.first, []).append(group)
    change = [0] * (len(graph.operators) + 1)
    for group in graph.subgraphs:
        change[group.first] += 1
        change[group.last if group.last is not None else len(graph.operators)] -= 1
    depths = list(itertools.accumulate(change))
    lines = []
    for operator in graph.operators:
        depth = depths[operator.index]
        for group in openings.get(operator.index, ()):
            if group.holds(operator.index):
                lines.append("  " * _depth(graph, group) + f"{group.name}{_replicas_text(group)}:")
        reads = ", ".join(_tensor_text(graph, tensor) for tensor in operator.inputs)
        writes = ", ".join(_tensor_text(graph, tensor) for tensor in operator.outputs)
        named = {"flop": operator.flop, "mem": operator.mem_bytes, "net": operator.net_bytes}
        costs = [f"{name} {cost}" for name, cost in named.items() if cost != 0]
        lines.append(
            "  " * depth + f"%{operator.index} {operator.phase.name.lower()} {operator.kind.value}"
            f"({reads}) -> {writes or 'nothing'} on {operator.stream.device.name}/{operator.stream.name}"
            f" [{'; '.join(costs)}]" + (f" after {list(operator.after)}" if operator.after else "")
        )
    return "\n".join(lines)


def _depth(graph: GraphNodes, group: Subgraph) -> int:
    depth, parent = 0, group.parent
    while parent is not None:
        depth, parent = depth + 1, graph.subgraphs[parent].parent
    return depth


def _tensor_text(graph: GraphNodes, tensor: int) -> str:
    node = graph.tensors[tensor]
    shape = " x ".join(str(dim) for dim in node.shape) or "scalar"
    return f"{node.name or f't{tensor}'}:{node.dtype.value}[{shape}]"


def to_networkx(graph: GraphNodes) -> networkx.DiGraph:
    """Operators and tensors as a ``networkx.DiGraph``: nodes ``("operator", i)`` and ``("tensor", j)``.

    Edges: tensor -> operator that reads it, operator -> tensor that it writes, operator -> operator where the
    order is not implied by such a path. Only a tensor's first writer has an edge to it, so
    that writing in place makes no cycle. Node attribute ``data`` holds the semu object.
    """
    import networkx

    result = networkx.DiGraph()
    for tensor in graph.tensors:
        result.add_node(("tensor", tensor.index), data=tensor)
    made: dict[int, int] = {}
    touched: set[int] = set()
    for operator in graph.operators:
        node = ("operator", operator.index)
        result.add_node(node, data=operator)
        result.add_edges_from((("tensor", tensor), node) for tensor in operator.inputs)
        implied = {made[tensor] for tensor in operator.inputs if tensor in made}
        result.add_edges_from((("operator", b), node) for b in operator.after if b not in implied)
        touched.update(operator.inputs)
        for output in operator.outputs:
            if output not in touched:
                result.add_edge(node, ("tensor", output))
                made[output] = operator.index
        touched.update(operator.outputs)
    return result


def _replicas_text(group: Subgraph) -> str:
    """`` x 8 peers``, `` x 32 in a chain``, or nothing."""
    if group.replicas == 1:
        return ""
    return f" x {group.replicas} " + ("peers" if group.replication is Replication.PEERS else "in a chain")
