"""Memory of a simulated graph: the curve of each pool from the lifetimes of its storages (DESIGN §3.5)."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.compile.stage import ROLES
from semu.engine.graph_units import GraphUnits
from semu.engine.memory import MemoryCurve, PeakMemory, compress_steps
from semu.records import dataclass


@dataclass(frozen=True, eq=False)
class GraphMemory:
    """Memory of a graph whose operators have their times.

    Attributes:
        partition: the graph, and its units. start, end: float64[num_ops] [s]. size_bytes: int64[num_storages].
        capacity_bytes: of a pool.
    """

    partition: GraphUnits
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    size_bytes: NDArray[np.int64]
    capacity_bytes: int

    @cached_property
    def pools(self) -> tuple[str, ...]:
        """Names of the memory pools."""
        return tuple(dict.fromkeys(storage.pool for storage in self.partition.graph.storages))

    @cached_property
    def touches(self) -> list[tuple[int, int]]:
        """(storage, operator) for every tensor that an operator reads or writes, in order of operators."""
        graph = self.partition.graph
        return [
            (graph.tensors[tensor].storage, operator.index)
            for operator in graph.operators
            for tensor in (*operator.inputs, *operator.outputs)
        ]

    @cached_property
    def lifetimes(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """When each storage is allocated and freed [s]; infinite where it never is.

        From the start of the first operator that touches it to the end of the last one, inputs from 0, outputs for
        ever; an input that no operator touches is freed at once.
        """
        graph = self.partition.graph
        n = len(graph.storages)
        touch, by = np.array(self.touches, dtype=np.int64).reshape(-1, 2).T
        begin, stop = np.full(n, np.inf), np.full(n, -np.inf)
        np.minimum.at(begin, touch, self.start[by])
        np.maximum.at(stop, touch, self.end[by])
        inputs = [graph.tensors[tensor].storage for tensor in graph.inputs]
        outputs = [graph.tensors[tensor].storage for tensor in graph.outputs]
        begin[inputs] = 0.0
        stop[inputs] = np.maximum(stop[inputs], 0.0)
        stop[outputs] = np.inf
        stop[~np.isfinite(begin)] = np.inf
        return begin, stop

    def net_change(self, first: int, last: int) -> dict[str, int]:
        """What the operators ``first <= index < last`` leave behind, per pool [bytes].

        Storages that one of them is the first to touch (inputs are there already), less those that one of them is the
        last to touch (outputs stay).
        """
        graph = self.partition.graph
        size = self.size_bytes
        begin, stop = self.lifetimes
        kept = {graph.tensors[tensor].storage for tensor in graph.inputs}
        result = dict.fromkeys(self.pools, 0)
        comes: dict[int, int] = {}
        goes: dict[int, int] = {}
        for store, operator in self.touches:
            if self.start[operator] == begin[store]:
                comes.setdefault(store, operator)
            if self.end[operator] == stop[store]:
                goes[store] = operator
        for sign, who in ((1, comes), (-1, goes)):
            for store, operator in who.items():
                storage = graph.storages[store]
                if first <= operator < last and not storage.role.is_static and (sign < 0 or store not in kept):
                    result[storage.pool] += sign * int(size[store])
        return result

    def curve(self, pool: str) -> MemoryCurve:
        """Allocated bytes of a pool over time.

        At equal times: what began earlier is freed, then comes what begins now, then goes what lived for no time.
        """
        graph = self.partition.graph
        size = self.size_bytes
        begin, stop = self.lifetimes
        static = np.zeros(len(ROLES), dtype=np.int64)
        mine = []
        for storage in graph.storages:
            if storage.pool == pool and storage.role.is_static:
                static[ROLES.index(storage.role)] += size[storage.index]
            elif storage.pool == pool:
                mine.append(storage.index)
        chosen = np.array(mine, dtype=np.int64)
        chosen = chosen[np.isfinite(begin[chosen])]
        freed = chosen[np.isfinite(stop[chosen])]
        roles = np.array([ROLES.index(storage.role) for storage in graph.storages], dtype=np.int64)
        time = np.concatenate(([0.0], begin[chosen], stop[freed]))
        kind = np.concatenate(([-1], np.ones(len(chosen)), np.where(stop[freed] > begin[freed], 0, 2)))
        delta = np.zeros((len(ROLES), len(time)), dtype=np.int64)
        delta[:, 0] = static
        delta[roles[chosen], 1 + np.arange(len(chosen))] = size[chosen]
        delta[roles[freed], 1 + len(chosen) + np.arange(len(freed))] = -size[freed]
        order = np.lexsort((kind, time))
        times, levels = compress_steps(time[order], np.cumsum(delta[:, order], axis=1))
        return MemoryCurve(times, levels, ROLES, self.capacity_bytes)

    def peak(self, pool: str, curve: MemoryCurve) -> PeakMemory:
        """The highest point of a pool's curve, its stage and operator, and what makes it up."""
        graph = self.partition.graph
        position = int(np.argmax(curve.total))
        time = float(curve.times_s[position])
        running = np.flatnonzero((self.start <= time) & (self.end > time))
        stage, path = "", ""
        for index in running[::-1].tolist():
            operator = graph.operators[index]
            touched = (*operator.inputs, *operator.outputs)
            if any(graph.storages[graph.tensors[tensor].storage].pool == pool for tensor in touched):
                unit = self.partition.units[self.partition.unit_of[index]]
                stage = unit.name if unit.subgraph is not None else ""
                path = operator.path
                break
        by_role = {role: int(curve.by_role[i, position]) for i, role in enumerate(ROLES)}
        return PeakMemory(time, int(curve.total[position]), stage, path, by_role)
