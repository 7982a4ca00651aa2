"""A rank's allocations and frees, stage by stage and transfer by transfer: slow, and in the order in which it happens.

What a stage's program allocates and frees in turn (``issue_order``) is asked of semu.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from semu.compile.stage import StageProgram
from semu.costs.phases import program_of
from semu.graph.operator import Phase
from semu.schedule.graph import graph_of
from semu.schedule.phases import BACKWARD, CODE_OF_PHASE, FORWARD, INPUT
from semu.schedule.problem import Transfer
from semu.simulation.context import TimedJob
from semu.simulation.memory.changes import issue_order
from semu.simulation.transfers import leaving_positions

I64 = NDArray[np.int64]


class _Change(NamedTuple):
    """Storages of a chunk's part that come and go in turn.

    Attributes:
        new: int64[j], numbers in the chunk of those that are allocated, each once. storage: int64[k], all of them, in
            order. size: int64[k] [bytes], 0: freed.
    """

    new: NDArray[np.integer]
    storage: NDArray[np.integer]
    size: I64

    @classmethod
    def of(cls, storage: NDArray[np.integer], size: I64, is_new: NDArray[np.bool_] | bool) -> Self:
        """Those of size 0 are left out; ``is_new``: allocated, else freed."""
        exists = size > 0
        return cls(storage[exists & is_new], storage[exists], np.where(is_new, size, 0)[exists])


class SlowTape:
    """Allocations and frees of one iteration on one rank of one replica."""

    def __init__(self, timed: TimedJob, rank: int, replica: int) -> None:
        self.layout, self.evaluation, self.run = timed.layout, timed.evaluation, timed.run
        self.rank, self.replica = rank, replica
        self.nodes = timed.run.problem.rank_nodes[rank].tolist()
        self._shape_of = timed.run.shape[replica].tolist()
        self._changes: dict[Hashable, _Change] = {}
        self._arrivals: dict[tuple[int, int], tuple[tuple[int, ...], list[tuple[int, bool, bool]]]] = {}
        self._events: list[tuple[I64, I64]] = []
        self._num_slots = 0
        self._slots: dict[tuple[int, int], I64] = {}
        self._pieces: dict[tuple[int, ...], I64] = {}
        self._sizes: dict[int, I64] = {}
        self._orders: dict[StageProgram, tuple[I64, NDArray[np.bool_]]] = {}
        self._readers_done: dict[tuple[int, int, int], int] = {}

    def record(self) -> tuple[I64, I64]:
        """Slot and size [bytes] of every event, int64[num_events] each; size 0 frees the slot."""
        transfers = self._transfers()
        for position, node in enumerate([*self.nodes, None]):
            for change in transfers.get(position, ()):
                change()
            if node is not None:
                self._run_stage(node)
        nothing = np.zeros(0, dtype=np.int64)
        slot, size = (np.concatenate([nothing, *(event[k] for event in self._events)]) for k in range(2))
        frees = np.flatnonzero(size == 0)
        counts = size > 0  # of a storage that two chunks share, the first free counts
        first = np.full(self._num_slots, -1, dtype=np.int64)
        first[slot[frees[::-1]]] = frees[::-1]
        counts[first[first >= 0]] = True
        return slot[counts], size[counts]

    # -- slots -------------------------------------------------------------------------------------------------------
    def _change(self, chunk: int, part: int, key: Hashable, make: Callable[[], _Change]) -> None:
        """Allocate or free storages of a chunk's part in turn; ``key``: of what ``make`` makes, which is kept."""
        change = self._changes.get(key)
        if change is None:
            change = self._changes[key] = make()
        slots = self._slots_of(chunk, part)
        if len(change.new):
            slots[change.new] = np.arange(self._num_slots, self._num_slots + len(change.new))
            self._num_slots += len(change.new)
        slot, size = slots[change.storage], change.size
        if slot.min(initial=0) < 0:  # freed, and never allocated
            slot, size = slot[slot >= 0], size[slot >= 0]
        self._events.append((slot, size))

    def _slots_of(self, chunk: int, part: int) -> I64:
        """Slot of every storage of a chunk's part; -1: never allocated."""
        if (chunk, part) not in self._slots:
            kinds = [self.layout.kinds[kind] for kind in self.layout.recipe.numbers[chunk]]
            programs = [program for kind in kinds for program in (kind.forward, kind.backward) if program is not None]
            numbers = [(*p.storage.tolist(), *p.arriving_storage, *p.leaving_storage) for p in programs]
            self._slots[chunk, part] = np.full(1 + max(map(max, numbers)), -1, dtype=np.int64)
        return self._slots[chunk, part]

    def _sizes_at(self, column: int) -> I64:
        """Sizes of all storages of the library for the shape in a column of the table of shapes: int64[n] [bytes]."""
        shape = self._shape_of[column]
        if shape not in self._sizes:
            self._sizes[shape] = self.evaluation.by_shape.sizes_of(np.array([shape]))[0]
        return self._sizes[shape]

    # -- stages ------------------------------------------------------------------------------------------------------
    def _run_stage(self, node: int) -> None:
        problem = self.run.problem
        chunk, code, part = (int(row[node]) for row in (problem.chunk, problem.phase, problem.microbatch))
        if code in (FORWARD, BACKWARD, INPUT):
            self._receive_on_rank(chunk, part, FORWARD if code == FORWARD else BACKWARD)
        program, column = program_of(self.layout, int(self.run.kind[node]), code), int(self.run.column[node])

        def _made() -> _Change:
            if program not in self._orders:
                self._orders[program] = issue_order(program)
            position, is_new = self._orders[program]
            return _Change.of(program.storage[position], self._sizes_at(column)[program.size_row[position]], is_new)

        self._change(chunk, part, (program, self._shape_of[column]), _made)

    def _receive_on_rank(self, chunk: int, part: int, code: int) -> None:
        """What the data loader gives to a stage, what chunks of the same rank hand over, what is joined of pieces."""
        shape = self.run.problem.shape
        if (chunk, code) not in self._arrivals:
            self._arrivals[chunk, code] = self._arrivals_of(chunk, code)
        new, others = self._arrivals[chunk, code]
        if code == FORWARD:
            self._allocate_arriving(chunk, part, code, new)
        for other, is_here, differs in others:
            if not differs:
                if is_here:
                    self._share(other, chunk, part, code)
                continue
            if code != FORWARD:
                self._allocate_arriving(chunk, part, code)
            for their_part in shape.shared(chunk, part, other):
                piece = self._pieces.pop((other, their_part, chunk, part, code), None)
                if piece is not None:
                    self._events.append((piece, np.zeros(1, dtype=np.int64)))
                if is_here:
                    self._free_sent(other, their_part, chunk, code)

    def _arrivals_of(self, chunk: int, code: int) -> tuple[tuple[int, ...], list[tuple[int, bool, bool]]]:
        """Arriving tensors of a stage that are allocated when it begins, and the chunks that hand it something: whether
        they are on this rank, and whether their parts are others."""
        layout, new = self.layout, tuple[int, ...]()
        if code == FORWARD:
            arrivals = layout.chunks[chunk].arrivals
            others = list(dict.fromkeys(source for source in arrivals if source >= 0))
            new = tuple(k for k, s in enumerate(arrivals) if s < 0 or layout.parts_differ(s, chunk))
        else:
            readers = graph_of(self.run.problem.shape).readers[chunk]
            others = [reader for reader in readers if layout.chunks[reader].backward is not None]
        return new, [
            (other, layout.chunks[other].chunk.rank == self.rank, self._parts_differ(other, chunk, code))
            for other in others
        ]

    def _parts_differ(self, sender: int, receiver: int, code: int) -> bool:
        return self.layout.parts_differ(*((sender, receiver) if code == FORWARD else (receiver, sender)))

    def _allocate_arriving(self, chunk: int, part: int, code: int, positions: tuple[int, ...] | None = None) -> None:
        """Tensors that a stage starts from; ``positions``: among its arriving tensors, None: all."""
        program = self._program(chunk, part, code)
        column = int(self.layout.recipe.column_of(chunk, part))

        def _made() -> _Change:
            every = range(len(program.arriving)) if positions is None else positions
            rows = {program.arriving_storage[k]: program.arriving[k] for k in every if program.arriving[k] >= 0}
            return _Change.of(np.array([*rows], dtype=np.int64), self._sizes_at(column)[[*rows.values()]], True)

        self._change(chunk, part, (program, self._shape_of[column], positions), _made)

    def _share(self, other: int, chunk: int, part: int, code: int) -> None:
        """What a chunk of the same rank made is the same storage here."""
        here = self._program(chunk, part, code).arriving_storage
        there = self._program(other, part, code).leaving_storage
        if code == FORWARD:
            here = tuple(here[k] for k in leaving_positions(self.layout, other, chunk, Phase.FORWARD))
        else:
            there = tuple(there[k] for k in leaving_positions(self.layout, other, chunk, Phase.BACKWARD))
        slots, their_slots = self._slots_of(chunk, part), self._slots_of(other, part)
        for storage, their_storage in zip(here, there, strict=False):
            if storage >= 0 and their_storage >= 0 and their_slots[their_storage] >= 0:
                slots[storage] = their_slots[their_storage]

    def _program(self, chunk: int, part: int, code: int) -> StageProgram:
        return program_of(self.layout, int(self.layout.recipe.kind_of(chunk, part)), code)

    def _free_sent(self, chunk: int, part: int, reader: int, code: int) -> None:
        """What a stage made and does not keep goes when the last of the stages that read it has it."""
        key = chunk, part, code
        self._readers_done[key] = self._readers_done.get(key, 0) + 1
        if self._readers_done[key] < len(self.run.problem.shape.shared(chunk, part, reader)):
            return
        program = self._program(chunk, part, code)

        def _made() -> _Change:
            positions: Iterable[int] = range(len(program.leaving))
            if code != FORWARD:
                positions = leaving_positions(self.layout, chunk, reader, Phase.BACKWARD)
            gone = [k for k in positions if program.leaving[k] >= 0 and not program.leaving_kept[k]]
            storage = np.array([program.leaving_storage[k] for k in gone], dtype=np.int64)
            return _Change.of(storage, np.ones_like(storage), False)

        self._change(chunk, part, (program, chunk, reader, code), _made)

    # -- transfers ---------------------------------------------------------------------------------------------------
    def _transfers(self) -> dict[int, list[Callable[[], None]]]:
        """Receive buffers that come, sent tensors that go, by the position of the stage before which they do; at equal
        times what is sent goes first."""
        run, problem, replica = self.run, self.run.problem, self.replica
        begins, ends = run.start[replica, self.nodes], run.end[replica, self.nodes]
        changes: list[tuple[int, float, bool, Callable[[], None]]] = []
        for edge in run.sent:
            receives, sends = (problem.shape.chunk_rank[chunk] == self.rank for chunk in (edge.consumer, edge.source))
            if not (receives or sends):
                continue
            code = CODE_OF_PHASE[edge.phase]
            for transfer, column in zip(edge.transfers.tolist(), edge.column.tolist(), strict=True):
                node, ends_of = problem.num_stages + transfer, problem.transfers[transfer]
                if receives:
                    start = run.start[replica, node]
                    place = int(np.searchsorted(ends, start, side="right"))
                    size = int(edge.size[run.shape[replica, column]])
                    changes.append((place, float(start), True, partial(self._receive, ends_of, code, size)))
                if sends:
                    end = run.end[replica, node]
                    place = int(np.searchsorted(begins, end, side="left"))
                    stage, reader = ends_of.stage, ends_of.consumer.chunk
                    free = partial(self._free_sent, stage.chunk, stage.microbatch, reader, code)
                    changes.append((place, float(end), False, free))
        by_position: dict[int, list[Callable[[], None]]] = {}
        for position, _, _, change in sorted(changes, key=lambda entry: entry[:3]):
            by_position.setdefault(position, []).append(change)
        return by_position

    def _receive(self, transfer: Transfer, code: int, size: int) -> None:
        """Receive buffers of a transfer of ``size`` bytes."""
        source, target, part = transfer.stage.chunk, transfer.consumer.chunk, transfer.consumer.microbatch
        if not self._parts_differ(source, target, code):
            positions = None
            if code == FORWARD:
                positions = tuple(leaving_positions(self.layout, source, target, Phase.FORWARD))
            self._allocate_arriving(target, part, code, positions)
        elif size > 0:
            slot = self._pieces[source, transfer.stage.microbatch, target, part, code] = np.array([self._num_slots])
            self._events.append((slot, np.array([size])))
            self._num_slots += 1
