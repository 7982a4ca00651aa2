"""Allocations and frees of one rank in the order in which its program asks for them.

Stages of one chunk may run different programs, and modules that cut microbatches hand pieces to one another, which are
joined into new tensors.

A *change* is what a program allocates and frees in turn, in numbers of its chunk's storages; a *turn* is when a change
happens to which part of a chunk. Turns are found for all stages and transfers of a kind at once.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.compile.stage import StageProgram
from semu.costs.phases import program_of
from semu.distinct import sorted_distinct
from semu.graph.operator import Phase
from semu.schedule.graph import graph_of
from semu.schedule.phases import BACKWARD, CODE_OF_PHASE, FORWARD, INPUT
from semu.schedule.problem import members_of
from semu.schedule.shape import PipelineShape
from semu.simulation.context import TimedJob
from semu.simulation.transfers import ChunkTransfers, leaving_positions

I64 = NDArray[np.int64]


class _Change(NamedTuple):
    """Storages that come and go in turn.

    Attributes:
        storage: int64[k], numbers in the chunk. size: int64[k] [bytes], 0: freed. source: int64[k], storage of another
            chunk that this one is from now on; -1: none, it is allocated or freed.
    """

    storage: I64
    size: I64
    source: I64

    @classmethod
    def of(cls, storage: NDArray[np.integer], size: I64, is_new: NDArray[np.bool_] | bool) -> Self:
        """Those of size 0 are left out; ``is_new``: allocated, else freed."""
        exists = size > 0
        number = storage[exists].astype(np.int64)
        return cls(number, np.where(is_new, size, 0)[exists], np.full_like(number, -1))


class _Changes:
    """Changes under the costs of a batch, each with a number by which turns name it."""

    def __init__(self, known: memo.Values[I64]) -> None:
        self._known = known
        self._entries: list[I64] = []
        self._digests: list[bytes] = []
        self._numbers: dict[Hashable, int] = {}
        self._by_shape: dict[Hashable, I64] = {}
        self._table = np.zeros(1, dtype=np.int64), np.zeros((3, 0), dtype=np.int64)
        self._contents = np.zeros((0, 2), dtype=np.int64)
        self._lock = threading.RLock()

    def number(self, key: Hashable, make: Callable[[], _Change]) -> int:
        """Of a change; ``make`` makes it where it has none."""
        number = self._numbers.get(key)
        if number is None:
            entries = self._known.get(key, lambda: np.array(make()))
            with self._lock:
                number = self._numbers.setdefault(key, len(self._entries))
                if number == len(self._entries):
                    self._entries.append(entries)
                    self._digests.append(hashlib.blake2b(entries.tobytes(), digest_size=16).digest())
        return number

    def by_shape(self, key: Hashable, shape: I64, num_shapes: int, make: Callable[[int], _Change]) -> I64:
        """Of the changes of parts of several shapes. ``shape``: int64[num_parts]."""
        known = self._by_shape.setdefault(key, np.full(num_shapes, -1, dtype=np.int64))
        numbers: I64 = known[shape]
        if (numbers < 0).any():
            for new in sorted_distinct(shape[numbers < 0]).tolist():
                known[new] = self.number((key, new), partial(make, new))
            numbers = known[shape]
        return numbers

    def is_nothing(self, number: int) -> bool:
        """Whether a change changes nothing."""
        return not self._entries[number].size

    def contents(self) -> I64:
        """What every change is, whatever its number: int64[num_changes, 2]."""
        with self._lock:
            if len(self._contents) < len(self._digests):
                self._contents = np.frombuffer(b"".join(self._digests), dtype=np.int64).reshape(-1, 2)
            return self._contents

    def table(self) -> tuple[I64, I64]:
        """Where the entries of each change begin, and all entries, as ``write_tape`` takes them."""
        with self._lock:
            if len(self._table[0]) <= len(self._entries):
                first = np.cumsum([0, *(own.shape[1] for own in self._entries)])
                self._table = first, np.concatenate(self._entries, axis=1)
            return self._table


_CHANGES = memo.ScopedTable[_Changes]("what programs allocate and free under the costs of a batch", 1, is_large=True)
_ENTRIES = memo.ScopedTable["I64"]("such changes, by program, shape and what of it", 4096, is_large=True)
_HANDED = memo.ScopedTable["I64"](
    "how many stages of another chunk read each stage of a chunk, by how both are cut, of a pipeline's graph", 4096
)
_ORDERS = memo.ScopedTable["tuple[I64, NDArray[np.bool_]]"]("allocations and frees of a stage's program, in order", 1)
_EVERY = slice(None)
_FIRST, _ONE = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
"""The storage of a piece, and its size where it is freed."""


class _When(NamedTuple):
    """When turns come: before the stage at ``place`` or with it; of these by ``time`` [s], infinite with the stage; at
    equal times frees first, then by ``number``, then as they were added."""

    place: I64
    time: NDArray[np.float64]
    number: I64
    is_receive: bool = False

    @classmethod
    def with_stages(cls, place: I64) -> Self:
        """Together with the stages at some places."""
        return cls(place, np.full(len(place), np.inf), np.zeros_like(place))

    def of(self, chosen: I64 | slice) -> _When:
        """Some of several."""
        if chosen is _EVERY:
            return self
        return _When(self.place[chosen], self.time[chosen], self.number[chosen], self.is_receive)


class AllocationTape:
    """Allocations and frees of one iteration on one rank of one replica."""

    def __init__(self, timed: TimedJob, rank: int, replica: int) -> None:
        self.layout, self.run, self.rank, self.replica = timed.layout, timed.run, rank, replica
        self.nodes = timed.run.problem.rank_nodes[rank]
        self._by_shape = timed.evaluation.by_shape
        self._changes = _CHANGES.get(self._by_shape, (), lambda: _Changes(_ENTRIES.of(timed.evaluation.by_shape)))
        self._shape_of = timed.run.shape[replica]
        self._only_shape = int(self._shape_of[0]) if (self._shape_of == self._shape_of[0]).all() else None
        self._graph = graph_of(timed.run.problem.shape)
        self._num_shapes = timed.evaluation.num_shapes
        self._sizes: dict[int, I64] = {}
        self._turns: list[NDArray[np.float64]] = []
        self._readers: list[I64] = []
        self._cells_of: dict[int, tuple[int, int]] = {}
        self._pieces: dict[tuple[int, ...], int] = {}
        self._num_cells = 0

    @cached_property
    def _in_order(self) -> I64:
        """Cell, source and change of every turn in order: int64[3, num_turns]."""
        self._transfer_all()
        self._run_stages()
        if not self._turns:
            return np.zeros((3, 0), dtype=np.int64)
        place, time, number, is_receive, *rest = np.concatenate(self._turns, axis=1)
        turns = np.array(rest)[:, np.lexsort((number, is_receive, time, place))].astype(np.int64)
        return np.ascontiguousarray(turns[:3, self._happens(turns[3])])

    @cached_property
    def content(self) -> bytes:
        """The same for tapes that record the same; of few turns, where a record is of many events."""
        turns = self._in_order
        found = hashlib.blake2b(turns[:2].tobytes(), digest_size=32)
        found.update(self._changes.contents()[turns[2]].tobytes())
        return found.digest()

    def record(self) -> tuple[I64, I64]:
        """Slot and size [bytes] of every event, int64[num_events] each; size 0 frees the slot."""
        from semu.engine.kernels.allocator import write_tape

        turns = self._in_order
        if not turns.size:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        first, entries = self._changes.table()
        tape = np.empty((2, int((first[turns[2] + 1] - first[turns[2]]).sum())), dtype=np.int64)
        count = write_tape(turns, first, entries, self._num_cells, tape)
        return tape[0, :count], tape[1, :count]

    def _happens(self, readers: I64) -> NDArray[np.bool_]:
        """Whether each turn changes anything: not those that free what a stage sent before its last reader has it."""
        happens = np.ones(len(readers), dtype=np.bool_)
        turns = np.flatnonzero(readers >= 0)
        if len(turns):
            sent, count = np.concatenate(self._readers, axis=1)[:, readers[turns]]
            order = np.argsort(sent, kind="stable")
            begins = np.searchsorted(sent[order], sent[order])
            happens[turns[order]] = np.arange(len(order)) - begins + 1 >= count[order]
        return happens

    # -- changes and turns -------------------------------------------------------------------------------------------
    def _add(
        self, when: _When, cell: I64 | int, number: I64 | int, source: I64 | int = -1, readers: I64 | int = -1
    ) -> None:
        """A change in some turns, or one for each of them.

        Args:
            cell, source: first cells of the parts whose storages change, and of those that they are shared with.
            number: of the change. readers: numbers in ``_readers``: it happens when so many have what was sent; -1: at
                once.
        """
        if isinstance(number, int) and isinstance(readers, int) and self._changes.is_nothing(number):
            return
        turns = np.empty((8, len(when.place)))  # whole numbers below 2^53, and times
        for row, column in enumerate((*when, cell, source, number, readers)):
            turns[row] = column
        self._turns.append(turns)

    def _cells(self, chunk: int, part: I64 | int) -> I64 | int:
        """The first cells of a chunk's parts: there is one for every storage of every part."""
        if chunk not in self._cells_of:
            kinds = [self.layout.kinds[kind] for kind in self.layout.recipe.numbers[chunk]]
            programs = [program for kind in kinds for program in (kind.forward, kind.backward) if program is not None]
            most = [max(p.storage.max(initial=-1), *p.arriving_storage, *p.leaving_storage, -1) for p in programs]
            self._cells_of[chunk] = self._num_cells, int(max(most)) + 1
            self._num_cells += (int(max(most)) + 1) * (1 + int(self.layout.recipe.parts[chunk].max(initial=-1)))
        first, width = self._cells_of[chunk]
        return first + width * part

    def _sizes_of(self, shape: int) -> I64:
        """Sizes of all storages of the library for a shape: int64[n] [bytes]."""
        if shape not in self._sizes:  # and sooner or later the others
            every = sorted_distinct(self._shape_of)
            self._sizes.update(zip(every.tolist(), self._by_shape.sizes_of(every), strict=True))
        return self._sizes[shape]

    def _programs(self, chunk: int, part: I64, code: int) -> Iterator[tuple[StageProgram, I64 | slice]]:
        """The programs of a chunk's parts, and which parts run each."""
        if len(kinds := self.layout.recipe.numbers[chunk]) == 1:
            yield program_of(self.layout, int(kinds[0]), code), _EVERY
            return
        for (kind,), at in _alike(self.layout.recipe.kind_of(chunk, part)):
            yield program_of(self.layout, kind, code), at

    def _by_shape_of(self, columns: I64, key: Hashable, make: Callable[[int], _Change]) -> I64 | int:
        """The number of the change of every part, which depends on its shape; of one shape, that of all.

        Args:
            columns: int64[num_parts], of the table of shapes. key: what a change depends on beside the shape.
            make: shape -> change.
        """
        if self._only_shape is not None:
            shape = self._only_shape
            return self._changes.number((key, shape), lambda: make(shape))
        return self._changes.by_shape(key, self._shape_of[columns], self._num_shapes, make)

    # -- stages ------------------------------------------------------------------------------------------------------
    def _run_stages(self) -> None:
        problem, nodes = self.run.problem, self.nodes
        columns = problem.chunk, problem.phase, problem.microbatch
        chunk, code, part = (column[nodes].astype(np.int64) for column in columns)
        begins = np.flatnonzero(np.isin(code, (FORWARD, BACKWARD, INPUT)))
        for (own, is_forward), at in _alike(chunk[begins], code[begins] == FORWARD):
            self._receive_on_rank(begins[at], own, part[begins[at]], FORWARD if is_forward else BACKWARD)
        kind, column = self.run.kind[nodes], self.run.column[nodes]
        for (own, own_kind, own_code), at in _alike(chunk, kind, code):
            program = program_of(self.layout, own_kind, own_code)
            number = self._by_shape_of(column[at], program, partial(self._stage, program))
            self._add(_When.with_stages(at), self._cells(own, part[at]), number)

    def _stage(self, program: StageProgram, shape: int) -> _Change:
        """What a stage allocates and frees."""
        position, is_new = _ORDERS.get(program, (), lambda: issue_order(program))
        return _Change.of(program.storage[position], self._sizes_of(shape)[program.size_row[position]], is_new)

    def _receive_on_rank(self, place: I64, chunk: int, part: I64, code: int) -> None:
        """What the data loader gives to stages, what chunks of the same rank hand over, what is joined of pieces."""
        shape, when = self.run.problem.shape, _When.with_stages(place)
        new, others = self._arrivals_of(chunk, code)
        if code == FORWARD:
            self._allocate_arriving(when, chunk, part, code, new)
        for other in others:
            is_here = self.layout.chunks[other].chunk.rank == self.rank
            if not self._parts_differ(other, chunk, code):
                if is_here:
                    self._share(when, other, chunk, part, code)
                continue
            if code != FORWARD:
                self._allocate_arriving(when, chunk, part, code)
            for at, own in enumerate(part.tolist()):
                for their_part in shape.shared(chunk, own, other):
                    piece = self._pieces.get((other, their_part, chunk, own, code))
                    if piece is not None:
                        gone = self._changes.number("a piece goes", lambda: _Change.of(_FIRST, _ONE, False))
                        self._add(when.of(np.array([at])), piece, gone)
                    if is_here:
                        self._free_sent(when.of(np.array([at])), other, np.array([their_part]), chunk, code)

    def _arrivals_of(self, chunk: int, code: int) -> tuple[tuple[int, ...], list[int]]:
        """Arriving tensors of a stage that are allocated when it begins, and the chunks that hand it something."""
        layout = self.layout
        if code == FORWARD:
            arrivals = layout.chunks[chunk].arrivals
            new = tuple(k for k, s in enumerate(arrivals) if s < 0 or layout.parts_differ(s, chunk))
            return new, list(dict.fromkeys(source for source in arrivals if source >= 0))
        readers = self._graph.readers[chunk]
        return (), [reader for reader in readers if layout.chunks[reader].backward is not None]

    def _parts_differ(self, sender: int, receiver: int, code: int) -> bool:
        return self.layout.parts_differ(*((sender, receiver) if code == FORWARD else (receiver, sender)))

    def _allocate_arriving(
        self, when: _When, chunk: int, part: I64, code: int, positions: tuple[int, ...] | None = None
    ) -> None:
        """Tensors that stages start from; ``positions``: among their arriving tensors, None: all."""

        def _arriving(program: StageProgram, shape: int) -> _Change:
            every = range(len(program.arriving)) if positions is None else positions
            rows = {program.arriving_storage[k]: program.arriving[k] for k in every if program.arriving[k] >= 0}
            return _Change.of(np.array([*rows], dtype=np.int64), self._sizes_of(shape)[[*rows.values()]], True)

        for program, own in self._programs(chunk, part, code):
            columns = self.layout.recipe.column_of(chunk, part[own])
            number = self._by_shape_of(columns, (program, positions), partial(_arriving, program))
            self._add(when.of(own), self._cells(chunk, part[own]), number)

    def _share(self, when: _When, other: int, chunk: int, part: I64, code: int) -> None:
        """What a chunk of the same rank made is the same storage here."""
        ends = (other, chunk, Phase.FORWARD) if code == FORWARD else (other, chunk, Phase.BACKWARD)
        positions = leaving_positions(self.layout, *ends)
        for program, own in self._programs(chunk, part, code):
            of_program, own_part = when.of(own), part[own]
            for theirs, at in self._programs(other, own_part, code):
                here, there = program.arriving_storage, theirs.leaving_storage
                if code == FORWARD:
                    here = tuple(here[k] for k in positions)
                else:
                    there = tuple(there[k] for k in positions)
                number = self._changes.number((program, here, theirs, there), partial(_shared, here, there))
                mine, their = (self._cells(own_chunk, own_part[at]) for own_chunk in (chunk, other))
                self._add(of_program.of(at), mine, number, their)

    def _free_sent(self, when: _When, chunk: int, part: I64, reader: int, code: int) -> None:
        """What stages made and do not keep goes when the last of the stages that read it has it."""
        shape = self.run.problem.shape
        readers: I64 | None = None
        if shape.joins or shape.part_counts or max(shape.chunk_split) > 1:
            names = *_cut_of(shape, chunk), *_cut_of(shape, reader)
            count = _HANDED.get(self._graph, names, partial(_handed, shape, chunk, reader))
            readers = sum(own.shape[1] for own in self._readers) + np.arange(len(part))
            sent = (part * shape.num_chunks + chunk) * (1 + max(CODE_OF_PHASE.values())) + code
            self._readers.append(np.stack((sent, count[part])))
        for program, at in self._programs(chunk, part, code):
            handed = None
            if code != FORWARD:
                handed = tuple(leaving_positions(self.layout, chunk, reader, Phase.BACKWARD))
            number = self._changes.number((program, handed, "goes"), partial(_freed, program, handed))
            self._add(when.of(at), self._cells(chunk, part[at]), number, readers=-1 if readers is None else readers[at])

    # -- transfers ---------------------------------------------------------------------------------------------------
    def _transfer_all(self) -> None:
        """Receive buffers that come, sent tensors that go, before the stage in which they do; at equal times what is
        sent goes first."""
        run, problem, replica = self.run, self.run.problem, self.replica
        begins, ends = run.start[replica, self.nodes], run.end[replica, self.nodes]
        rank_of, told = list(map(int, problem.shape.chunk_rank)), 0
        for edge in run.sent:
            receives, sends = rank_of[edge.consumer] == self.rank, rank_of[edge.source] == self.rank
            first, told = told, told + len(edge.transfers)
            if not (receives or sends):
                continue
            nodes, number = problem.num_stages + edge.transfers, np.arange(first, told)
            if receives:
                time = run.start[replica, nodes]
                self._receive(edge, _When(np.searchsorted(ends, time, side="right"), time, number, True))
            if sends and not (
                edge.phase is Phase.FORWARD and self.layout.cut.has_own_reader(edge.source, edge.consumer)
            ):
                time = run.end[replica, nodes]
                when = _When(np.searchsorted(begins, time, side="left"), time, number)
                self._free_sent(when, edge.source, edge.microbatch, edge.consumer, CODE_OF_PHASE[edge.phase])

    def _receive(self, edge: ChunkTransfers, when: _When) -> None:
        """Receive buffers of transfers."""
        source, target, code = edge.source, edge.consumer, CODE_OF_PHASE[edge.phase]
        part = self.run.problem.taken[edge.transfers]
        if not self._parts_differ(source, target, code):
            positions = None
            if code == FORWARD:
                positions = tuple(leaving_positions(self.layout, source, target, Phase.FORWARD))
            self._allocate_arriving(when, target, part, code, positions)
            return
        sizes = edge.received[self._shape_of[edge.column]]
        at = np.flatnonzero(sizes > 0)
        cells = self._num_cells + np.arange(len(at))
        pieces = zip(edge.microbatch[at].tolist(), part[at].tolist(), cells.tolist(), strict=True)
        self._pieces |= {(source, given, target, taken, code): cell for given, taken, cell in pieces}
        self._num_cells += len(at)
        distinct, which = np.unique(sizes[at], return_inverse=True)
        numbers = [
            self._changes.number(("a piece", size), partial(_Change.of, _FIRST, _ONE * size, True))
            for size in distinct.tolist()
        ]
        self._add(when.of(at), cells, np.array(numbers, dtype=np.int64)[which.ravel()])


def _shared(here: Sequence[int], there: Sequence[int]) -> _Change:
    """Storages that are storages of another chunk from now on; negative ones are none."""
    pairs = [pair for pair in zip(here, there, strict=False) if min(pair) >= 0]
    storage, shared = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return _Change(storage, np.zeros_like(storage), shared)


def _cut_of(shape: PipelineShape, chunk: int) -> tuple[Hashable, ...]:
    """What ``PipelineShape.shared`` depends on of a chunk."""
    counts = shape.part_counts[chunk] if shape.part_counts else None
    return shape.chunk_module[chunk], shape.chunk_split[chunk], shape.chunk_flow[chunk], counts


def _handed(shape: PipelineShape, chunk: int, reader: int) -> I64:
    """How many stages of another chunk read each stage of a chunk: int64[num_parts]."""
    parts = range(shape.num_microbatches * shape.chunk_split[chunk])
    return np.array([len(shape.shared(chunk, part, reader)) for part in parts], dtype=np.int64)


def _freed(program: StageProgram, positions: tuple[int, ...] | None) -> _Change:
    """What a stage hands on and does not keep; ``positions``: among its leaving tensors, None: all."""
    every = range(len(program.leaving)) if positions is None else positions
    gone = [k for k in every if program.leaving[k] >= 0 and not program.leaving_kept[k]]
    storage = np.array([program.leaving_storage[k] for k in gone], dtype=np.int64)
    return _Change.of(storage, np.ones_like(storage), False)


def _alike(*columns: NDArray[Any]) -> Iterator[tuple[tuple[int, ...], I64]]:
    """The distinct rows of some columns, whole numbers of at least 0, and where each stands, ascending."""
    if not len(columns[0]):
        return
    if all((column == column[0]).all() for column in columns):
        yield tuple(int(column[0]) for column in columns), np.arange(len(columns[0]))
        return
    code = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        code = code * (1 + int(column.max(initial=0))) + column
    _, first, place = np.unique(code, return_index=True, return_inverse=True)
    rows = zip(*(column[first].tolist() for column in columns), strict=True)
    yield from zip(rows, members_of(place.ravel(), len(first)), strict=True)


def issue_order(program: StageProgram) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """A stage's allocations (True) and frees in the order in which its operators are issued: an operator allocates what
    is not there, then frees what no operator after it touches and what does not survive the stage.

    Returns:
        int64[num_events], positions among the program's storages; bool[num_events].
    """
    op = np.repeat(np.arange(program.num_ops), np.diff(program.touch_ptr))
    touched, first = np.unique(program.touch, return_index=True)
    _, from_end = np.unique(program.touch[::-1], return_index=True)
    last = len(program.touch) - 1 - from_end
    come = ~program.alive_before[touched]
    go = ~program.alive_after[touched]
    idle = np.flatnonzero((program.touches == 0) & program.alive_before & ~program.alive_after)
    storage = np.concatenate((touched[come], touched[go], idle)).astype(np.int64)
    turn = np.concatenate((2 * op[first[come]], 2 * op[last[go]] + 1, np.full(len(idle), 2 * program.num_ops)))
    within = np.concatenate((first[come], last[go], idle))
    order = np.lexsort((within, turn))
    comes = np.arange(len(storage)) < int(come.sum())
    return storage[order], comes[order]
