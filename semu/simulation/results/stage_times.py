"""``stage_table``: when every stage of a job's slowest replica runs, and what its rank has allocated meanwhile."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.schedule.phases import NOTHING
from semu.schedule.stage_table import StageTable
from semu.simulation.context import PipelineRun
from semu.simulation.results.estimated import EstimatedIteration


def stage_table(run: PipelineRun, head: EstimatedIteration) -> StageTable:
    """Times of the slowest replica's stages; their memory is found when somebody asks for it."""
    nodes = np.flatnonzero(run.problem.phase != NOTHING)  # behind a whole backward among split ones
    return StageTable(
        run.problem.schedule,
        run.problem.shape,
        run.start[head.slowest, nodes],
        run.end[head.slowest, nodes],
        head.estimate.bubble_ratio,
        lambda: _highest(run, head, nodes),
    )


def _highest(run: PipelineRun, head: EstimatedIteration, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The most that each stage's rank has allocated while it runs: int64[n] [bytes]. ``nodes``: int64[n], of stages."""
    problem, pipeline = run.problem, head.memories[0].pipeline
    summits = pipeline.summits
    found = summits.low[head.slowest].copy()
    doubtful = nodes[summits.high[head.slowest, nodes] > found[nodes]]
    pipeline.load(run.shape[head.slowest, np.unique(run.column[doubtful])].tolist())
    for node in doubtful.tolist():
        found[node] = pipeline.exact_summit(head.slowest, node, with_end=False)
    kept = np.array([memory.static.total + memory.workspace for memory in head.memories], dtype=np.int64)
    highest: NDArray[np.int64] = found[nodes] + kept[problem.node_rank[nodes]]
    return highest
