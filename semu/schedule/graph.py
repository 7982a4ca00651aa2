"""``PipelineGraph``: all stages of an iteration's pipeline and what they need of one another, before any schedule.

This is the only place where dependencies are made. Stage number ``4 x pair + code``: a pair is a chunk with one of its
(sub-)microbatches, pairs are numbered chunk after chunk; codes are those of ``semu.schedule.phases`` (F, B, I, W). A
backward is either B, or I and W. The end of an I counts as the end of its B: dependencies name B for either, and do not
depend on which backwards are split.

Views of the graph, each with arrays that lead back to stage numbers:

* ``PipelineGraph.pred_ptr``, ``pred``: predecessors by stage number, for kernels on plain numbers;
* ``PipelineGraph.pair_edges``: forwards and whole backwards of the pairs that exist, for the search;
* ``PipelineUnits`` (units): stages and transfers on the streams of ranks and links (``PipelineUnits.stage_numbers``);
* ``PipelineProblem`` (problem): the units in the order of a schedule (``PipelineProblem.unit_of_nodes``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.errors import ScheduleError
from semu.records import dataclass
from semu.schedule.phases import BACKWARD, CODE_OF_PHASE, FORWARD, INPUT, PHASES, WEIGHT
from semu.schedule.schedule import Schedule, StageColumns
from semu.schedule.shape import PipelineShape, StageKey

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


class ChunkLinks(NamedTuple):
    """What stages of chunks need of one another; int64[num_links] each.

    In the order in which results are sent: by producing chunk, F before B; a forward's result goes to the chunks that
    read it, then to the chunk's own backward; a gradient goes to the chunk's sources, then to the chunk's own W.

    Attributes:
        producer, consumer: chunks. code, consumer_code: of their stages; B stands for I.
        turn: orders the links of one consumer: the chunk's own forward first, then sources as the shape lists them, or
            readers by number.
    """

    producer: I64
    code: I64
    consumer: I64
    consumer_code: I64
    turn: I64


class Dependencies(NamedTuple):
    """What stages need of one another; int64[num_dependencies] each, by producing stage, then as results are sent.

    Attributes:
        before, after: stage numbers; B stands for I on either side.
        turn: as ``ChunkLinks.turn``.
    """

    before: I64
    after: I64
    turn: I64


class PairEdges(NamedTuple):
    """Dependencies of the stages ``2 x n + phase`` (0 forward, 1 whole backward) of the n-th pair that exists.

    Attributes:
        ptr, pred: CSR predecessors, int32, ascending. place: int64[num_edges], position of each edge in the graph's
            ``pred``.
    """

    ptr: I32
    pred: I32
    place: I64


class Wait(NamedTuple):
    """What a rule asks for beside the flow of data: a stage of one chunk waits for a stage of another one.

    Attributes:
        before, after: chunks; ``before_code``, ``after_code``: forward or backward, B stands for I.
        every: microbatches of a group: every stage of a group waits for all stages of the group.
    """

    before: int
    before_code: int
    after: int
    after_code: int
    every: int = 1


@dataclass(frozen=True, eq=False)
class PipelineGraph:
    """Stages of a pipeline and their dependencies.

    Attributes:
        shape: ranks, chunks, microbatches.
        first: int64[num_chunks + 1], first pair of each chunk.
        chunk, part: int32[num_pairs], a pair's chunk and the number of its (sub-)microbatch.
        exists: bool[num_pairs], false where a microbatch runs through another copy of the model, or is cut into fewer
            sub-microbatches than others.
    """

    shape: PipelineShape
    first: I64
    chunk: I32
    part: I32
    exists: NDArray[np.bool_]

    @classmethod
    def of(cls, shape: PipelineShape) -> PipelineGraph:
        """The stages of a pipeline."""
        count = [split * shape.num_microbatches for split in shape.chunk_split]
        exists = [
            (np.arange(split) < counts[:, None]).ravel()
            for split, counts in zip(shape.chunk_split, shape.part_table, strict=True)
        ]
        return cls(
            shape=shape,
            first=np.cumsum([0, *count], dtype=np.int64),
            chunk=np.repeat(np.arange(shape.num_chunks, dtype=np.int32), count),
            part=np.concatenate([np.arange(n, dtype=np.int32) for n in [0, *count]]),
            exists=np.concatenate([np.zeros(0, dtype=np.bool_), *exists]),
        )

    @property
    def num_pairs(self) -> int:
        """Chunks times their (sub-)microbatches."""
        return len(self.chunk)

    @property
    def num_stages(self) -> int:
        """Four for each pair."""
        return 4 * len(self.chunk)

    # -- pairs -----------------------------------------------------------------------------------------------------
    @cached_property
    def rank(self) -> I32:
        """int32[num_pairs], the rank of each pair."""
        return np.array(self.shape.chunk_rank, dtype=np.int32)[self.chunk]

    @cached_property
    def has_backward(self) -> NDArray[np.bool_]:
        """bool[num_pairs]."""
        return np.array(self.shape.has_backward, dtype=np.bool_)[self.chunk]

    @cached_property
    def microbatch(self) -> I32:
        """int32[num_pairs], the microbatch that each pair is part of."""
        found: I32 = (self.part // np.array(self.shape.chunk_split, dtype=np.int32)[self.chunk]).astype(np.int32)
        return found

    @cached_property
    def sub_microbatch(self) -> I32:
        """int32[num_pairs], the number of each pair within its microbatch."""
        found: I32 = (self.part % np.array(self.shape.chunk_split, dtype=np.int32)[self.chunk]).astype(np.int32)
        return found

    @cached_property
    def module(self) -> I32:
        """int32[num_pairs], modules in order of their first chunk."""
        names = list(dict.fromkeys(self.shape.chunk_module))
        return np.array([names.index(name) for name in self.shape.chunk_module], dtype=np.int32)[self.chunk]

    @cached_property
    def segment(self) -> I32:
        """int32[num_pairs], the forward segment of each pair: one (sub-)microbatch's pass over the ranks through one
        module and slot. Backward segments have the same numbers."""
        slot = np.array(self.shape.chunk_slot, dtype=np.int64)[self.chunk]
        flow = np.array(self.shape.chunk_flow, dtype=np.int64)[self.chunk]
        keys = np.stack((self.module, flow, slot, self.part), axis=1)
        segment: I32 = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int32)
        return segment

    @cached_property
    def pair_number(self) -> I64:
        """int64[num_pairs], the position of each pair among those that exist."""
        return np.cumsum(self.exists) - 1

    # -- dependencies ----------------------------------------------------------------------------------------------
    @cached_property
    def links(self) -> ChunkLinks:
        """Dependencies between chunks, for every microbatch alike.

        Raises:
            ScheduleError: a chunk reads one that does not exist.
        """
        shape = self.shape
        sources = [[*dict.fromkeys(own)] for own in shape.sources]
        readers: list[list[tuple[int, int]]] = [[] for _ in sources]
        for chunk, own in enumerate(sources):
            for turn, source in enumerate(own):
                if source < 0 or source >= shape.num_chunks:
                    raise ScheduleError("a chunk reads one that does not exist", where=f"chunk {chunk}", got=source)
                readers[source].append((chunk, turn))
        rows: list[tuple[int, int, int, int, int]] = []
        for chunk, trains in enumerate(shape.has_backward):
            rows += [(chunk, FORWARD, reader, FORWARD, turn) for reader, turn in readers[chunk]]
            if trains:
                rows.append((chunk, FORWARD, chunk, BACKWARD, -1))
                gradients = [s for s in sources[chunk] if shape.has_backward[s] and shape.gives_back(chunk, s)]
                rows += [(chunk, BACKWARD, source, BACKWARD, chunk) for source in gradients]
                rows.append((chunk, BACKWARD, chunk, WEIGHT, -1))
        return ChunkLinks(*np.array(rows, dtype=np.int64).reshape(-1, 5).T)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For every chunk, the chunks that give it a gradient: those that read its result and have a backward."""
        found: list[list[int]] = [[] for _ in self.shape.sources]
        gradients = (self.links.code == BACKWARD) & (self.links.consumer_code == BACKWARD)
        for reader, chunk in zip(self.links.producer[gradients], self.links.consumer[gradients], strict=True):
            found[chunk].append(int(reader))
        return tuple(tuple(chunks) for chunks in found)

    @cached_property
    def dependencies(self) -> Dependencies:
        """Dependencies between the stages that exist."""
        links, is_forward = self.links, self.links.code == FORWARD
        source = np.where(is_forward, links.producer, links.consumer)
        reader = np.where(is_forward, links.consumer, links.producer)
        number, given, taken = [], [], []
        for mine in self._alike(source, reader):
            parts = _shared_parts(self.shape, int(source[mine[0]]), int(reader[mine[0]]))
            number.append(np.repeat(mine, len(parts[0])))
            given.append(np.where(is_forward[mine, None], *parts).ravel())
            taken.append(np.where(is_forward[mine, None], *parts[::-1]).ravel())
        link = np.concatenate([np.zeros(0, dtype=np.int64), *number])
        by_link = np.argsort(link, kind="stable")
        link = link[by_link]
        starts = 4 * (self.first[links.producer[link]] + np.concatenate([link[:0], *given])[by_link]) + links.code[link]
        ends = 4 * (self.first[links.consumer[link]] + np.concatenate([link[:0], *taken])[by_link])
        ends += links.consumer_code[link]
        kept = np.flatnonzero(self.exists[starts // 4] & self.exists[ends // 4])
        order = kept[np.argsort(starts[kept], kind="stable")]
        return Dependencies(starts[order], ends[order], links.turn[link[order]])

    def _alike(self, source: I64, reader: I64) -> list[I64]:
        """Positions of the links whose chunks share parts of microbatches alike.

        Args:
            source, reader: int64[num_links], chunks of each link.
        """
        shape = self.shape
        if not shape.is_cut:
            return [np.arange(len(source))] if len(source) else []
        counts = shape.part_counts or shape.chunk_split
        groups: dict[object, list[int]] = {}
        for number, ends in enumerate(zip(source.tolist(), reader.tolist(), strict=True)):
            module, split, count = (
                [of[chunk] for chunk in ends] for of in (shape.chunk_module, shape.chunk_split, counts)
            )
            named = module[0] if shape.reads else module[0] == module[1]
            groups.setdefault((named, module[0] == module[1], *split, *count), []).append(number)
        return [np.array(own, dtype=np.int64) for own in groups.values()]

    @cached_property
    def _predecessors(self) -> tuple[I32, I32]:
        before, after, _ = self.dependencies
        split = np.flatnonzero(after % 4 == BACKWARD)  # an I needs what its B needs
        before, after = np.append(before, before[split]), np.append(after, after[split] + INPUT - BACKWARD)
        order = np.lexsort((before, after))
        return pointers(after, self.num_stages), before[order].astype(np.int32)

    @property
    def pred_ptr(self) -> I32:
        """int32[num_stages + 1], CSR of ``pred``."""
        return self._predecessors[0]

    @property
    def pred(self) -> I32:
        """int32[num_preds], stages whose results each stage number needs, ascending; none is an I."""
        return self._predecessors[1]

    @cached_property
    def pair_edges(self) -> PairEdges:
        """Forwards and whole backwards of the pairs that exist, numbered through."""
        after = np.repeat(np.arange(self.num_stages), np.diff(self.pred_ptr))
        place = np.flatnonzero((after % 4 <= BACKWARD) & (self.pred % 4 <= BACKWARD))
        count = 2 * int(self.exists.sum())
        return PairEdges(
            pointers(self.pair_stages(after[place]), count),
            self.pair_stages(self.pred[place]).astype(np.int32),
            place,
        )

    def pair_stages(self, stages: NDArray[np.integer]) -> I64:
        """Numbers of stages in ``PairEdges``: int64, of the same shape. ``stages``: forwards and whole backwards."""
        found: I64 = 2 * self.pair_number[stages // 4] + stages % 4
        return found

    # -- stages of a schedule --------------------------------------------------------------------------------------
    def numbers(self, schedule: Schedule) -> I32:
        """Stage numbers of a schedule's stages, rank after rank; they must exist."""
        columns = schedule.columns
        return (4 * (self.first[columns.chunk] + columns.microbatch) + columns.phase).astype(np.int32)

    def predecessors(self, stage: StageKey) -> list[StageKey]:
        """Stages whose results a stage needs; B stands for I."""
        number = 4 * int(self.first[stage.chunk] + stage.microbatch) + CODE_OF_PHASE[stage.phase]
        return [self.key(before) for before in self.pred[self.pred_ptr[number] : self.pred_ptr[number + 1]]]

    def with_predecessors(self, pred_ptr: I32, pred: I32) -> PipelineGraph:
        """The same stages with other ``pred_ptr`` and ``pred``."""
        other = replace(self)
        other.__dict__["_predecessors"] = (pred_ptr, pred)
        return other

    def waiting(self, waits: Sequence[Wait]) -> PipelineGraph:
        """The same stages, some of which wait for more."""
        found = [(np.repeat(np.arange(self.num_stages), np.diff(self.pred_ptr)), self.pred.astype(np.int64))]
        for wait in waits:
            given, taken = (
                first + np.flatnonzero(self.exists[first:last])
                for first, last in (self.first[[c, c + 1]] for c in (wait.before, wait.after))
            )
            meets = np.equal.outer(self.microbatch[taken] // wait.every, self.microbatch[given] // wait.every)
            after, before = (own[place] for own, place in zip((taken, given), np.nonzero(meets), strict=True))
            codes = (wait.after_code,) if wait.after_code == FORWARD else (BACKWARD, INPUT)
            found += [(4 * after + code, 4 * before + wait.before_code) for code in codes]
        after, before = (np.concatenate(own) for own in zip(*found, strict=True))
        after, before = np.unique(np.stack((after, before)), axis=1)
        return self.with_predecessors(pointers(after, self.num_stages), before.astype(np.int32))

    def key(self, stage: int) -> StageKey:
        """The stage with a number."""
        pair, code = divmod(int(stage), 4)
        return StageKey(int(self.chunk[pair]), PHASES[code], int(self.part[pair]))

    def to_schedule(self, name: str, ptr: I64, stages: NDArray[np.integer]) -> Schedule:
        """Stage numbers, rank after rank, as a schedule. ``ptr``: int64[num_ranks + 1], first stage of each rank."""
        pair = stages // 4
        wide = [column.astype(np.int64) for column in (self.chunk[pair], stages % 4, self.part[pair])]
        return Schedule(name, StageColumns(ptr.astype(np.int64), *wide))


def pointers(owner: NDArray[np.integer], count: int) -> I32:
    """CSR pointers: int32[count + 1]. ``owner``: int[n], the row of every entry, in any order."""
    return np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=count)))).astype(np.int32)


def fan_out(sizes: I64, rows: I64) -> tuple[I64, I64]:
    """Entries of rows that lie one after another: for every entry of every asked row, the position of the row in
    ``rows``, and the entry's number; int64[k] each.

    Args:
        sizes: int64[num_rows], entries of each row. rows: int64[n], those asked for.
    """
    count = sizes[rows]
    begin = np.cumsum(sizes) - sizes
    asked = np.repeat(np.arange(len(rows)), count)
    return asked, np.arange(len(asked)) + np.repeat(begin[rows] - np.cumsum(count) + count, count)


def _shared_parts(shape: PipelineShape, source: int, reader: int) -> tuple[I64, I64]:
    """Stages of two chunks that share a part of a microbatch, by the reader's number: int64[k] each, of the source, of
    the reader."""
    given, taken, m = shape.chunk_split[source], shape.chunk_split[reader], shape.num_microbatches
    if shape.part_counts or shape.joins:
        found = [
            (there, part)
            for microbatch in range(m)
            for part in range(microbatch * taken, microbatch * taken + shape.count(reader, microbatch))
            for there in shape.shared(reader, part, source)
        ]
        both = np.array(found, dtype=np.int64).reshape(-1, 2)
        return both[:, 0], both[:, 1]
    if given == taken:
        same = np.arange(m * given, dtype=np.int64)
        return same, same
    pairs = np.array([(there, part) for part in range(taken) for there in shape.shared(reader, part, source)])
    shift = np.arange(m, dtype=np.int64)[:, None]
    return (pairs[:, 0] + shift * given).ravel(), (pairs[:, 1] + shift * taken).ravel()


@memo.remembered(128, is_large=True)
def graph_of(shape: PipelineShape) -> PipelineGraph:
    """``PipelineGraph.of``, remembered: nothing in it changes."""
    return PipelineGraph.of(shape)


@memo.remembered(64, is_large=True)
def waiting_graph(shape: PipelineShape, waits: tuple[Wait, ...]) -> PipelineGraph:
    """``PipelineGraph.waiting``, remembered; without waits ``graph_of``."""
    return graph_of(shape).waiting(waits) if waits else graph_of(shape)
