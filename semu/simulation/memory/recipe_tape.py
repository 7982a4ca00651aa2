"""Allocations and frees of one rank under any recipe with whole backwards, in the order in which they are asked for.

Stages of one chunk may run different programs, and modules that cut microbatches hand pieces to one another, which are
joined into new tensors. Where a recipe is uniform, ``reserved`` writes the same tape in arrays, several times faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from semu.compile.stage import StageProgram
from semu.costs.phases import program_of
from semu.graph.operator import Phase
from semu.schedule.graph import graph_of
from semu.schedule.phases import BACKWARD, FORWARD
from semu.simulation.context import TimedJob
from semu.simulation.transfers import leaving_positions

Key = tuple[object, ...]
"""What a slot holds: ("storage", chunk, part, storage) or ("piece", transfer)."""


class RecipeTape:
    """Allocations and frees of one iteration on one rank of one replica.

    Args:
        issued: order of a program's allocations (True) and frees: positions among its storages, and which.
    """

    def __init__(
        self,
        timed: TimedJob,
        rank: int,
        replica: int,
        issued: Callable[[StageProgram], tuple[NDArray[np.int64], NDArray[np.bool_]]],
    ) -> None:
        self.layout, self.evaluation, self.run = timed.layout, timed.evaluation, timed.run
        self.rank, self.replica = rank, replica
        self.nodes = timed.run.problem.rank_nodes[rank].tolist()
        self._issued = issued
        self._live: dict[Key, int] = {}
        self._gone: set[int] = set()
        self._events: list[tuple[int, int]] = []
        self._sizes: dict[int, NDArray[np.int64]] = {}
        self._waiting: dict[tuple[int, int, int], int] = {}
        self._next = 0

    def record(self) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Slots and sizes (0: free)."""
        outside = self._outside()
        for position, node in enumerate(self.nodes):
            for change in outside.get(position, ()):
                change()
            self._stage(node)
        for change in outside.get(len(self.nodes), ()):
            change()
        table = np.array(self._events, dtype=np.int64).reshape(-1, 2)
        return [(table[:, 0], table[:, 1])]

    # -- slots -------------------------------------------------------------------------------------------------------
    def _comes(self, key: Key, size: int) -> None:
        if size > 0:
            self._live[key] = self._next
            self._events.append((self._next, size))
            self._next += 1

    def _goes(self, key: Key) -> None:
        slot = self._live.get(key)
        if slot is not None and slot not in self._gone:
            self._gone.add(slot)
            self._events.append((slot, 0))

    def _size(self, shape: int) -> NDArray[np.int64]:
        if shape not in self._sizes:
            self._sizes[shape] = self.evaluation.by_shape.sizes_of(np.array([shape]))[0]
        return self._sizes[shape]

    def _shape(self, node: int) -> int:
        return int(self.run.shape[self.replica, self.run.column[node]])

    # -- stages ------------------------------------------------------------------------------------------------------
    def _stage(self, node: int) -> None:
        problem = self.run.problem
        chunk, phase, part = (int(row[node]) for row in (problem.chunk, problem.phase, problem.microbatch))
        program = program_of(self.layout, int(self.run.kind[node]), phase)
        size = self._size(self._shape(node))[program.size_row]
        self._arrive(node, chunk, phase, part, program)
        positions, comes = self._issued(program)
        for position, is_new in zip(positions.tolist(), comes.tolist(), strict=True):
            key = ("storage", chunk, part, int(program.storage[position]))
            if is_new:
                self._comes(key, int(size[position]))
            else:
                self._goes(key)

    def _arrive(self, node: int, chunk: int, phase: int, part: int, program: StageProgram) -> None:
        """What the loader gives, what chunks of this rank hand over, what is joined of pieces."""
        layout, shape = self.layout, self.run.problem.shape
        sizes = self._size(self._shape(node))
        if phase == FORWARD:
            arrivals = layout.chunks[chunk].arrivals
            for k, source in enumerate(arrivals):
                key = ("storage", chunk, part, program.arriving_storage[k])
                if source < 0 or layout.is_seam(source, chunk):
                    self._comes(key, int(sizes[program.arriving[k]]) if program.arriving[k] >= 0 else 0)
            others = list(dict.fromkeys(source for source in arrivals if source >= 0))
        else:
            others = [reader for reader in graph_of(shape).readers[chunk] if layout.chunks[reader].backward is not None]
        for other in others:
            ends = (other, chunk) if phase == FORWARD else (chunk, other)
            if layout.is_seam(*ends):
                if phase != FORWARD:
                    for storage, row in zip(program.arriving_storage, program.arriving, strict=True):
                        if row >= 0:
                            self._comes(("storage", chunk, part, storage), int(sizes[row]))
                for there in shape.shared(chunk, part, other):
                    self._goes(("piece", other, there, chunk, part, phase))
                    if layout.chunks[other].chunk.rank == self.rank:
                        self._release(other, there, chunk, phase)
            elif layout.chunks[other].chunk.rank == self.rank:
                self._borrow(other, chunk, part, phase, program)

    def _borrow(self, other: int, chunk: int, part: int, phase: int, program: StageProgram) -> None:
        """What a chunk of the same rank made is the same storage here."""
        letter = Phase.FORWARD if phase == FORWARD else Phase.BACKWARD
        made = self._program(other, part, phase)
        positions = leaving_positions(self.layout, other, chunk, letter)
        here, there = program.arriving_storage, made.leaving_storage
        if phase == FORWARD:
            here = tuple(here[k] for k in positions)
        else:
            there = tuple(there[k] for k in positions)
        for mine, its in zip(here, there, strict=False):
            slot = self._live.get(("storage", other, part, its))
            if slot is not None and mine >= 0:
                self._live[("storage", chunk, part, mine)] = slot

    def _program(self, chunk: int, part: int, phase: int) -> StageProgram:
        kind = self.layout.recipe.kind_of(np.array([chunk]), np.array([part]))
        return program_of(self.layout, int(kind[0]), FORWARD if phase == FORWARD else BACKWARD)

    def _release(self, chunk: int, part: int, consumer: int, phase: int) -> None:
        """What a stage made and nobody keeps goes when the last of those that take it has it."""
        shape = self.run.problem.shape
        takers = len(shape.shared(chunk, part, consumer))
        number = self._waiting.get((chunk, part, phase), 0) + 1
        self._waiting[chunk, part, phase] = number
        if number < takers:
            return
        program = self._program(chunk, part, phase)
        positions: Iterable[int] = range(len(program.leaving))
        if phase != FORWARD:
            positions = leaving_positions(self.layout, chunk, consumer, Phase.BACKWARD)
        for k in positions:
            if program.leaving[k] >= 0 and not program.leaving_kept[k]:
                self._goes(("storage", chunk, part, program.leaving_storage[k]))

    # -- transfers ---------------------------------------------------------------------------------------------------
    def _outside(self) -> dict[int, list[Callable[[], None]]]:
        """Receive buffers that come, sent tensors that go: by the stage before which they do."""
        run, problem, replica = self.run, self.run.problem, self.replica
        begins, ends = run.start[replica, self.nodes], run.end[replica, self.nodes]
        found: list[tuple[int, float, int, Callable[[], None]]] = []
        for edge in run.sent.edges:
            target, source = problem.shape.chunk_rank[edge.consumer], problem.shape.chunk_rank[edge.source]
            if self.rank not in (target, source):
                continue
            for transfer, column in zip(edge.transfers.tolist(), edge.column.tolist(), strict=True):
                node, move = problem.num_stages + transfer, problem.transfers[transfer]
                if target == self.rank:
                    time = float(run.start[replica, node])
                    size = int(edge.size[run.shape[replica, column]])
                    place = int(np.searchsorted(ends, time, side="right"))
                    found.append(
                        (
                            place,
                            time,
                            len(found),
                            self._received(
                                edge.phase,
                                move.stage.chunk,
                                move.stage.microbatch,
                                move.consumer.chunk,
                                move.consumer.microbatch,
                                size,
                            ),
                        )
                    )
                if source == self.rank:
                    time = float(run.end[replica, node])
                    place = int(np.searchsorted(begins, time, side="left"))
                    found.append(
                        (
                            place,
                            time,
                            len(found),
                            self._sent(edge.phase, move.stage.chunk, move.stage.microbatch, move.consumer.chunk),
                        )
                    )
        by_stage: dict[int, list[Callable[[], None]]] = {}
        for place, _, _, change in sorted(found, key=lambda entry: entry[:3]):
            by_stage.setdefault(place, []).append(change)
        return by_stage

    def _received(
        self, phase: Phase, source: int, given: int, target: int, taken: int, size: int
    ) -> Callable[[], None]:
        code = FORWARD if phase is Phase.FORWARD else BACKWARD

        def change() -> None:
            ends = (source, target) if code == FORWARD else (target, source)
            if self.layout.is_seam(*ends):
                self._comes(("piece", source, given, target, taken, code), size)
                return
            program = self._program(target, taken, code)
            wanted: Iterable[int] = range(len(program.arriving))
            if code == FORWARD:
                wanted = leaving_positions(self.layout, source, target, phase)
            column = self.layout.recipe.column_of(np.array([target]), np.array([taken]))[0]
            sizes = self._size(int(self.run.shape[self.replica, column]))
            for k in wanted:
                if program.arriving[k] >= 0:
                    self._comes(
                        ("storage", target, taken, program.arriving_storage[k]), int(sizes[program.arriving[k]])
                    )

        return change

    def _sent(self, phase: Phase, source: int, given: int, target: int) -> Callable[[], None]:
        code = FORWARD if phase is Phase.FORWARD else BACKWARD
        return lambda: self._release(source, given, target, code)
