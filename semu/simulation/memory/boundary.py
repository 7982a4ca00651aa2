"""Memory of a pipeline rank outside stages: what the data loader gives, receive buffers, sent tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.compile.layout import Layout
from semu.costs.evaluation import CostedJob
from semu.costs.phases import program_of
from semu.graph.operator import Phase
from semu.records import dataclass
from semu.schedule.phases import CODE_OF_PHASE
from semu.simulation.context import PipelineRun, TimedJob
from semu.simulation.memory.memory_events import MemoryEvents, unkept_bytes
from semu.simulation.memory.module_boundary import module_boundary_events
from semu.simulation.transfers import ChunkTransfers, leaving_positions


@dataclass(frozen=True)
class PipelineMemoryEvents:
    """``MemoryEvents`` of all pipeline ranks, one rank after another.

    Attributes:
        ptr: int64[num_ranks + 1], where each rank's begin. time, size: as ``MemoryEvents``.
    """

    ptr: NDArray[np.int64]
    time: NDArray[np.float64]
    size: NDArray[np.int64]

    def of_rank(self, rank: int) -> MemoryEvents:
        """Those of one rank."""
        of_rank = slice(self.ptr[rank], self.ptr[rank + 1])
        return MemoryEvents(self.time[:, of_rank], self.size[:, of_rank])

    def joined(self, more: Sequence[MemoryEvents | None]) -> PipelineMemoryEvents:
        """These and others; ``more``: of each rank, in any order, or nothing at all."""
        if not more:
            return self
        from semu.engine.kernels.pipeline_memory import sort_events

        counts = [0 if added is None else added.time.shape[1] for added in more]
        ptr = self.ptr + np.cumsum([0, *counts])
        time = np.empty((len(self.time), ptr[-1]))
        size = np.empty(time.shape, dtype=np.int64)
        for rank, added in enumerate(more):
            present, first = self.of_rank(rank), ptr[rank]
            middle = first + present.time.shape[1]
            time[:, first:middle], size[:, first:middle] = present.time, present.size
            if added is not None:
                time[:, middle : ptr[rank + 1]], size[:, middle : ptr[rank + 1]] = added.time, added.size
        sort_events(ptr, time, size)
        return PipelineMemoryEvents(ptr, time, size)


def boundary_events(timed: TimedJob) -> PipelineMemoryEvents:
    """Changes outside the stages of all pipeline ranks, for all replicas."""
    from semu.engine.kernels.pipeline_memory import sort_events

    layout, evaluation, run = timed.layout, timed.evaluation, timed.run
    problem = run.problem
    moments = np.concatenate((run.start, run.end), axis=1)
    events = _EVENTS.get(problem, (), lambda: _find_events(layout, run, moments[0]))
    sizes = _EVENT_SIZES.get(evaluation.by_shape, problem, lambda: _find_sizes(timed))
    time = moments.take(events.moment, axis=1)
    if run.num_replicas == evaluation.num_shapes == 1:
        size = sizes.take(events.kind, axis=0).reshape(1, -1)
    else:
        size = np.ascontiguousarray(sizes[events.kind, run.shape[:, events.microbatch]])
    sort_events(events.ptr, time, size)
    return PipelineMemoryEvents(events.ptr, time, size).joined(module_boundary_events(timed))


_EVENTS = memo.ScopedTable["_Events"]("changes of memory outside stages under a lowered schedule", 1, is_large=True)
_EVENT_SIZES = memo.ScopedTable["NDArray[np.int64]"](
    "sizes of such changes, for costed chunks, by schedule", 256, is_large=True
)
_UNKEPT = memo.ScopedTable["NDArray[np.int64]"](
    "bytes that go when results of costed chunks were sent, by stage, costs and tensors", 4096
)


@dataclass(frozen=True)
class _Events:
    """When ranks' memory changes outside stages, as nodes without times. Events of each rank are in the order of one
    run, from which the order of other runs differs little.

    Attributes:
        ptr: int64[num_ranks + 1], where each rank's events begin.
        moment: int64[num_events], node at whose start something changes, or, more by the number of nodes, at whose end.
        kind, microbatch: int64[num_events]; events of one kind bring or take the same thing, of a microbatch or of
            another column of the table of shapes.
    """

    ptr: NDArray[np.int64]
    moment: NDArray[np.int64]
    kind: NDArray[np.int64]
    microbatch: NDArray[np.int64]


def _find_events(layout: Layout, run: PipelineRun, moments: NDArray[np.float64]) -> _Events:
    """``moments``: float64[2 x num_nodes] [s], of the run that gives the order."""
    problem = run.problem
    moment: list[NDArray[np.int64]] = []
    microbatch: list[NDArray[np.integer]] = []
    owner: list[int] = []
    later: list[int] = []
    at = _edges_at(run)
    for rank in range(problem.shape.num_ranks):
        for chunk in layout.chunks_of(rank):
            nodes = problem.stage_nodes[chunk.chunk.index, 0]
            moment.append(nodes)
            microbatch.append(run.column[nodes])
            owner.append(rank)
            later.append(0)
        for edge, is_received in at[rank]:
            after = problem.num_stages + (0 if is_received else problem.num_nodes)
            for mine in [slice(None)] if is_received else [own for _, own in _by_variant(layout, run, edge)]:
                moment.append(edge.transfers[mine])
                microbatch.append(edge.column[mine])
                owner.append(rank)
                later.append(after)
    none = np.zeros(0, dtype=np.int64)
    counts = [len(own) for own in moment]
    of_rank = np.repeat(np.array(owner, dtype=np.int64), counts)
    every = np.concatenate([none, *moment]) + np.repeat(np.array(later, dtype=np.int64), counts)
    order = np.lexsort((moments[every], of_rank))
    return _Events(
        ptr=np.searchsorted(of_rank, np.arange(problem.shape.num_ranks + 1)),
        moment=every[order],
        kind=np.repeat(np.arange(len(counts)), counts)[order],
        microbatch=np.concatenate([none, *microbatch])[order].astype(np.int64),
    )


def _find_sizes(timed: TimedJob) -> NDArray[np.int64]:
    """What each kind of event brings or takes: int64[num_kinds, num_shapes] [bytes]."""
    layout, run = timed.layout, timed.run
    sizes: list[NDArray[np.int64]] = []
    at = _edges_at(run)
    for rank in range(run.problem.shape.num_ranks):
        sizes += [_loaded_bytes(timed, chunk.chunk.index) for chunk in layout.chunks_of(rank)]
        for edge, is_received in at[rank]:
            if is_received:
                sizes.append(edge.received)
            else:
                sizes += [
                    -_released(timed, kind, edge.source, edge.consumer, edge.phase)
                    for kind in layout.recipe.numbers[edge.source]
                ]
    return np.array(sizes, dtype=np.int64).reshape(len(sizes), timed.evaluation.num_shapes)


def _by_variant(layout: Layout, run: PipelineRun, edge: ChunkTransfers) -> list[tuple[int, NDArray[np.int64] | slice]]:
    """The variants of a chunk that send something, each with its transfers among those of the edge."""
    kinds = layout.recipe.numbers[edge.source]
    if len(kinds) == 1:
        return [(kinds[0], slice(None))]
    problem = run.problem
    sender = run.kind[problem.pred[problem.pred_ptr[problem.num_stages + edge.transfers]]]
    order = np.argsort(sender, kind="stable")
    first, stop = (np.searchsorted(sender[order], kinds, side=side).tolist() for side in ("left", "right"))
    return [(kind, order[a:b]) for kind, a, b in zip(kinds, first, stop, strict=True)]


def _edges_at(run: PipelineRun) -> list[list[tuple[ChunkTransfers, bool]]]:
    """Of every rank, the edges that end there (True), and those that begin there."""
    shape = run.problem.shape
    edges: list[list[tuple[ChunkTransfers, bool]]] = [[] for _ in range(shape.num_ranks)]
    for edge in run.sent:
        edges[shape.chunk_rank[edge.consumer]].append((edge, True))
        edges[shape.chunk_rank[edge.source]].append((edge, False))
    return edges


def _loaded_bytes(costed: CostedJob, chunk: int) -> NDArray[np.int64]:
    """Bytes of the tensors that the data loader gives to a forward stage: int64[num_shapes]."""
    arrivals = costed.layout.chunks[chunk].arrivals
    sizes = costed.evaluation.chunks[chunk].arriving
    given = [k for k, source in enumerate(arrivals) if source < 0]
    loaded: NDArray[np.int64] = sizes[given].sum(axis=0) if given else np.zeros(sizes.shape[1], dtype=np.int64)
    return loaded


def _released(costed: CostedJob, kind: int, chunk: int, consumer: int, phase: Phase) -> NDArray[np.int64]:
    """Bytes that go when a stage's results have been sent to a consumer and are not kept: int64[num_shapes]."""
    layout, evaluation = costed.layout, costed.evaluation
    if phase is Phase.FORWARD and layout.cut.has_own_reader(chunk, consumer):
        return np.zeros(evaluation.num_shapes, dtype=np.int64)
    stage, costs = program_of(layout, kind, CODE_OF_PHASE[phase]), evaluation.chunks[kind]
    sizes, positions = costs.leaving, [*range(len(stage.leaving))]
    if phase is not Phase.FORWARD:
        sizes, positions = costs.gradient_leaving, leaving_positions(layout, chunk, consumer, phase)
    key = (stage, costs, *positions)  # most chunks share both
    return _UNKEPT.get(evaluation.by_shape, key, lambda: unkept_bytes(stage, sizes, positions))
