"""What surrounds the pipeline: parameter gathers before, gradient reduction, optimizer step and gathers after it.

Data-parallel collectives start when the slowest replica is ready. The optimizer starts when every rank's gradients
are reduced, because the gradient norm is global (Megatron-LM's clipping). With ZeRO-1 the gradients are reduce-
scattered, each rank steps its shard, and the parameters are gathered: after the step, or (``overlap.param_gather``)
during the next iteration's first forwards; an iteration is then counted from the start of its gathers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semu.engine.stage import StageProgram
from semu.engine.timeline import OuterSlice
from semu.graph.operator import Phase
from semu.hardware.kinds import OpKind
from semu.nn.rules.optimizer import adam_bytes
from semu.parallel.data import gradient_buckets
from semu.schedule.problem import PipelineProblem
from semu.simulation.evaluate import Evaluation
from semu.simulation.layout import HeldParameter, Layout
from semu.simulation.pipeline import PipelineRun
from semu.simulation.transfers import collective_time
from semu.units import quantize_time


@dataclass(frozen=True)
class RankTail:
    """What one pipeline rank does after its last stage.

    Attributes:
        reductions: gradient collectives, in order. optimizer: the Adam step, or None where nothing trains.
        gathers: parameter all-gathers after the step.
    """

    reductions: tuple[OuterSlice, ...]
    optimizer: OuterSlice | None
    gathers: tuple[OuterSlice, ...]

    @property
    def end_s(self) -> float:
        """End of the last of them [s]."""
        slices = (*self.reductions, *((self.optimizer,) if self.optimizer else ()), *self.gathers)
        return max((s.end_s for s in slices), default=0.0)


@dataclass(frozen=True)
class ParameterGather:
    """The gathers of one rank before its first forwards.

    Attributes:
        slices: from time 0. block_ready: (chunk, block) -> when its parameters are there [s].
    """

    slices: tuple[OuterSlice, ...]
    block_ready: dict[tuple[int, int], float]


def held_by_rank(layout: Layout, rank: int) -> list[tuple[int, int, HeldParameter]]:
    """(chunk, block, parameter) for every parameter that a rank stores, each once, in forward order."""
    seen: set[int] = set()
    result = []
    for chunk in layout.chunks_of(rank):
        for number, block in enumerate(chunk.blocks):
            for held in block.parameters:
                if id(held.parameter) not in seen:
                    seen.add(id(held.parameter))
                    result.append((chunk.chunk.index, number, held))
    return result


def parameter_gather(layout: Layout, rank: int) -> ParameterGather | None:
    """The overlapped gathers at the iteration's start, or None where there are none."""
    job = layout.job
    if job.parallel.dp == 1 or job.parallel.zero == 0 or not job.training.overlap.param_gather:
        return None
    held = [entry for entry in held_by_rank(layout, rank) if entry[2].parameter.requires_grad]
    group = layout.mesh.dp_group(rank)
    size = job.training.precision.tensor_dtype.size_bytes
    now, slices, ready = 0.0, [], {}
    buckets = gradient_buckets([h.elements for _, _, h in held], job.parallel.dp, overlapped=True)
    for number, bucket in enumerate(buckets):
        latency, wire = collective_time(job.cluster.profile, OpKind.ALL_GATHER, group, bucket.elements * size)
        slices.append(
            OuterSlice(f"parameters {number}", OpKind.ALL_GATHER, "dp", now, now + latency, wire, group.num_ranks)
        )
        now += latency
        for member in bucket.members:
            chunk, block, _ = held[member]
            ready[chunk, block] = now
    return ParameterGather(tuple(slices), ready)


def gather_floors(
    layout: Layout, evaluation: Evaluation, problem: PipelineProblem
) -> tuple[NDArray[np.float64], dict[int, ParameterGather]]:
    """Earliest ends of the first forward stages under overlapped parameter gathers.

    A stage that meets a block whose parameters are not there yet waits inside: it cannot end before the parameters'
    arrival plus the rest of its work. The rest is taken of the cheapest shape that any replica starts with.

    Returns:
        (float64[num_nodes] [s], gathers by rank).
    """
    floor = np.zeros(problem.num_nodes)
    gathers: dict[int, ParameterGather] = {}
    first: dict[int, int] = {}
    for node, stage in enumerate(problem.stages):
        if stage.phase is Phase.FORWARD:
            first.setdefault(stage.chunk, node)
    for rank in range(layout.job.parallel.pp):
        gather = parameter_gather(layout, rank)
        if gather is None:
            continue
        gathers[rank] = gather
        for chunk in layout.chunks_of(rank):
            node = first[chunk.chunk.index]
            shapes = evaluation.shapes.index[:, problem.microbatch[node]]
            shape = int(shapes[np.argmin(evaluation.chunks[chunk.chunk.index].forward.latency[shapes])])
            starts, ends = chunk.forward.times(evaluation.latency[shape])
            for number in range(len(chunk.blocks)):
                arrived = gather.block_ready.get((chunk.chunk.index, number))
                if arrived is not None:
                    rest = float(ends.max()) - float(starts[chunk.forward.block == number].min(initial=ends.max()))
                    floor[node] = max(floor[node], arrived + rest)
    return floor, gathers


def rank_tails(layout: Layout, evaluation: Evaluation, run: PipelineRun) -> list[RankTail]:
    """Reductions, optimizer and gathers of every pipeline rank."""
    job = layout.job
    reductions = [_reduce(layout, evaluation, run, rank) for rank in range(job.parallel.pp)]
    reductions = _tied(layout, run, reductions)
    barrier = max([float(run.makespan().max())] + [slices[-1].end_s for slices in reductions if slices])
    return [_finish(layout, rank, slices, barrier) for rank, slices in enumerate(reductions)]


def _reduce(layout: Layout, evaluation: Evaluation, run: PipelineRun, rank: int) -> list[OuterSlice]:
    job = layout.job
    ready, elements = _gradient_ready(layout, evaluation, run, rank)
    slices: list[OuterSlice] = []
    done = _rank_end(run, rank)
    size = job.training.grad_dtype.size_bytes
    if job.parallel.dp > 1 and elements:
        kind = OpKind.REDUCE_SCATTER if job.parallel.zero >= 1 else OpKind.ALL_REDUCE
        group = layout.mesh.dp_group(rank)
        overlapped = job.training.overlap.grad_reduce
        now = 0.0
        for number, bucket in enumerate(gradient_buckets(elements, job.parallel.dp, overlapped=overlapped)):
            latency, wire = collective_time(job.cluster.profile, kind, group, bucket.elements * size)
            begin = max(now, max(ready[i] for i in bucket.members) if overlapped else done)
            now = begin + latency
            slices.append(OuterSlice(f"gradients {number}", kind, "dp", begin, now, wire, group.num_ranks))
        done = max(done, now)
    replicated = sum(
        held.elements
        for _, _, held in held_by_rank(layout, rank)
        if held.parameter.requires_grad and not held.is_sharded
    )
    if job.parallel.tp > 1 and job.parallel.sequence_parallel and replicated:
        group = layout.mesh.worst_tp_group
        latency, wire = collective_time(job.cluster.profile, OpKind.ALL_REDUCE, group, replicated * size)
        slices.append(
            OuterSlice("replicated gradients", OpKind.ALL_REDUCE, "tp", done, done + latency, wire, group.num_ranks)
        )
    return slices


def _rank_end(run: PipelineRun, rank: int) -> float:
    nodes = np.flatnonzero(run.problem.node_rank == rank)
    return float(run.end[:, nodes].max()) if len(nodes) else 0.0


def _gradient_ready(
    layout: Layout, evaluation: Evaluation, run: PipelineRun, rank: int
) -> tuple[list[float], list[int]]:
    """When each trainable parameter's gradient is complete on the slowest replica, in that order, and its elements."""
    problem = run.problem
    last: dict[int, int] = {}
    for node, stage in enumerate(problem.stages):
        if stage.phase is not Phase.FORWARD:
            last[stage.chunk] = node
    entries: list[tuple[float, int]] = []
    seen: set[int] = set()
    for chunk in reversed(layout.chunks_of(rank)):
        if chunk.backward is None:
            continue
        node = last[chunk.chunk.index]
        ends = np.stack(
            [
                run.start[replica, node] + chunk.backward.times(evaluation.latency[run.stage_shape(replica)[node]])[1]
                for replica in range(run.num_replicas)
            ]
        ).max(axis=0)
        position = _block_starts(chunk.backward, len(chunk.blocks))
        for number, block in enumerate(chunk.blocks):
            for held in block.parameters:
                if held.parameter.requires_grad and id(held.parameter) not in seen and held.writer >= 0:
                    seen.add(id(held.parameter))
                    entries.append((float(ends[position[number] + held.writer]), held.elements))
    entries.sort(key=lambda entry: entry[0])
    return [time for time, _ in entries], [count for _, count in entries]


def _block_starts(stage: StageProgram, num_blocks: int) -> list[int]:
    """Position of each block's first operator in a stage."""
    return [int(np.argmax(stage.block == number)) for number in range(num_blocks)]


def _tied(layout: Layout, run: PipelineRun, reductions: list[list[OuterSlice]]) -> list[list[OuterSlice]]:
    """Parameters held by several pipeline ranks (tied embeddings): their gradients are summed over those ranks."""
    job = layout.job
    holders: dict[int, list[int]] = {}
    elements: dict[int, int] = {}
    for rank in range(job.parallel.pp):
        for _, _, held in held_by_rank(layout, rank):
            if held.parameter.requires_grad:
                holders.setdefault(id(held.parameter), []).append(rank)
                elements[id(held.parameter)] = held.elements
    result = [list(slices) for slices in reductions]
    for key, ranks in holders.items():
        if len(ranks) < 2:
            continue
        group = job.cluster.place_group("pp", [layout.mesh.gpu(pp=rank) for rank in ranks])
        latency, wire = collective_time(
            job.cluster.profile, OpKind.ALL_REDUCE, group, elements[key] * job.training.grad_dtype.size_bytes
        )
        begin = max(max([_rank_end(run, rank)] + [s.end_s for s in result[rank]]) for rank in ranks)
        for rank in ranks:
            result[rank].append(
                OuterSlice("tied gradients", OpKind.ALL_REDUCE, "pp", begin, begin + latency, wire, group.num_ranks)
            )
    return result


def _finish(layout: Layout, rank: int, reductions: list[OuterSlice], barrier: float) -> RankTail:
    job, profile = layout.job, layout.job.cluster.profile
    trainable = sum(h.elements for _, _, h in held_by_rank(layout, rank) if h.parameter.requires_grad)
    if not trainable:
        return RankTail(tuple(reductions), None, ())
    dtype = job.training.precision.tensor_dtype
    share = -(-trainable // job.parallel.dp) if job.parallel.zero >= 1 else trainable
    traffic = adam_bytes(share, tensor_dtype=dtype, grad_dtype=job.training.grad_dtype)
    efficiency = profile.efficiency(OpKind.OPTIMIZER)
    latency = quantize_time(efficiency.latency_s(0.0, traffic, 1.0, profile.mem_bytes_per_s.value))
    step = OuterSlice("Adam step", OpKind.OPTIMIZER, "compute", barrier, barrier + latency, 0, 1)
    gathers: tuple[OuterSlice, ...] = ()
    if job.parallel.dp > 1 and job.parallel.zero >= 1 and not job.training.overlap.param_gather:
        group = layout.mesh.dp_group(rank)
        time, wire = collective_time(profile, OpKind.ALL_GATHER, group, trainable * dtype.size_bytes)
        gathers = (
            OuterSlice("parameters", OpKind.ALL_GATHER, "dp", step.end_s, step.end_s + time, wire, group.num_ranks),
        )
    return RankTail(tuple(reductions), step, gathers)
