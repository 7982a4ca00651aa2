"""Overlapped parameter gathers (ZeRO-1): before the first forwards, and what those forwards wait for.

An iteration is counted from the start of its gathers. A first forward stage begins as the schedule lets it; an
operator of a block whose parameters are not there yet waits inside the stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semu.engine.costs import CostModel
from semu.engine.timeline import OuterSlice
from semu.graph.operator import Phase
from semu.hardware.kinds import OpKind
from semu.parallel.data import gradient_buckets
from semu.schedule.problem import PipelineProblem
from semu.simulation.evaluate import Evaluation
from semu.simulation.layout import Layout
from semu.simulation.tracer import HeldParameter
from semu.simulation.transfers import collective


@dataclass(frozen=True)
class ParameterGather:
    """The gathers of one rank before its first forwards.

    Attributes:
        slices: from time 0. block_ready: (chunk, block) -> when its parameters are there [s].
    """

    slices: tuple[OuterSlice, ...]
    block_ready: Mapping[tuple[int, int], float]


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


def parameter_gathers(layout: Layout, model: CostModel) -> dict[int, ParameterGather]:
    """The overlapped gathers of every pipeline rank; empty where nothing is gathered before the first forwards."""
    job = layout.job
    if job.parallel.dp == 1 or job.parallel.zero == 0 or not job.training.overlap.param_gather:
        return {}
    return {rank: _gather(layout, model, rank) for rank in range(job.parallel.pp)}


def _gather(layout: Layout, model: CostModel, rank: int) -> ParameterGather:
    job = layout.job
    held = [entry for entry in held_by_rank(layout, rank) if entry[2].parameter.requires_grad]
    group = layout.mesh.dp_group(rank)
    size = job.training.precision.tensor_dtype.size_bytes
    slices: list[OuterSlice] = []
    ready: dict[tuple[int, int], float] = {}
    buckets = gradient_buckets([h.elements for _, _, h in held], job.parallel.dp, overlapped=True)
    for number, bucket in enumerate(buckets):
        begin = slices[-1].end_s if slices else 0.0
        slices.append(
            collective(model, f"parameters {number}", OpKind.ALL_GATHER, group, bucket.elements * size, begin)
        )
        for member in bucket.members:
            chunk, block, _ = held[member]
            ready[chunk, block] = slices[-1].end_s
    return ParameterGather(tuple(slices), ready)


def stretch(
    layout: Layout,
    evaluation: Evaluation,
    problem: PipelineProblem,
    gathers: Mapping[int, ParameterGather],
    shape: NDArray[np.int64],
    latency: NDArray[np.float64],
    start: NDArray[np.float64],
    run: Callable[[], None],
) -> dict[tuple[int, int], NDArray[np.float64]]:
    """Let the first forward stages wait for their parameters, to a fixpoint.

    Each round expands the waiting stages at the starts of the round before and times the pipeline again. Along the
    chain of first stages every round settles at least one more stage, so there are at most as many as chunks.

    Args:
        layout, evaluation, problem, gathers: the job. shape: int64[num_replicas, num_microbatches].
        latency, start: float64[num_replicas, num_nodes] [s], changed. run: fills ``start`` from ``latency``.
    Returns:
        (replica, node) -> earliest starts of the stage's operators: float64[num_ops] [s].
    """
    first: dict[int, int] = {}
    for node, stage in enumerate(problem.stages):
        if stage.phase is Phase.FORWARD:
            first.setdefault(stage.chunk, node)
    plain = latency.copy()
    waiting: dict[tuple[int, int], NDArray[np.float64]] = {}
    for _ in range(len(layout.chunks) + 1 if gathers else 0):
        waiting, changed = {}, False
        for chunk_number, node in first.items():
            chunk = layout.chunks[chunk_number]
            arrivals = gathers[chunk.chunk.rank].block_ready
            ready = np.array([arrivals.get((chunk_number, number), 0.0) for number in range(len(chunk.blocks))])
            for replica in range(len(shape)):
                late = np.maximum(ready - start[replica, node], 0.0)
                lasts = plain[replica, node]
                if late.any():
                    release = late[chunk.forward.block]
                    costs = evaluation.latency[shape[replica, problem.microbatch[node]]]
                    lasts = float(chunk.forward.times(costs, release)[1].max())
                    waiting[replica, node] = release
                changed |= lasts != latency[replica, node]
                latency[replica, node] = lasts
        if not changed:
            break
        run()
    return waiting
