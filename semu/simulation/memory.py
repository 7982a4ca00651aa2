"""Device memory of every pipeline rank: exact peaks over all replicas, and the curve of one replica.

At the pipeline level a rank's memory changes when a transfer begins on its receiver (the buffer), when it ends on its
sender (the sent tensor goes, unless it is saved) and at the end of each stage; inside a stage the stage's own curve is
on top. The peak is found with the stages' summits; only where a transfer moves the ground under a stage, and the
stage could hold the peak, is the stage expanded operator by operator.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.engine.stage import ROLES, ExpandedStage, StageCosts, StageProgram
from semu.engine.timeline import compress_steps
from semu.graph.tensor import Role
from semu.hardware.kinds import OpKind
from semu.job import Training
from semu.parallel.data import MIN_BUCKET_ELEMENTS, StaticBytes, static_bytes
from semu.simulation.evaluate import Evaluation
from semu.simulation.ground import GroundEvents, ground_events, in_order
from semu.simulation.layout import Layout
from semu.simulation.pipeline import PipelineRun
from semu.simulation.unsharded import UnshardedMemory
from semu.simulation.weights import host_weights
from semu.simulation.workspaces import workspace_bytes


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
    fp8 = layout.kept_fp8_elements(rank), layout.primary_fp8_elements(rank), layout.kept_fp8_scale_bytes(rank)
    static = StaticBytes(0, 0, 0)
    for number, pool in enumerate(layout.pools(rank)):
        copied, primary, scales = (0, 0, 0) if number else fp8  # of all pools: only the sum counts
        static += static_bytes(
            pool.elements,
            pool.trained_elements,
            dp=pool.shards,
            zero=job.parallel.zero,
            tensor_dtype=job.training.precision.tensor_dtype,
            grad_dtype=job.training.grad_dtype,
            master_dtype=job.training.master_dtype,
            state_dtype=job.training.optimizer_state_dtype,
            fp8_elements=copied,
            fp8_primary=primary,
            fp8_scale_bytes=scales,
            shards_are_masters=job.shards_are_masters,
        )
    if job.training.offload_plan.optimizer:
        static = on_host(static, job.training)
    if not layout.cut.on_host:
        return static
    away = host_weights(layout, rank)
    return replace(
        static,
        parameters=static.parameters - away.parameters,
        optimizer=static.optimizer - away.masters,
        host_weights=away.parameters + away.masters,
    )


def on_host(static: StaticBytes, training: Training) -> StaticBytes:
    """Optimizer state on the host; one bucket of it is on the device for the step."""
    master = 0 if training.master_dtype is training.precision.tensor_dtype else training.master_dtype.size_bytes
    each = master + 2 * training.optimizer_state_dtype.size_bytes
    bucket = min(static.optimizer, MIN_BUCKET_ELEMENTS * each)
    return replace(static, optimizer=bucket, host=static.optimizer)


_ACTIVATION = ROLES.index(Role.ACTIVATION)
_AHEAD = 16
"""So many doubtful stages are looked up together."""


class RankMemory:
    """Memory of one pipeline rank.

    Args:
        layout, evaluation, run: the simulated job. rank: pipeline rank. held: what it holds unsharded outside stages.
    """

    def __init__(
        self,
        layout: Layout,
        evaluation: Evaluation,
        run: PipelineRun,
        rank: int,
        held: UnshardedMemory | None = None,
    ) -> None:
        self.layout, self.evaluation, self.run, self.rank, self.held = layout, evaluation, run, rank, held
        self.nodes = run.problem.rank_nodes[rank]
        self._rows: dict[int, tuple[NDArray[np.float64], NDArray[np.int64]]] = {}
        self._expanded: dict[tuple[int, int, int, bytes], ExpandedStage] = {}

    @cached_property
    def static(self) -> StaticBytes:
        """What the rank stores for its parameters all the time."""
        return rank_static(self.layout, self.rank)

    @cached_property
    def workspace(self) -> int:
        """What libraries keep allocated."""
        job = self.layout.job
        has_experts: bool = self.layout.cut.facts.get(("runs experts", self.rank), self._runs_experts)
        return workspace_bytes(job.training.workspaces, job.cluster.profile, has_experts=has_experts)

    def _runs_experts(self) -> bool:
        """Whether the rank runs grouped products."""
        templates = {block.template for chunk in self.layout.chunks_of(self.rank) for block in chunk.blocks}
        operators = (op for number in templates for op in self.layout.library.templates[number].operators)
        return any(operator.kind is OpKind.GROUPED_MATMUL for operator in operators)

    @cached_property
    def ground(self) -> GroundEvents:
        """Changes outside stages, for all replicas."""
        return ground_events(self.layout, self.evaluation, self.run, self.rank)

    @cached_property
    def around(self) -> GroundEvents:
        """All changes outside stages, what is held unsharded among them."""
        if self.held is None:
            return self.ground
        size = np.broadcast_to(self.held.size, self.held.time.shape)
        time = np.concatenate((self.ground.time, self.held.time), axis=1)
        return in_order(time, np.concatenate((self.ground.size, size), axis=1))

    def program(self, node: int) -> StageProgram:
        """The stage program of a node."""
        problem = self.run.problem
        chunk = self.layout.chunks[problem.chunk[node]]
        stage: StageProgram | None = chunk.forward if problem.phase[node] == 0 else chunk.backward
        assert stage is not None
        return stage

    def expand(self, replica: int, node: int) -> ExpandedStage:
        """Operators and memory events of a stage, relative to its beginning; cached by all that it depends on."""
        problem = self.run.problem
        shape = int(self.run.shape[replica, problem.microbatch[node]])
        touched = self.run.inside.get((replica, node))
        if touched is not None:
            self._load([shape])
            return self.program(node).expand_at(touched.start, touched.end, self._rows[shape][1])
        release = self.run.release.get((replica, node))
        if release is None and self.evaluation.by_shape.is_few:
            return self.evaluation.by_shape.expanded(self.program(node), shape)
        self._load([shape])
        key = (
            int(problem.chunk[node]),
            int(problem.phase[node]),
            shape,
            release.tobytes() if release is not None else b"",
        )
        if key not in self._expanded:
            self._expanded[key] = self.program(node).expand(*self._rows[shape], release)
        return self._expanded[key]

    def _load(self, shapes: Iterable[int]) -> None:
        """Look up the costs of shapes that will be expanded; many at once are cheaper than one by one."""
        missing = sorted(set(shapes) - self._rows.keys())
        if missing:
            numbers = np.array(missing)
            costs = zip(self.evaluation.latencies_of(numbers), self.evaluation.sizes_of(numbers), strict=True)
            self._rows.update(zip(missing, costs, strict=True))

    # -- peaks ---------------------------------------------------------------------------------------------------
    def peak(self) -> RankPeak:
        """The exact highest allocation over all replicas."""
        static = self.static.total + self.workspace
        if not len(self.nodes):
            return RankPeak(static, 0, -1)
        net, low, high, between = self._summits()
        replica, top = (int(i) for i in np.unravel_index(np.argmax(low), low.shape))
        best = RankPeak(static + max(int(low[replica, top]), 0), replica, int(self.nodes[top]))
        idle = int(np.argmax(between))
        if static + int(between[idle]) > best.size_bytes:
            best = RankPeak(static + int(between[idle]), idle, -1)
        doubtful = np.argwhere((high > low) & (static + high > best.size_bytes))
        bounds = high[doubtful[:, 0], doubtful[:, 1]]
        order = np.lexsort((doubtful[:, 1], doubtful[:, 0], -bounds))
        microbatch = self.run.problem.microbatch[self.nodes]
        for count, number in enumerate(order):
            if static + bounds[number] <= best.size_bytes:
                break
            if count % _AHEAD == 0 and not self.evaluation.by_shape.is_few:
                ahead = doubtful[order[count : count + _AHEAD]]
                self._load(self.run.shape[ahead[:, 0], microbatch[ahead[:, 1]]].tolist())
            replica, position = (int(i) for i in doubtful[number])
            exact = static + self._exact_summit(replica, position, net[replica])
            if exact > best.size_bytes:
                best = RankPeak(exact, replica, int(self.nodes[position]))
        return best

    def _summits(self) -> tuple[NDArray[np.int64], ...]:
        """Bounds of the highest dynamic allocation during each stage, and the highest one between stages.

        Returns:
            change by each stage, lower and upper bounds: int64[num_replicas, num_stages of the rank]; between:
            int64[num_replicas].
        """
        from semu.engine.pipeline_kernels import stage_summits

        run, problem = self.run, self.run.problem
        nodes = self.nodes
        shapes = run.shape[:, problem.microbatch[nodes]]
        kinds, kind = problem.rank_kinds[self.rank]
        costs = [self._costs(*divmod(int(number), 2)) for number in kinds]
        entry = kind * self.evaluation.num_shapes + shapes
        net = np.ascontiguousarray(np.concatenate([cost.net for cost in costs])[entry])
        peak = np.ascontiguousarray(np.concatenate([cost.peak for cost in costs])[entry])
        waiting = [
            (replica, node)
            for replica, node in run.release
            if problem.node_rank[node] == self.rank  # one after another: late or not, the same memory
            and not self.program(node).is_serial
        ]
        waiting += [(replica, node) for replica, node in run.inside if problem.node_rank[node] == self.rank]
        self._load(int(run.shape[replica, problem.microbatch[node]]) for replica, node in waiting)
        for replica, node in waiting:
            here = int(np.searchsorted(nodes, node))
            level = np.cumsum(self.expand(replica, node).event_bytes.sum(axis=0))
            net[replica, here], peak[replica, here] = level[-1], max(int(level.max()), 0)
        low, high = np.zeros_like(net), np.zeros_like(net)
        between = np.zeros(len(net), dtype=np.int64)
        start, end = np.ascontiguousarray(run.start[:, nodes]), np.ascontiguousarray(run.end[:, nodes])
        stage_summits(start, end, net, peak, self.around.time, self.around.size, low, high, between)
        return net, low, high, between

    def _costs(self, chunk: int, phase: int) -> StageCosts:
        """Costs of a chunk's stage."""
        costs = self.evaluation.chunks[chunk]
        stage = costs.forward if phase == 0 else costs.backward
        assert stage is not None
        return stage

    def _exact_summit(self, replica: int, position: int, net: NDArray[np.int64]) -> int:
        """Highest dynamic allocation during a stage, as ``curve`` has it.

        Args:
            replica, position: the stage (``nodes[position]``). net: int64[num_stages], change by each stage [bytes].
        """
        from semu.engine.pipeline_kernels import exact_summit

        run, node = self.run, self.nodes[position]
        stage = self.expand(replica, int(node))
        time, size = self._events(stage)
        ends = self._ends[replica]
        ground = self.around.time[replica], self.around.size[replica]
        span = float(run.start[replica, node]), float(run.end[replica, node])
        return int(exact_summit(*span, position, ends, net, *ground, time, size))

    def _events(self, stage: ExpandedStage) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """When a stage's memory changes, relative to its beginning and in order, and by how much."""
        known = self._sorted.get(id(stage))
        if known is None or known[0] is not stage:
            order = np.argsort(stage.event_time, kind="stable")
            sizes = np.ascontiguousarray(stage.event_bytes.sum(axis=0)[order])
            known = self._sorted[id(stage)] = stage, stage.event_time[order], sizes
        return known[1], known[2]

    @cached_property
    def _sorted(self) -> dict[int, tuple[ExpandedStage, NDArray[np.float64], NDArray[np.int64]]]:
        return {}

    @cached_property
    def _ends(self) -> NDArray[np.float64]:
        return np.ascontiguousarray(self.run.end[:, self.nodes])

    # -- the curve -----------------------------------------------------------------------------------------------
    def curve(self, replica: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Dynamic memory of one replica as a step function: times [n] [s], bytes [num_roles, n]; starts at 0."""
        run, ground = self.run, self.ground
        changes = np.zeros((len(ROLES), ground.time.shape[1]), dtype=np.int64)
        changes[_ACTIVATION] = ground.size[replica]
        times, deltas = [ground.time[replica]], [changes]
        if self.held is not None:
            changes = np.zeros((len(ROLES), len(self.held.size)), dtype=np.int64)
            changes[self.held.role, np.arange(len(self.held.size))] = self.held.size
            times.append(self.held.time[replica])
            deltas.append(changes)
        outside = np.concatenate([changes.sum(axis=0) for changes in deltas])
        times.append(np.zeros(1))
        deltas.append(np.zeros((len(ROLES), 1), dtype=np.int64))
        self._load(run.shape[replica, np.unique(run.problem.microbatch[self.nodes])].tolist())
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
