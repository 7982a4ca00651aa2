"""Device memory of every pipeline rank: exact peaks over all replicas, and the curve of one replica."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.compile.stage import ROLES
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
        self.pipeline.load(run.shape[replica, np.unique(run.column[self.nodes])].tolist())
        for node in self.nodes:
            stage = self.pipeline.expand(replica, int(node))
            times.append(run.start[replica, node] + stage.event_time)
            deltas.append(stage.event_bytes)
        time, delta = np.concatenate(times), np.concatenate(deltas, axis=1)
        order = np.lexsort((_precedence(len(time), outside), time))
        return compress_steps(time[order], np.cumsum(delta[:, order], axis=1))

    def at_peak(self, peak: RankPeak) -> tuple[int, ...]:
        """What is allocated at a peak, in the order of ``Role`` [bytes]."""
        _, dynamic = self.curve(peak.replica)
        kinds = [int(size) for size in dynamic[:, dynamic.sum(axis=0).argmax()]]
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


def _precedence(count: int, outside: NDArray[np.int64]) -> NDArray[np.int64]:
    """Order of events at equal times: frees outside stages, then stages in order, then the rest outside.

    Args:
        count: all events. outside: int64[num_outside] [bytes], the events outside stages, which come first.
    """
    rank = np.ones(count, dtype=np.int64)
    rank[: len(outside)] = np.where(outside < 0, 0, 2)
    return rank
