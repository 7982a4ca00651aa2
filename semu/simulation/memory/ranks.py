"""Device memory of every pipeline rank: static memory, exact peaks over all replicas, and the curve of one replica."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from semu.compile.host_weights import host_weights
from semu.compile.layout import Layout
from semu.compile.stage import ROLES, ExpandedStage, StageProgram
from semu.costs.evaluation import Evaluation
from semu.engine.timeline import compress_steps
from semu.graph.tensor import Role
from semu.hardware.kinds import OpKind
from semu.job import Training
from semu.parallel.data import MIN_BUCKET_ELEMENTS, StaticBytes, static_bytes
from semu.simulation.memory.boundary_events import GroundEvents
from semu.simulation.memory.peaks import PipelineMemory, RankPeak
from semu.simulation.memory.workspaces import workspace_bytes
from semu.simulation.pipeline import PipelineRun


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


def resident_memory(layout: Layout) -> list[tuple[StaticBytes, int]]:
    """What every rank stores for its parameters all the time, and what libraries keep allocated [bytes]."""
    job = layout.job
    found: list[tuple[StaticBytes, int]] = layout.facts.get(
        "resident",
        lambda: [
            (
                rank_static(layout, rank),
                workspace_bytes(job.training.workspaces, job.cluster.profile, has_experts=_runs_experts(layout, rank)),
            )
            for rank in range(job.parallel.pp)
        ],
    )
    return found


def _runs_experts(layout: Layout, rank: int) -> bool:
    """Whether a rank runs grouped products."""
    templates = {block.template for chunk in layout.chunks_of(rank) for block in chunk.blocks}
    operators = (op for number in templates for op in layout.library.templates[number].operators)
    return any(operator.kind is OpKind.GROUPED_MATMUL for operator in operators)


_ACTIVATION = ROLES.index(Role.ACTIVATION)


class RankMemory:
    """Memory of one pipeline rank.

    Args:
        layout, evaluation, run: the simulated job. rank: pipeline rank.
        pipeline: what the memories of all its ranks share.
    """

    def __init__(
        self,
        layout: Layout,
        evaluation: Evaluation,
        run: PipelineRun,
        rank: int,
        pipeline: PipelineMemory | None = None,
    ) -> None:
        self.layout, self.evaluation, self.run, self.rank = layout, evaluation, run, rank
        self.pipeline = pipeline if pipeline is not None else PipelineMemory(layout, evaluation, run)
        self.nodes = run.problem.rank_nodes[rank]

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
