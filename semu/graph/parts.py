"""``include``: writes operators of one graph, for instance a traced block, into another graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from semu.errors import GraphError
from semu.hardware.device import Stream

if TYPE_CHECKING:
    from semu.graph.graph import Graph
    from semu.graph.subgraph import Subgraph


def include(
    graph: Graph,
    part: Graph,
    *,
    tensors: Mapping[int, int] | None = None,
    operators: range | None = None,
    rank: int | None = None,
    pool: str | None = None,
    mark_outputs: bool = False,
) -> dict[int, int]:
    """Append operators of ``part`` to ``graph``, into whatever subgraph is open there, with their subgraphs.

    Args:
        graph: grows. part: unchanged; a template that may be included many times.
        tensors: tensors of ``part`` that exist in ``graph`` already: from another stage, parameters that several
            microbatches share, tensors that a forward stage saved for this backward stage.
        operators: the ones to include; default: all. They depend on operators included before through tensors.
        rank: number of the GPU that they run on; default: as in ``part``. pool: name of the memory pool for new
            tensors; default: as in ``part``.
        mark_outputs: outputs of ``part`` are outputs of ``graph`` too; false: they end with their last reader.
    Returns:
        tensor of ``part`` -> tensor of ``graph``, for all tensors that the operators touch, and the given ones.
    Raises:
        GraphError: operators that ``part`` does not have, a given tensor of another shape or type.
    """
    chosen = operators if operators is not None else range(len(part.operators))
    if not isinstance(chosen, range) or chosen.step != 1 or chosen.start < 0 or chosen.stop > len(part.operators):
        raise GraphError(
            "not a range of the part's operators",
            where="include",
            expected=f"range(first, last) within 0 to {len(part.operators)}",
            got=chosen,
        )
    known = dict(tensors or {})
    for inner, outer in known.items():
        _check_given(graph, part, inner, outer)
    inputs = set(part.inputs)

    def _tensor(index: int) -> int:
        if index not in known:
            node = part.tensors[index]
            storage = part.storages[node.storage]
            if node.base is not None:
                known[index] = graph.add_view(_tensor(node.base), node.shape)
            elif index in inputs:
                known[index] = graph.add_input(
                    node.shape, node.dtype, name=node.name, role=storage.role, pool=pool or storage.pool
                )
            else:
                known[index] = graph.add_tensor(
                    node.shape, node.dtype, storage.role, name=node.name, pool=pool or storage.pool
                )
        return known[index]

    made: dict[int, int] = {}

    def _write(index: int) -> None:
        operator = part.operators[index]
        device = operator.stream.device
        made[index] = graph.add_copy(
            operator,
            Stream(device if rank is None else replace(device, rank=rank), operator.stream.name),
            [_tensor(t) for t in operator.inputs],
            [_tensor(t) for t in operator.outputs],
            [made[before] for before in operator.after if before in made],
        )

    _Regions(graph, part, _tensor, _write).write(None, chosen)
    for index in part.outputs if mark_outputs else ():
        if index in known and index not in (tensors or {}):
            graph.mark_output(known[index])
    return known


class _Regions:
    """Writes the operators and subgraphs of a part that lie in a range of its operators."""

    def __init__(
        self, graph: Graph, part: Graph, tensor: Callable[[int], int], operator: Callable[[int], None]
    ) -> None:
        self.graph, self.part, self.tensor, self.operator = graph, part, tensor, operator
        self.opened: dict[int, Subgraph] = {}

    def write(self, parent: int | None, span: range) -> None:
        """Everything directly inside one of the part's subgraphs, as far as it lies in the range."""
        at = span.start
        for group in self.part.subgraphs:
            last = group.last if group.last is not None else group.first
            inside = range(max(group.first, span.start), min(last, span.stop))
            if group.parent != parent or not inside:
                continue
            for index in range(at, inside.start):
                self.operator(index)
            self._subgraph(group, inside, is_whole=inside == range(group.first, last))
            at = inside.stop
        for index in range(at, span.stop):
            self.operator(index)

    def _subgraph(self, group: Subgraph, inside: range, *, is_whole: bool) -> None:
        mirrored = self.opened.get(group.mirrors) if group.mirrors is not None else None
        if group.replicas > 1 and (not is_whole or (group.mirrors is not None and mirrored is None)):
            raise GraphError(
                "replicas are included whole, a mirror with the chain that it mirrors",
                where=group.path,
                expected=f"operators {group.first} to {group.last}, and those of the mirrored chain",
                got=f"operators {inside.start} to {inside.stop}",
            )
        for index in inside:  # what the part made outside is made outside here
            for tensor in (*self.part.operators[index].inputs, *self.part.operators[index].outputs):
                if not group.made(tensor):
                    self.tensor(tensor)
        with self.graph.subgraph(
            group.name,
            level=group.level,
            replicas=group.replicas,
            replication=group.replication,
            key=group.key if is_whole else "",
            mirrors=mirrored,
        ) as opened:
            self.write(group.index, inside)
            for given, output in group.feeds:
                self.graph.feed(self.tensor(output), self.tensor(given))
        self.opened[group.index] = self.graph.subgraphs[opened.index]


def _check_given(graph: Graph, part: Graph, inner: int, outer: int) -> None:
    if not (0 <= inner < len(part.tensors) and 0 <= outer < len(graph.tensors)):
        raise GraphError(
            "unknown tensor",
            where="include",
            expected="tensor of the part -> tensor of the graph",
            got=f"{inner}: {outer}",
        )
    a, b = part.tensors[inner], graph.tensors[outer]
    if a.shape != b.shape or a.dtype is not b.dtype:
        raise GraphError(
            f"{b.name or f'tensor {outer}'} cannot stand for {a.name or f'tensor {inner}'}",
            where="include",
            expected=f"{a.dtype.value}{list(a.shape)}",
            got=f"{b.dtype.value}{list(b.shape)}",
        )
