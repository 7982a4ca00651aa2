"""``PipelineProblem``: a schedule lowered to arrays, stages and transfers, ready for the fixed-order kernel.

Nodes are numbered by stream in the order of execution: first one compute stream per rank, then one stream per directed
pair of ranks that exchange tensors. Latencies are separate, so that many batches share one problem. A problem is a view
of the pipeline's units in the order of a schedule: ``unit_of_nodes`` leads back to them.
"""

from __future__ import annotations

import itertools
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.graph.operator import Phase
from semu.records import dataclass
from semu.schedule.gangs.barriers import awaited_by_gangs, barrier_edges
from semu.schedule.graph import fan_out, pointers
from semu.schedule.phases import NOTHING, PHASES, WEIGHT
from semu.schedule.schedule import PipelineShape, Schedule, StageKey, stage_keys
from semu.schedule.units import Merged, PipelineUnits, Sends, completed, merged_backwards, units_of

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Transfer:
    """A P2P send of one stage's result to another chunk's rank."""

    stage: StageKey
    source: int
    target: int
    consumer: StageKey


@dataclass(frozen=True, eq=False)
class PipelineProblem:
    """Structure of one iteration's pipeline.

    Attributes:
        shape: ranks, chunks, microbatches. schedule: order of stages per rank.
        stream_ptr: int64[num_streams + 1], nodes of each stream are consecutive.
        pred_ptr, pred: CSR predecessors, int32. node_rank: int32[num_stages].
        chunk, phase, microbatch: int32[num_stages]; phase is a code of ``semu.schedule.phases``.
        unit_of_nodes: int64[num_nodes], the unit of every node.
        merged: whole backwards among split ones; None: all are whole.
    """

    shape: PipelineShape
    schedule: Schedule
    stream_ptr: NDArray[np.int64]
    pred_ptr: NDArray[np.int32]
    pred: NDArray[np.int32]
    node_rank: NDArray[np.int32]
    chunk: NDArray[np.int32]
    phase: NDArray[np.int32]
    microbatch: NDArray[np.int32]
    unit_of_nodes: NDArray[np.int64]
    merged: Merged | None = None

    @property
    def num_stages(self) -> int:
        """Number of stages; transfers follow them."""
        return len(self.chunk)

    @property
    def num_nodes(self) -> int:
        """Stages and transfers."""
        return len(self.unit_of_nodes)

    @cached_property
    def stages(self) -> tuple[StageKey, ...]:
        """Node i < ``num_stages`` is ``stages[i]``; a stage in which nothing happens is called W."""
        return tuple(stage_keys(self.chunk, np.where(self.phase == NOTHING, WEIGHT, self.phase), self.microbatch))

    @cached_property
    def taken(self) -> NDArray[np.int64]:
        """Part of the microbatch with which each transfer's reader runs: int64[num_transfers]."""
        repeat, number = np.divmod(self.unit_of_nodes[self.num_stages :], self.units.size)
        parts: NDArray[np.int64] = self.units.parts[repeat, self.units.consumer[number - self.units.num_stages]]
        return parts

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """Node ``num_stages`` + j is ``transfers[j]``."""
        units, senders = self.units, self.senders
        repeat, number = np.divmod(self.unit_of_nodes[self.num_stages :], units.size)
        copy, number = units.copy[repeat], number - units.num_stages
        reader = units.consumer[number]
        readers = stage_keys(units.chunk[copy, reader], self.phase[senders], units.parts[repeat, reader])
        ends = zip(self.node_rank[senders].tolist(), units.rank[copy, reader].tolist(), strict=True)
        return tuple(
            Transfer(self.stages[sender], source, target, key)
            for sender, (source, target), key in zip(senders.tolist(), ends, readers, strict=True)
        )

    @property
    def senders(self) -> NDArray[np.int32]:
        """int32[num_transfers], the stage node whose result each transfer moves."""
        return self.pred[self.pred_ptr[self.num_stages : -1]]

    @cached_property
    def units(self) -> PipelineUnits:
        """The same pipeline before its schedule."""
        return units_of(self.shape, self.merged)

    @property
    def splits_backward(self) -> bool:
        """Whether any backward runs in two parts."""
        return self.merged is not None

    @cached_property
    def unit_orders(self) -> list[NDArray[np.int32]]:
        """Units of the stages of each rank, in the schedule's order."""
        ends = self.stream_ptr[: self.shape.num_ranks + 1].tolist()
        return [self.unit_of_nodes[first:last].astype(np.int32) for first, last in itertools.pairwise(ends)]

    def unit_edges(self, *, overlapped_sends: bool) -> NDArray[np.int32]:
        """The schedule as edges between units; see ``PipelineUnits.order_edges``."""
        known = self._unit_edges.get(overlapped_sends)
        if known is None:
            known = self.units.order_edges(self.unit_orders, overlapped_sends=overlapped_sends)
            self._unit_edges[overlapped_sends] = known
        return known

    @cached_property
    def _unit_edges(self) -> dict[bool, NDArray[np.int32]]:
        return {}

    @cached_property
    def rank_nodes(self) -> tuple[NDArray[np.int64], ...]:
        """Per rank, its stages' nodes in order."""
        return tuple(members_of(self.node_rank, self.shape.num_ranks))

    @cached_property
    def first_forwards(self) -> tuple[list[int], ...]:
        """Per rank, the units of its chunks' first forward stages, sorted."""
        units, result = self.units, []
        for order in self.unit_orders:
            position = order % units.size
            is_forward = units.phase[position] == 0
            _, first = np.unique(units.chunks_of(order[is_forward]), return_index=True)
            result.append(sorted(order[is_forward][first].tolist()))
        return tuple(result)

    @cached_property
    def following(self) -> NDArray[np.int64]:
        """Stages that follow another one on their rank."""
        return np.flatnonzero(self.node_rank[1:] == self.node_rank[:-1]) + 1

    @cached_property
    def awaited(self) -> tuple[tuple[NDArray[np.int64], NDArray[np.int32]], ...]:
        """Stages with the first transfer that they wait for, then those that wait for a second one with that, and so
        on: int64[k], stages; int32[k], transfers."""
        n = self.num_stages
        node_of_edge = np.repeat(np.arange(self.num_nodes), np.diff(self.pred_ptr))
        is_transfer = (node_of_edge < n) & (self.pred >= n)
        nodes, transfers = node_of_edge[is_transfer], self.pred[is_transfer]
        turn = np.arange(len(nodes)) - np.searchsorted(nodes, nodes)
        return tuple((nodes[turn == number], transfers[turn == number]) for number in range(turn.max(initial=-1) + 1))

    @cached_property
    def stage_nodes(self) -> dict[tuple[int, int], NDArray[np.int64]]:
        """(chunk, phase) -> the nodes of that stage, at most one per microbatch, in order."""
        phases = range(NOTHING + 1) if self.splits_backward else range(2)
        kinds = [(chunk, phase) for chunk in range(self.shape.num_chunks) for phase in phases]
        kind = len(phases) * self.chunk.astype(np.int64) + self.phase
        return dict(zip(kinds, members_of(kind, len(kinds)), strict=True))

    @cached_property
    def transfer_edges(self) -> tuple[dict[tuple[int, int, Phase], int], NDArray[np.int64], NDArray[np.int64]]:
        """(source chunk, consumer chunk, phase) -> number of the edge, in the order of their first transfers; every
        transfer's edge and microbatch: int64[num_transfers]."""
        units, senders = self.units, self.senders
        repeat, number = np.divmod(self.unit_of_nodes[self.num_stages :], units.size)
        reader = units.chunk[units.copy[repeat], units.consumer[number - units.num_stages]]
        ends = np.stack((self.chunk[senders], reader, self.phase[senders]))
        code = np.ravel_multi_index(tuple(ends), (self.shape.num_chunks, self.shape.num_chunks, len(PHASES)))
        _, first, place = np.unique(code, return_index=True, return_inverse=True)
        order = np.argsort(first)
        turn = np.argsort(order)
        keys = [(source, target, PHASES[phase]) for source, target, phase in ends[:, first[order]].T.tolist()]
        edges = {key: number for number, key in enumerate(keys)}
        return edges, turn[place.ravel()], self.microbatch[senders].astype(np.int64)

    @cached_property
    def edge_transfers(self) -> tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...]:
        """Of every edge of ``transfer_edges``: its transfers, in order, and their microbatches."""
        number, edge, microbatch = self.transfer_edges
        return tuple([(own, microbatch[own]) for own in members_of(edge, len(number))])


def members_of(kind: NDArray[np.integer], count: int) -> list[NDArray[np.int64]]:
    """Of every kind, the positions where it stands, ascending; ``kind``: int[n], each below ``count``."""
    order = np.argsort(kind, kind="stable")
    ends = np.cumsum(np.bincount(kind, minlength=count)).tolist()
    return [order[first:last] for first, last in itertools.pairwise([0, *ends])]


def lower(schedule: Schedule, shape: PipelineShape, *, overlapped_sends: bool) -> PipelineProblem:
    """Turn a legal schedule into arrays.

    Args:
        schedule: validated. shape: what it orders.
        overlapped_sends: false: after a stage that sends, the rank's compute waits for its transfers.
    Raises:
        ScheduleError: the shape has sub-microbatches without ``joins``, or copies of the model that differ.
    """
    merged = merged_backwards(schedule)
    units, columns = units_of(shape, merged), completed(schedule.columns, merged)
    unit = units.numbers(columns)
    sends = units.sends(unit, columns.ptr)
    nodes = np.concatenate((unit, sends.unit))
    barriers = barrier_edges(shape, columns)
    if shape.chunk_gang and not overlapped_sends:
        waits = np.flatnonzero(sends.behind >= 0)
        wait, fellow = awaited_by_gangs(shape, columns, sends.behind[waits])
        more = len(unit) + waits[wait], fellow
        barriers = np.concatenate((barriers[0], more[0])), np.concatenate((barriers[1], more[1]))
    pred_ptr, pred = _predecessors(units, nodes, sends, barriers, overlapped_sends=overlapped_sends)
    per_pair = np.bincount(sends.pair)
    return PipelineProblem(
        shape=shape,
        schedule=schedule,
        stream_ptr=np.concatenate((columns.ptr, len(unit) + np.cumsum(per_pair[per_pair > 0]))).astype(np.int64),
        pred_ptr=pred_ptr,
        pred=pred,
        node_rank=np.repeat(np.arange(shape.num_ranks, dtype=np.int32), np.diff(columns.ptr)),
        chunk=columns.chunk.astype(np.int32),
        phase=columns.phase.astype(np.int32),
        microbatch=columns.microbatch.astype(np.int32),
        unit_of_nodes=nodes,
        merged=merged,
    )


def _predecessors(
    units: PipelineUnits, nodes: I64, sends: Sends, barriers: tuple[I64, I64], *, overlapped_sends: bool
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """CSR predecessors: of a transfer its sender; of a stage first transfers, by node, then stages of its rank, then
    those that run before the stages of its gang on other ranks.

    Args:
        nodes: int64[num_nodes], units. barriers: nodes (before, after), as ``barrier_edges``.
    """
    n = len(nodes) - len(sends.unit)
    node = np.empty(units.num_units, dtype=np.int64)
    node[nodes] = np.arange(len(nodes))
    repeat, place = np.divmod(nodes, units.size)
    transfer = np.arange(n, len(nodes))
    consumer = node[repeat[n:] * units.size + units.consumer[place[n:] - units.num_stages]]
    targets, befores = consumer, transfer
    if not overlapped_sends:
        ends = np.stack((consumer, sends.behind), axis=1)
        targets, befores = ends[ends >= 0], np.stack((transfer, transfer), axis=1)[ends >= 0]
    before, after = units.local.T
    needed = np.lexsort((before, units.local_turn, after))
    reader, number = fan_out(np.bincount(after, minlength=units.num_stages), place[:n])
    local = node[repeat[reader] * units.size + before[needed][number]]
    targets = np.concatenate((transfer, targets, reader, barriers[1]))
    befores = np.concatenate((sends.sender, befores, local, barriers[0]))
    return pointers(targets, len(nodes)), befores[np.argsort(targets, kind="stable")].astype(np.int32)
