"""Memory of a pipeline rank outside stages: what the data loader gives, receive buffers, sent tensors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semu.engine.stage import StageProgram
from semu.graph.operator import Phase
from semu.simulation.evaluate import Evaluation
from semu.simulation.layout import Layout
from semu.simulation.pipeline import PipelineRun
from semu.simulation.transfers import leaving_positions


@dataclass(frozen=True)
class GroundEvents:
    """Changes of a rank's memory outside stages: data that stages start from, receive buffers, sent tensors.

    Attributes:
        time: float64[num_replicas, num_events] [s], sorted within each replica; frees come first at equal times.
        size: int64[num_replicas, num_events] [bytes].
    """

    time: NDArray[np.float64]
    size: NDArray[np.int64]


def ground_events(layout: Layout, evaluation: Evaluation, run: PipelineRun, rank: int) -> GroundEvents:
    """Changes outside the stages of a pipeline rank, for all replicas."""
    events = evaluation.by_shape.found(
        ("ground", run.problem, rank), lambda: _find_events(layout, evaluation, run, rank)
    )
    time = np.concatenate((run.start[:, events.begins], run.end[:, events.ends]), axis=1)
    return in_order(time, events.size[events.kind, run.shape[:, events.microbatch]])


@dataclass(frozen=True)
class _RankEvents:
    """When a rank's memory changes outside stages, whatever the times are.

    Attributes:
        begins, ends: int64[..], nodes at whose start, and at whose end, something changes.
        kind, microbatch: int64[num_events], of the changes at the starts, then at the ends.
        size: int64[num_kinds, num_shapes] [bytes].
    """

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    kind: NDArray[np.int64]
    microbatch: NDArray[np.int64]
    size: NDArray[np.int64]


def _find_events(layout: Layout, evaluation: Evaluation, run: PipelineRun, rank: int) -> _RankEvents:
    problem = run.problem
    sizes: list[NDArray[np.int64]] = []
    begins: list[tuple[NDArray[np.int64], NDArray[np.integer], int]] = []
    ends: list[tuple[NDArray[np.int64], NDArray[np.integer], int]] = []
    for chunk in layout.chunks_of(rank):
        nodes = problem.stage_nodes[chunk.chunk.index, 0]
        begins.append((nodes, problem.microbatch[nodes], len(sizes)))
        sizes.append(_loaded_bytes(layout, evaluation, chunk.chunk.index))
    for edge in run.sent.edges:
        nodes = problem.num_stages + edge.transfers
        if problem.shape.chunk_rank[edge.consumer] == rank:
            begins.append((nodes, edge.microbatch, len(sizes)))
            sizes.append(edge.size)
        if problem.shape.chunk_rank[edge.source] == rank:
            ends.append((nodes, edge.microbatch, len(sizes)))
            sizes.append(-_released(layout, evaluation, edge.source, edge.consumer, edge.phase))
    none = np.zeros(0, dtype=np.int64)
    return _RankEvents(
        begins=np.concatenate([none, *(nodes for nodes, _, _ in begins)]),
        ends=np.concatenate([none, *(nodes for nodes, _, _ in ends)]),
        kind=np.concatenate([none, *(np.full(len(nodes), kind) for nodes, _, kind in (*begins, *ends))]),
        microbatch=np.concatenate([none, *(microbatch for _, microbatch, _ in (*begins, *ends))]),
        size=np.array(sizes, dtype=np.int64).reshape(len(sizes), evaluation.num_shapes),
    )


def in_order(time: NDArray[np.float64], size: NDArray[np.int64]) -> GroundEvents:
    """Events sorted by time, then size: first all by time, then the few that share a moment by size."""
    if len(time) == 1:
        only = np.lexsort((size[0], time[0]))
        return GroundEvents(np.ascontiguousarray(time[:, only]), np.ascontiguousarray(size[:, only]))
    order = np.argsort(time, axis=1, kind="stable")
    time = np.ascontiguousarray(np.take_along_axis(time, order, axis=1))
    size = np.ascontiguousarray(np.take_along_axis(size, order, axis=1))
    is_new = np.ones(time.shape, dtype=np.bool_)
    is_new[:, 1:] = time[:, 1:] != time[:, :-1]
    shared = ~is_new
    shared[:, :-1] |= ~is_new[:, 1:]
    where = np.flatnonzero(shared)
    flat = size.reshape(-1)
    moment, sizes = np.cumsum(is_new)[where], flat[where]
    flat[where] = sizes[np.lexsort((sizes, moment))]
    return GroundEvents(time, size)


def _loaded_bytes(layout: Layout, evaluation: Evaluation, chunk: int) -> NDArray[np.int64]:
    """Bytes of the tensors that the data loader gives to a forward stage: int64[num_shapes]."""
    arrivals = layout.chunks[chunk].arrivals
    sizes = evaluation.chunks[chunk].arriving
    loaded: NDArray[np.int64] = sizes[[k for k, source in enumerate(arrivals) if source < 0]].sum(axis=0)
    return loaded


def _released(layout: Layout, evaluation: Evaluation, chunk: int, consumer: int, phase: Phase) -> NDArray[np.int64]:
    """Bytes that go when a stage's results have been sent to a consumer and are not kept: int64[num_shapes]."""
    stages, costs = layout.chunks[chunk], evaluation.chunks[chunk]
    if phase is Phase.FORWARD:
        return _unkept(stages.forward, costs.leaving, range(len(stages.forward.leaving)))
    assert stages.backward is not None
    return _unkept(stages.backward, costs.gradient_leaving, leaving_positions(layout, chunk, consumer, phase))


def _unkept(stage: StageProgram, sizes: NDArray[np.int64], positions: Iterable[int]) -> NDArray[np.int64]:
    """Bytes of the tensors at some positions that nobody keeps; a tensor that stands at two counts once."""
    rows = {stage.leaving[k]: k for k in positions if stage.leaving[k] >= 0 and not stage.leaving_kept[k]}
    total: NDArray[np.int64] = sizes[list(rows.values())].sum(axis=0)
    return total
