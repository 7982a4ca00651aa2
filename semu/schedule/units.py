"""``PipelineUnits``: the stages and transfers of a pipeline before any schedule, microbatch by microbatch.

Numbering does not depend on a schedule: unit ``microbatch x size + position``, where the positions of a microbatch are
its stages (by chunk, forward before backward), then its transfers. A schedule is a set of edges between units.

Under a schedule that splits backwards a chunk has three stages: forward, I, W. Where such a schedule runs a backward
whole, B stands where I would, and behind it, where W would, a stage in which nothing happens.

Where there are several copies of the model, a microbatch's positions are those of the copy that it runs through; the
copies are alike but for their ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.errors import ScheduleError
from semu.graph.operator import Phase
from semu.schedule.schedule import PipelineShape, Schedule, StageKey

I32 = NDArray[np.int32]
FORWARD, BACKWARD, INPUT, WEIGHT, NOTHING = range(5)
"""Codes of stages in arrays: the positions of ``PHASES``, then a stage in which nothing happens."""
LETTERS = "FBIW-"
"""Of the codes, in names."""
_PLACE = {Phase.FORWARD: 0, Phase.BACKWARD: 1, Phase.INPUT_GRADIENT: 1, Phase.WEIGHT_GRADIENT: 2}
Merged = frozenset[tuple[int, int]]
"""(chunk, microbatch) of the backwards that a schedule which splits others runs whole."""


@dataclass(frozen=True)
class PipelineUnits:
    """Structure of one microbatch, which all microbatches share.

    Attributes:
        shape: ranks, chunks, microbatches.
        chunk, rank: int32[num_copies, num_stages], of a microbatch's stages in each copy of the model.
        phase: int32[num_stages], 0 forward, 1 backward or I, 2 W.
        producer, consumer: int32[num_transfers], stages between which a transfer moves a result.
        pair: int32[num_copies, num_transfers], position in ``pairs``. pairs: directed pairs of ranks that exchange
            results.
        local: (before, after) of every dependency inside a rank, as stages.
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
    local: tuple[tuple[int, int], ...]
    merged: Merged | None = None
    part: I32 | None = None

    @classmethod
    def of(cls, shape: PipelineShape, merged: Merged | None = None) -> PipelineUnits:
        """Stages and transfers of a pipeline.

        Args:
            shape: ranks, chunks, microbatches. merged: as the attribute.
        Raises:
            ScheduleError: modules that cut microbatches, or copies of the model that differ.
        """
        if shape.is_cut and shape.joins:
            return _numbered_through(shape, merged)
        if shape.is_cut:
            raise ScheduleError(
                "sub-microbatches are not executed yet for a job, only studied on plain numbers",
                where="schedule",
                expected="every chunk runs every microbatch in one piece",
            )
        copies = [_copy(shape, flow, splits=merged is not None) for flow in sorted(set(shape.chunk_flow)) or [0]]
        first, flows = copies[0], range(len(copies))
        known = {*shape.chunk_flow, *shape.microbatch_flow} <= {*flows}
        alike = (first.phase, first.moved, first.local)
        if not known or any((other.phase, other.moved, other.local) != alike for other in copies):
            raise ScheduleError(
                "copies of the model that are not cut alike, or a microbatch that runs through none of them",
                where="schedule",
                expected="the same chunks in every copy, between the same ranks or their mirror images",
            )
        ends = [[(own.rank[a], own.rank[b]) for a, b in own.moved] for own in copies]
        pairs = tuple(sorted({end for own in ends for end in own}))
        place = {end: number for number, end in enumerate(pairs)}
        return cls(
            shape=shape,
            chunk=np.array([own.chunk for own in copies], dtype=np.int32),
            phase=np.array(first.phase, dtype=np.int32),
            rank=np.array([own.rank for own in copies], dtype=np.int32),
            producer=np.array([a for a, _ in first.moved], dtype=np.int32),
            consumer=np.array([b for _, b in first.moved], dtype=np.int32),
            pair=np.array([[place[end] for end in own] for own in ends], dtype=np.int32),
            pairs=pairs,
            local=tuple(first.local),
            merged=merged,
        )

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "graphs"}  # copies begin empty

    @cached_property
    def codes(self) -> I32:
        """int32[num_microbatches, num_stages], what kind of stage each is: ``FORWARD`` to ``NOTHING``."""
        kinds = np.array([FORWARD, BACKWARD] if self.merged is None else [FORWARD, INPUT, WEIGHT], dtype=np.int32)
        found = np.tile(kinds[self.phase], (self.repeats, 1))
        for chunk, microbatch in self.merged or ():  # numbered alike in all copies
            found[microbatch, self.position[chunk, 1]] = BACKWARD
            found[microbatch, self.position[chunk, 2]] = NOTHING
        return found

    @property
    def repeats(self) -> int:
        """How often the stages and transfers here come: for every microbatch, or once where they are all."""
        return self.shape.num_microbatches if self.part is None else 1

    def part_of(self, unit: int) -> int:
        """Number of a stage's unit among its chunk's: its microbatch, or sub-microbatch."""
        return unit // self.size if self.part is None else int(self.part[unit])

    @cached_property
    def parts(self) -> I32:
        """int32[repeats, num_stages], the same of all stages."""
        if self.part is not None:
            return self.part.reshape(1, -1)
        return np.repeat(np.arange(self.repeats, dtype=np.int32)[:, None], self.num_stages, axis=1)

    @property
    def num_stages(self) -> int:
        """Stages of one microbatch."""
        return len(self.phase)

    @property
    def num_copies(self) -> int:
        """Copies of the model."""
        return len(self.chunk)

    @cached_property
    def copy(self) -> NDArray[np.int64]:
        """int64[num_microbatches], the copy of the model that each microbatch runs through."""
        if self.part is not None:
            return np.zeros(1, dtype=np.int64)
        return np.array(self.shape.microbatch_flow, dtype=np.int64)

    def chunk_of(self, unit: int) -> int:
        """Chunk of a stage's unit."""
        microbatch, position = divmod(unit, self.size)
        return int(self.chunk[self.copy[microbatch], position])

    def chunks_of(self, units: NDArray[np.integer]) -> I32:
        """Chunks of stages' units: int32, of the same shape."""
        found: I32 = self.chunk[self.copy[units // self.size], units % self.size]
        return found

    @cached_property
    def pair_of(self) -> I32:
        """int32[num_microbatches, num_transfers], position in ``pairs`` of every transfer."""
        found: I32 = self.pair[self.copy]
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
    def graphs(self) -> dict[object, Any]:
        """What was built of the units, by whatever tells it apart."""
        return {}

    @cached_property
    def edges(self) -> I32:
        """int32[k, 2], (before, after): what the model itself asks for, in every microbatch."""
        transfers = np.arange(self.num_stages, self.size, dtype=np.int32)
        one = np.concatenate(
            (
                np.array(self.local, dtype=np.int32).reshape(-1, 2),
                np.stack((self.producer, transfers), axis=1),
                np.stack((transfers, self.consumer), axis=1),
            )
        )
        shift = self.size * np.arange(self.repeats, dtype=np.int32)
        return (one[None, :, :] + shift[:, None, None]).reshape(-1, 2)

    @cached_property
    def position(self) -> dict[tuple[int, int], int]:
        """(chunk, phase 0, 1 or 2) -> position of that stage in a microbatch."""
        return {
            pair: position
            for chunk in self.chunk.tolist()
            for position, pair in enumerate(zip(chunk, self.phase.tolist(), strict=True))
        }

    def unit(self, stage: StageKey) -> int:
        """Number of a stage's unit."""
        if self.part is not None:
            return self._numbered[stage.chunk, _PLACE[stage.phase], stage.microbatch]
        return stage.microbatch * self.size + self.position[stage.chunk, _PLACE[stage.phase]]

    @cached_property
    def _numbered(self) -> dict[tuple[int, int, int], int]:
        """(chunk, phase, part) -> unit, where units are numbered through."""
        columns = self.chunk[0].tolist(), self.phase.tolist(), self.parts[0].tolist()
        return {stage: unit for unit, stage in enumerate(zip(*columns, strict=True))}

    def transfer(self, stage: StageKey, consumer: StageKey) -> int:
        """Number of the unit that carries a stage's result to a consumer."""
        return (
            self.unit(stage)
            - self.unit_position(stage)
            + self._transfer_position[self.unit_position(stage), self.unit_position(consumer)]
        )

    def unit_position(self, stage: StageKey) -> int:
        """Position of a stage in its microbatch."""
        if self.part is not None:
            return self.unit(stage)
        return self.position[stage.chunk, _PLACE[stage.phase]]

    @cached_property
    def _transfer_position(self) -> dict[tuple[int, int], int]:
        ends = zip(self.producer.tolist(), self.consumer.tolist(), strict=True)
        return {end: self.num_stages + number for number, end in enumerate(ends)}

    def name(self, unit: int) -> str:
        """``2F0`` of a stage, ``send 2F0 to rank 3`` of a transfer."""
        microbatch, position = divmod(unit, self.size)
        if position < self.num_stages:
            letter = LETTERS[self.codes[microbatch, position]]
            return f"{self.chunk_of(unit)}{letter}{self.part_of(unit)}"
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
        if self.part is not None:
            return [np.array([self.unit(stage) for stage in order], dtype=np.int32) for order in schedule.orders]
        size, position, forward = self.size, self.position, Phase.FORWARD
        if self.merged is None:
            return [
                np.array(
                    [s.microbatch * size + position[s.chunk, 0 if s.phase is forward else 1] for s in order],
                    dtype=np.int32,
                )
                for order in schedule.orders
            ]
        return [
            np.array([s.microbatch * size + position[s.chunk, _PLACE[s.phase]] for s in completed(order)], np.int32)
            for order in schedule.orders
        ]

    def order_edges(self, orders: Sequence[I32], *, overlapped_sends: bool) -> I32:
        """Edges that give every stream its order: stages of a rank one after another, transfers of a pair as made.

        Args:
            orders: per rank, units of its stages in order (all of them).
            overlapped_sends: false: after a stage that sends, the rank's compute waits for its transfers.
        Returns:
            int32[k, 2], (before, after).
        """
        place = np.zeros(self.num_units, dtype=np.int32)
        following = np.full(self.num_units, -1, dtype=np.int32)
        pieces = []
        for order in orders:
            place[order] = np.arange(len(order), dtype=np.int32)
            following[order[:-1]] = order[1:]
            pieces.append(np.stack((order[:-1], order[1:]), axis=1))
        shift = self.size * np.arange(self.repeats, dtype=np.int32)[:, None]
        source = (self.producer[None, :] + shift).ravel()
        transfer = (np.arange(self.num_stages, self.size, dtype=np.int32)[None, :] + shift).ravel()
        pair = self.pair_of.ravel()
        made = np.lexsort((transfer, place[source], pair))
        same = pair[made][1:] == pair[made][:-1]
        pieces.append(np.stack((transfer[made][:-1], transfer[made][1:]), axis=1)[same])
        if not overlapped_sends:
            behind = following[source]
            if self.merged:  # not the stage in which nothing happens waits, but the one behind it
                idle = np.zeros(self.num_units + 1, dtype=np.bool_)  # the last stands for none
                idle[:-1].reshape(-1, self.size)[:, : self.num_stages] = self.codes == NOTHING
                behind = np.where(idle[behind], following[behind], behind)
            waits = behind >= 0
            pieces.append(np.stack((transfer, behind), axis=1)[waits])
        return np.concatenate(pieces).astype(np.int32)

    def node_orders(self, stage_orders: I32) -> I32:
        """Orders of stages completed by the orders of the transfers, which leave each pair of ranks as they are made.

        Args:
            stage_orders: int32[num_orders, stages], units of the stages, rank after rank.
        Returns:
            int32[num_orders, num_units], stream after stream.
        """
        shift = self.size * np.arange(self.repeats, dtype=np.int32)[:, None]
        source = (self.producer[None, :] + shift).ravel()
        transfer = (np.arange(self.num_stages, self.size, dtype=np.int32)[None, :] + shift).ravel()
        pair = self.pair_of.ravel().astype(np.int64)
        place = np.zeros((len(stage_orders), self.num_units), dtype=np.int64)
        np.put_along_axis(place, stage_orders.astype(np.int64), np.arange(stage_orders.shape[1])[None, :], axis=1)
        made = np.argsort((pair * self.num_units + place[:, source]) * self.size + transfer % self.size, axis=1)
        return np.concatenate((stage_orders, transfer[made]), axis=1).astype(np.int32)

    @cached_property
    def stream_ptr(self) -> NDArray[np.int64]:
        """int64[num_streams + 1], where each stream begins in a row of ``node_orders``."""
        return np.concatenate(([0], np.cumsum(np.bincount(self.stream, minlength=self.num_streams)))).astype(np.int64)


def units_of(shape: PipelineShape, merged: Merged | None = None) -> PipelineUnits:
    """``PipelineUnits.of``, remembered: nothing in the units changes, so jobs of one shape share them."""
    return _units_of(shape, merged)


@memo.remembered(128)
def _units_of(shape: PipelineShape, merged: Merged | None) -> PipelineUnits:
    return PipelineUnits.of(shape, merged)


def merged_backwards(schedule: Schedule) -> Merged | None:
    """The whole backwards of a schedule that splits others; None: it splits none."""
    if not schedule.splits_backward:
        return None
    columns = schedule.columns
    whole = columns.phase == BACKWARD
    return frozenset(zip(columns.chunk[whole].tolist(), columns.microbatch[whole].tolist(), strict=True))


def completed(order: Iterable[StageKey]) -> Iterator[StageKey]:
    """The stages of a rank under a schedule that splits backwards; behind each whole one, a W that stands for
    nothing."""
    for stage in order:
        yield stage
        if stage.phase is Phase.BACKWARD:
            yield StageKey(stage.chunk, Phase.WEIGHT_GRADIENT, stage.microbatch)


@dataclass(frozen=True)
class _Copy:
    """The units of a microbatch in one copy of the model.

    Attributes:
        chunk, phase, rank: of its stages. moved, local: dependencies across ranks, and inside one, as positions.
    """

    chunk: list[int]
    phase: list[int]
    rank: list[int]
    moved: list[tuple[int, int]]
    local: list[tuple[int, int]]


def _copy(shape: PipelineShape, flow: int, *, splits: bool) -> _Copy:
    stages = [
        StageKey(chunk, phase, 0)
        for chunk in range(shape.num_chunks)
        for phase in (Phase.FORWARD, Phase.BACKWARD, *((Phase.WEIGHT_GRADIENT,) if splits else ()))
        if shape.chunk_flow[chunk] == flow and (phase is Phase.FORWARD or shape.has_backward[chunk])
    ]
    number = {stage: position for position, stage in enumerate(stages)}
    consumers: list[list[int]] = [[] for _ in range(shape.num_chunks)]
    for chunk, sources in enumerate(shape.sources):
        for source in dict.fromkeys(sources):
            consumers[source].append(chunk)
    moved: list[tuple[int, int]] = []
    local: list[tuple[int, int]] = []
    for stage in stages:
        for after in _readers(shape, stage, consumers, splits=splits):
            crosses = shape.chunk_rank[after.chunk] != shape.chunk_rank[stage.chunk]
            (moved if crosses else local).append((number[stage], number[after]))
    return _Copy(
        [stage.chunk for stage in stages],
        [_PLACE[stage.phase] for stage in stages],
        [shape.chunk_rank[stage.chunk] for stage in stages],
        moved,
        local,
    )


def _readers(
    shape: PipelineShape, stage: StageKey, consumers: Sequence[Sequence[int]], *, splits: bool
) -> list[StageKey]:
    """Stages that need a stage's result, in the order in which it is sent. ``consumers``: who reads each chunk."""
    if stage.phase is Phase.FORWARD:
        readers = [StageKey(chunk, stage.phase, 0) for chunk in consumers[stage.chunk]]
        return readers + ([StageKey(stage.chunk, Phase.BACKWARD, 0)] if shape.has_backward[stage.chunk] else [])
    if stage.phase is Phase.WEIGHT_GRADIENT:
        return []
    own = [StageKey(stage.chunk, Phase.WEIGHT_GRADIENT, 0)] if splits else []
    return [
        *(StageKey(source, stage.phase, 0) for source in shape.sources[stage.chunk] if shape.has_backward[source]),
        *own,
    ]


def _numbered_through(shape: PipelineShape, merged: Merged | None) -> PipelineUnits:
    """Units of a pipeline whose modules cut microbatches: stages chunk by chunk and part by part, then transfers, by
    their producers."""
    if merged is not None or any(shape.chunk_flow + shape.microbatch_flow):
        raise ScheduleError(
            "sub-microbatches do not go with split backwards, nor with several copies of the model, in this version",
            where="schedule",
            expected="whole backwards in one copy of the model",
        )
    stages = [
        StageKey(chunk, phase, part)
        for chunk in range(shape.num_chunks)
        for part in shape.every_part(chunk)
        for phase in (Phase.FORWARD, Phase.BACKWARD)
        if phase is Phase.FORWARD or shape.has_backward[chunk]
    ]
    number = {stage: unit for unit, stage in enumerate(stages)}
    consumers: list[list[int]] = [[] for _ in range(shape.num_chunks)]
    for chunk, sources in enumerate(shape.sources):
        for source in sources:
            consumers[source].append(chunk)
    moved: list[tuple[int, int]] = []
    local: list[tuple[int, int]] = []
    for unit, stage in enumerate(stages):
        if stage.phase is Phase.FORWARD:
            others: Sequence[int] = consumers[stage.chunk]
            if shape.has_backward[stage.chunk]:
                local.append((unit, unit + 1))
        else:
            others = [source for source in shape.sources[stage.chunk] if shape.has_backward[source]]
        for other in others:
            ends = local if shape.chunk_rank[other] == shape.chunk_rank[stage.chunk] else moved
            for part in shape.shared(stage.chunk, stage.microbatch, other):
                ends.append((unit, number[StageKey(other, stage.phase, part)]))
    rank = [shape.chunk_rank[stage.chunk] for stage in stages]
    between = [(rank[a], rank[b]) for a, b in moved]
    pairs = {end: place for place, end in enumerate(sorted(set(between)))}
    return PipelineUnits(
        shape=shape,
        chunk=np.array([[stage.chunk for stage in stages]], dtype=np.int32),
        phase=np.array([_PLACE[stage.phase] for stage in stages], dtype=np.int32),
        rank=np.array([rank], dtype=np.int32),
        producer=np.array([a for a, _ in moved], dtype=np.int32),
        consumer=np.array([b for _, b in moved], dtype=np.int32),
        pair=np.array([[pairs[end] for end in between]], dtype=np.int32),
        pairs=tuple(pairs),
        local=tuple(local),
        part=np.array([stage.microbatch for stage in stages], dtype=np.int32),
    )
