"""Device memory of every pipeline rank: exact peaks over all replicas, and the curve of one replica."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.compile.stage import ROLES, ExpandedStage, StageProgram
from semu.engine.timeline import compress_steps
from semu.graph.tensor import Role
from semu.parallel.data import StaticBytes
from semu.simulation.context import TimedJob
from semu.simulation.memory.boundary_events import GroundEvents
from semu.simulation.memory.peaks import PipelineMemory, RankPeak
from semu.simulation.memory.static import resident_memory

_ACTIVATION = ROLES.index(Role.ACTIVATION)


class RankMemory:
    """Memory of one pipeline rank.

    Args:
        timed: the job under a schedule. rank: pipeline rank.
        pipeline: what the memories of all its ranks share.
    """

    def __init__(self, timed: TimedJob, rank: int, pipeline: PipelineMemory | None = None) -> None:
        self.layout, self.evaluation, self.run, self.rank = timed.layout, timed.evaluation, timed.run, rank
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

    @property
    def ground(self) -> GroundEvents:
        """Changes outside stages, for all replicas, but for what is held unsharded."""
        return self.pipeline.ground.of_rank(self.rank)

    @property
    def around(self) -> GroundEvents:
        """All changes outside stages, for all replicas."""
        return self.pipeline.around.of_rank(self.rank)

    def program(self, node: int) -> StageProgram:
        """The stage program of a node."""
        return self.pipeline.program(node)

    def expand(self, replica: int, node: int) -> ExpandedStage:
        """Operators and memory events of a stage, relative to its beginning; cached by all that it depends on."""
        return self.pipeline.expand(replica, node)

    def peak(self) -> RankPeak:
        """The exact highest allocation over all replicas."""
        found = self.pipeline.peaks[self.rank]
        return RankPeak(found.size_bytes + self.static.total + self.workspace, found.replica, found.node)

    # -- the curve -----------------------------------------------------------------------------------------------
    def curve(self, replica: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Dynamic memory of one replica as a step function: times [n] [s], bytes [num_roles, n]; starts at 0."""
        run, ground = self.run, self.ground
        changes = np.zeros((len(ROLES), ground.time.shape[1]), dtype=np.int64)
        changes[_ACTIVATION] = ground.size[replica]
        times, deltas = [ground.time[replica]], [changes]
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
            stage = self.expand(replica, int(node))
            times.append(run.start[replica, node] + stage.event_time)
            deltas.append(stage.event_bytes)
        time, delta = np.concatenate(times), np.concatenate(deltas, axis=1)
        order = np.lexsort((_precedence(len(time), outside), time))
        return compress_steps(time[order], np.cumsum(delta[:, order], axis=1))


def _precedence(count: int, outside: NDArray[np.int64]) -> NDArray[np.int64]:
    """Order of events at equal times: frees outside stages, then stages in order, then the rest outside.

    Args:
        count: all events. outside: int64[num_outside] [bytes], the events outside stages, which come first.
    """
    rank = np.ones(count, dtype=np.int64)
    rank[: len(outside)] = np.where(outside < 0, 0, 2)
    return rank
