"""``PlanFlow``: which stages need which, from what the chunks of a plan read.

Within a module a stage reads the same part of the chunk before it. A chunk that reads another module reads all parts
that the other one cuts the microbatch into, or, of a module in ``ExecutionPlan.reads``, the parts of any microbatches
that are listed there. Gradients go the other way, where both chunks have a backward.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.plan.plan import ExecutionPlan
from semu.records import dataclass

I64 = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class PlanFlow:
    """Dependencies between pairs; k in all.

    Attributes:
        plan: the plan. source, reader: int64[k], pairs; the reader's forward reads the result of the source's forward.
        is_seam: bool[k], whether the pairs are of two modules. edge: int64[k], row of their chunks in ``chunks``.
        chunks: int64[num_edges, 2], chunks that read one another: source, reader.
    """

    plan: ExecutionPlan
    source: I64
    reader: I64
    is_seam: Flags
    edge: I64
    chunks: I64

    @classmethod
    def of(cls, plan: ExecutionPlan) -> PlanFlow:
        """The flow of a plan whose tables are in order (``verify_tables``).

        Chunks that do not say what they read are taken to read the chunk with the layers before theirs, and those of
        other modules from which messages come.
        """
        pairs = plan.pairs
        chunks = chunk_edges(plan)
        chunk, microbatch, part = (array.astype(np.int64) for array in (pairs.chunk, pairs.microbatch, pairs.part))
        width = int(part.max(initial=0)) + 1
        cell = (chunk * plan.num_microbatches + microbatch) * width
        order = np.argsort(cell + part, kind="stable")
        code = (cell + part)[order]
        modules = {name: number for number, name in enumerate(dict.fromkeys(c.module for c in plan.chunks))}
        module = np.array([modules[c.module] for c in plan.chunks])
        by_reader = np.argsort(chunks[:, 1], kind="stable")
        first = np.searchsorted(chunks[by_reader, 1], np.arange(len(plan.chunks) + 1))
        count = np.diff(first)[chunk]
        pair = np.repeat(np.arange(len(chunk)), count)
        edge = by_reader[first[:-1][chunk][pair] + _within(count)]
        giver = chunks[edge, 0]
        is_seam = module[giver] != module[chunk[pair]]
        whose, first, most = microbatch[pair], np.where(is_seam, 0, part[pair]), np.where(is_seam, width, 1)
        for name, reads in plan.reads.items():  # a row for every part that is read
            times = np.where(is_seam & (module[giver] == modules[name]), np.array(list(map(len, reads)))[whose], 1)
            row = np.repeat(np.arange(len(pair)), times)
            begins = np.cumsum([0, *map(len, reads)])
            number = begins[whose[row]] + _within(times)
            given = np.array([own for rows in reads for own in rows], dtype=np.int64).reshape(-1, 2)
            pair, edge, giver, is_seam, whose, first, most = (
                column[row] for column in (pair, edge, giver, is_seam, whose, first, most)
            )
            deferred = is_seam & (module[giver] == modules[name])
            whose[deferred], first[deferred] = given[number[deferred]].T
            most[deferred] = 1
        low = (giver * plan.num_microbatches + whose) * width + first
        left = np.searchsorted(code, low)
        found = np.searchsorted(code, low + most) - left
        source = order[np.repeat(left, found) + _within(found)]
        return cls(plan, source, np.repeat(pair, found), np.repeat(is_seam, found), np.repeat(edge, found), chunks)

    @cached_property
    def has_backward(self) -> Flags:
        """bool[k], whether a gradient goes back."""
        own = np.array([chunk.has_backward for chunk in self.plan.chunks])[self.plan.pairs.chunk]
        gang = np.array([chunk.gang for chunk in self.plan.chunks])[self.plan.pairs.chunk]
        both: Flags = own[self.source] & own[self.reader]
        return both & ~((gang[self.reader] >= 0) & self.crosses)  # a gang gives gradients to its own ranks

    @cached_property
    def crosses(self) -> Flags:
        """bool[k], whether the pairs lie on two ranks."""
        rank = np.array([chunk.rank for chunk in self.plan.chunks])[self.plan.pairs.chunk]
        different: Flags = rank[self.source] != rank[self.reader]
        return different

    @cached_property
    def parts(self) -> I64:
        """int64[n], into how many parts the module of each pair cuts its microbatch."""
        pairs = self.plan.pairs
        cell = pairs.chunk.astype(np.int64) * self.plan.num_microbatches + pairs.microbatch
        found: I64 = np.bincount(cell)[cell]
        return found

    @cached_property
    def is_cut(self) -> Flags:
        """bool[n], whether the chunk of each pair runs any microbatch in several parts."""
        chunk = self.plan.pairs.chunk
        most = np.zeros(len(self.plan.chunks), dtype=np.int64)
        np.maximum.at(most, chunk, self.parts)
        cut: Flags = most[chunk] > 1
        return cut


def _within(count: I64) -> I64:
    """0, 1, ... in each of some groups: int64[sum of count]."""
    ends = np.cumsum(count)
    return np.arange(int(count.sum())) - np.repeat(ends - count, count)


def chunk_edges(plan: ExecutionPlan) -> I64:
    """Chunks that read one another: int64[num_edges, 2], each once, in order."""
    said = [(source, c) for c, chunk in enumerate(plan.chunks) for source in chunk.sources or ()]
    unsaid = np.array([chunk.sources is None for chunk in plan.chunks])
    guessed = np.empty((0, 2), dtype=np.int64)
    if np.any(unsaid):
        pairs, messages = plan.pairs, plan.messages
        names = {name: number for number, name in enumerate(dict.fromkeys(c.module for c in plan.chunks))}
        module = np.array([names[chunk.module] for chunk in plan.chunks])
        first = np.array([chunk.first_layer for chunk in plan.chunks])[pairs.chunk]
        key = np.stack((module[pairs.chunk], pairs.microbatch, pairs.part), 1)
        order = np.lexsort((pairs.chunk, first, *key.T[::-1]))
        follows = np.all(key[order][1:] == key[order][:-1], axis=1)
        chain = np.stack((pairs.chunk[order][:-1][follows], pairs.chunk[order][1:][follows]), 1)
        forward = (messages.source % 2 == 0) & (messages.target % 2 == 0)
        ends = pairs.chunk[np.stack((messages.source, messages.target), 1)[forward] // 2].reshape(-1, 2)
        between = ends[module[ends[:, 0]] != module[ends[:, 1]]]
        both = np.concatenate((chain, between)).astype(np.int64)
        guessed = both[unsaid[both[:, 1]]]
    known = np.array(said, dtype=np.int64).reshape(-1, 2)
    return np.unique(np.concatenate((known, guessed)), axis=0)
