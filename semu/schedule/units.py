"""``PipelineUnits``: a pipeline's stages and transfers on their streams, before any schedule; a view of its graph.

Numbering does not depend on a schedule: unit ``microbatch x size + position``, where the positions of a microbatch are
its stages (by chunk, forward before backward before W), then its transfers, by their producers. A schedule is a set of
edges between units.

Under a schedule that splits backwards a chunk has three stages: forward, I, W. Where such a schedule runs a backward
whole, B stands where I would, and behind it, where W would, a stage in which nothing happens.

Where modules cut microbatches, microbatches are not alike: the positions are those of all microbatches together. Where
there are several copies of the model, a microbatch's positions are those of the copy that it runs through; the copies
are alike but for their ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.errors import ScheduleError
from semu.records import dataclass
from semu.schedule.gangs.barriers import awaited_by_gangs, barrier_edges, fellows
from semu.schedule.graph import PipelineGraph, fan_out, graph_of
from semu.schedule.phases import BACKWARD, CODE_OF_PHASE, FORWARD, INPUT, LETTERS, NOTHING, WEIGHT
from semu.schedule.rules.combined import combined_stages, first_and_last
from semu.schedule.schedule import PipelineShape, Schedule, StageColumns, StageKey

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
Merged = frozenset[tuple[int, int]]
"""(chunk, microbatch) of the backwards that a schedule which splits others runs whole."""


@dataclass(frozen=True, eq=False)
class PipelineUnits:
    """Structure of one microbatch, which all microbatches share.

    Attributes:
        shape: ranks, chunks, microbatches.
        chunk, rank: int32[num_copies, num_stages], of a microbatch's stages in each copy of the model.
        phase: int32[num_stages], codes: forward, backward (whole, or its I), W.
        producer, consumer: int32[num_transfers], stages between which a transfer moves a result.
        pair: int32[num_copies, num_transfers], position in ``pairs``. pairs: directed pairs of ranks that exchange
            results.
        local: int32[num_local, 2], (before, after) of every dependency inside a rank, as stages.
        local_turn: int64[num_local], orders what one stage needs (``Dependencies.turn``).
        merged: whole backwards among split ones; None: all are whole.
        part: int32[num_stages], numbers of stages where modules cut microbatches: then everything here is of all
            microbatches together, and units are positions. None: it is of one microbatch.
    """

    shape: PipelineShape
    chunk: I32
    phase: I32
    rank: I32
    producer: I32
    consumer: I32
    pair: I32
    pairs: tuple[tuple[int, int], ...]
    local: I32
    local_turn: I64
    merged: Merged | None = None
    part: I32 | None = None

    @classmethod
    def of(cls, shape: PipelineShape, merged: Merged | None = None) -> PipelineUnits:
        """Stages and transfers of a pipeline.

        Args:
            shape: ranks, chunks, microbatches. merged: as the attribute.
        Raises:
            ScheduleError: modules that cut microbatches without ``joins``, or with split backwards or several copies
                of the model; copies of the model that differ.
        """
        _check_cuts(shape, merged)
        if shape.is_cut:
            copies = [_Template.of(graph_of(shape), splits=False)]
        else:
            flows = sorted(set(shape.chunk_flow)) or [0]
            singles = [replace(shape, num_microbatches=1, microbatch_flow=(flow,)) for flow in flows]
            copies = [_Template.of(PipelineGraph.of(single), splits=merged is not None) for single in singles]
            if not {*shape.chunk_flow, *shape.microbatch_flow} <= {*range(len(copies))} or not _are_alike(copies):
                raise ScheduleError(
                    "copies of the model that are not cut alike, or a microbatch that runs through none of them",
                    where="schedule",
                    expected="the same chunks in every copy, between the same ranks or their mirror images",
                )
        first = copies[0]
        moved, local = np.flatnonzero(first.crosses), np.flatnonzero(~first.crosses)
        producer, consumer = first.before[moved].astype(np.int32), first.after[moved].astype(np.int32)
        rank = np.stack([own.rank for own in copies])
        ends = rank[:, producer] * shape.num_ranks + rank[:, consumer]
        pairs, pair = np.unique(ends, return_inverse=True)
        return cls(
            shape=shape,
            chunk=np.stack([own.chunk for own in copies]),
            phase=first.phase,
            rank=rank,
            producer=producer,
            consumer=consumer,
            pair=pair.reshape(ends.shape).astype(np.int32),
            pairs=tuple(divmod(end, shape.num_ranks) for end in pairs.tolist()),
            local=np.stack((first.before[local], first.after[local]), axis=1).astype(np.int32),
            local_turn=first.turn[local],
            merged=merged,
            part=first.part if shape.is_cut else None,
        )

    @cached_property
    def codes(self) -> I32:
        """int32[repeats, num_stages], what kind of stage each is: ``FORWARD`` to ``NOTHING``."""
        kinds = np.array([FORWARD, BACKWARD if self.merged is None else INPUT, -1, WEIGHT], dtype=np.int32)
        found = np.tile(kinds[self.phase], (self.repeats, 1))
        for chunk, microbatch in self.merged or ():  # numbered alike in all copies
            found[microbatch, self._places[chunk, BACKWARD]] = BACKWARD
            found[microbatch, self._places[chunk, WEIGHT]] = NOTHING
        return found

    @property
    def repeats(self) -> int:
        """How often the stages and transfers here come: for every microbatch, or once where they are all."""
        return self.shape.num_microbatches if self.part is None else 1

    @cached_property
    def parts(self) -> I32:
        """int32[repeats, num_stages], number of each stage's unit among its chunk's: microbatch or sub-microbatch."""
        if self.part is not None:
            return self.part.reshape(1, -1)
        return np.repeat(np.arange(self.repeats, dtype=np.int32)[:, None], self.num_stages, axis=1)

    @property
    def num_stages(self) -> int:
        """Stages of one microbatch."""
        return len(self.phase)

    @cached_property
    def copy(self) -> NDArray[np.int64]:
        """int64[num_microbatches], the copy of the model that each microbatch runs through."""
        if self.part is not None:
            return np.zeros(1, dtype=np.int64)
        return np.array(self.shape.microbatch_flow, dtype=np.int64)

    def chunks_of(self, units: NDArray[np.integer] | int) -> I32:
        """Chunks of stages' units: int32, of the same shape."""
        found: I32 = self.chunk[self.copy[units // self.size], units % self.size]
        return found

    @property
    def num_transfers(self) -> int:
        """Transfers of one microbatch."""
        return len(self.producer)

    @property
    def size(self) -> int:
        """Units of one microbatch."""
        return self.num_stages + self.num_transfers

    @property
    def num_units(self) -> int:
        """Units of all microbatches."""
        return self.size * self.repeats

    @property
    def num_streams(self) -> int:
        """A compute stream per rank, then a link stream per pair."""
        return self.shape.num_ranks + len(self.pairs)

    @cached_property
    def stream(self) -> I32:
        """int32[num_units], the stream that each unit holds."""
        held = np.concatenate((self.rank, self.shape.num_ranks + self.pair), axis=1)
        return held[self.copy].ravel().astype(np.int32)

    @cached_property
    def edges(self) -> I32:
        """int32[k, 2], (before, after): what the model itself asks for, in every microbatch."""
        given = np.stack((self.producer, self.transfers), axis=1)
        taken = np.stack((self.transfers, self.consumer), axis=1)
        return self.repeated(np.concatenate((self.local, given, taken))).astype(np.int32)

    @cached_property
    def _combined(self) -> tuple[I64, I64, I64]:
        """Units of stages that run in pairs, and of the first and the last stage of the pair of each."""
        if not self.shape.combines:
            none = np.zeros(0, dtype=np.int64)
            return none, none, none
        stages = combined_stages(self.shape)
        units = self.numbers(StageColumns(np.zeros(1, dtype=np.int64), stages.chunk, stages.phase, stages.microbatch))
        first, last = first_and_last(stages)
        if self.merged is not None:  # backwards that are in two have no forward beside them
            is_whole = self.codes[np.divmod(units[last], self.size)] == BACKWARD
            units, first, last = units[is_whole], *(np.cumsum(is_whole)[of[is_whole]] - 1 for of in (first, last))
        return units, units[first], units[last]

    @property
    def combined(self) -> I64:
        """int64[n], units of the stages that run in pairs, a forward and a backward in one."""
        return self._combined[0]

    @cached_property
    def combined_edges(self) -> I32:
        """int32[k, 2], (before, after): the pair begins when what both need has come, and sends when both are done."""
        unit, first, last = self._combined
        repeat, place = np.divmod(unit, self.size)
        given, number = fan_out(np.bincount(self.producer, minlength=self.num_stages), place)
        leaving = np.stack((last[given], repeat[given] * self.size + self.num_stages + number), axis=1)
        by_reader = np.argsort(self.consumer, kind="stable")
        taken, turn = fan_out(np.bincount(self.consumer, minlength=self.num_stages), place)
        coming = repeat[taken] * self.size + self.num_stages + by_reader[turn]
        return np.concatenate((leaving, np.stack((coming, first[taken]), axis=1))).astype(np.int32)

    @cached_property
    def stage_numbers(self) -> I64:
        """int64[repeats, num_stages], the number of every stage in the graph of the shape (``PipelineGraph``); the B of
        a backward stands for its I."""
        found: I64 = 4 * (graph_of(self.shape).first[self.chunk[self.copy]] + self.parts) + self.phase
        return found

    @cached_property
    def _places(self) -> I64:
        """int64[num_chunks, 5], position of each chunk's stage of each code in a microbatch, -1 for none; where units
        are numbered through int64[num_pairs, 5], by pairs of the graph."""
        if self.part is None:
            found = np.full((self.shape.num_chunks, NOTHING + 1), -1, dtype=np.int64)
            row = self.chunk
        else:
            graph = graph_of(self.shape)
            found = np.full((graph.num_pairs, NOTHING + 1), -1, dtype=np.int64)
            row = graph.first[self.chunk] + self.part
        found[row, self.phase] = np.arange(self.num_stages)
        found[:, INPUT], found[:, NOTHING] = found[:, BACKWARD], found[:, WEIGHT]
        return found

    def numbers(self, columns: StageColumns) -> I64:
        """Units of stages: int64[n]. ``columns``: of a schedule, completed (``completed``)."""
        if self.part is not None:
            found: I64 = self._places[graph_of(self.shape).first[columns.chunk] + columns.microbatch, columns.phase]
            return found
        return columns.microbatch * self.size + self._places[columns.chunk, columns.phase]

    def unit(self, stage: StageKey) -> int:
        """Number of a stage's unit."""
        if self.part is not None:
            return self.unit_position(stage)
        return stage.microbatch * self.size + self.unit_position(stage)

    def unit_position(self, stage: StageKey) -> int:
        """Position of a stage in its microbatch."""
        row = stage.chunk
        if self.part is not None:
            row = int(graph_of(self.shape).first[stage.chunk]) + stage.microbatch
        return int(self._places[row, CODE_OF_PHASE[stage.phase]])

    def name(self, unit: int) -> str:
        """``2F0`` of a stage, ``send 2F0 to rank 3`` of a transfer."""
        microbatch, position = divmod(unit, self.size)
        if position < self.num_stages:
            letter = LETTERS[self.codes[microbatch, position]]
            return f"{self.chunks_of(unit)}{letter}{self.parts[microbatch, position]}"
        number = position - self.num_stages
        source = self.name(microbatch * self.size + int(self.producer[number]))
        return f"send {source} to rank {self.rank[self.copy[microbatch], self.consumer[number]]}"

    def orders(self, schedule: Schedule) -> list[I32]:
        """Units of the stages of each rank, in the schedule's order; behind a whole backward among split ones, the
        stage in which nothing happens.

        Raises:
            ScheduleError: the schedule splits other backwards than the units.
        """
        if merged_backwards(schedule) != self.merged:
            raise ScheduleError(
                "the schedule splits backwards that these units have whole, or the other way round",
                where=schedule.name,
                expected="whole backwards" if self.merged is None else "split backwards",
                got="whole backwards" if not schedule.splits_backward else "split backwards",
            )
        columns = completed(schedule.columns, self.merged)
        units = self.numbers(columns).astype(np.int32)
        return [units[first:last] for first, last in pairwise(columns.ptr.tolist())]

    def order_edges(self, orders: Sequence[I32], *, overlapped_sends: bool) -> I32:
        """Edges that give every stream its order: stages of a rank one after another, transfers of a pair as made.

        Args:
            orders: per rank, units of its stages in order (all of them).
            overlapped_sends: false: after a stage that sends, the rank's compute waits for its transfers.
        Returns:
            int32[k, 2], (before, after).
        """
        stages = np.concatenate([np.zeros(0, dtype=np.int32), *orders])
        ptr = np.cumsum([0, *map(len, orders)])
        sends = self.sends(stages, ptr)
        same = np.ones(max(len(stages) - 1, 0), dtype=np.bool_)
        same[ptr[(ptr > 0) & (ptr < len(stages))] - 1] = False
        pieces = [np.stack((stages[:-1], stages[1:]), axis=1)[same]]
        same = sends.pair[1:] == sends.pair[:-1]
        pieces.append(np.stack((sends.unit[:-1], sends.unit[1:]), axis=1)[same])
        if not overlapped_sends:
            waits = np.flatnonzero(sends.behind >= 0)
            waits = waits[np.argsort(sends.unit[waits])]
            pieces.append(np.stack((sends.unit[waits], stages[sends.behind[waits]]), axis=1))
            if self.shape.chunk_gang:
                wait, fellow = awaited_by_gangs(self.shape, self._columns(orders), sends.behind[waits])
                pieces.append(np.stack((sends.unit[waits][wait], stages[fellow]), axis=1))
        pieces.append(self.barriers(orders))
        pieces.append(self.combined_edges)
        return np.concatenate(pieces).astype(np.int32)

    def barriers(self, orders: Sequence[I32]) -> I64:
        """Edges by which stages of gangs begin together: int64[k, 2]. ``orders``: as ``order_edges``."""
        if not self.shape.chunk_gang:
            return np.zeros((0, 2), dtype=np.int64)
        stages = np.concatenate(orders).astype(np.int64)
        return stages[np.stack(barrier_edges(self.shape, self._columns(orders)), axis=1)]

    def fellows(self, orders: Sequence[I32]) -> I64:
        """Stages of gangs that begin together, every two both ways: int64[k, 2]. ``orders``: of ``order_edges``."""
        if not self.shape.chunk_gang:
            return np.zeros((0, 2), dtype=np.int64)
        return np.concatenate(orders).astype(np.int64)[np.stack(fellows(self.shape, self._columns(orders)), axis=1)]

    def _columns(self, orders: Sequence[I32]) -> StageColumns:
        """Stages of units in order."""
        stages = np.concatenate(orders).astype(np.int64)
        repeat, place = np.divmod(stages, self.size)
        codes, parts = (table[repeat, place].astype(np.int64) for table in (self.codes, self.parts))
        return StageColumns(np.cumsum([0, *map(len, orders)]), self.chunks_of(stages).astype(np.int64), codes, parts)

    def sends(self, stages: NDArray[np.integer], ptr: I64) -> Sends:
        """Transfers of stages in an order.

        Args:
            stages: int[n], units, rank after rank. ptr: int64[num_ranks + 1], first stage of each rank.
        """
        repeat, place = np.divmod(stages, self.size)
        sender, number = fan_out(np.bincount(self.producer, minlength=self.num_stages), place)
        pair = self.pair[self.copy[repeat[sender]], number]
        made = np.argsort(pair, kind="stable")
        sender, number = sender[made], number[made]
        begin = repeat[sender].astype(np.int64) * self.size
        behind = sender + 1
        if self.shape.combines:
            unit, _, last = self._combined
            end, place_of = np.arange(self.num_units), np.empty(self.num_units, dtype=np.int64)
            end[unit], place_of[stages] = last, np.arange(len(stages))
            behind = place_of[end[stages[sender]]] + 1
        if self.merged:  # the stage in which nothing happens does not wait
            repeat, place = np.divmod(stages[behind - 1], self.size)
            behind += self.codes[repeat, place] == BACKWARD
        end = np.repeat(ptr[1:], np.diff(ptr))[sender]
        return Sends(sender, begin + self.num_stages + number, pair[made], np.where(behind < end, behind, -1))

    def repeated(self, positions: NDArray[np.integer]) -> I64:
        """Units of all microbatches, one after another: int64[repeats x k, ...]. ``positions``: int[k, ...], of one."""
        shift = self.size * np.arange(self.repeats).reshape(-1, *(1 for _ in positions.shape))
        return (positions + shift).reshape(-1, *positions.shape[1:])

    @property
    def transfers(self) -> I64:
        """int64[num_transfers], positions of a microbatch's transfers."""
        return np.arange(self.num_stages, self.size)


@memo.remembered(128, is_large=True)
def units_of(shape: PipelineShape, merged: Merged | None) -> PipelineUnits:
    """``PipelineUnits.of``, remembered: nothing in the units changes, so jobs of one shape share them."""
    return PipelineUnits.of(shape, merged)


def merged_backwards(schedule: Schedule) -> Merged | None:
    """The whole backwards of a schedule that splits others; None: it splits none."""
    if not schedule.splits_backward:
        return None
    columns = schedule.columns
    whole = columns.phase == BACKWARD
    return frozenset(zip(columns.chunk[whole].tolist(), columns.microbatch[whole].tolist(), strict=True))


def completed(columns: StageColumns, merged: Merged | None) -> StageColumns:
    """The stages of a schedule that splits backwards, behind each whole backward the stage in which nothing happens;
    other schedules (``merged`` is None) as they are."""
    if merged is None:
        return columns
    whole = columns.phase == BACKWARD
    kept = np.repeat(np.arange(len(whole)), 1 + whole)
    phase = columns.phase[kept]
    phase[1:][kept[1:] == kept[:-1]] = NOTHING
    added = np.concatenate(([0], np.cumsum(whole)))
    return StageColumns(columns.ptr + added[columns.ptr], columns.chunk[kept], phase, columns.microbatch[kept])


class Sends(NamedTuple):
    """Transfers pair after pair, as their producers run; int64[num_transfers] each.

    Attributes:
        sender: place of the producer in the order of stages. unit: of the transfer. pair: position in ``pairs``.
        behind: place of the stage that runs after the producer on its rank, which waits for the transfer where sends
            are not overlapped; -1: the producer is the last.
    """

    sender: I64
    unit: I64
    pair: I32
    behind: I64


class _Template(NamedTuple):
    """The stages of one copy of the model for one microbatch, or of all microbatches where modules cut them.

    Attributes:
        chunk, phase, part, rank: int32[num_stages], by chunk, part and phase.
        before, after, turn, crosses: dependencies as positions, int64[k] each, by producer; whether they cross ranks,
            bool[k].
    """

    chunk: I32
    phase: I32
    part: I32
    rank: I32
    before: I64
    after: I64
    turn: I64
    crosses: NDArray[np.bool_]

    @classmethod
    def of(cls, graph: PipelineGraph, *, splits: bool) -> _Template:
        """Number the stages of a graph through. ``splits``: with stages of their own for weight gradients."""
        runs = np.zeros((graph.num_pairs, 4), dtype=np.bool_)
        runs[:, FORWARD] = graph.exists
        runs[:, BACKWARD] = graph.exists & graph.has_backward
        runs[:, WEIGHT] = runs[:, BACKWARD] & splits
        stage = np.flatnonzero(runs)
        position = np.cumsum(runs) - 1
        before, after, turn = graph.dependencies
        kept = np.flatnonzero(runs.ravel()[after])
        before, after = position[before[kept]], position[after[kept]]
        pair, rank = stage // 4, graph.rank[stage // 4]
        return cls(
            graph.chunk[pair],
            (stage % 4).astype(np.int32),
            graph.part[pair],
            rank,
            before,
            after,
            turn[kept],
            rank[before] != rank[after],
        )


def _are_alike(copies: Sequence[_Template]) -> bool:
    """Whether copies of the model have the same stages and dependencies, and send the same results."""
    return all(
        np.array_equal(getattr(own, name), getattr(copies[0], name))
        for own in copies[1:]
        for name in ("phase", "before", "after", "crosses")
    )


def _check_cuts(shape: PipelineShape, merged: Merged | None) -> None:
    """Refuse what no job executes."""
    if shape.is_cut and not shape.joins:
        raise ScheduleError(
            "sub-microbatches are not executed yet for a job, only studied on plain numbers",
            where="schedule",
            expected="every chunk runs every microbatch in one piece",
        )
    if shape.is_cut and (merged is not None or any(shape.chunk_flow + shape.microbatch_flow)):
        raise ScheduleError(
            "sub-microbatches do not go with split backwards, nor with several copies of the model, in this version",
            where="schedule",
            expected="whole backwards in one copy of the model",
        )
