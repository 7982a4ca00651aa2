"""The pipeline of every distinct replica: node latencies from stage costs, then the fixed-order kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semu.errors import InternalError
from semu.hardware.kinds import OpKind
from semu.hardware.network import CommGroup
from semu.schedule.problem import PipelineProblem
from semu.simulation.evaluate import Evaluation
from semu.simulation.gather import ParameterGather, stretch
from semu.simulation.layout import Layout
from semu.simulation.transfers import transfer_bytes


@dataclass(frozen=True)
class PipelineRun:
    """Times of all distinct replicas.

    Attributes:
        problem: structure. shape: int64[num_replicas, num_microbatches], shape of each microbatch.
        count: int64[num_replicas], how many data-parallel replicas are equal to this one.
        first: int64[num_replicas], the first of them.
        plain: float64[num_replicas, num_nodes] [s], latency without waiting for parameters.
        latency: float64[num_replicas, num_nodes] [s], with it. start, end: float64[num_replicas, num_nodes] [s].
        sent: int64[num_transfers, num_shapes] [bytes].
        release: (replica, node) -> earliest starts of the operators of a stage that waits for parameters, relative to
            its beginning: float64[num_ops] [s].
    """

    problem: PipelineProblem
    shape: NDArray[np.int64]
    count: NDArray[np.int64]
    first: NDArray[np.int64]
    plain: NDArray[np.float64]
    latency: NDArray[np.float64]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    sent: NDArray[np.int64]
    release: Mapping[tuple[int, int], NDArray[np.float64]]

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


def run_replicas(
    layout: Layout, evaluation: Evaluation, problem: PipelineProblem, gathers: Mapping[int, ParameterGather]
) -> PipelineRun:
    """Time the pipeline of every distinct replica.

    Args:
        layout, evaluation, problem: the job. gathers: overlapped parameter gathers by rank.
    """
    pairs = sorted({(t.source, t.target) for t in problem.transfers})
    links = [tuple(layout.mesh.pp_pair(*pair, dp=dp) for pair in pairs) for dp in range(layout.job.parallel.dp)]
    kinds = {placement: number for number, placement in enumerate(dict.fromkeys(links))}
    rows = np.concatenate((evaluation.shapes.index, [[kinds[placement]] for placement in links]), axis=1)
    distinct, first, count = np.unique(rows, axis=0, return_index=True, return_counts=True)
    order = np.argsort(first, kind="stable")
    shape, first, count = distinct[order, :-1], first[order], count[order]
    sent = transfer_bytes(layout, evaluation, problem)
    plain = _node_latencies(evaluation, problem, shape, sent, [dict(zip(pairs, links[r], strict=True)) for r in first])
    start, end = np.zeros_like(plain), np.zeros_like(plain)
    latency = plain.copy()
    _time(problem, latency, start, end)
    release = stretch(
        layout, evaluation, problem, gathers, shape, latency, start, lambda: _time(problem, latency, start, end)
    )
    return PipelineRun(problem, shape, count, first, plain, latency, start, end, sent, release)


def _time(
    problem: PipelineProblem, latency: NDArray[np.float64], start: NDArray[np.float64], end: NDArray[np.float64]
) -> None:
    """Fill in start and end of every replica."""
    from semu.engine.kernels import fixed_order_times

    cursor = np.zeros(len(problem.stream_ptr) - 1, dtype=np.int64)
    none = np.zeros(0)
    for row in range(len(latency)):
        timed = fixed_order_times(
            problem.stream_ptr, problem.pred_ptr, problem.pred, latency[row], none, start[row], end[row], cursor
        )
        if timed < problem.num_nodes:
            raise InternalError("a validated schedule deadlocked", where=problem.schedule.name)


def _node_latencies(
    evaluation: Evaluation,
    problem: PipelineProblem,
    shape: NDArray[np.int64],
    sent: NDArray[np.int64],
    links: list[dict[tuple[int, int], CommGroup]],
) -> NDArray[np.float64]:
    """Latency of every stage and transfer for every distinct replica: float64[num_replicas, num_nodes] [s]."""
    latency = np.zeros((len(shape), problem.num_nodes))
    for number, costs in enumerate(evaluation.chunks):
        for phase, stage in enumerate((costs.forward, costs.backward)):
            if stage is not None:
                nodes = np.flatnonzero((problem.chunk == number) & (problem.phase == phase))
                latency[:, nodes] = stage.latency[shape[:, problem.microbatch[nodes]]]
    by_edge: dict[tuple[int, int, int, int], list[int]] = {}
    for j, transfer in enumerate(problem.transfers):
        key = (transfer.source, transfer.target, transfer.stage.chunk, transfer.consumer.chunk)
        by_edge.setdefault(key, []).append(j)
    for (source, target, _, _), numbers in by_edge.items():
        microbatches = np.array([problem.transfers[j].stage.microbatch for j in numbers])
        columns = problem.num_stages + np.array(numbers)
        group_of = [link[source, target] for link in links]
        for group in dict.fromkeys(group_of):
            by_shape = evaluation.cost_model.outer_latency(OpKind.P2P, "send", group=group, net_bytes=sent[numbers[0]])
            rows = np.array([replica for replica, other in enumerate(group_of) if other == group])
            latency[np.ix_(rows, columns)] = by_shape[shape[np.ix_(rows, microbatches)]]
    return latency
