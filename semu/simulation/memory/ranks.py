"""Device memory of every pipeline rank: exact peaks over all replicas, and the curve of one replica."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from semu.compile.stage import ROLES
from semu.distinct import sorted_distinct
from semu.engine.sampling import pool_step_function
from semu.engine.timeline import compress_steps
from semu.graph.tensor import Role
from semu.parallel.data import StaticBytes
from semu.simulation.context import TimedJob
from semu.simulation.memory.peaks import PipelineMemory, RankPeak
from semu.simulation.memory.static import resident_memory

_ACTIVATION = ROLES.index(Role.ACTIVATION)


class RankMemory:
    """Memory of one pipeline rank."""

    def __init__(self, timed: TimedJob, rank: int, pipeline: PipelineMemory | None = None) -> None:
        self.layout, self.run, self.rank = timed.layout, timed.run, rank
        self.pipeline = pipeline if pipeline is not None else PipelineMemory(timed)
        self.nodes = timed.run.problem.rank_nodes[rank]

    @property
    def static(self) -> StaticBytes:
        """What the rank stores for its parameters all the time."""
        return resident_memory(self.layout)[self.rank][0]

    @property
    def workspace(self) -> int:
        """What libraries keep allocated."""
        return resident_memory(self.layout)[self.rank][1]

    def peak(self) -> RankPeak:
        """The exact highest allocation over all replicas."""
        dynamic = self.pipeline.peaks[self.rank]
        static, workspace = resident_memory(self.layout)[self.rank]
        return RankPeak(dynamic.size_bytes + static.total + workspace, dynamic.replica, dynamic.node)

    def curve(self, replica: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Dynamic memory of one replica as a step function: times [n] [s], bytes [num_roles, n]; starts at 0."""
        run, events = self.run, self.pipeline.boundary_events.of_rank(self.rank)
        changes = np.zeros((len(ROLES), events.time.shape[1]), dtype=np.int64)
        changes[_ACTIVATION] = events.size[replica]
        times, deltas = [events.time[replica]], [changes]
        if (held := self.pipeline.held_by(self.rank)) is not None:
            changes = np.zeros((len(ROLES), len(held.size)), dtype=np.int64)
            changes[held.role, np.arange(len(held.size))] = held.size
            times.append(held.time[replica])
            deltas.append(changes)
        outside = np.concatenate([changes.sum(axis=0) for changes in deltas])
        times.append(np.zeros(1))
        deltas.append(np.zeros((len(ROLES), 1), dtype=np.int64))
        self.pipeline.load(run.shape[replica, sorted_distinct(run.column[self.nodes])].tolist())
        for node in self.nodes:
            stage = self.pipeline.expand(replica, int(node))
            times.append(run.start[replica, node] + stage.event_time)
            deltas.append(stage.event_bytes)
        time, delta = np.concatenate(times), np.concatenate(deltas, axis=1)
        order = np.lexsort((_precedence(len(time), outside), time))
        return compress_steps(time[order], np.cumsum(delta[:, order], axis=1))

    def highest(self, replica: int, edges: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The points of ``curve`` that have most between every two edges, in time that grows with the events alone.

        Args:
            replica: as ``curve``. edges: float64[num_parts + 1] [s], increasing; a part contains its left edge.
        Returns:
            Since when each holds: float64[num_parts] [s]; int64[num_roles, num_parts] [bytes].
        """
        from semu.engine.kernels.memory_parts import highest_of_parts

        kinds, kind = self.pipeline.expanded(replica, self.nodes)
        start = self.run.start[replica, self.nodes]
        orders = [np.argsort(stage.event_time, kind="stable") for stage in kinds]
        inner = [stage.event_time[order] for stage, order in zip(kinds, orders, strict=True)]
        if not _are_in_turn(start, kind, inner):
            times, dynamic = self.curve(replica)
            kept = pool_step_function(times, dynamic.sum(axis=0), edges)
            return times[kept], dynamic[:, kept]
        outside = self._outside(replica)
        moments, levels = np.empty(len(edges) - 1), np.empty((len(ROLES), len(edges) - 1), dtype=np.int64)
        changes = [stage.event_bytes.T[order] for stage, order in zip(kinds, orders, strict=True)]
        highest_of_parts(
            *outside,
            start,
            kind,
            np.cumsum([0, *map(len, inner)]),
            np.concatenate([np.zeros(0), *inner]),
            np.concatenate([np.zeros((0, len(ROLES)), dtype=np.int64), *changes]),
            edges,
            moments,
            levels,
        )
        return moments, levels

    def _outside(self, replica: int) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        """Changes outside stages, sorted, and that nothing is held at first: times [s], roles, sizes [bytes]."""
        events = self.pipeline.boundary_events.of_rank(self.rank)
        parts = [(events.time[replica], np.full(events.time.shape[1], _ACTIVATION), events.size[replica])]
        if (held := self.pipeline.held_by(self.rank)) is not None:
            parts.append((held.time[replica], held.role, held.size))
        parts.append((np.zeros(1), np.full(1, _ACTIVATION), np.zeros(1, dtype=np.int64)))
        time, role, size = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((size >= 0, time))
        return time[order], role[order], size[order]

    def at_peak(self, peak: RankPeak) -> tuple[int, ...]:
        """What is allocated at a peak, in the order of ``Role`` [bytes]."""
        _, dynamic = self.highest(peak.replica, np.array([0.0, np.inf]))
        kinds = [int(size) for size in dynamic[:, 0]]
        static = self.static
        for role, size in (
            (Role.PARAMETER, static.parameters),
            (Role.GRADIENT, static.gradients),
            (Role.OPTIMIZER_STATE, static.optimizer),
            (Role.WORKSPACE, self.workspace),
        ):
            kinds[ROLES.index(role)] += size
        kinds[_ACTIVATION] += peak.size_bytes - sum(kinds)  # moments that are over at once
        return tuple(kinds)


def _are_in_turn(start: NDArray[np.float64], kind: NDArray[np.int64], inner: Sequence[NDArray[np.float64]]) -> bool:
    """Whether every stage's changes come behind those of the stages before it; ``inner``: of each kind, sorted [s]."""
    has_any = np.array([len(times) > 0 for times in inner], dtype=np.bool_)[kind]
    first, last = (np.array([times[place] if len(times) else 0.0 for times in inner])[kind] for place in (0, -1))
    start, first, last = start[has_any], first[has_any], last[has_any]
    return bool(((start + first)[1:] >= (start + last)[:-1]).all())


def _precedence(count: int, outside: NDArray[np.int64]) -> NDArray[np.int64]:
    """Order of events at equal times: frees outside stages, then stages in order, then the rest outside.

    Args:
        count: all events. outside: int64[num_outside] [bytes], the events outside stages, which come first.
    """
    rank = np.ones(count, dtype=np.int64)
    rank[: len(outside)] = np.where(outside < 0, 0, 2)
    return rank
