"""Device memory of every pipeline rank: exact peaks over all replicas, and the curve of one replica.

At the pipeline level a rank's memory changes when a transfer begins on its receiver (the buffer), when it ends on its
sender (the sent tensor goes, unless it is saved) and at the end of each stage; inside a stage the stage's own curve is
on top. The peak is found with the stages' summits; only where a transfer moves the ground under a stage, and the
stage could hold the peak, is the stage expanded operator by operator.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.engine.stage import ROLES, ExpandedStage, StageProgram
from semu.engine.timeline import compress_steps
from semu.graph.operator import Phase
from semu.graph.tensor import Role
from semu.parallel.data import StaticBytes, static_bytes
from semu.simulation.evaluate import Evaluation
from semu.simulation.gather import held_by_rank
from semu.simulation.layout import Layout
from semu.simulation.pipeline import PipelineRun
from semu.simulation.transfers import leaving_positions


@dataclass(frozen=True)
class RankPeak:
    """The highest allocation of a pipeline rank over all replicas.

    Attributes:
        size_bytes: static and dynamic together. replica: the distinct replica that reaches it.
        node: the stage during which it is reached, -1: between stages.
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
    """Changes of a rank's memory outside stages: data that stages start from, receive buffers, sent tensors.

    Attributes:
        time: float64[num_replicas, num_events] [s], sorted within each replica; frees come first at equal times.
        size: int64[num_replicas, num_events] [bytes].
    """

    time: NDArray[np.float64]
    size: NDArray[np.int64]


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
        release = self.run.release.get((replica, node))
        if release is not None:
            return self.program(node).expand(self.evaluation.latency[shape], self.evaluation.size[shape], release)
        key = (int(problem.chunk[node]), int(problem.phase[node]), shape)
        if key not in self._expanded:
            self._expanded[key] = self.program(node).expand(self.evaluation.latency[shape], self.evaluation.size[shape])
        return self._expanded[key]

    @cached_property
    def ground(self) -> GroundEvents:
        """Changes outside stages, for all replicas."""
        run, problem = self.run, self.run.problem
        times: list[NDArray[np.float64]] = []
        sizes: list[NDArray[np.int64]] = []
        for node in self.nodes[problem.phase[self.nodes] == 0]:
            loaded = self._loaded_bytes(int(problem.chunk[node]))
            times.append(run.start[:, node])
            sizes.append(loaded[run.shape[:, problem.microbatch[node]]])
        for j in self._receives:
            times.append(run.start[:, problem.num_stages + j])
            sizes.append(run.sent[j][run.shape[:, problem.transfers[j].stage.microbatch]])
        for j in self._sends:
            stage = problem.transfers[j].stage
            released = self._released(stage.chunk, problem.transfers[j].consumer.chunk, stage.phase)
            times.append(run.end[:, problem.num_stages + j])
            sizes.append(-released[run.shape[:, stage.microbatch]])
        if not times:
            return GroundEvents(np.zeros((run.num_replicas, 0)), np.zeros((run.num_replicas, 0), dtype=np.int64))
        time, size = np.stack(times, axis=1), np.stack(sizes, axis=1)
        order = np.argsort(size, axis=1, kind="stable")
        time, size = np.take_along_axis(time, order, axis=1), np.take_along_axis(size, order, axis=1)
        order = np.argsort(time, axis=1, kind="stable")
        return GroundEvents(np.take_along_axis(time, order, axis=1), np.take_along_axis(size, order, axis=1))

    def _loaded_bytes(self, chunk: int) -> NDArray[np.int64]:
        """Bytes of the tensors that the data loader gives to a forward stage: int64[num_shapes]."""
        arrivals = self.layout.chunks[chunk].arrivals
        sizes = self.evaluation.chunks[chunk].arriving
        loaded: NDArray[np.int64] = sizes[[k for k, source in enumerate(arrivals) if source < 0]].sum(axis=0)
        return loaded

    def _released(self, chunk: int, consumer: int, phase: Phase) -> NDArray[np.int64]:
        """Bytes that go when a stage's results have been sent to a consumer and are not kept: int64[num_shapes]."""
        stages, costs = self.layout.chunks[chunk], self.evaluation.chunks[chunk]
        if phase is Phase.FORWARD:
            return self._unkept(stages.forward, costs.leaving, range(len(stages.forward.leaving)))
        assert stages.backward is not None
        sent = leaving_positions(self.layout, chunk, consumer, phase)
        return self._unkept(stages.backward, costs.gradient_leaving, sent)

    @staticmethod
    def _unkept(stage: StageProgram, sizes: NDArray[np.int64], positions: Iterable[int]) -> NDArray[np.int64]:
        """Bytes of the tensors at some positions that nobody keeps; a tensor that stands at two counts once."""
        rows = {stage.leaving[k]: k for k in positions if stage.leaving[k] >= 0 and not stage.leaving_kept[k]}
        total: NDArray[np.int64] = sizes[list(rows.values())].sum(axis=0)
        return total

    # -- peaks ---------------------------------------------------------------------------------------------------
    def peak(self) -> RankPeak:
        """The exact highest allocation over all replicas."""
        static = rank_static(self.layout, self.rank).total
        if not len(self.nodes):
            return RankPeak(static, 0, -1)
        low, high, between = self._summits()
        replica, top = (int(i) for i in np.unravel_index(np.argmax(low), low.shape))
        best = RankPeak(static + max(int(low[replica, top]), 0), replica, int(self.nodes[top]))
        idle = int(np.argmax(between))
        if static + int(between[idle]) > best.size_bytes:
            best = RankPeak(static + int(between[idle]), idle, -1)
        doubtful = np.argwhere((high > low) & (static + high > best.size_bytes))
        bounds = high[doubtful[:, 0], doubtful[:, 1]]
        for number in np.lexsort((doubtful[:, 1], doubtful[:, 0], -bounds)):
            if static + bounds[number] <= best.size_bytes:
                break
            replica, position = (int(i) for i in doubtful[number])
            exact = static + self._exact_summit(replica, int(self.nodes[position]))
            if exact > best.size_bytes:
                best = RankPeak(exact, replica, int(self.nodes[position]))
        return best

    def _summits(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Bounds of the highest dynamic allocation during each stage, and the highest one between stages.

        Returns:
            lower and upper bounds: int64[num_replicas, num_stages of the rank]; between: int64[num_replicas].
        """
        from semu.engine.pipeline_kernels import stage_summits

        run, problem = self.run, self.run.problem
        shapes = run.shape[:, problem.microbatch[self.nodes]]
        net, peak = np.zeros(shapes.shape, dtype=np.int64), np.zeros(shapes.shape, dtype=np.int64)
        for chunk in np.unique(problem.chunk[self.nodes]):
            costs = self.evaluation.chunks[chunk]
            for phase, stage in enumerate((costs.forward, costs.backward)):
                if stage is not None:
                    mine = np.flatnonzero((problem.chunk[self.nodes] == chunk) & (problem.phase[self.nodes] == phase))
                    net[:, mine], peak[:, mine] = stage.net[shapes[:, mine]], stage.peak[shapes[:, mine]]
        for (replica, node), _ in self.run.release.items():
            here = np.flatnonzero(self.nodes == node)
            if len(here):
                level = np.cumsum(self.expand(replica, node).event_bytes.sum(axis=0))
                net[replica, here], peak[replica, here] = level[-1], max(int(level.max()), 0)
        low, high = np.zeros_like(net), np.zeros_like(net)
        between = np.zeros(len(net), dtype=np.int64)
        start = np.ascontiguousarray(run.start[:, self.nodes])
        end = np.ascontiguousarray(run.end[:, self.nodes])
        stage_summits(start, end, net, peak, self.ground.time, self.ground.size, low, high, between)
        return low, high, between

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
        run, ground = self.run, self.ground
        changes = np.zeros((len(ROLES), ground.time.shape[1]), dtype=np.int64)
        changes[_ACTIVATION] = ground.size[replica]
        times, deltas = [np.zeros(1), ground.time[replica]], [np.zeros((len(ROLES), 1), dtype=np.int64), changes]
        for node in self.nodes:
            stage = self.expand(replica, int(node))
            if only is None or node == only:
                times.append(run.start[replica, node] + stage.event_time)
                deltas.append(stage.event_bytes)
            else:
                times.append(run.end[replica, node : node + 1])
                deltas.append(stage.event_bytes.sum(axis=1, keepdims=True))
        time, delta = np.concatenate(times), np.concatenate(deltas, axis=1)
        rank = np.ones(len(time), dtype=np.int64)  # at equal times: frees outside, then stages in order, then the rest
        outside = slice(1, 1 + ground.time.shape[1])
        rank[outside] = np.where(ground.size[replica] < 0, 0, 2)
        order = np.lexsort((rank, time))
        return compress_steps(time[order], np.cumsum(delta[:, order], axis=1))
