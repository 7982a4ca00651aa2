"""``regular_problem``: 1F1B and interleaved 1F1B lowered straight to arrays, without an object per stage.

It makes the same arrays as ``lower`` of the schedule that ``one_f_one_b`` draws, some twenty times faster: a search
over configurations lowers a schedule of another shape for nearly each of them. Stages and transfers as objects are made
when somebody asks for them.

Such an order cannot deadlock where groups of layers lie one after another: a forward of group g waits for forwards of
earlier groups only, and those of one group run in the order of the data.
"""

from __future__ import annotations

import itertools
from dataclasses import fields
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from semu.graph.operator import Phase
from semu.schedule.problem import PipelineProblem, Transfer
from semu.schedule.schedule import PHASES, Schedule, StageColumns
from semu.schedule.shape import PipelineShape, StageKey
from semu.schedule.units import PipelineUnits, units_of

I64: TypeAlias = NDArray[np.int64]
REGULAR = ("1f1b", "interleaved")
"""Schedules that this file lowers."""


class _LazySchedule(Schedule):
    """A schedule that is arrays until somebody asks for its stages."""

    def __init__(self, name: str, columns: StageColumns) -> None:
        object.__setattr__(self, "name", name)
        self.__dict__["columns"] = columns

    @cached_property
    def orders(self) -> tuple[tuple[StageKey, ...], ...]:
        """Per rank, its stages in order."""
        return tuple(
            tuple(_stages(self.columns, slice(first, last)))
            for first, last in zip(self.columns.ptr[:-1].tolist(), self.columns.ptr[1:].tolist(), strict=True)
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return self.name == other.name and self.orders == other.orders

    def __hash__(self) -> int:
        return hash((self.name, self.orders))

    def __reduce__(self) -> tuple[object, ...]:
        return _LazySchedule, (self.name, self.columns)


class _LazyProblem(PipelineProblem):
    """A problem that is arrays until somebody asks for its stages and transfers."""

    def __init__(self, values: dict[str, Any], node_unit: I64, transfer_node: NDArray[np.int32]) -> None:
        self.__dict__.update(values)
        self.__dict__["unit_of_nodes"] = node_unit
        self.__dict__["_source"] = transfer_node

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
        """All stages, rank after rank."""
        return tuple(stage for order in self.schedule.orders for stage in order)

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """All transfers, pair after pair."""
        units, count = self.units, self.num_stages
        number = self.unit_of_nodes[count:] % units.size - units.num_stages
        rank = units.rank[0].tolist()
        result = []
        for node, k in zip(self.__dict__["_source"].tolist(), number.tolist(), strict=True):
            stage, producer, consumer = self.stages[node], int(units.producer[k]), int(units.consumer[k])
            reader = StageKey(int(units.chunk[0, consumer]), stage.phase, stage.microbatch)
            result.append(Transfer(stage, rank[producer], rank[consumer], reader))
        return tuple(result)

    @cached_property
    def unit_orders(self) -> list[NDArray[np.int32]]:
        """Units of the stages of each rank, in the schedule's order."""
        ends = self.schedule.columns.ptr.tolist()
        own = self.unit_of_nodes[: self.num_stages].astype(np.int32)
        return [own[first:last] for first, last in itertools.pairwise(ends)]

    @cached_property
    def transfer_edges(self) -> tuple[dict[tuple[int, int, Phase], int], I64, I64]:
        """As in the class above."""
        units, count = self.units, self.num_stages
        unit = self.unit_of_nodes[count:]
        kind = unit % units.size - units.num_stages
        kinds, first, place = np.unique(kind, return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        turn = np.empty(len(order), dtype=np.int64)
        turn[order] = np.arange(len(order))
        chunk, phase = units.chunk[0], units.phase
        keys = [
            (int(chunk[units.producer[k]]), int(chunk[units.consumer[k]]), PHASES[int(phase[units.producer[k]])])
            for k in kinds[order].tolist()
        ]
        return {key: number for number, key in enumerate(keys)}, turn[place.ravel()], unit // units.size

    def __reduce__(self) -> tuple[object, ...]:
        values = {item.name: self.__dict__[item.name] for item in fields(PipelineProblem) if item.name in self.__dict__}
        return _LazyProblem, (values, self.unit_of_nodes, self.__dict__["_source"])


def _stages(columns: StageColumns, where: slice) -> list[StageKey]:
    each = np.stack((columns.chunk[where], columns.phase[where], columns.microbatch[where]), axis=1).tolist()
    return [StageKey(chunk, PHASES[phase], microbatch) for chunk, phase, microbatch in each]


def regular_problem(name: str, shape: PipelineShape, *, overlapped_sends: bool) -> PipelineProblem | None:
    """What ``lower`` makes of a schedule of a name; None: another schedule, or a pipeline that it may not fit.

    Args:
        name: of the schedule. shape: of the pipeline. overlapped_sends: as ``lower``.
    """
    if name not in REGULAR or not _is_chain(shape):
        return None
    units = units_of(shape)
    columns = _columns(shape)
    position = np.full((shape.num_chunks, 2), -1, dtype=np.int64)
    position[units.chunk[0], units.phase] = np.arange(units.num_stages)
    place = position[columns.chunk, columns.phase]
    unit = columns.microbatch * units.size + place
    source, moved = _in_pairs(units, columns, place)
    transfers = columns.microbatch[source] * units.size + units.num_stages + moved
    node_rank = np.repeat(np.arange(shape.num_ranks, dtype=np.int32), np.diff(columns.ptr))
    node = np.empty(units.num_units, dtype=np.int64)
    node[unit] = np.arange(len(unit))
    pred_ptr, pred = _predecessors(
        shape, units, columns, node, node_rank, position, place, source, moved, overlapped_sends=overlapped_sends
    )
    per_pair = np.bincount(units.pair[0][moved], minlength=len(units.pairs))
    # where there is one slot, ``interleaved`` still calls its order so, as the generators do
    schedule = _LazySchedule("interleaved" if shape.num_slots > 1 else name, columns)
    values = {
        "shape": shape,
        "schedule": schedule,
        "stream_ptr": np.concatenate(([0], np.cumsum([*np.diff(columns.ptr), *per_pair]))).astype(np.int64),
        "pred_ptr": pred_ptr,
        "pred": pred,
        "node_rank": node_rank,
        "chunk": columns.chunk.astype(np.int32),
        "phase": columns.phase.astype(np.int32),
        "microbatch": columns.microbatch.astype(np.int32),
        "merged": None,
    }
    return _LazyProblem(values, np.concatenate((unit, transfers)), source.astype(np.int32))


def _is_chain(shape: PipelineShape) -> bool:
    """Whether groups of chunks follow one another over the ranks, slot by slot, and 1F1B fits them."""
    p, v = shape.num_ranks, shape.num_slots
    if not shape.is_plain or (v > 1 and shape.num_microbatches % p):
        return False
    group = [slot * p + rank for slot, rank in zip(shape.chunk_slot, shape.chunk_rank, strict=True)]
    reads_earlier = all(source < chunk for chunk, sources in enumerate(shape.sources) for source in sources)
    return reads_earlier and group == sorted(group)


def _columns(shape: PipelineShape) -> StageColumns:
    """Stages of all ranks, in the order of ``one_f_one_b``."""
    pieces = [_rank_columns(shape, rank) for rank in range(shape.num_ranks)]
    chunk, phase, microbatch = (np.concatenate([own[k] for own in pieces]) for k in range(3))
    ptr = np.cumsum([0, *(len(own[0]) for own in pieces)], dtype=np.int64)
    return StageColumns(ptr, chunk, phase, microbatch)


def _rank_columns(shape: PipelineShape, rank: int) -> tuple[I64, I64, I64]:
    """Chunk, phase and microbatch of the stages of one rank."""
    p, m, v = shape.num_ranks, shape.num_microbatches, shape.num_slots
    total = m * v
    warm_up = min(2 * (p - rank - 1) + (v - 1) * p if v > 1 else p - rank - 1, total)
    step = np.arange(total)
    slot, microbatch = (step // p % v, step // (p * v) * p + step % p) if v > 1 else (np.zeros_like(step), step)
    # forward i stands before backward i - warm_up: as (turn, phase), sorted
    turn = np.concatenate((step, step + warm_up))
    phase = np.repeat(np.array([0, 1]), total)
    order = np.argsort(2 * turn + phase, kind="stable")
    slot = np.concatenate((slot, v - 1 - slot))[order]
    microbatch, phase = np.concatenate((microbatch, microbatch))[order], phase[order]
    held = [shape.chunks_of(rank, k) for k in range(v)]
    back = [[chunk for chunk in reversed(own) if shape.has_backward[chunk]] for own in held]
    lists = [*held, *back]
    each = phase * v + slot
    count = np.array([len(own) for own in lists])[each]
    first = np.cumsum([0, *(len(own) for own in lists)])[:-1][each]
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    flat = np.array([chunk for own in lists for chunk in own], dtype=np.int64)
    return flat[np.repeat(first, count) + within], np.repeat(phase, count), np.repeat(microbatch, count)


def _in_pairs(units: PipelineUnits, columns: StageColumns, place: I64) -> tuple[I64, I64]:
    """Transfers pair after pair, as their producers run: the node that sends, and the number in a microbatch."""
    per_stage = np.bincount(units.producer, minlength=units.num_stages)
    first = np.cumsum(per_stage) - per_stage
    count = per_stage[place]
    source = np.repeat(np.arange(len(place)), count)
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    moved = np.repeat(first[place], count) + within
    order = np.argsort(units.pair[0][moved], kind="stable")
    return source[order], moved[order]


def _predecessors(
    shape: PipelineShape,
    units: PipelineUnits,
    columns: StageColumns,
    node: I64,
    node_rank: NDArray[np.int32],
    position: I64,
    place: I64,
    source: I64,
    moved: I64,
    *,
    overlapped_sends: bool,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """CSR predecessors in the order of ``lower``: transfers as they are made, then stages of the same rank."""
    n, k = len(place), len(source)
    transfer = n + np.arange(k)
    consumer = node[columns.microbatch[source] * units.size + units.consumer[moved]]
    target, before = consumer[:, None], transfer[:, None]
    keep = np.ones((k, 1), dtype=np.bool_)
    if not overlapped_sends:
        following = source + 1
        waits = (following < n) & (node_rank[np.minimum(following, n - 1)] == node_rank[source])
        target = np.stack((consumer, following), axis=1)
        before, keep = np.stack((transfer, transfer), axis=1), np.stack((np.ones(k, dtype=np.bool_), waits), axis=1)
    inside = [_inside(shape, units, chunk, phase, position) for chunk, phase in _kinds(units)]
    count = np.array([len(own) for own in inside])[place]
    first = np.cumsum([0, *(len(own) for own in inside)])[:-1][place]
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    flat = np.array([other for own in inside for other in own], dtype=np.int64)
    local_target = np.repeat(np.arange(n), count)
    local = node[np.repeat(columns.microbatch * units.size, count) + flat[np.repeat(first, count) + within]]
    targets = np.concatenate((transfer, target.ravel()[keep.ravel()], local_target))
    befores = np.concatenate((source, before.ravel()[keep.ravel()], local))
    order = np.argsort(targets, kind="stable")
    ptr = np.concatenate(([0], np.cumsum(np.bincount(targets, minlength=n + k))))
    return ptr.astype(np.int32), befores[order].astype(np.int32)


def _kinds(units: PipelineUnits) -> list[tuple[int, int]]:
    return [*zip(units.chunk[0].tolist(), units.phase.tolist(), strict=True)]


def _inside(shape: PipelineShape, units: PipelineUnits, chunk: int, phase: int, position: I64) -> list[int]:
    """Positions, in a microbatch, of what a stage needs on its own rank, in the order of ``predecessors``."""
    needed = shape.predecessors(StageKey(chunk, PHASES[phase], 0))
    return [
        int(position[other.chunk, 0 if other.phase is Phase.FORWARD else 1])
        for other in needed
        if shape.chunk_rank[other.chunk] == shape.chunk_rank[chunk]
    ]
