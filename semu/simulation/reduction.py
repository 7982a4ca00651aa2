"""What follows the pipeline: gradient reduction, optimizer step, parameter gathers.

Data-parallel collectives start when the slowest replica is ready. The optimizer starts when every rank's gradients
are reduced, because the gradient norm is global (Megatron-LM's clipping). With ZeRO-1 the gradients are reduce-
scattered (in groups, ``zero_group``, and then all-reduced across them), each rank steps its shard, and the parameters
are gathered: after the step, or (``overlap.param_gather``) during the next iteration's first forwards (``gather``).
With ZeRO-2 and ZeRO-3 the gradients are reduced inside the stages (``exchanges``), and with ZeRO-3 the parameters are
gathered there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from semu.engine.costs import CostModel
from semu.engine.stage import StageProgram
from semu.engine.timeline import OuterSlice
from semu.hardware.device import OFFLOAD, RELOAD
from semu.hardware.kinds import DType, OpKind
from semu.job import Fp8Weights
from semu.nn.offload import HOST_LINK
from semu.nn.rules.optimizer import adam_bytes
from semu.parallel.mesh import Mesh
from semu.simulation.buckets import RankBucket, rank_buckets, shares_parameters
from semu.simulation.clipping import gradient_checks
from semu.simulation.evaluate import Evaluation
from semu.simulation.gather import ParameterGather
from semu.simulation.interference import interference
from semu.simulation.layout import Layout
from semu.simulation.memory import rank_static
from semu.simulation.pipeline import PipelineRun
from semu.simulation.transfers import collective, collectives, moved, on_device


@dataclass(frozen=True)
class RankTail:
    """What one pipeline rank does after its last stage.

    Attributes:
        reductions: gradient collectives, in order. optimizer: the Adam step, or None where nothing trains.
        gathers: parameter all-gathers after the step.
        checks: what the gradients go through before the step: unscaling, their norm, scaling (``gradient_checks``).
        casts: fp8 copies of the weights, made after the step for the whole next iteration.
        interference: what kernels lost to hidden collectives, before the checks.
        reload, offload: copies of the optimizer state from the host and back, where it lives there.
    """

    reductions: tuple[OuterSlice, ...]
    optimizer: OuterSlice | None
    gathers: tuple[OuterSlice, ...]
    checks: tuple[OuterSlice, ...] = ()
    casts: tuple[OuterSlice, ...] = ()
    interference: OuterSlice | None = None
    reload: tuple[OuterSlice, ...] = ()
    offload: tuple[OuterSlice, ...] = ()

    @property
    def steps(self) -> tuple[OuterSlice, ...]:
        """The optimizer step with what surrounds it."""
        lost = (self.interference,) if self.interference else ()
        step = (self.optimizer,) if self.optimizer else ()
        return (*lost, *self.checks, *self.reload, *step, *self.offload, *self.casts)

    @property
    def end_s(self) -> float:
        """End of the last of them [s]."""
        slices = (*self.reductions, *self.steps, *self.gathers)
        return max((s.end_s for s in slices), default=0.0)


def rank_tails(
    layout: Layout, evaluation: Evaluation, run: PipelineRun, gathers: Mapping[int, ParameterGather]
) -> list[RankTail]:
    """Reductions, optimizer and gathers of every pipeline rank; ``gathers``: those that came before the pipeline."""
    job = layout.job
    reductions = [_reduce(layout, evaluation, run, rank) for rank in range(job.parallel.pp)]
    reductions = _tied(layout, evaluation.cost_model, run, reductions)
    losses = [interference(layout, evaluation, run, gathers, rank, slices) for rank, slices in enumerate(reductions)]
    barrier = max([float(run.makespan().max())] + [slices[-1].end_s for slices in reductions if slices])
    barrier = max(barrier, *(loss.end_s for loss in losses if loss is not None), 0.0)
    checks, barrier = gradient_checks(layout, evaluation.cost_model, barrier)
    return [
        replace(
            _finish(layout, evaluation.cost_model, rank, slices, barrier),
            checks=checks[rank],
            interference=losses[rank],
        )
        for rank, slices in enumerate(reductions)
    ]


def _reduce(layout: Layout, evaluation: Evaluation, run: PipelineRun, rank: int) -> list[OuterSlice]:
    job, model = layout.job, evaluation.cost_model
    slices: list[OuterSlice] = []
    done = _rank_end(run, rank)
    size = job.training.grad_dtype.size_bytes
    reduces = shares_parameters(layout) and job.parallel.zero <= 1
    gradients = _gradient_ready(layout, evaluation, run, rank) if reduces else _Gradients()
    if gradients.elements:
        overlapped, ready = job.training.overlap.grad_reduce, gradients.ready_s
        buckets = rank_buckets(layout, rank, gradients.keys, gradients.elements, gradients.slots, overlapped=overlapped)
        pieces = _bucket_collectives(layout, model, rank, buckets)
        now = 0.0
        for bucket, own in zip(buckets, pieces, strict=True):
            now = max(now, max(ready[i] for i in bucket.members) if overlapped else done)
            for piece in own:
                slices.append(moved(piece, now))
                now = slices[-1].end_s
        done = max(done, now)
    for mesh, elements in _replicated(layout, rank):
        if job.parallel.zero >= 2:
            elements = -(-elements // job.parallel.shard_ranks)
        group = mesh.worst_tp_group
        slices.append(collective(model, "replicated gradients", OpKind.ALL_REDUCE, group, elements * size, done))
        done = slices[-1].end_s
    return slices


def _replicated(layout: Layout, rank: int) -> list[tuple[Mesh, int]]:
    """Trainable elements that all tensor-parallel ranks hold and see part of the tokens for, by their group."""
    parallel = layout.job.parallel
    if not parallel.modules:
        is_split = parallel.tp > 1 and parallel.sequence_parallel
        held_by = layout.dense_by(rank) if is_split else []
        total = sum(held.elements for held in held_by if held.parameter.requires_grad and not held.is_sharded)
        return [(layout.mesh, total)] if total else []
    result: dict[int, tuple[Mesh, int]] = {}
    for chunk, _, held in layout.held_by(rank):
        mesh = layout.mesh_of(chunk)
        is_split = mesh.parallel.tp > 1 and mesh.parallel.sequence_parallel
        if is_split and held.parameter.requires_grad and not held.is_sharded:
            tp = mesh.parallel.tp
            result[tp] = (mesh, result.get(tp, (mesh, 0))[1] + held.elements)
    return [found for _, found in sorted(result.items(), reverse=True)]


def _bucket_collectives(
    layout: Layout, model: CostModel, rank: int, buckets: list[RankBucket]
) -> list[tuple[OuterSlice, ...]]:
    """What reduces each bucket of gradients: an all-reduce; with ZeRO-1 a reduce-scatter, in groups followed by an
    all-reduce of the shard across them (Megatron-LM's ``--num-distributed-optimizer-instances``)."""
    parallel, mesh = layout.job.parallel, layout.mesh
    size = layout.job.training.grad_dtype.size_bytes
    sizes = [bucket.elements * size for bucket in buckets]
    names = [f"gradients {number}" for number in range(len(sizes))]
    if any(bucket.pool.is_expert or bucket.pool.mesh is not mesh for bucket in buckets):  # then ZeRO-1 has no groups
        kind = OpKind.ALL_REDUCE if parallel.zero == 0 else OpKind.REDUCE_SCATTER
        return [
            (collective(model, name, kind, bucket.pool.shard_group(rank), bucket_bytes, 0.0),)
            for name, bucket, bucket_bytes in zip(names, buckets, sizes, strict=True)
        ]
    if parallel.zero == 0:
        return [(piece,) for piece in collectives(model, names, OpKind.ALL_REDUCE, mesh.dp_group(rank), sizes)]
    scattered = collectives(model, names, OpKind.REDUCE_SCATTER, mesh.shard_group(rank), sizes)
    if not parallel.is_sharded_in_groups:
        return [(piece,) for piece in scattered]
    shares = [-(-size // parallel.shard_ranks) for size in sizes]
    summed = collectives(model, names, OpKind.ALL_REDUCE, mesh.replica_group(rank), shares)
    return list(zip(scattered, summed, strict=True))


def _rank_end(run: PipelineRun, rank: int) -> float:
    nodes = np.flatnonzero(run.problem.node_rank == rank)
    return float(run.end[:, nodes].max()) if len(nodes) else 0.0


@dataclass(frozen=True)
class _Gradients:
    """When each trainable parameter's gradient is complete on the slowest replica [s], in that order; whose it is, its
    local elements, its virtual stage."""

    ready_s: tuple[float, ...] = ()
    elements: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()
    keys: tuple[int, ...] = ()


def _gradient_ready(layout: Layout, evaluation: Evaluation, run: PipelineRun, rank: int) -> _Gradients:
    problem = run.problem
    ready: dict[int, float] = {}
    elements: dict[int, int] = {}
    slots: dict[int, int] = {}
    for chunk in reversed(layout.chunks_of(rank)):
        if chunk.backward is None:
            continue
        starts = _block_starts(chunk.backward, len(chunk.blocks))
        completed = [
            (held, starts[number] + held.writer)
            for number, block in enumerate(chunk.blocks)
            for held in block.parameters
            if held.parameter.requires_grad and held.writer >= 0
        ]
        node = int(np.flatnonzero((problem.chunk == chunk.chunk.index) & (problem.phase == 1))[-1])
        writers = np.array([writer for _, writer in completed], dtype=np.int64)
        ends = _latest_ends(evaluation, run, chunk.backward, node, writers)
        for (held, _), end in zip(completed, ends.tolist(), strict=True):
            key = id(held.parameter)
            ready[key] = max(ready.get(key, 0.0), end)
            elements[key] = held.elements
            slots[key] = chunk.chunk.slot
    for number, _, held in layout.held_by(rank):  # what no gradient reaches is reduced all the same, at the end
        if held.parameter.requires_grad and id(held.parameter) not in ready:
            ready[id(held.parameter)] = _rank_end(run, rank)
            elements[id(held.parameter)] = held.elements
            slots[id(held.parameter)] = layout.chunks[number].chunk.slot
    order = sorted(ready, key=lambda key: ready[key])
    return _Gradients(
        tuple(ready[key] for key in order),
        tuple(elements[key] for key in order),
        tuple(slots[key] for key in order),
        tuple(order),
    )


_TOGETHER = 8
"""Replicas whose operators are timed before asking whether any other could still be later."""


def _latest_ends(
    evaluation: Evaluation, run: PipelineRun, stage: StageProgram, node: int, operators: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Ends of some operators of a stage on the replica where they end last: float64[len(operators)] [s].

    Replicas are asked in order of the stage's end, the last first: one that ends before every operator found so far
    cannot be later.
    """
    order = np.argsort(-run.end[:, node], kind="stable")
    shapes = run.shape[:, run.problem.microbatch[node]]
    latest = np.zeros(len(operators))
    for first in range(0, len(order), _TOGETHER):
        some = order[first : first + _TOGETHER]
        if run.end[some[0], node] <= latest.min(initial=np.inf):
            break
        for replica, latency in zip(some.tolist(), evaluation.latencies_of(shapes[some]), strict=True):
            release = run.release.get((replica, node))
            ends = run.start[replica, node] + stage.times(latency, release)[1][operators]
            np.maximum(latest, ends, out=latest)
    return latest


def _block_starts(stage: StageProgram, num_blocks: int) -> list[int]:
    """Position of each block's first operator in a stage."""
    return [int(np.argmax(stage.block == number)) for number in range(num_blocks)]


def _tied(
    layout: Layout, model: CostModel, run: PipelineRun, reductions: list[list[OuterSlice]]
) -> list[list[OuterSlice]]:
    """Parameters held by several pipeline ranks (tied embeddings): their gradients are summed over those ranks."""
    job = layout.job
    holders: dict[int, list[int]] = {}
    elements: dict[int, int] = {}
    for rank in range(job.parallel.pp):
        for _, _, held in layout.held_by(rank):
            if held.parameter.requires_grad:
                holders.setdefault(id(held.parameter), []).append(rank)
                elements[id(held.parameter)] = held.elements
    result = [list(slices) for slices in reductions]
    for key, ranks in holders.items():
        if len(ranks) < 2:
            continue
        group = job.cluster.place_group("pp", [layout.mesh.gpu(pp=rank) for rank in ranks])
        begin = max(max([_rank_end(run, rank)] + [s.end_s for s in result[rank]]) for rank in ranks)
        buffer_bytes = elements[key] * job.training.grad_dtype.size_bytes
        for rank in ranks:
            result[rank].append(collective(model, "tied gradients", OpKind.ALL_REDUCE, group, buffer_bytes, begin))
    return result


def _finish(layout: Layout, model: CostModel, rank: int, reductions: list[OuterSlice], barrier: float) -> RankTail:
    job = layout.job
    trainable = sum(h.elements for _, _, h in layout.held_by(rank) if h.parameter.requires_grad)
    if not trainable:
        return RankTail(tuple(reductions), None, ())
    dtype = job.training.precision.tensor_dtype
    narrower = sum(layout.narrower_bytes(pool) for pool in layout.pools(rank))
    if job.shards_are_masters:  # nothing is written but the masters
        narrower += layout.stepped_elements(rank) * dtype.size_bytes
    traffic = -narrower + adam_bytes(
        layout.stepped_elements(rank),
        tensor_dtype=dtype,
        grad_dtype=job.training.grad_dtype,
        master_dtype=job.training.master_dtype,
        state_dtype=job.training.optimizer_state_dtype,
    )
    reload, offload = _state_copies(layout, model, rank, barrier)
    if reload:
        barrier = reload[0].end_s
    step = replace(on_device(model, "adam", OpKind.OPTIMIZER, traffic, barrier), name="Adam step")
    offload = tuple(moved(piece, step.end_s) for piece in offload)
    done = offload[0].end_s if offload else step.end_s
    gathers: list[OuterSlice] = []
    if job.parallel.zero in (1, 2) and not job.training.overlap.param_gather:
        for pool in layout.pools(rank):
            size = sum(layout.weight_bytes(h) for h in pool.trained)
            if size and pool.ranks > 1:
                group = pool.shard_group(rank)
                gathers.append(collective(model, "parameters", OpKind.ALL_GATHER, group, size, done))
                done = gathers[-1].end_s
    casts = _weight_casts(layout, model, rank, done)
    return RankTail(tuple(reductions), step, tuple(gathers), casts=casts, reload=reload, offload=offload)


def _state_copies(
    layout: Layout, model: CostModel, rank: int, begin_s: float
) -> tuple[tuple[OuterSlice, ...], tuple[OuterSlice, ...]]:
    """The rank's optimizer state, from the host before the step and back behind it; it is not hidden behind the step.

    Bucket by bucket, so that only one is on the device; the times of all buckets are added up.
    """
    state = rank_static(layout, rank).host
    if not state:
        return (), ()
    group, back = HOST_LINK[RELOAD], HOST_LINK[OFFLOAD]
    into = collective(model, "optimizer state in", OpKind.P2P, group, state, begin_s)
    return (into,), (collective(model, "optimizer state out", OpKind.P2P, back, state, begin_s),)


def _weight_casts(layout: Layout, model: CostModel, rank: int, begin_s: float) -> tuple[OuterSlice, ...]:
    """The rank's fp8 weights, cast for the next iteration: read in the parameters' type, two fp8 copies written; of
    primary fp8 weights, only transposed."""
    elements = layout.kept_fp8_elements(rank)
    if not elements:
        return ()
    copies = 2 * (elements * DType.FP8.size_bytes + layout.kept_fp8_scale_bytes(rank))
    traffic = elements * layout.job.training.precision.tensor_dtype.size_bytes + copies
    if layout.job.fp8_weights is Fp8Weights.PRIMARY:
        traffic = copies  # one read, the other written
    return (on_device(model, "fp8 weights", OpKind.CAST, traffic, begin_s),)
