"""``PipelineProblem``: a schedule lowered to arrays, stages and transfers, ready for the fixed-order kernel.

Nodes are numbered by stream in the order of execution: first one compute stream per rank, then one stream per directed
pair of ranks that exchange tensors. Latencies are separate, so that many batches share one problem.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.graph.operator import Phase
from semu.schedule.schedule import PipelineShape, Schedule, StageKey
from semu.schedule.units import (
    BACKWARD,
    INPUT,
    NOTHING,
    WEIGHT,
    Merged,
    PipelineUnits,
    completed,
    merged_backwards,
    units_of,
)


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
        stages: node i < len(stages) is stages[i]. transfers: node len(stages) + j is transfers[j].
        stream_ptr: int64[num_streams + 1], nodes of each stream are consecutive.
        pred_ptr, pred: CSR predecessors, int32. node_rank: int32[num_stages].
        chunk, phase, microbatch: int32[num_stages]; phase as in ``PipelineUnits.codes``: 0 forward, 1 backward, 2 and 3
            its parts I and W, 4 what stands for W behind a whole backward among split ones.
        merged: whole backwards among split ones; None: all are whole.
    """

    shape: PipelineShape
    schedule: Schedule
    stages: tuple[StageKey, ...]
    transfers: tuple[Transfer, ...]
    stream_ptr: NDArray[np.int64]
    pred_ptr: NDArray[np.int32]
    pred: NDArray[np.int32]
    node_rank: NDArray[np.int32]
    chunk: NDArray[np.int32]
    phase: NDArray[np.int32]
    microbatch: NDArray[np.int32]
    merged: Merged | None = None

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "known"}  # copies begin empty

    @property
    def num_stages(self) -> int:
        """Number of stages; transfers follow them."""
        return len(self.stages)

    @property
    def num_nodes(self) -> int:
        """Stages and transfers."""
        return len(self.stages) + len(self.transfers)

    @cached_property
    def known(self) -> dict[object, Any]:
        """What was found about the problem, by whatever tells it apart; nothing that depends on latencies."""
        return {}

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
        return self.units.orders(self.schedule)

    @cached_property
    def unit_of_nodes(self) -> NDArray[np.int64]:
        """The unit of every node: int64[num_nodes]."""
        units = self.units
        return np.array(
            [units.unit(stage) for stage in self.stages]
            + [units.transfer(transfer.stage, transfer.consumer) for transfer in self.transfers],
            dtype=np.int64,
        )

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
        number: dict[tuple[int, int, Phase], int] = {}
        edge = np.zeros(len(self.transfers), dtype=np.int64)
        microbatch = np.zeros(len(self.transfers), dtype=np.int64)
        for j, transfer in enumerate(self.transfers):
            key = (transfer.stage.chunk, transfer.consumer.chunk, transfer.stage.phase)
            edge[j] = number.setdefault(key, len(number))
            microbatch[j] = transfer.stage.microbatch
        return number, edge, microbatch

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
    units_of(shape, merged)
    orders = schedule.orders if merged is None else tuple(tuple(completed(order)) for order in schedule.orders)
    stages = [stage for order in orders for stage in order]
    number = {stage: i for i, stage in enumerate(stages)}
    if merged is not None:  # either of I and B stands for the other
        for stage, i in [*number.items()]:
            if stage.phase in _EITHER:
                number[StageKey(stage.chunk, _EITHER[stage.phase], stage.microbatch)] = i
    rank_of = [rank for rank, order in enumerate(orders) for _ in order]
    transfers = _transfers(stages, shape)
    pairs = sorted({(t.source, t.target) for t in transfers})
    by_pair = [[t for t in transfers if (t.source, t.target) == pair] for pair in pairs]
    ordered = [t for group in by_pair for t in group]
    preds: list[list[int]] = [[] for _ in range(len(stages) + len(ordered))]
    for j, transfer in enumerate(ordered):
        node = len(stages) + j
        preds[node].append(number[transfer.stage])
        preds[number[transfer.consumer]].append(node)
        if not overlapped_sends:
            following = number[transfer.stage] + 1
            if merged and transfer.stage.phase is Phase.BACKWARD:
                following += 1  # behind what stands for W
            if following < len(stages) and rank_of[following] == transfer.source:
                preds[following].append(node)
    for node, stage in enumerate(stages):
        for before in shape.predecessors(stage):
            if shape.chunk_rank[before.chunk] == shape.chunk_rank[stage.chunk]:
                preds[node].append(number[before])
    sizes = [len(order) for order in orders] + [len(group) for group in by_pair]
    phases = schedule.columns.phase if merged is None else np.array([_code(stage, merged) for stage in stages])
    return PipelineProblem(
        shape=shape,
        schedule=schedule,
        stages=tuple(stages),
        transfers=tuple(ordered),
        stream_ptr=np.concatenate(([0], np.cumsum(sizes))).astype(np.int64),
        pred_ptr=np.concatenate(([0], np.cumsum([len(p) for p in preds]))).astype(np.int32),
        pred=np.array([p for group in preds for p in group], dtype=np.int32),
        node_rank=np.array(rank_of, dtype=np.int32),
        chunk=np.array([s.chunk for s in stages], dtype=np.int32),
        phase=phases.astype(np.int32),
        microbatch=np.array([s.microbatch for s in stages], dtype=np.int32),
        merged=merged,
    )


_EITHER = {Phase.BACKWARD: Phase.INPUT_GRADIENT, Phase.INPUT_GRADIENT: Phase.BACKWARD}
_CODE = {Phase.FORWARD: 0, Phase.BACKWARD: BACKWARD, Phase.INPUT_GRADIENT: INPUT, Phase.WEIGHT_GRADIENT: WEIGHT}


def _code(stage: StageKey, merged: Merged) -> int:
    """What kind of stage it is; see ``PipelineProblem``."""
    if stage.phase is Phase.WEIGHT_GRADIENT and (stage.chunk, stage.microbatch) in merged:
        return NOTHING
    return _CODE[stage.phase]


def _transfers(stages: Sequence[StageKey], shape: PipelineShape) -> list[Transfer]:
    """All transfers, in the order in which their producers run on each rank."""
    consumers: list[list[int]] = [[] for _ in range(shape.num_chunks)]
    for chunk, sources in enumerate(shape.sources):
        for source in sources:
            consumers[source].append(chunk)
    result = []
    is_cut = shape.is_cut
    for stage in stages:
        here = shape.chunk_rank[stage.chunk]
        if stage.phase is Phase.FORWARD:
            targets = consumers[stage.chunk]
        elif stage.phase is Phase.WEIGHT_GRADIENT:
            targets = []
        else:
            targets = [source for source in shape.sources[stage.chunk] if shape.has_backward[source]]
        for chunk in targets:
            there = shape.chunk_rank[chunk]
            if there == here:
                continue
            parts = shape.shared(stage.chunk, stage.microbatch, chunk) if is_cut else (stage.microbatch,)
            result += [Transfer(stage, here, there, StageKey(chunk, stage.phase, part)) for part in parts]
    return result
