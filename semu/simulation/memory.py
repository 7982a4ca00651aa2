"""Device memory of every pipeline rank: exact peaks over all replicas, and the curve of one replica.

At the pipeline level a rank's memory changes when a transfer begins on its receiver (the buffer), when it ends on its
sender (the sent tensor goes, unless it is saved) and at the end of each stage; inside a stage the stage's own curve is
on top. The peak is found with the stages' summits; only where a transfer moves the ground under a stage, and the
stage could hold the peak, is the stage expanded operator by operator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semu.engine.stage import ROLES, ExpandedStage, StageProgram
from semu.graph.operator import Phase
from semu.graph.tensor import Role
from semu.parallel.data import StaticBytes, static_bytes
from semu.simulation.evaluate import Evaluation
from semu.simulation.layout import Layout
from semu.simulation.pipeline import PipelineRun
from semu.simulation.reduction import held_by_rank


@dataclass(frozen=True)
class RankPeak:
    """The highest allocation of a pipeline rank over all replicas.

    Attributes:
        size_bytes: static and dynamic together. replica: the distinct replica that reaches it.
        node: the stage during which it is reached, -1: before any stage.
    """

    size_bytes: int
    replica: int
    node: int


def rank_static(layout: Layout, rank: int) -> StaticBytes:
    """What a rank stores for its parameters all the time."""
    job = layout.job
    held = [entry[2] for entry in held_by_rank(layout, rank)]
    return static_bytes(
        sum(h.elements for h in held),
        sum(h.elements for h in held if h.parameter.requires_grad),
        dp=job.parallel.dp,
        zero=job.parallel.zero,
        tensor_dtype=job.training.precision.tensor_dtype,
        grad_dtype=job.training.grad_dtype,
    )


@dataclass(frozen=True)
class GroundEvents:
    """Changes of a rank's memory outside stages, for one replica, unsorted.

    Attributes:
        time: float64[n] [s]. size: int64[n] [bytes]. role: int[n], row of ``ROLES``.
    """

    time: NDArray[np.float64]
    size: NDArray[np.int64]
    role: NDArray[np.int64]


_ACTIVATION = ROLES.index(Role.ACTIVATION)


class RankMemory:
    """Memory of one pipeline rank.

    Args:
        layout, evaluation, run: the simulated job. rank: pipeline rank.
    """

    def __init__(self, layout: Layout, evaluation: Evaluation, run: PipelineRun, rank: int) -> None:
        self.layout, self.evaluation, self.run, self.rank = layout, evaluation, run, rank
        problem = run.problem
        self.nodes = np.flatnonzero(problem.node_rank == rank)
        self._sends = [j for j, t in enumerate(problem.transfers) if t.source == rank]
        self._receives = [j for j, t in enumerate(problem.transfers) if t.target == rank]
        self._expanded: dict[tuple[int, int, int], ExpandedStage] = {}

    def program(self, node: int) -> StageProgram:
        """The stage program of a node."""
        problem = self.run.problem
        chunk = self.layout.chunks[problem.chunk[node]]
        stage: StageProgram | None = chunk.forward if problem.phase[node] == 0 else chunk.backward
        assert stage is not None
        return stage

    def expand(self, replica: int, node: int) -> ExpandedStage:
        """Operators and memory events of a stage, relative to its beginning; cached by chunk, phase and shape."""
        problem = self.run.problem
        shape = int(self.run.stage_shape(replica)[node])
        key = (int(problem.chunk[node]), int(problem.phase[node]), shape)
        if key not in self._expanded:
            self._expanded[key] = self.program(node).expand(self.evaluation.latency[shape], self.evaluation.size[shape])
        return self._expanded[key]

    def ground(self, replica: int) -> GroundEvents:
        """Changes outside stages: data that stages start from, receive buffers, sent tensors."""
        run, problem = self.run, self.run.problem
        shapes = run.stage_shape(replica)
        times: list[float] = []
        sizes: list[int] = []
        roles: list[int] = []
        for node in self.nodes:
            loaded = self._loaded_bytes(int(problem.chunk[node]), int(problem.phase[node]), int(shapes[node]))
            if loaded:
                times.append(float(run.start[replica, node]))
                sizes.append(loaded)
                roles.append(_ACTIVATION)
        for j in self._receives:
            sent = problem.num_stages + j
            shape = run.shape[replica][problem.transfers[j].stage.microbatch]
            times.append(float(run.start[replica, sent]))
            sizes.append(int(run.sent[j, shape]))
            roles.append(_ACTIVATION)
        for released, sent in self._released(replica):
            times.append(float(run.end[replica, sent]))
            sizes.append(-released)
            roles.append(_ACTIVATION)
        return GroundEvents(np.array(times), np.array(sizes, dtype=np.int64), np.array(roles, dtype=np.int64))

    def _loaded_bytes(self, chunk: int, phase: int, shape: int) -> int:
        """Bytes of the tensors that the data loader gives to a forward stage."""
        if phase:
            return 0
        arrivals = self.layout.chunks[chunk].arrivals
        sizes = self.evaluation.chunks[chunk].arriving
        return sum(int(sizes[k, shape]) for k, source in enumerate(arrivals) if source < 0)

    def _released(self, replica: int) -> list[tuple[int, int]]:
        """(bytes, node whose end frees them) of the tensors that this rank sends away and does not keep."""
        run, problem = self.run, self.run.problem
        last_send: dict[tuple[int, Phase, int], int] = {}
        for j in self._sends:
            stage = problem.transfers[j].stage
            key = (stage.chunk, stage.phase, stage.microbatch)
            node = problem.num_stages + j
            if key not in last_send or run.end[replica, node] > run.end[replica, last_send[key]]:
                last_send[key] = node
        result = []
        for (chunk, phase, microbatch), node in last_send.items():
            shape = int(run.shape[replica][microbatch])
            stages, costs = self.layout.chunks[chunk], self.evaluation.chunks[chunk]
            if phase is Phase.FORWARD:
                gone = self._unkept(stages.forward, costs.leaving[:, shape])
            else:
                assert stages.backward is not None
                gone = self._unkept(stages.backward, costs.gradient_leaving[:, shape])
            result.append((gone, node))
        return result

    @staticmethod
    def _unkept(stage: StageProgram, sizes: NDArray[np.int64]) -> int:
        rows: dict[int, int] = {}
        for row, kept, size in zip(stage.leaving, stage.leaving_kept, sizes, strict=True):
            if row >= 0 and not kept:
                rows[row] = int(size)
        return sum(rows.values())

    # -- peaks ---------------------------------------------------------------------------------------------------
    def peak(self) -> RankPeak:
        """The exact highest allocation over all replicas."""
        static = rank_static(self.layout, self.rank).total
        best = RankPeak(static, 0, -1)
        doubtful: list[tuple[int, int, int]] = []
        for replica in range(self.run.num_replicas):
            low, high = self._summits(replica)
            if not len(low):
                continue
            top = int(np.argmax(low))
            if static + int(low[top]) > best.size_bytes:
                best = RankPeak(static + int(low[top]), replica, int(self.nodes[top]))
            doubtful += [(int(high[i]), replica, int(self.nodes[i])) for i in np.flatnonzero(high > low)]
        for bound, replica, node in sorted(doubtful, key=lambda entry: (-entry[0], entry[1], entry[2])):
            if static + bound <= best.size_bytes:
                break
            exact = static + self._exact_summit(replica, node)
            if exact > best.size_bytes:
                best = RankPeak(exact, replica, node)
        return best

    def _summits(self, replica: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Lower and upper bounds of the highest dynamic allocation during each stage of the rank."""
        run, shapes = self.run, self.run.stage_shape(replica)
        ground = self.ground(replica)
        net = np.array([self._stage_cost(int(n), "net", int(shapes[n])) for n in self.nodes], dtype=np.int64)
        peak = np.array([self._stage_cost(int(n), "peak", int(shapes[n])) for n in self.nodes], dtype=np.int64)
        start, end = run.start[replica, self.nodes], run.end[replica, self.nodes]
        order = np.lexsort((ground.size, ground.time))
        times, level = ground.time[order], np.concatenate(([0], np.cumsum(ground.size[order])))
        before = np.concatenate(([0], np.cumsum(net)))[:-1]
        at_start = level[np.searchsorted(times, start, side="right")]
        first, last = np.searchsorted(times, start, side="right"), np.searchsorted(times, end, side="left")
        highest = np.array([level[a : max(b, a) + 1].max() for a, b in zip(first, last, strict=True)], dtype=np.int64)
        return before + at_start + peak, before + highest + peak

    def _stage_cost(self, node: int, name: str, shape: int) -> int:
        problem = self.run.problem
        costs = self.evaluation.chunks[problem.chunk[node]]
        stage = costs.forward if problem.phase[node] == 0 else costs.backward
        assert stage is not None
        return int(getattr(stage, name)[shape])

    def _exact_summit(self, replica: int, node: int) -> int:
        curve_time, curve = self._curve(replica, only=node)
        inside = (curve_time >= self.run.start[replica, node]) & (curve_time <= self.run.end[replica, node])
        return int(curve.sum(axis=0)[inside].max(initial=0))

    # -- the curve -----------------------------------------------------------------------------------------------
    def curve(self, replica: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Dynamic memory of one replica as a step function: times [n] [s], bytes [num_roles, n]; starts at 0."""
        return self._curve(replica, only=None)

    def _curve(self, replica: int, only: int | None) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The curve; with ``only``, every stage but one is a single step at its end."""
        run = self.run
        ground = self.ground(replica)
        changes = np.zeros((len(ROLES), len(ground.time)), dtype=np.int64)
        changes[ground.role, np.arange(len(ground.time))] = ground.size
        times, deltas = [np.zeros(1), ground.time], [np.zeros((len(ROLES), 1), dtype=np.int64), changes]
        for node in self.nodes:
            stage = self.expand(replica, int(node))
            if only is None or node == only:
                times.append(run.start[replica, node] + stage.event_time)
                deltas.append(stage.event_bytes)
            else:
                times.append(run.end[replica, node : node + 1])
                deltas.append(stage.event_bytes.sum(axis=1, keepdims=True))
        time, delta = np.concatenate(times), np.concatenate(deltas, axis=1)
        order = np.lexsort((delta.sum(axis=0), time))
        time, level = time[order], np.cumsum(delta[:, order], axis=1)
        keep = np.append(time[1:] > time[:-1], True)
        return time[keep], level[:, keep]
