"""What kernels lose to the data-parallel collectives that they hide: multiprocessors, memory bandwidth, queues.

A collective that hides behind kernels is not free: it holds multiprocessors and memory bandwidth, and frameworks issue
it late. The loss is a share of the hidden time (``SoftwareFactors.interference``), counted where a rank's kernels end:
a slice before the optimizer. It stretches the iteration and moves nothing inside it. What hides inside stages (ZeRO-2
and ZeRO-3) is counted as if hosts launched every kernel in time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from semu.compile.stage import StageProgram
from semu.compile.zero_exchange import REPLICA_STREAM
from semu.compile.zero_exchange_plans import EXPERT_STREAMS, FSDP_STREAM
from semu.costs.evaluation import Evaluation
from semu.costs.phases import costs_of, stages_of_chunk
from semu.engine.timeline import OuterSlice
from semu.hardware.kinds import OpKind
from semu.simulation.context import TimedJob
from semu.simulation.data_parallel.timed_operators import TimedOperators
from semu.units import TIME_GRID_PER_S

DATA_PARALLEL = ("dp", FSDP_STREAM, *EXPERT_STREAMS.values(), REPLICA_STREAM)
"""Streams of the data-parallel collectives."""


def interferences(timed: TimedJob, reductions: Sequence[TimedOperators]) -> list[OuterSlice | None]:
    """What every pipeline rank's kernels lose, as a slice behind its last stage and reduction; None: nothing.

    Returns:
        TimedOperators on the compute stream, of the replica on which most hides.
    """
    layout = timed.layout
    share = layout.job.profile.interference
    if share == 0:
        return [None] * len(reductions)
    return [
        _interference(timed, rank, of_rank, share)
        if "dp" in of_rank.streams or any(pool.mesh.parallel.gradient_ranks > 1 for pool in layout.pools(rank))
        else None
        for rank, of_rank in enumerate(reductions)
    ]


def _interference(timed: TimedJob, rank: int, reductions: TimedOperators, share: float) -> OuterSlice | None:
    run, training, gather = timed.run, timed.job.training, timed.gathers.get(rank)
    done = run.done[rank]
    hidden = _inside_stages(timed, rank)
    if reductions:
        begins, ends = np.array(reductions.start_s)[:, None], np.array(reductions.end_s)[:, None]
        late = np.maximum(ends - np.maximum(begins, done), 0.0)
        hidden = hidden + (ends - begins - late).sum(axis=0)
    if gather is not None and timed.job.hides_gathers:
        nodes = run.problem.rank_nodes[rank]
        total = sum(piece.end_s - piece.start_s for piece in gather.slices)
        hidden = hidden + np.maximum(total - run.waited(nodes), 0.0)
    lost = round(share * float(hidden.max()) * TIME_GRID_PER_S) / TIME_GRID_PER_S
    if lost <= 0:
        return None
    begin = max([float(done.max()), *reductions.end_s])
    provenance = timed.job.cluster.profile.software_factors(training.software).interference.provenance
    return OuterSlice("interference", OpKind.CUSTOM, "compute", begin, begin + lost, 0, 1, provenance)


def _inside_stages(timed: TimedJob, rank: int) -> NDArray[np.float64]:
    """Time of the collectives inside a rank's stages that no kernel waited for: float64[num_replicas] [s]."""
    layout, run = timed.layout, timed.run
    streams = [number for number, name in enumerate(layout.streams) if name in DATA_PARALLEL]
    hidden = np.zeros(run.num_replicas)
    if not streams:
        return hidden
    problem = run.problem
    for chunk in layout.chunks_of(rank):
        number = chunk.chunk.index
        for phase, program in stages_of_chunk(layout, number, splits=problem.splits_backward):
            stage = costs_of(timed, number, phase)
            total = _collective_time(program, streams, timed.evaluation)
            mine = np.flatnonzero((problem.chunk == chunk.chunk.index) & (problem.phase == phase))
            shapes = run.shape[:, problem.microbatch[mine]]
            hidden += (total - stage.exposed[:, streams].sum(axis=1))[shapes].sum(axis=1)
    return np.maximum(hidden, 0.0)


def _collective_time(program: StageProgram, streams: Sequence[int], evaluation: Evaluation) -> float:
    """Time of a stage's data-parallel collectives [s]; no shape changes what they move."""
    rows = program.rows[np.isin(program.stream, streams)]
    if not len(rows):
        return 0.0
    return float(evaluation.by_shape.latencies_of(np.zeros(1, dtype=np.int64))[0, rows].sum())
