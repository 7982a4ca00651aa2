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
from semu.hardware.kinds import DType, OpKind
from semu.job import Fp8Weights
from semu.nn.rules.optimizer import adam_bytes
from semu.parallel.data import Bucket, gradient_buckets
from semu.simulation.clipping import gradient_checks
from semu.simulation.evaluate import Evaluation
from semu.simulation.gather import ParameterGather
from semu.simulation.interference import interference
from semu.simulation.layout import Layout
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
    """

    reductions: tuple[OuterSlice, ...]
    optimizer: OuterSlice | None
    gathers: tuple[OuterSlice, ...]
    checks: tuple[OuterSlice, ...] = ()
    casts: tuple[OuterSlice, ...] = ()
    interference: OuterSlice | None = None

    @property
    def steps(self) -> tuple[OuterSlice, ...]:
        """The optimizer step with what surrounds it."""
        lost = (self.interference,) if self.interference else ()
        return (*lost, *self.checks, *((self.optimizer,) if self.optimizer else ()), *self.casts)

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
    reduces = job.parallel.gradient_ranks > 1 and job.parallel.zero <= 1
    if reduces and layout.cut.trainable[rank]:
        ready, elements, slots = _gradient_ready(layout, evaluation, run, rank)
        overlapped = job.training.overlap.grad_reduce
        buckets = _buckets(layout, elements, slots, overlapped=overlapped)
        pieces = _bucket_collectives(layout, model, rank, [bucket.elements * size for bucket in buckets])
        now = 0.0
        last = ready[[bucket.members[-1] for bucket in buckets]].tolist() if overlapped else [done] * len(buckets)
        for begin, own in zip(last, pieces, strict=True):
            now = max(now, begin)
            for piece in own:
                slices.append(moved(piece, now))
                now = slices[-1].end_s
        done = max(done, now)
    replicated = layout.cut.replicated[rank]
    if job.parallel.tp > 1 and job.parallel.sequence_parallel and replicated:
        group = layout.mesh.worst_tp_group
        if job.parallel.zero >= 2:
            replicated = -(-replicated // job.parallel.shard_ranks)
        slices.append(collective(model, "replicated gradients", OpKind.ALL_REDUCE, group, replicated * size, done))
    return slices


def _buckets(
    layout: Layout, elements: NDArray[np.int64], slots: NDArray[np.int64], *, overlapped: bool
) -> list[Bucket]:
    """``gradient_buckets``, remembered: the order in which gradients become ready seldom changes."""
    ranks = layout.job.parallel.gradient_ranks
    found: list[Bucket] = layout.cut.facts.get(
        ("buckets", ranks, overlapped, elements.tobytes(), slots.tobytes()),
        lambda: gradient_buckets(elements.tolist(), ranks, overlapped=overlapped, slots=slots.tolist()),
    )
    return found


def _bucket_collectives(layout: Layout, model: CostModel, rank: int, sizes: list[int]) -> list[tuple[OuterSlice, ...]]:
    """What reduces each bucket of gradients: an all-reduce; with ZeRO-1 a reduce-scatter, in groups followed by an
    all-reduce of the shard across them (Megatron-LM's ``--num-distributed-optimizer-instances``)."""
    parallel, mesh = layout.job.parallel, layout.mesh
    names = [f"gradients {number}" for number in range(len(sizes))]
    if parallel.zero == 0:
        return [(piece,) for piece in collectives(model, names, OpKind.ALL_REDUCE, mesh.dp_group(rank), sizes)]
    scattered = collectives(model, names, OpKind.REDUCE_SCATTER, mesh.shard_group(rank), sizes)
    if not parallel.is_sharded_in_groups:
        return [(piece,) for piece in scattered]
    shares = [-(-size // parallel.shard_ranks) for size in sizes]
    summed = collectives(model, names, OpKind.ALL_REDUCE, mesh.replica_group(rank), shares)
    return list(zip(scattered, summed, strict=True))


def _rank_end(run: PipelineRun, rank: int) -> float:
    return run.rank_ends[rank]


def _gradient_ready(
    layout: Layout, evaluation: Evaluation, run: PipelineRun, rank: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """When each trainable parameter's gradient is complete on the slowest replica, in that order; its elements and its
    virtual stage."""
    parameters = _trained(layout, rank)
    problem = run.problem
    ready = np.zeros(len(parameters.elements))
    by_shape = evaluation.by_shape
    is_alone = run.num_replicas == 1 and by_shape.is_few
    for chunk, writers, places in parameters.written:
        stages = layout.chunks[chunk].backward
        assert stages is not None
        node = int(problem.stage_nodes[chunk, 1][-1])
        if is_alone:
            shape = int(run.shape[0, problem.microbatch[node]])
            ends = run.start[0, node] + by_shape.ends(stages, shape)[writers]
        else:
            ends = _latest_ends(evaluation, run, stages, node, writers)
        np.maximum.at(ready, places, ends)
    ready[parameters.num_reached :] = _rank_end(run, rank)
    order = np.argsort(ready, kind="stable")
    return ready[order], parameters.elements[order], parameters.slots[order]


@dataclass(frozen=True)
class _Trained:
    """The trained parameters of a rank.

    Attributes:
        elements, slots: int64[num_parameters], of each: local elements, virtual stage.
        num_reached: so many of them, the first, get a gradient.
        written: per chunk with a backward stage, from the last to the first: its number; int64[k], operators that
            complete gradients; int64[k], the parameters whose they are.
    """

    elements: NDArray[np.int64]
    slots: NDArray[np.int64]
    num_reached: int
    written: tuple[tuple[int, NDArray[np.int64], NDArray[np.int64]], ...]


def _trained(layout: Layout, rank: int) -> _Trained:
    found: _Trained = layout.cut.facts.get(("trained", rank), lambda: _find_trained(layout, rank))
    return found


def _find_trained(layout: Layout, rank: int) -> _Trained:
    place: dict[int, int] = {}
    elements: dict[int, int] = {}
    slots: dict[int, int] = {}
    written = []
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
        for held, _ in completed:
            key = id(held.parameter)
            place.setdefault(key, len(place))
            elements[key], slots[key] = held.elements, chunk.chunk.slot
        writers = np.array([writer for _, writer in completed], dtype=np.int64)
        places = np.array([place[id(held.parameter)] for held, _ in completed], dtype=np.int64)
        written.append((chunk.chunk.index, writers, places))
    num_reached = len(place)
    for number, _, held in layout.held_by(rank):  # what no gradient reaches is reduced all the same, at the end
        key = id(held.parameter)
        if held.parameter.requires_grad and key not in place:
            place[key] = len(place)
            elements[key], slots[key] = held.elements, layout.chunks[number].chunk.slot
    return _Trained(
        np.array([elements[key] for key in place], dtype=np.int64),
        np.array([slots[key] for key in place], dtype=np.int64),
        num_reached,
        tuple(written),
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
            ends = run.start[replica, node] + stage.times(latency)[1][operators]
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
    shared: list[tuple[int, list[int]]] = layout.cut.facts.get("tied", lambda: _shared(layout))
    result = [list(slices) for slices in reductions]
    for elements, ranks in shared:
        group = job.cluster.place_group("pp", [layout.mesh.gpu(pp=rank) for rank in ranks])
        begin = max(max([_rank_end(run, rank)] + [s.end_s for s in result[rank]]) for rank in ranks)
        buffer_bytes = elements * job.training.grad_dtype.size_bytes
        for rank in ranks:
            result[rank].append(collective(model, "tied gradients", OpKind.ALL_REDUCE, group, buffer_bytes, begin))
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
    trainable = layout.cut.trainable[rank]
    if not trainable:
        return RankTail(tuple(reductions), None, ())
    dtype = job.training.precision.tensor_dtype
    share = -(-trainable // job.parallel.shard_ranks) if job.parallel.zero >= 1 else trainable
    written = layout.trained_bytes(rank)
    narrower = (trainable * dtype.size_bytes - written) * share // trainable  # primary weights in fp8
    traffic = -narrower + adam_bytes(
        share,
        tensor_dtype=dtype,
        grad_dtype=job.training.grad_dtype,
        master_dtype=job.training.master_dtype,
        state_dtype=job.training.optimizer_state_dtype,
    )
    step = replace(on_device(model, "adam", OpKind.OPTIMIZER, traffic, barrier), name="Adam step")
    gathers: tuple[OuterSlice, ...] = ()
    if job.parallel.gradient_ranks > 1 and job.parallel.zero in (1, 2) and not job.training.overlap.param_gather:
        group = layout.mesh.shard_group(rank)
        gathers = (collective(model, "parameters", OpKind.ALL_GATHER, group, written, step.end_s),)
    casts = _weight_casts(layout, model, rank, gathers[-1].end_s if gathers else step.end_s)
    return RankTail(tuple(reductions), step, gathers, casts=casts)


def _weight_casts(layout: Layout, model: CostModel, rank: int, begin_s: float) -> tuple[OuterSlice, ...]:
    """The rank's fp8 weights, cast for the next iteration: read in the parameters' type, two fp8 copies written; of
    primary fp8 weights, only transposed."""
    elements = layout.kept_fp8_elements(rank)
    if not elements:
        return ()
    traffic = elements * (layout.job.training.precision.tensor_dtype.size_bytes + 2 * DType.FP8.size_bytes)
    if layout.job.fp8_weights is Fp8Weights.PRIMARY:
        traffic = elements * 2 * DType.FP8.size_bytes
    return (on_device(model, "fp8 weights", OpKind.CAST, traffic, begin_s),)
