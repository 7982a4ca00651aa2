"""``SimulatedJob``: a job under simulation as one object; ``TimedJob``: the same under a schedule.

A ``CostedJob`` (compiled and costed) becomes a ``SimulatedJob`` (its pipeline, before a schedule), that a ``TimedJob``
(its pipeline, timed under a schedule), that an ``Iteration`` (gradient reduction and optimizer timed too). Each is a
kind of the one before it, and a function takes the least of them that it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.costs.evaluation import CostedJob
from semu.engine.timeline import OuterSlice
from semu.engine.unit_graph import UnitGraph
from semu.hardware.network import CommGroup
from semu.records import dataclass
from semu.schedule.problem import PipelineProblem
from semu.schedule.units import PipelineUnits
from semu.simulation.transfers import ChunkTransfers


@dataclass(frozen=True)
class Replicas:
    """The distinct data-parallel replicas of a job.

    Attributes:
        shape: int64[num_replicas, num_microbatches], shape of each microbatch; where a plan cuts microbatches, of each
            column of its table (``SubMicrobatches``).
        count: int64[num_replicas], how many data-parallel replicas are equal to this one.
        first: int64[num_replicas], the first of them.
        of: int64[dp], which of them each data-parallel replica is.
        links: per distinct replica, the link of every pair of ranks.
    """

    shape: NDArray[np.int64]
    count: NDArray[np.int64]
    first: NDArray[np.int64]
    of: NDArray[np.int64]
    links: tuple[tuple[CommGroup, ...], ...]


@dataclass(frozen=True, eq=False)
class ParameterGather:
    """The gathers of one rank before its first forwards.

    Attributes:
        slices: one after another from time 0. groups: the communicator of each.
        last: (chunk, block) -> number of the gather that completes it.
    """

    slices: tuple[OuterSlice, ...]
    groups: tuple[CommGroup, ...]
    last: Mapping[tuple[int, int], int]


@dataclass(frozen=True)
class SimulatedJob(CostedJob):
    """A job before its schedule.

    Attributes:
        units: stages and transfers, microbatch by microbatch. replicas: distinct data-parallel replicas.
        nodes: the units consolidated, one row of latencies per distinct replica.
        gathers: overlapped parameter gathers, by pipeline rank.
    """

    units: PipelineUnits
    replicas: Replicas
    nodes: UnitGraph
    gathers: Mapping[int, ParameterGather]

    def under(self, run: PipelineRun) -> TimedJob:
        """The job under the schedule of a run."""
        return TimedJob(self.layout, self.evaluation, self.units, self.replicas, self.nodes, self.gathers, run)


@dataclass(frozen=True)
class TouchedStage:
    """A stage whose operators do not run as its template says, because others move bytes over the same ports.

    Attributes:
        start, end: float64[num_ops] [s], relative to the stage's beginning.
        held_s: how much longer it lasts for that, waiting for parameters left out.
        exposed: float64[num_streams] [s], how much longer its kernels wait for each stream.
    """

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    held_s: float
    exposed: NDArray[np.float64]


@dataclass(frozen=True)
class PipelineRun:
    """Times of all distinct replicas.

    Attributes:
        problem: structure. shape, count, first: see ``Replicas``.
        plain: float64[num_replicas, num_nodes] [s], latency without waiting for parameters or launches.
        latency: float64[num_replicas, num_nodes] [s], with it. start, end: float64[num_replicas, num_nodes] [s].
        sent: the transfers, by chunks and phase.
        release: (replica, node) -> earliest starts of the operators of a stage that waits for parameters or launches,
            relative to its beginning: float64[num_ops] [s].
        launched: float64[num_replicas, num_stages] [s], what stages wait for launches beyond their parameters; None:
            launches are not modelled.
        inside: (replica, node) -> a touched stage, under contention only; such stages are not in ``release``.
        kind: int64[num_stages], which of ``Layout.kinds`` each stage runs: its chunk, or a variant of it.
        column: int64[num_stages], column of ``shape`` with which each stage runs: its microbatch, or that of its
            sub-microbatch.
    """

    problem: PipelineProblem
    shape: NDArray[np.int64]
    count: NDArray[np.int64]
    first: NDArray[np.int64]
    plain: NDArray[np.float64]
    latency: NDArray[np.float64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    sent: tuple[ChunkTransfers, ...]
    release: Mapping[tuple[int, int], NDArray[np.float64]]
    launched: NDArray[np.float64] | None = None
    inside: Mapping[tuple[int, int], TouchedStage] = field(default_factory=dict)
    kind: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    column: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def num_replicas(self) -> int:
        """Number of distinct replicas."""
        return len(self.count)

    @cached_property
    def gather_wait(self) -> NDArray[np.float64]:
        """What every stage waits for its parameters: float64[num_replicas, num_stages] [s]."""
        stages = slice(self.problem.num_stages)
        waits: NDArray[np.float64] = self.latency[:, stages] - self.plain[:, stages]
        return waits if self.launched is None else waits - self.launched

    def waited(self, nodes: NDArray[np.int64], weights: NDArray[np.float64] | float = 1.0) -> NDArray[np.float64]:
        """How long the operators of some stages waited for parameters: float64[num_replicas] [s].

        Args:
            nodes: of the stages. weights: float64[len(nodes)], how much each of them counts.
        """
        if not (self.release or self.inside):
            return np.zeros(self.num_replicas)
        late = self.gather_wait.take(nodes, axis=1)
        place = {int(node): number for number, node in enumerate(nodes)} if self.inside else {}
        for (replica, node), touched in self.inside.items():
            if node in place:
                late[replica, place[node]] -= touched.held_s
        total: NDArray[np.float64] = (late * weights).sum(axis=1)
        return total

    def makespan(self) -> NDArray[np.float64]:
        """End of each replica's last stage [s]."""
        return self._makespan

    @cached_property
    def _makespan(self) -> NDArray[np.float64]:
        last: NDArray[np.float64] = self.end[:, : self.problem.num_stages].max(axis=1)
        return last

    @cached_property
    def done(self) -> tuple[NDArray[np.float64], ...]:
        """Per rank, the end of its last stage on every replica: float64[num_replicas] [s], 0 without stages."""
        return tuple([self.end[:, nodes].max(axis=1, initial=0.0) for nodes in self.problem.rank_nodes])

    def first_start(self, rank: int) -> float:
        """Start of a rank's first stage on the replica that is first [s]."""
        first = self.problem.rank_nodes[rank][:1]
        return float(self.start[:, first].min(initial=np.inf)) if len(first) else 0.0

    @cached_property
    def rank_ends(self) -> tuple[float, ...]:
        """Per rank, the end of its last stage on the slowest replica; 0 without stages [s]."""
        return tuple([float(done.max()) for done in self.done])


@dataclass(frozen=True)
class TimedJob(SimulatedJob):
    """A job whose pipeline is timed under a schedule.

    Attributes:
        run: the times of its pipeline.
    """

    run: PipelineRun
