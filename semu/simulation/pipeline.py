"""The pipeline of every distinct replica: node latencies from stage costs, then one fixed-order kernel call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semu.errors import InternalError
from semu.schedule.problem import PipelineProblem
from semu.simulation.evaluate import Evaluation
from semu.simulation.layout import Layout
from semu.simulation.transfers import p2p_latency, transfer_bytes


@dataclass(frozen=True)
class PipelineRun:
    """Times of all distinct replicas.

    Attributes:
        problem: structure. shape: int64[num_replicas, num_microbatches], shape of each microbatch.
        count: int64[num_replicas], how many data-parallel replicas are equal to this one.
        first: int64[num_replicas], the first of them.
        latency: float64[num_replicas, num_nodes] [s], without waiting for parameters.
        start, end: float64[num_replicas, num_nodes] [s].
        sent: int64[num_transfers, num_shapes] [bytes].
    """

    problem: PipelineProblem
    shape: NDArray[np.int64]
    count: NDArray[np.int64]
    first: NDArray[np.int64]
    latency: NDArray[np.float64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    sent: NDArray[np.int64]

    @property
    def num_replicas(self) -> int:
        """Number of distinct replicas."""
        return len(self.count)

    def stage_shape(self, replica: int) -> NDArray[np.int64]:
        """Shape of every stage node: int64[num_stages]."""
        shapes: NDArray[np.int64] = self.shape[replica][self.problem.microbatch]
        return shapes

    def makespan(self) -> NDArray[np.float64]:
        """End of each replica's last stage [s]."""
        last: NDArray[np.float64] = self.end[:, : self.problem.num_stages].max(axis=1)
        return last


def node_latencies(
    layout: Layout, evaluation: Evaluation, problem: PipelineProblem, shape: NDArray[np.int64], sent: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Latency of every stage and transfer for every distinct replica: float64[num_replicas, num_nodes] [s]."""
    latency = np.zeros((len(shape), problem.num_nodes))
    for number, costs in enumerate(evaluation.chunks):
        for phase, stage in enumerate((costs.forward, costs.backward)):
            if stage is not None:
                nodes = np.flatnonzero((problem.chunk == number) & (problem.phase == phase))
                latency[:, nodes] = stage.latency[shape[:, problem.microbatch[nodes]]]
    profile = layout.job.cluster.profile
    by_edge: dict[tuple[int, int, int, int], list[int]] = {}
    for j, transfer in enumerate(problem.transfers):
        key = (transfer.source, transfer.target, transfer.stage.chunk, transfer.consumer.chunk)
        by_edge.setdefault(key, []).append(j)
    for (source, target, _, _), numbers in by_edge.items():
        group = layout.mesh.pp_pair(source, target)
        by_shape = p2p_latency(profile, group, sent[numbers])
        microbatches = np.array([problem.transfers[j].stage.microbatch for j in numbers])
        columns = problem.num_stages + np.array(numbers)
        latency[:, columns] = by_shape[np.arange(len(numbers))[None, :], shape[:, microbatches]]
    return latency


def run_replicas(
    layout: Layout, evaluation: Evaluation, problem: PipelineProblem, floor: NDArray[np.float64] | None = None
) -> PipelineRun:
    """Time the pipeline of every distinct replica.

    Args:
        layout, evaluation, problem: the job. floor: float64[num_nodes] [s], earliest end of each node, or None.
    """
    from semu.engine.kernels import fixed_order_times

    distinct, first, count = np.unique(evaluation.shapes.index, axis=0, return_index=True, return_counts=True)
    order = np.argsort(first, kind="stable")
    shape = distinct[order]
    sent = transfer_bytes(layout, evaluation, problem)
    latency = node_latencies(layout, evaluation, problem, shape, sent)
    start, end = np.zeros_like(latency), np.zeros_like(latency)
    release = _release(problem, floor) if floor is not None else np.zeros(0)
    cursor = np.zeros(len(problem.stream_ptr) - 1, dtype=np.int64)
    for row in range(len(shape)):
        timed = fixed_order_times(
            problem.stream_ptr,
            problem.pred_ptr,
            problem.pred,
            latency[row],
            release,
            start[row],
            end[row],
            cursor,
        )
        if timed < problem.num_nodes:
            raise InternalError("a validated schedule deadlocked", where=problem.schedule.name)
    if floor is not None:
        np.maximum(end, floor, out=end)
    return PipelineRun(problem, shape, count[order], first[order], latency, start, end, sent)


def _release(problem: PipelineProblem, floor: NDArray[np.float64]) -> NDArray[np.float64]:
    """Earliest starts that follow from earliest ends: whatever comes after a node, on its stream or by dependency."""
    release = np.zeros(problem.num_nodes)
    first = set(problem.stream_ptr[:-1].tolist())
    for node in np.flatnonzero(floor > 0):
        if node + 1 < problem.num_nodes and node + 1 not in first:
            release[node + 1] = max(release[node + 1], floor[node])
    node_of_edge = np.repeat(np.arange(problem.num_nodes), np.diff(problem.pred_ptr))
    np.maximum.at(release, node_of_edge, floor[problem.pred])
    return release
