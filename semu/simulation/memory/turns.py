"""``Turns``: when which change (``changes``) happens to which part of a chunk, for all stages and transfers of many
ranks at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.compile.stage import StageProgram
from semu.costs.phases import program_of
from semu.distinct import sorted_distinct
from semu.graph.operator import Phase
from semu.schedule.graph import graph_of
from semu.schedule.phases import BACKWARD, CODE_OF_PHASE, FORWARD, NOTHING, WEIGHT
from semu.schedule.problem import members_of
from semu.schedule.shape import PipelineShape
from semu.simulation.context import TimedJob
from semu.simulation.memory.changes import Change, Changes, freed, issue_order, shared
from semu.simulation.transfers import ChunkTransfers, leaving_positions

I64 = NDArray[np.int64]


_CHANGES = memo.ScopedTable[Changes]("what programs allocate and free under the costs of a batch", 1, is_large=True)
_ENTRIES = memo.ScopedTable["I64"]("such changes, by program, shape and what of it", 4096, is_large=True)
_HANDED = memo.ScopedTable["I64"](
    "how many stages of another chunk read each stage of a chunk, by how both are cut, of a pipeline's graph", 4096
)
_ORDERS = memo.ScopedTable["tuple[I64, NDArray[np.bool_]]"]("allocations and frees of a stage's program, in order", 1)
_STORAGES = memo.ScopedTable[int]("the highest number of a storage of a stage's program", 1)
_BEFORE: Literal["left"] = "left"
_AFTER: Literal["right"] = "right"
_EVERY = slice(None)
_FIRST, _ONE = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
"""The storage of a piece, and its size where it is freed."""


class _When(NamedTuple):
    """When turns come: before the stage at ``place`` or with it, where places of a rank begin behind one more than all
    stages of those before; of these by ``time`` [s], infinite with the stage; at equal times frees first, then by
    ``number``, then as they were added."""

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


class Turns:
    """The turns of some ranks of one replica, which follow one another."""

    def __init__(self, timed: TimedJob, replica: int, ranks: range) -> None:
        self.layout, self.run, self.replica, self.ranks = timed.layout, timed.run, replica, ranks
        ends = timed.run.problem.stream_ptr
        self._begin = int(ends[ranks[0]])
        self.nodes = slice(self._begin, int(ends[ranks[-1] + 1]))
        self._by_shape = timed.evaluation.by_shape
        self.changes = _CHANGES.get(self._by_shape, (), lambda: Changes(_ENTRIES.of(timed.evaluation.by_shape)))
        self._shape_of = timed.run.shape[replica]
        self._only_shape = int(self._shape_of[0]) if (self._shape_of == self._shape_of[0]).all() else None
        self._graph = graph_of(timed.run.problem.shape)
        self._cuts = bool(timed.layout.recipe.cutting.modules)
        self._num_shapes = timed.evaluation.num_shapes
        self._rank_of = np.array(timed.run.problem.shape.chunk_rank, dtype=np.int64)
        is_here = (self._rank_of >= ranks[0]) & (self._rank_of <= ranks[-1])
        self._chunks = np.flatnonzero(is_here).tolist()
        self._sizes: dict[int, I64] = {}
        self._times: list[NDArray[np.float64]] = []
        self._turns: list[I64] = []
        self._readers: list[I64] = []
        self._pieces: dict[tuple[int, ...], int] = {}
        self._num_cells = [0] * len(ranks)
        self._first_cell, self._width = np.zeros((2, len(self._rank_of)), dtype=np.int64)
        for chunk in self._chunks:
            self._make_cells(chunk)

    def of_ranks(self) -> list[tuple[I64, int]]:
        """Of every rank: cell, source and change of every turn, in order, int64[3, num_turns]; and how many cells it
        has, one for every storage of every part of its chunks, and for every piece."""
        from semu.engine.kernels.allocator import order_turns

        self._transfer_all()
        self._run_stages()
        time, turns = np.concatenate(self._times), np.concatenate(self._turns, axis=1)
        is_something = (turns[5] >= 0) | self.changes.is_something()[turns[4]]
        if not is_something.all():
            time, turns = time[is_something], turns.compress(is_something, axis=1)
        begins = self._places_of_ranks()
        order = np.empty(len(time), dtype=np.int64)
        order_turns(turns[0], time, turns[1], int(begins[-1]), order)
        found = turns[2:5].take(order, axis=1)
        place = turns[0]
        if self._readers:
            happens = self._happens(turns[5, order])
            found, place = found.compress(happens, axis=1), place[order[happens]]
        ends = np.cumsum([0, *np.histogram(place, begins)[0]]).tolist()
        rows = [np.ascontiguousarray(found[:, first:last]) for first, last in pairwise(ends)]
        return [*zip(rows, self._num_cells, strict=True)]

    def _places_of_ranks(self) -> I64:
        """Where the places of every rank begin, and where the last ones end."""
        ends = self.run.problem.stream_ptr[self.ranks[0] : self.ranks[-1] + 2]
        return np.asarray(ends - self._begin + np.arange(len(ends)), dtype=np.int64)

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
        turns = np.empty((6, len(when.place)), dtype=np.int64)
        turn = 2 * self.run.problem.num_nodes * when.is_receive + when.number
        for row, column in enumerate((when.place, turn, cell, source, number, readers)):
            turns[row] = column
        self._times.append(when.time)
        self._turns.append(turns)

    def _make_cells(self, chunk: int) -> None:
        """Number the cells of a chunk's parts, behind those of the rank's chunks before it: there is one for every
        storage of every part."""
        kinds = [self.layout.kinds[kind] for kind in self.layout.recipe.numbers[chunk]]
        programs = [program for kind in kinds for program in (kind.forward, kind.backward) if program is not None]
        width = 1 + max(_STORAGES.get(program, (), partial(_last_storage, program)) for program in programs)
        rank = int(self._rank_of[chunk]) - self.ranks[0]
        self._first_cell[chunk], self._width[chunk] = self._num_cells[rank], width
        self._num_cells[rank] += width * (1 + int(self.layout.recipe.parts[chunk].max(initial=-1)))

    def _cells(self, chunk: int | I64, part: I64) -> I64:
        """The first cells of parts of a chunk, or of some."""
        cells: I64 = self._first_cell[chunk] + self._width[chunk] * part
        return cells

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

    def _by_program(
        self, chunk: int, part: I64, code: int, number: Callable[[StageProgram, I64 | slice], I64 | int]
    ) -> I64 | int:
        """The change of each of a chunk's parts; ``number``: of those that run a program; of one program as it is."""
        kinds = self.layout.recipe.numbers[chunk]
        if len(kinds) == 1:
            return number(program_of(self.layout, kinds[0], code), _EVERY)
        found = np.zeros(len(part), dtype=np.int64)
        for program, own in self._programs(chunk, part, code):
            found[own] = number(program, own)
        return found

    def _by_shape_of(self, columns: Callable[[], I64], key: Hashable, make: Callable[[int], Change]) -> I64 | int:
        """The number of the change of every part, which depends on its shape; of one shape, that of all.

        Args:
            columns: int64[num_parts], of the table of shapes. key: what a change depends on beside the shape.
            make: shape -> change.
        """
        if (shape := self._only_shape) is not None:
            return self.changes.number((key, shape), partial(make, shape))
        return self.changes.by_shape(key, self._shape_of[columns()], self._num_shapes, make)

    # -- stages ------------------------------------------------------------------------------------------------------
    def _run_stages(self) -> None:
        problem, nodes = self.run.problem, self.nodes
        chunk, code, part, rank = (
            column[nodes].astype(np.int64)
            for column in (problem.chunk, problem.phase, problem.microbatch, problem.node_rank)
        )
        place = np.arange(len(chunk)) + rank - self.ranks[0]
        handed = [
            (own, own_code, *arrivals)
            for own in self._chunks
            for own_code in (FORWARD, BACKWARD)
            if any(arrivals := self._arrivals_of(own, own_code))
        ]
        if handed:
            direction = np.array([-1 if k in (WEIGHT, NOTHING) else int(k != FORWARD) for k in range(NOTHING + 1)])
            begins = np.flatnonzero(direction[code] >= 0)
            at = members_of(2 * chunk[begins] + direction[code[begins]], 2 * len(self._rank_of))
            for own, own_code, new, others in handed:
                mine = begins[at[2 * own + (own_code != FORWARD)]]
                self._receive_on_rank(place[mine], own, part[mine], own_code, new, others)
        number = self._stage_numbers(code)
        self._add(_When.with_stages(place), self._cells(chunk, part), number)

    def _stage_numbers(self, code: I64) -> I64:
        """The change of every stage."""
        kind, column = self.run.kind[self.nodes], self.run.column[self.nodes]
        program_at = (1 + NOTHING) * kind + code
        present = np.flatnonzero(np.bincount(program_at)).tolist()
        if self._only_shape is not None:
            of_program = np.zeros(1 + max(present, default=-1), dtype=np.int64)
            for own in present:
                of_program[own] = self._stage_number(own, column)
            numbers: I64 = of_program[program_at]
            return numbers
        numbers, stages = np.zeros(len(code), dtype=np.int64), members_of(program_at, 1 + max(present, default=-1))
        for own in present:
            numbers[stages[own]] = self._stage_number(own, column[stages[own]])
        return numbers

    def _stage_number(self, program_at: int, column: I64) -> I64 | int:
        program = program_of(self.layout, *divmod(program_at, 1 + NOTHING))
        return self._by_shape_of(lambda: column, program, partial(self._stage, program))

    def _stage(self, program: StageProgram, shape: int) -> Change:
        """What a stage allocates and frees."""
        position, is_new = _ORDERS.get(program, (), lambda: issue_order(program))
        return Change.of(program.storage[position], self._sizes_of(shape)[program.size_row[position]], is_new)

    def _receive_on_rank(
        self, place: I64, chunk: int, part: I64, code: int, new: tuple[int, ...], others: Sequence[int]
    ) -> None:
        """What the data loader gives to stages, what chunks of the same rank hand over, what is joined of pieces."""
        shape, when = self.run.problem.shape, _When.with_stages(place)
        if code == FORWARD:
            number = self._arriving(chunk, part, code, new)
            self._add(when, self._cells(chunk, part), number)
        for other in others:
            is_here = self._rank_of[other] == self._rank_of[chunk]
            if not self._parts_differ(other, chunk, code):
                if is_here:
                    self._share(when, other, chunk, part, code)
                continue
            if code != FORWARD:
                self._add(when, self._cells(chunk, part), self._arriving(chunk, part, code))
            for at, own in enumerate(part.tolist()):
                for their_part in shape.shared(chunk, own, other):
                    piece = self._pieces.get((other, their_part, chunk, own, code))
                    if piece is not None:
                        gone = self.changes.number("a piece goes", lambda: Change.of(_FIRST, _ONE, False))
                        self._add(when.of(np.array([at])), piece, gone)
                    if is_here:
                        theirs = np.array([their_part])
                        sent = self._gone(other, theirs, chunk, code)
                        self._add(when.of(np.array([at])), self._cells(other, theirs), sent[0], readers=sent[1])

    def _arrivals_of(self, chunk: int, code: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Arriving tensors of a stage that are allocated when it begins, and the chunks that hand it something on its
        rank, or in pieces."""
        layout = self.layout
        new, others = tuple[int, ...](), list[int]()
        if code == FORWARD:
            arrivals = layout.chunks[chunk].arrivals
            new = tuple([k for k, s in enumerate(arrivals) if s < 0 or self._parts_differ(s, chunk, code)])
            others = list(dict.fromkeys(source for source in arrivals if source >= 0))
        else:
            others = [reader for reader in self._graph.readers[chunk] if layout.chunks[reader].backward is not None]
        rank = self._rank_of[chunk]
        return new, tuple([own for own in others if self._rank_of[own] == rank or self._parts_differ(own, chunk, code)])

    def _parts_differ(self, sender: int, receiver: int, code: int) -> bool:
        if not self._cuts:
            return False
        return self.layout.parts_differ(*((sender, receiver) if code == FORWARD else (receiver, sender)))

    def _arriving(self, chunk: int, part: I64, code: int, positions: tuple[int, ...] | None = None) -> I64 | int:
        """Tensors that stages start from; ``positions``: among their arriving tensors, None: all."""

        def _number(program: StageProgram, own: I64 | slice) -> I64 | int:
            columns = partial(self.layout.recipe.column_of, chunk, part[own])
            return self._by_shape_of(columns, (program, positions), partial(self._start, program, positions))

        return self._by_program(chunk, part, code, _number)

    def _start(self, program: StageProgram, positions: tuple[int, ...] | None, shape: int) -> Change:
        every = range(len(program.arriving)) if positions is None else positions
        rows = {program.arriving_storage[k]: program.arriving[k] for k in every if program.arriving[k] >= 0}
        return Change.of(np.array([*rows], dtype=np.int64), self._sizes_of(shape)[[*rows.values()]], True)

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
                number = self.changes.number((program, here, theirs, there), partial(shared, here, there))
                mine, their = (self._cells(own_chunk, own_part[at]) for own_chunk in (chunk, other))
                self._add(of_program.of(at), mine, number, their)

    def _gone(self, chunk: int, part: I64, reader: int, code: int) -> tuple[I64 | int, I64 | int]:
        """What stages made and do not keep goes when the last of the stages that read it has it: changes, and numbers
        in ``_readers``; -1: at once."""
        shape = self.run.problem.shape
        readers: I64 | int = -1
        if shape.joins or shape.part_counts or self._is_split:
            names = *_cut_of(shape, chunk), *_cut_of(shape, reader)
            count = _HANDED.get(self._graph, names, partial(_handed, shape, chunk, reader))
            readers = sum(own.shape[1] for own in self._readers) + np.arange(len(part))
            sent = (part * shape.num_chunks + chunk) * (1 + max(CODE_OF_PHASE.values())) + code
            self._readers.append(np.stack((sent, count[part])))
        handed = None
        if code != FORWARD:
            handed = tuple(leaving_positions(self.layout, chunk, reader, Phase.BACKWARD))

        def _number(program: StageProgram, own: I64 | slice) -> int:
            return self.changes.number((program, handed, "goes"), partial(freed, program, handed))

        return self._by_program(chunk, part, code, _number), readers

    @cached_property
    def _is_split(self) -> bool:
        return max(self.run.problem.shape.chunk_split) > 1

    # -- transfers ---------------------------------------------------------------------------------------------------
    def _transfer_all(self) -> None:
        """Receive buffers that come, sent tensors that go, before the stage in which they do; at equal times what is
        sent goes first."""
        edges, cut = self.run.sent, self.layout.cut
        first = np.cumsum([0, *[len(edge.transfers) for edge in edges]]).tolist()
        here = [
            (edge, begin, self._rank_of[edge.consumer] in self.ranks, self._rank_of[edge.source] in self.ranks)
            for edge, begin in zip(edges, first, strict=False)
        ]
        self._receive([(edge, begin) for edge, begin, receives, _ in here if receives])
        self._send(
            [
                (edge, begin)
                for edge, begin, _, sends in here
                if sends and not (edge.phase is Phase.FORWARD and cut.has_own_reader(edge.source, edge.consumer))
            ]
        )

    def _receive(self, edges: Sequence[tuple[ChunkTransfers, int]]) -> None:
        """Receive buffers of transfers; ``edges``: with the number of the first transfer of each."""
        if not edges:
            return
        counts, number, transfers = _numbered(edges)
        chunks = np.array([edge.consumer for edge, _ in edges])
        part = self.run.problem.taken[transfers]
        cells = self._cells(np.repeat(chunks, counts), part)
        ends, changes = np.cumsum([0, *counts]).tolist(), list[I64 | int]()
        for (edge, _), own in zip(edges, map(slice, ends, ends[1:]), strict=False):
            code = CODE_OF_PHASE[edge.phase]
            if self._parts_differ(edge.source, edge.consumer, code):
                changes.append(self._receive_pieces(edge, part[own], cells[own]))
                continue
            positions = None
            if code == FORWARD:
                positions = tuple(leaving_positions(self.layout, edge.source, edge.consumer, Phase.FORWARD))
            changes.append(self._arriving(edge.consumer, part[own], code, positions))
        time = self.run.start[self.replica, self.run.problem.num_stages + transfers]
        place = self._places(np.repeat(self._rank_of[chunks], counts), time, is_receive=True)
        self._add(_When(place, time, number, True), cells, _spread(changes, counts))

    def _receive_pieces(self, edge: ChunkTransfers, part: I64, cells: I64) -> I64:
        """Receive buffers of pieces that are joined; ``cells``: written, theirs."""
        sizes, rank = edge.received[self._shape_of[edge.column]], int(self._rank_of[edge.consumer]) - self.ranks[0]
        cells[:] = self._num_cells[rank] + np.arange(len(part))
        self._num_cells[rank] += len(part)
        code, at = CODE_OF_PHASE[edge.phase], np.flatnonzero(sizes > 0)
        pieces = zip(edge.microbatch[at].tolist(), part[at].tolist(), cells[at].tolist(), strict=True)
        self._pieces |= {(edge.source, given, edge.consumer, taken, code): cell for given, taken, cell in pieces}
        distinct, which = np.unique(sizes, return_inverse=True)
        numbers = [
            self.changes.number(("a piece", size), partial(Change.of, _FIRST, _ONE * size, True))
            for size in distinct.tolist()
        ]
        changes: I64 = np.array(numbers, dtype=np.int64)[which.ravel()]
        return changes

    def _send(self, edges: Sequence[tuple[ChunkTransfers, int]]) -> None:
        """Sent tensors of transfers; ``edges``: as ``_receive``."""
        if not edges:
            return
        counts, number, transfers = _numbered(edges)
        chunks = np.array([edge.source for edge, _ in edges])
        part = np.concatenate([edge.microbatch for edge, _ in edges])
        gone = [self._gone(edge.source, edge.microbatch, edge.consumer, CODE_OF_PHASE[edge.phase]) for edge, _ in edges]
        changes, readers = (_spread(own, counts) for own in zip(*gone, strict=True))
        time = self.run.end[self.replica, self.run.problem.num_stages + transfers]
        place = self._places(np.repeat(self._rank_of[chunks], counts), time, is_receive=False)
        self._add(_When(place, time, number), self._cells(np.repeat(chunks, counts), part), changes, readers=readers)

    def _places(self, rank: I64, time: NDArray[np.float64], *, is_receive: bool) -> I64:
        """Before which stage of its rank something comes or goes."""
        moments, side = (self.run.end, _AFTER) if is_receive else (self.run.start, _BEFORE)
        own, place = moments[self.replica, self.nodes], np.empty(len(rank), dtype=np.int64)
        begins = self._places_of_ranks().tolist()
        for turn, at in enumerate(members_of(rank - self.ranks[0], len(self.ranks))):
            first, last = begins[turn], begins[turn + 1] - 1  # one place more than stages
            place[at] = first + np.searchsorted(own[first - turn : last - turn], time[at], side=side)
        return place


def _numbered(edges: Sequence[tuple[ChunkTransfers, int]]) -> tuple[list[int], I64, I64]:
    """How many transfers each of some edges has; their numbers, and which they are."""
    counts = [len(edge.transfers) for edge, _ in edges]
    first = np.array([begin for _, begin in edges]) - np.cumsum([0, *counts[:-1]])
    number = np.repeat(first, counts) + np.arange(sum(counts))
    return counts, number, np.concatenate([edge.transfers for edge, _ in edges])


def _spread(values: Sequence[I64 | int], counts: Sequence[int]) -> I64:
    """Values, each repeated so often; an array stands as it is."""
    if all(isinstance(own, int) for own in values):
        return np.repeat(np.array(values, dtype=np.int64), counts)
    return np.concatenate(
        [np.full(n, own) if isinstance(own, int) else own for own, n in zip(values, counts, strict=True)]
    )


def _last_storage(program: StageProgram) -> int:
    """The highest number of a storage; -1: there is none."""
    return int(max(program.storage.max(initial=-1), *program.arriving_storage, *program.leaving_storage, -1))


def _cut_of(shape: PipelineShape, chunk: int) -> tuple[Hashable, ...]:
    """What ``PipelineShape.shared`` depends on of a chunk."""
    counts = shape.part_counts[chunk] if shape.part_counts else None
    return shape.chunk_module[chunk], shape.chunk_split[chunk], shape.chunk_flow[chunk], counts


def _handed(shape: PipelineShape, chunk: int, reader: int) -> I64:
    """How many stages of another chunk read each stage of a chunk: int64[num_parts]."""
    parts = range(shape.num_microbatches * shape.chunk_split[chunk])
    return np.array([len(shape.shared(chunk, part, reader)) for part in parts], dtype=np.int64)


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
