"""``GraphUnits``: a graph as units that the engine dispatches: atomic stages, and operators outside them (DESIGN §3.8).

A graph without stages is one unit. Units of equal structure, whatever they are called, share one ``UnitShape``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.graph.graph import Graph
from semu.graph.operator import Operator
from semu.graph.subgraph import Level
from semu.hardware.device import DeviceKind, Stream
from semu.records import dataclass


@dataclass(frozen=True)
class UnitShape:
    """Structure of a unit; operators, streams and storages are numbered inside it.

    Attributes:
        preds: per operator, its predecessors inside. stream: per operator. num_streams: streams, compute first.
        touches: per operator, the storages that only operators of the unit touch. roles: of those storages.
        block: per operator, which run of one innermost subgraph it belongs to.
    """

    preds: tuple[tuple[int, ...], ...]
    stream: tuple[int, ...]
    num_streams: int
    touches: tuple[tuple[int, ...], ...]
    roles: tuple[int, ...]
    block: tuple[int, ...]

    @property
    def num_ops(self) -> int:
        """Number of operators."""
        return len(self.stream)

    @cached_property
    def is_entry(self) -> tuple[bool, ...]:
        """Per operator: nothing inside comes before it, so what it waits for outside delays the whole unit."""
        seen: set[int] = set()
        result = []
        for before, stream in zip(self.preds, self.stream, strict=True):
            result.append(not before and stream not in seen)
            seen.add(stream)
        return tuple(result)


@dataclass(frozen=True)
class Unit:
    """What is dispatched as a whole.

    Attributes:
        name: path of the stage, or of the operator. first, last: its operators are ``first <= index < last``.
        streams: numbers of the streams that it holds, in the order of its shape's streams.
        storages: the shape's storages. shape: position among the partition's shapes. subgraph: its stage, or None.
    """

    name: str
    first: int
    last: int
    streams: tuple[int, ...]
    storages: tuple[int, ...]
    shape: int
    subgraph: int | None


class GraphUnits:
    """Units of a graph.

    Args:
        graph: a finished graph without chains.
    Attributes:
        units: in order of their first operator. shapes: distinct structures. streams: all streams in use.
        unit_of: int32[num_ops], unit of each operator.
        source, target: int32[num_edges], operators at the ends of every dependency between units.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.streams: tuple[Stream, ...] = tuple(graph.streams())
        self._stream_number = {stream: number for number, stream in enumerate(self.streams)}
        self.unit_of = np.zeros(len(graph.operators), dtype=np.int32)
        ranges = list(_ranges(graph))
        for number, (first, last, _) in enumerate(ranges):
            self.unit_of[first:last] = number
        self._inner = np.full(len(graph.operators), -1, dtype=np.int32)
        for group in graph.subgraphs:
            self._inner[group.first : group.last] = group.index
        self._private = self._find_private_storages()
        self._numbers: dict[Hashable, int] = {}
        self.shapes: list[UnitShape] = []
        self.units = tuple(self._unit(first, last, subgraph) for first, last, subgraph in ranges)
        crossing = [
            (before, operator.index)
            for operator in graph.operators
            for before in operator.after
            if self.unit_of[before] != self.unit_of[operator.index]
        ]
        self.source = np.array([before for before, _ in crossing], dtype=np.int32)
        self.target = np.array([after for _, after in crossing], dtype=np.int32)

    def _find_private_storages(self) -> NDArray[np.int32]:
        """Per storage: the one unit that touches it; -1: several do, none does, or it outlives the graph's units."""
        owner = np.full(len(self.graph.storages), -2, dtype=np.int32)
        for operator in self.graph.operators:
            unit = self.unit_of[operator.index]
            for store in _stores(self.graph, operator):
                owner[store] = unit if owner[store] in (-2, unit) else -1
        for tensor in (*self.graph.inputs, *self.graph.outputs):
            owner[self.graph.tensors[tensor].storage] = -1
        for storage in self.graph.storages:
            if storage.role.is_static:
                owner[storage.index] = -1
        return owner

    def _unit(self, first: int, last: int, subgraph: int | None) -> Unit:
        operators = self.graph.operators[first:last]
        used = list(dict.fromkeys(operator.stream for operator in operators))
        used.sort(key=lambda stream: stream.device.kind is not DeviceKind.COMPUTE)
        local = {stream: number for number, stream in enumerate(used)}
        storages: dict[int, int] = {}
        number = self.unit_of[first] if first < last else -1
        touches = []
        for operator in operators:
            mine = [store for store in _stores(self.graph, operator) if self._private[store] == number]
            touches.append(tuple(storages.setdefault(store, len(storages)) for store in mine))
        inner = self._inner[first:last]
        changes = np.concatenate(([0], np.cumsum(inner[1:] != inner[:-1]))) if last > first else np.zeros(0, np.int64)
        roles = list(type(self.graph.storages[0].role)) if storages else []
        key = (
            tuple(tuple(b - first for b in op.after if b >= first) for op in operators),
            tuple(local[operator.stream] for operator in operators),
            len(used),
            tuple(touches),
            tuple(roles.index(self.graph.storages[store].role) for store in storages),
            tuple(changes.tolist()),
        )
        shape = self._numbers.setdefault(key, len(self.shapes))
        if shape == len(self.shapes):
            self.shapes.append(UnitShape(*key))
        if subgraph is not None:
            name = self.graph.subgraphs[subgraph].path
        elif last - first == 1:
            name = operators[0].path or f"operator {first} ({operators[0].kind.value})"
        else:
            name = "graph"
        streams = tuple(self._stream_number[stream] for stream in used)
        return Unit(name, first, last, streams, tuple(storages), shape, subgraph)


def _stores(graph: Graph, operator: Operator) -> dict[int, None]:
    """Storages that an operator touches, each once, in order."""
    return dict.fromkeys(graph.tensors[tensor].storage for tensor in (*operator.inputs, *operator.outputs))


def _ranges(graph: Graph) -> Iterator[tuple[int, int, int | None]]:
    """(first, last, stage) of every unit, in order."""
    stages = [group for group in graph.subgraphs if group.level is Level.STAGE]
    if not stages:
        yield 0, len(graph.operators), None
        return
    at = 0
    for stage in stages:
        for index in range(at, stage.first):
            yield index, index + 1, None
        at = stage.last if stage.last is not None else len(graph.operators)
        yield stage.first, at, stage.index
    for index in range(at, len(graph.operators)):
        yield index, index + 1, None
