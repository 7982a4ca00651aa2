"""``PipelineUnits``: the stages and transfers of a pipeline before any schedule, microbatch by microbatch.

Numbering does not depend on a schedule: unit ``microbatch x size + position``, where the positions of a microbatch are
its stages (by chunk, forward before backward), then its transfers. A schedule is a set of edges between units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.errors import ScheduleError
from semu.graph.operator import Phase
from semu.schedule.schedule import PipelineShape, Schedule, StageKey

I32 = NDArray[np.int32]


@dataclass(frozen=True)
class PipelineUnits:
    """Structure of one microbatch, which all microbatches share.

    Attributes:
        shape: ranks, chunks, microbatches.
        chunk, phase, rank: int32[num_stages], of a microbatch's stages; phase 0 forward, 1 backward.
        producer, consumer: int32[num_transfers], stages between which a transfer moves a result.
        pair: int32[num_transfers], position in ``pairs``. pairs: directed pairs of ranks that exchange results.
        local: (before, after) of every dependency inside a rank, as stages.
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

    @classmethod
    def of(cls, shape: PipelineShape) -> PipelineUnits:
        """Stages and transfers of a pipeline.

        Raises:
            ScheduleError: modules that cut microbatches, or several copies of the model.
        """
        if not shape.is_plain:
            raise ScheduleError(
                "sub-microbatches and bidirectional pipelines are not executed yet",
                where="schedule",
                expected="every chunk runs every microbatch in one piece",
            )
        stages = [
            StageKey(chunk, phase, 0)
            for chunk in range(shape.num_chunks)
            for phase in (Phase.FORWARD, Phase.BACKWARD)
            if phase is Phase.FORWARD or shape.has_backward[chunk]
        ]
        number = {stage: position for position, stage in enumerate(stages)}
        moved: list[tuple[int, int]] = []
        local: list[tuple[int, int]] = []
        for stage in stages:
            for after in _readers(shape, stage):
                crosses = shape.chunk_rank[after.chunk] != shape.chunk_rank[stage.chunk]
                (moved if crosses else local).append((number[stage], number[after]))
        rank = [shape.chunk_rank[stage.chunk] for stage in stages]
        ends = [(rank[a], rank[b]) for a, b in moved]
        pairs = tuple(sorted(set(ends)))
        return cls(
            shape=shape,
            chunk=np.array([stage.chunk for stage in stages], dtype=np.int32),
            phase=np.array([int(stage.phase is not Phase.FORWARD) for stage in stages], dtype=np.int32),
            rank=np.array(rank, dtype=np.int32),
            producer=np.array([a for a, _ in moved], dtype=np.int32),
            consumer=np.array([b for _, b in moved], dtype=np.int32),
            pair=np.array([pairs.index(end) for end in ends], dtype=np.int32),
            pairs=pairs,
            local=tuple(local),
        )

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "graphs"}  # copies begin empty

    @property
    def num_stages(self) -> int:
        """Stages of one microbatch."""
        return len(self.chunk)

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
        return self.size * self.shape.num_microbatches

    @property
    def num_streams(self) -> int:
        """A compute stream per rank, then a link stream per pair."""
        return self.shape.num_ranks + len(self.pairs)

    @cached_property
    def stream(self) -> I32:
        """int32[num_units], the stream that each unit holds."""
        return np.tile(np.concatenate((self.rank, self.shape.num_ranks + self.pair)), self.shape.num_microbatches)

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
        shift = self.size * np.arange(self.shape.num_microbatches, dtype=np.int32)
        return (one[None, :, :] + shift[:, None, None]).reshape(-1, 2)

    @cached_property
    def position(self) -> dict[tuple[int, int], int]:
        """(chunk, phase 0 or 1) -> position of that stage in a microbatch."""
        pairs = zip(self.chunk.tolist(), self.phase.tolist(), strict=True)
        return {pair: position for position, pair in enumerate(pairs)}

    def unit(self, stage: StageKey) -> int:
        """Number of a stage's unit."""
        return stage.microbatch * self.size + self.position[stage.chunk, int(stage.phase is not Phase.FORWARD)]

    def transfer(self, stage: StageKey, consumer: StageKey) -> int:
        """Number of the unit that carries a stage's result to a consumer."""
        return (
            self.unit(stage)
            - self.unit_position(stage)
            + self._transfer_position[self.unit_position(stage), self.unit_position(consumer)]
        )

    def unit_position(self, stage: StageKey) -> int:
        """Position of a stage in its microbatch."""
        return self.position[stage.chunk, int(stage.phase is not Phase.FORWARD)]

    @cached_property
    def _transfer_position(self) -> dict[tuple[int, int], int]:
        ends = zip(self.producer.tolist(), self.consumer.tolist(), strict=True)
        return {end: self.num_stages + number for number, end in enumerate(ends)}

    def name(self, unit: int) -> str:
        """``2F0`` of a stage, ``send 2F0 to rank 3`` of a transfer."""
        microbatch, position = divmod(unit, self.size)
        if position < self.num_stages:
            letter = "B" if self.phase[position] else "F"
            return f"{self.chunk[position]}{letter}{microbatch}"
        number = position - self.num_stages
        source = self.name(microbatch * self.size + int(self.producer[number]))
        return f"send {source} to rank {self.rank[self.consumer[number]]}"

    def orders(self, schedule: Schedule) -> list[I32]:
        """Units of the stages of each rank, in the schedule's order.

        Raises:
            ScheduleError: the schedule splits backwards.
        """
        refuse_split(schedule)
        size, position = self.size, self.position
        forward = Phase.FORWARD
        return [
            np.array(
                [s.microbatch * size + position[s.chunk, 0 if s.phase is forward else 1] for s in order],
                dtype=np.int32,
            )
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
        shift = self.size * np.arange(self.shape.num_microbatches, dtype=np.int32)[:, None]
        source = (self.producer[None, :] + shift).ravel()
        transfer = (np.arange(self.num_stages, self.size, dtype=np.int32)[None, :] + shift).ravel()
        pair = np.tile(self.pair, self.shape.num_microbatches)
        made = np.lexsort((transfer, place[source], pair))
        same = pair[made][1:] == pair[made][:-1]
        pieces.append(np.stack((transfer[made][:-1], transfer[made][1:]), axis=1)[same])
        if not overlapped_sends:
            waits = following[source] >= 0
            pieces.append(np.stack((transfer, following[source]), axis=1)[waits])
        return np.concatenate(pieces).astype(np.int32)

    def node_orders(self, stage_orders: I32) -> I32:
        """Orders of stages completed by the orders of the transfers, which leave each pair of ranks as they are made.

        Args:
            stage_orders: int32[num_orders, stages], units of the stages, rank after rank.
        Returns:
            int32[num_orders, num_units], stream after stream.
        """
        shift = self.size * np.arange(self.shape.num_microbatches, dtype=np.int32)[:, None]
        source = (self.producer[None, :] + shift).ravel()
        transfer = (np.arange(self.num_stages, self.size, dtype=np.int32)[None, :] + shift).ravel()
        pair = np.tile(self.pair, self.shape.num_microbatches).astype(np.int64)
        place = np.zeros((len(stage_orders), self.num_units), dtype=np.int64)
        np.put_along_axis(place, stage_orders.astype(np.int64), np.arange(stage_orders.shape[1])[None, :], axis=1)
        made = np.argsort((pair * self.num_units + place[:, source]) * self.size + transfer % self.size, axis=1)
        return np.concatenate((stage_orders, transfer[made]), axis=1).astype(np.int32)

    @cached_property
    def stream_ptr(self) -> NDArray[np.int64]:
        """int64[num_streams + 1], where each stream begins in a row of ``node_orders``."""
        return np.concatenate(([0], np.cumsum(np.bincount(self.stream, minlength=self.num_streams)))).astype(np.int64)


@lru_cache(maxsize=128)
def units_of(shape: PipelineShape) -> PipelineUnits:
    """``PipelineUnits.of``, remembered: nothing in the units changes, so jobs of one shape share them."""
    return PipelineUnits.of(shape)


def refuse_split(schedule: Schedule) -> None:
    """Say no to input and weight gradients that are stages of their own."""
    columns = schedule.columns
    split = np.flatnonzero(columns.phase > 1)
    if len(split):
        at = int(split[0])
        rank = int(np.searchsorted(columns.ptr, at, side="right")) - 1
        position = at - int(columns.ptr[rank])
        raise ScheduleError(
            "split backward is not executed yet",
            where=f"{schedule.name}: rank {rank}, position {position}",
            expected="phase F or B",
            got=schedule.orders[rank][position],
        )


def _readers(shape: PipelineShape, stage: StageKey) -> list[StageKey]:
    """Stages that need a stage's result, in the order in which it is sent."""
    if stage.phase is Phase.FORWARD:
        readers = [StageKey(c, stage.phase, 0) for c, sources in enumerate(shape.sources) if stage.chunk in sources]
        return readers + ([StageKey(stage.chunk, Phase.BACKWARD, 0)] if shape.has_backward[stage.chunk] else [])
    return [StageKey(source, stage.phase, 0) for source in shape.sources[stage.chunk] if shape.has_backward[source]]
