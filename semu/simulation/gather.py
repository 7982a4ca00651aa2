"""Overlapped parameter gathers (ZeRO-1): before the first forwards, and what those forwards wait for.

An iteration is counted from the start of its gathers. A first forward stage begins as the schedule lets it; an
operator of a block whose parameters are not there yet waits inside the stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semu.engine.costs import CostModel
from semu.engine.stage import StageProgram
from semu.engine.timeline import OuterSlice
from semu.engine.units import Edges, Slots
from semu.hardware.kinds import OpKind
from semu.parallel.data import gradient_buckets
from semu.schedule.units import PipelineUnits
from semu.simulation.evaluate import Evaluation
from semu.simulation.layout import Layout
from semu.simulation.transfers import collectives, moved


@dataclass(frozen=True)
class ParameterGather:
    """The gathers of one rank before its first forwards.

    Attributes:
        slices: one after another from time 0. last: (chunk, block) -> number of the gather that completes it.
    """

    slices: tuple[OuterSlice, ...]
    last: Mapping[tuple[int, int], int]


def parameter_gathers(layout: Layout, model: CostModel) -> dict[int, ParameterGather]:
    """The overlapped gathers of every pipeline rank; empty where nothing is gathered before the first forwards."""
    job = layout.job
    if job.parallel.gradient_ranks == 1 or job.parallel.zero not in (1, 2) or not job.training.overlap.param_gather:
        return {}
    if model.rules:
        return {rank: _gather(layout, model, rank) for rank in range(job.parallel.pp)}
    result: dict[int, ParameterGather] = {}
    for rank in range(job.parallel.pp):
        group, ranks = layout.mesh.shard_group(rank), job.parallel.gradient_ranks
        key = ("gather", rank, model, group, ranks, job.fp8_weights, job.training.precision.tensor_dtype)
        result[rank] = layout.cut.facts.get(key, lambda rank=rank: _gather(layout, model, rank))  # type: ignore[misc]
    return result


def _gather(layout: Layout, model: CostModel, rank: int) -> ParameterGather:
    job = layout.job
    held = [entry for entry in layout.held_by(rank) if entry[2].parameter.requires_grad]
    slots = [layout.chunks[chunk].chunk.slot for chunk, _, _ in held]
    ranks = job.parallel.gradient_ranks
    buckets = gradient_buckets([h.elements for _, _, h in held], ranks, overlapped=True, slots=slots)
    names = [f"parameters {number}" for number in range(len(buckets))]
    sizes = [sum(layout.weight_bytes(held[member][2]) for member in bucket.members) for bucket in buckets]
    slices: list[OuterSlice] = []
    for piece in collectives(model, names, OpKind.ALL_GATHER, layout.mesh.shard_group(rank), sizes):
        slices.append(moved(piece, slices[-1].end_s if slices else 0.0))
    last = {held[member][:2]: number for number, bucket in enumerate(buckets) for member in bucket.members}
    return ParameterGather(tuple(slices), last)


def first_forward_edges(
    layout: Layout,
    evaluation: Evaluation,
    units: PipelineUnits,
    gathers: Mapping[int, ParameterGather],
    shape: NDArray[np.int64],
    first: Sequence[Sequence[int]],
    num_nodes: int,
) -> tuple[Edges, Slots]:
    """Edges from the gathers to the operators that need them, in each chunk's first forward stage.

    Args:
        layout, evaluation, units, gathers: the job; the gathers are units too, after those of the pipeline, by rank.
        shape: int64[num_replicas, num_microbatches], distinct replicas. first: per rank, the units of its
            chunks' first forward stages, sorted.
        num_nodes: units of the pipeline, and gathers.
    """
    source: list[int] = []
    owner: list[int] = []
    op: list[int] = []
    starts: list[NDArray[np.float64]] = []
    costs: list[NDArray[np.float64]] = []
    programs: list[StageProgram] = []
    prog = np.full(num_nodes, -1, dtype=np.int32)
    cost_ptr = np.full(num_nodes, -1, dtype=np.int64)
    number: dict[int, int] = {}
    gather_unit, filled = units.num_units, 0
    for rank, gather in sorted(gathers.items()):
        for unit in first[rank]:
            chunk = layout.chunks[units.chunk[unit % units.size]]
            program = chunk.forward
            ready = [gather.last.get((chunk.chunk.index, block), -1) for block in range(len(chunk.blocks))]
            waits = np.array(ready, dtype=np.int64)[program.block]
            bound = np.flatnonzero(waits >= 0)
            latency = evaluation.latencies_of(shape[:, unit // units.size])[:, program.rows]
            source.extend((gather_unit + waits[bound]).tolist())
            owner.extend([unit] * len(bound))
            op.extend(bound.tolist())
            starts.append(_natural_starts(program, latency)[:, bound])
            costs.append(latency)
            if id(program) not in number:
                number[id(program)] = len(programs)
                programs.append(program)
            prog[unit], cost_ptr[unit] = number[id(program)], filled
            filled += program.num_ops
        gather_unit += len(gather.slices)
    by_unit = np.argsort(np.array(owner, dtype=np.int64), kind="stable")
    count = np.bincount(np.array(owner, dtype=np.int64), minlength=num_nodes)
    slot = np.empty(len(owner), dtype=np.int32)
    slot[by_unit] = np.arange(len(owner), dtype=np.int32)
    nothing = np.full(len(owner), -1, dtype=np.int32)
    slots = Slots(
        ptr=np.concatenate(([0], np.cumsum(count))).astype(np.int32),
        op=np.array(op, dtype=np.int32)[by_unit],
        start=np.ascontiguousarray(np.concatenate(starts, axis=1)[:, by_unit]),
        prog=prog,
        prog_ptr=np.concatenate(([0], np.cumsum([p.num_ops for p in programs]))).astype(np.int32),
        op_pred_ptr=np.concatenate(([0], np.cumsum(np.concatenate([np.diff(p.pred_ptr) for p in programs])))).astype(
            np.int32
        ),
        op_pred=np.concatenate([p.pred for p in programs]).astype(np.int32),
        op_stream=np.concatenate([p.stream for p in programs]).astype(np.int32),
        prog_streams=np.array([p.num_streams for p in programs], dtype=np.int32),
        cost_ptr=cost_ptr,
        op_latency=np.ascontiguousarray(np.concatenate(costs, axis=1)),
    )
    sources = np.array(source, dtype=np.int32)
    return Edges(sources, np.array(owner, dtype=np.int32), nothing, np.zeros((len(shape), 0)), slot), slots


def _natural_starts(program: StageProgram, latency: NDArray[np.float64]) -> NDArray[np.float64]:
    """Start of every operator after its stage's when nothing outside delays it: float64[num_replicas, num_ops] [s].

    Args:
        latency: float64[num_replicas, num_ops] [s].
    """
    if program.is_serial:
        return np.cumsum(latency, axis=1) - latency
    rows = np.zeros(int(program.rows.max(initial=-1)) + 1)
    result = np.empty_like(latency)
    for replica, lasts in enumerate(latency):
        rows[program.rows] = lasts
        result[replica] = program.times(rows)[0]
    return result
