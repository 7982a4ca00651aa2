"""Which subgraphs may be nested and replicated: checks of a subgraph as it opens, feeds and closes."""

from __future__ import annotations

from collections.abc import Sequence

from semu.checks import is_integer
from semu.errors import GraphError
from semu.graph.level import Level
from semu.graph.nodes import GraphNodes
from semu.graph.structure import describe_difference, structure_of
from semu.graph.subgraph import Replication, Subgraph


def check_opening(subgraph: Subgraph, around: Sequence[Subgraph], subgraphs: Sequence[Subgraph]) -> None:
    """Check a subgraph that is about to open.

    Args:
        subgraph: the new one. around: the open ones, outermost first. subgraphs: all before it.
    Raises:
        GraphError: replicas below 1, a level inside a level that is not larger, a stage in a chain, a mirror of
            anything but a closed chain with equally many copies.
    """
    where = subgraph.path
    replicas: object = subgraph.replicas
    if not is_integer(replicas) or replicas < 1:
        raise GraphError(
            "a subgraph has at least one replica", where=where, expected="an integer >= 1", got=replicas, nearest=1
        )
    level: object = subgraph.level
    if not isinstance(subgraph.replication, Replication) or not (level is None or isinstance(level, Level)):
        raise GraphError(
            "a level and a replication are enum members",
            where=where,
            expected="semu.Level and semu.Replication",
            got=f"level={level!r}, replication={subgraph.replication!r}",
        )
    if subgraph.level is Level.OPERATOR:
        raise GraphError("a subgraph is larger than an operator", where=where, expected="layer or larger, or None")
    outer = next((group for group in reversed(around) if group.level is not None), None)
    above = outer.level if outer is not None else None
    is_part = above is Level.LAYER and subgraph.level is Level.LAYER  # a layer's attention is a layer too
    if above is not None and subgraph.level is not None and not subgraph.level.is_inside(above) and not is_part:
        raise GraphError(
            f"a {subgraph.level.value} inside a {above.value}",
            where=where,
            expected=f"a level below {above.value}",
            got=subgraph.level.value,
        )
    chain = next((group for group in (*around, subgraph) if group.is_chain), None)
    if chain is not None and subgraph.level is not None and not subgraph.level.is_inside(Level.STAGE):
        raise GraphError(
            f"a {subgraph.level.value} in the chain {chain.path}",
            where=where,
            expected="chains inside stages; replicas of stages are peers",
            got=subgraph.level.value,
        )
    _check_mirror(subgraph, subgraphs)


def _check_mirror(subgraph: Subgraph, subgraphs: Sequence[Subgraph]) -> None:
    if subgraph.mirrors is None:
        return
    mirrored = subgraphs[subgraph.mirrors]
    is_pair = mirrored.is_chain and mirrored.replicas == subgraph.replicas and mirrored.last is not None
    if subgraph.replication is not Replication.CHAIN or (not is_pair and subgraph.replicas > 1):
        raise GraphError(
            "a chain mirrors a closed chain of as many copies",
            where=subgraph.path,
            expected=f"chain, {mirrored.replicas} replicas",
            got=f"{subgraph.replication.value}, {subgraph.replicas} replicas",
            nearest=mirrored.replicas,
        )


def check_feed(
    graph: GraphNodes, chain: Subgraph | None, output: int, feeds: Sequence[tuple[int, int]], given: int
) -> None:
    """Check that ``output`` of a chain's copy can take the place of ``given`` in the next one.

    Raises:
        GraphError: no chain is open, the output was not made in it, the input was, shapes or types differ, the input
            is fed twice.
    """
    where = chain.path if chain is not None else "feed"
    if chain is None:
        raise GraphError("only a chain feeds its next copy", where=where, expected="an open subgraph with CHAIN")
    a, b = graph.tensors[output], graph.tensors[given]
    if not chain.made(output) or chain.made(given):
        raise GraphError(
            "a chain feeds what a copy made into what it read from outside",
            where=where,
            expected="output made inside, input made outside",
            got=f"output {a.name or output}, input {b.name or given}",
        )
    if a.shape != b.shape or a.dtype is not b.dtype:
        raise GraphError(
            "the output of a copy does not fit the input of the next",
            where=where,
            expected=f"{b.dtype.value}{list(b.shape)}",
            got=f"{a.dtype.value}{list(a.shape)}",
        )
    if any(fed == given for fed, _ in feeds):
        raise GraphError("an input is fed twice", where=where, expected="one output per input", got=b.name or given)


def check_closing(graph: GraphNodes, subgraph: Subgraph, keys: dict[str, int]) -> None:
    """Check a closed subgraph: levels around stages, and that its key names one structure.

    Args:
        keys: key -> the first subgraph with it; changed.
    Raises:
        GraphError: a chain around a stage; a key that another structure has.
    """
    if subgraph.is_chain:
        stage = next((g for g in graph.subgraphs[subgraph.index + 1 :] if g.level is Level.STAGE), None)
        if stage is not None:
            raise GraphError("a chain around a stage", where=subgraph.path, expected="chains inside stages")
    if not subgraph.key:
        return
    other = graph.subgraphs[keys.setdefault(subgraph.key, subgraph.index)]
    if other.index != subgraph.index and structure_of(graph, other) != structure_of(graph, subgraph):
        raise GraphError(
            f"the key {subgraph.key!r} already names another structure, that of {other.path}",
            where=subgraph.path,
            expected="another key, or none: equal structures are recognised without a key",
            got=describe_difference(graph, other, subgraph),
        )
