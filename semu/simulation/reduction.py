"""What follows the pipeline: gradient reduction, optimizer step, parameter gathers.

Data-parallel collectives start when the slowest replica is ready. The optimizer starts when every rank's gradients
are reduced, because the gradient norm is global (Megatron-LM's clipping). With ZeRO-1 the gradients are reduce-
scattered (in groups, ``zero_group``, and then all-reduced across them), each rank steps its shard, and the parameters
are gathered: after the step, or (``overlap.param_gather``) during the next iteration's first forwards (``gather``).
With ZeRO-2 and ZeRO-3 the gradients are reduced inside the stages (``exchanges``), and with ZeRO-3 the parameters are
gathered there; where ZeRO-3 gathers once an iteration, its units are reduced here like buckets (``held_units``).
Weights that live on the host are written back behind the step and what gathers them (``weights``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from semu.engine.costs import CostModel
from semu.engine.timeline import OuterSlice
from semu.hardware.device import OFFLOAD, RELOAD
from semu.hardware.kinds import DType, OpKind
from semu.hardware.network import CommGroup
from semu.job import Fp8Weights
from semu.nn.offload import HOST_LINK
from semu.nn.rules.optimizer import adam_bytes
from semu.parallel.mesh import Mesh
from semu.simulation.buckets import RankBucket, rank_buckets, shares_parameters
from semu.simulation.clipping import gradient_checks
from semu.simulation.evaluate import Evaluation
from semu.simulation.gather import ParameterGather
from semu.simulation.gradients import gradients_ready, last_nodes, rank_end
from semu.simulation.held_units import unit_buckets, unit_collectives
from semu.simulation.interference import interference
from semu.simulation.layout import Layout
from semu.simulation.memory import rank_static
from semu.simulation.pipeline import PipelineRun
from semu.simulation.transfers import collective, collectives, moved, on_device
from semu.simulation.weights import host_weights, trained_on_host


@dataclass(frozen=True)
class RankTail:
    """What one pipeline rank does after its last stage.

    Attributes:
        reductions: gradient collectives, in order. optimizer: the Adam step, or None where nothing trains.
        gathers: parameter all-gathers after the step.
        checks: what the gradients go through before the step: unscaling, their norm, scaling (``gradient_checks``).
        casts: fp8 copies of the weights, made after the step for the whole next iteration.
        interference: what kernels lost to hidden collectives, before the checks.
        reload, offload: copies of optimizer state and weights from the host and back, where they live there.
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


@dataclass(frozen=True)
class Reduction:
    """A gradient collective and what it waits for.

    Attributes:
        piece: as timed for the slowest replica. ranks: pipeline ranks that take part. group: its communicator.
        nodes: stages whose ends it waits for on every replica, beside what its ranks reduced before.
        operators: (stage, operator) whose ends it waits for.
    """

    piece: OuterSlice
    ranks: tuple[int, ...]
    group: CommGroup
    nodes: tuple[int, ...] = ()
    operators: tuple[tuple[int, int], ...] = ()


def plan_reductions(layout: Layout, evaluation: Evaluation, run: PipelineRun) -> list[Reduction]:
    """All gradient collectives, those of each rank in order."""
    found = [piece for rank in range(layout.job.parallel.pp) for piece in _reduce(layout, evaluation, run, rank)]
    return found + _tied(layout, evaluation.cost_model, run, found)


def by_rank(layout: Layout, found: Sequence[Reduction]) -> list[list[OuterSlice]]:
    """The collectives of every pipeline rank."""
    return [[item.piece for item in found if rank in item.ranks] for rank in range(layout.job.parallel.pp)]


def rank_tails(
    layout: Layout,
    evaluation: Evaluation,
    run: PipelineRun,
    gathers: Mapping[int, ParameterGather],
    found: Sequence[Reduction] | None = None,
) -> list[RankTail]:
    """Reductions, optimizer and gathers of every pipeline rank.

    Args:
        layout, evaluation, run: the job. gathers: those that came before the pipeline.
        found: gradient collectives; None: as ``plan_reductions`` times them.
    """
    reductions = by_rank(layout, found if found is not None else plan_reductions(layout, evaluation, run))
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


def _reduce(layout: Layout, evaluation: Evaluation, run: PipelineRun, rank: int) -> list[Reduction]:
    job, model = layout.job, evaluation.cost_model
    found: list[Reduction] = []
    done, last = rank_end(run, rank), last_nodes(run, rank)
    size = job.training.grad_dtype.size_bytes
    reduces = shares_parameters(layout) and (job.parallel.zero <= 1 or job.gathers_once)
    if reduces and layout.cut.trainable[rank]:
        ready = gradients_ready(layout, evaluation, run, rank)
        overlapped = job.training.overlap.grad_reduce
        if job.gathers_once:
            units = unit_buckets(layout, rank, ready.keys, [bool(own) for own in ready.operators])
            buckets, pieces = [bucket for _, bucket in units], unit_collectives(layout, model, rank, units)
        else:
            buckets = rank_buckets(layout, rank, ready.keys, ready.elements, ready.slots, overlapped=overlapped)
            pieces = _bucket_collectives(layout, model, rank, buckets)
        now = 0.0
        for bucket, own in zip(buckets, pieces, strict=True):
            members = [ready.operators[i] for i in bucket.members]
            now = max(now, float(ready.ready_s[bucket.members[-1]]) if overlapped else done)
            waits = all(members) and overlapped
            operators = tuple(chain.from_iterable(members)) if overlapped else ()
            for piece, group in own:
                found.append(Reduction(moved(piece, now), (rank,), group, () if waits else last, operators))
                now = found[-1].piece.end_s
        done = max(done, now)
    for mesh, elements in _replicated(layout, rank):
        if job.parallel.zero >= 2:
            elements = -(-elements // job.parallel.shard_ranks)
        group = mesh.worst_tp_group
        piece = collective(model, "replicated gradients", OpKind.ALL_REDUCE, group, elements * size, done)
        found.append(Reduction(piece, (rank,), group, last))
        done = piece.end_s
    return found


def _replicated(layout: Layout, rank: int) -> list[tuple[Mesh, int]]:
    """Trainable elements that all tensor-parallel ranks hold and see part of the tokens for, by their group."""
    parallel = layout.job.parallel
    if not parallel.modules:
        is_split = parallel.tp > 1 and parallel.sequence_parallel
        total = layout.cut.replicated[rank] if is_split else 0
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
) -> list[tuple[tuple[OuterSlice, CommGroup], ...]]:
    """What reduces each bucket of gradients, and over which communicator: an all-reduce; with ZeRO-1 a reduce-scatter,
    in groups followed by an all-reduce of the shard across them (Megatron-LM's
    ``--num-distributed-optimizer-instances``)."""
    parallel, mesh = layout.job.parallel, layout.mesh
    size = layout.job.training.grad_dtype.size_bytes
    sizes = [bucket.elements * size for bucket in buckets]
    names = [f"gradients {number}" for number in range(len(sizes))]
    if any(bucket.pool.is_expert or bucket.pool.mesh is not mesh for bucket in buckets):  # then ZeRO-1 has no groups
        kind = OpKind.ALL_REDUCE if parallel.zero == 0 else OpKind.REDUCE_SCATTER
        return [
            ((collective(model, name, kind, group, bucket_bytes, 0.0), group),)
            for name, group, bucket_bytes in zip(
                names, [bucket.pool.shard_group(rank) for bucket in buckets], sizes, strict=True
            )
        ]
    if parallel.zero == 0:
        group = mesh.dp_group(rank)
        return [((piece, group),) for piece in collectives(model, names, OpKind.ALL_REDUCE, group, sizes)]
    group = mesh.shard_group(rank)
    scattered = collectives(model, names, OpKind.REDUCE_SCATTER, group, sizes)
    if not parallel.is_sharded_in_groups:
        return [((piece, group),) for piece in scattered]
    shares, across = [-(-size // parallel.shard_ranks) for size in sizes], mesh.replica_group(rank)
    summed = collectives(model, names, OpKind.ALL_REDUCE, across, shares)
    return [((first, group), (second, across)) for first, second in zip(scattered, summed, strict=True)]


def _tied(layout: Layout, model: CostModel, run: PipelineRun, found: Sequence[Reduction]) -> list[Reduction]:
    """Parameters held by several pipeline ranks (tied embeddings): their gradients are summed over those ranks."""
    job = layout.job
    shared: list[tuple[int, list[int]]] = layout.cut.facts.get("tied", lambda: _shared(layout))
    if not shared:
        return []
    ends = [[rank_end(run, rank), *(s.end_s for s in slices)] for rank, slices in enumerate(by_rank(layout, found))]
    result = []
    for elements, ranks in shared:
        group = job.cluster.place_group("pp", [layout.mesh.gpu(pp=rank) for rank in ranks])
        begin = max(max(ends[rank]) for rank in ranks)
        if job.parallel.zero >= 2:
            elements = -(-elements // job.parallel.shard_ranks)
        buffer_bytes = elements * job.training.grad_dtype.size_bytes
        piece = collective(model, "tied gradients", OpKind.ALL_REDUCE, group, buffer_bytes, begin)
        nodes = tuple(node for rank in ranks for node in last_nodes(run, rank))
        result.append(Reduction(piece, tuple(ranks), group, nodes))
        for rank in ranks:
            ends[rank].append(piece.end_s)
    return result


def _shared(layout: Layout) -> list[tuple[int, list[int]]]:
    """Elements of every trained parameter that several pipeline ranks hold, and these ranks."""
    holders: dict[int, list[int]] = {}
    elements: dict[int, int] = {}
    for rank in range(layout.job.parallel.pp):
        for _, _, held in layout.held_by(rank):
            if held.parameter.requires_grad:
                holders.setdefault(id(held.parameter), []).append(rank)
                elements[id(held.parameter)] = held.elements
    return [(elements[key], ranks) for key, ranks in holders.items() if len(ranks) > 1]


def _finish(layout: Layout, model: CostModel, rank: int, reductions: list[OuterSlice], barrier: float) -> RankTail:
    job = layout.job
    if not layout.cut.trainable[rank]:
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
    away = host_weights(layout, rank)
    if away.read:
        reload += (collective(model, "weights in", OpKind.P2P, HOST_LINK[RELOAD], away.read, barrier),)
        barrier = reload[-1].end_s
    step = replace(on_device(model, "adam", OpKind.OPTIMIZER, traffic, barrier), name="Adam step")
    offload = tuple(moved(piece, step.end_s) for piece in offload)
    done = offload[0].end_s if offload else step.end_s
    gathers: list[OuterSlice] = []
    if job.parallel.zero in (1, 2):
        for pool in layout.pools(rank):
            size = layout.trained_bytes(pool)
            if job.training.overlap.param_gather:  # all else hides behind the next first forwards
                size = trained_on_host(layout, pool) * dtype.size_bytes
            if size and pool.ranks > 1:
                group = pool.shard_group(rank)
                gathers.append(collective(model, "parameters", OpKind.ALL_GATHER, group, size, done))
                done = gathers[-1].end_s
    if away.written:
        offload += (collective(model, "weights out", OpKind.P2P, HOST_LINK[OFFLOAD], away.written, done),)
        done = offload[-1].end_s
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
