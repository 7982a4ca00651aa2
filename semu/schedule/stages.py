"""``StageArrays``: every stage that a pipeline may run, as arrays, before any schedule.

Stage number ``4 x pair + phase``, phase a position in ``PHASES`` (F, B, I, W); a pair is a chunk with one of its
(sub-)microbatches, chunk after chunk. A backward is either B or I and W. The end of an I counts as that of its B, so
predecessors never name an I, and do not depend on which backwards are split.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.errors import ScheduleError
from semu.schedule.schedule import PHASES, Schedule
from semu.schedule.shape import PipelineShape, StageKey

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
FORWARD, BACKWARD, INPUT, WEIGHT = range(4)
"""Positions in ``PHASES``."""


@dataclass(frozen=True, eq=False)
class StageArrays:
    """Structure of a pipeline's stages.

    Attributes:
        shape: ranks, chunks, microbatches.
        first: int64[num_chunks + 1], first pair of each chunk.
        chunk, part: int32[num_pairs], a pair's chunk and (sub-)microbatch number within it.
        exists: bool[num_pairs], false where a microbatch runs through another copy of the model, or is cut into fewer
            sub-microbatches than others.
        pred_ptr, pred: CSR predecessors of stages, int32.
    """

    shape: PipelineShape
    first: I64
    chunk: I32
    part: I32
    exists: NDArray[np.bool_]
    pred_ptr: I32
    pred: I32

    @classmethod
    def of(cls, shape: PipelineShape) -> StageArrays:
        """The stages of a pipeline."""
        m = shape.num_microbatches
        count = [split * m for split in shape.chunk_split]
        first = np.cumsum([0, *count], dtype=np.int64)
        flow = np.array(shape.microbatch_flow, dtype=np.int64)
        runs = [np.repeat(flow == of, k) for of, k in zip(shape.chunk_flow, shape.chunk_split, strict=True)]
        if shape.part_counts:
            cut = [
                np.arange(k) < np.array(own)[:, None]
                for own, k in zip(shape.part_counts, shape.chunk_split, strict=True)
            ]
            runs = [own & some.ravel() for own, some in zip(runs, cut, strict=True)]
        before, after = _edges(shape, first)
        order = np.lexsort((before, after))
        before, after = before[order], after[order]
        exists = np.concatenate(runs) if runs else np.zeros(0, dtype=np.bool_)
        kept = exists[before // 4] & exists[after // 4]
        sizes = np.bincount(after[kept], minlength=4 * int(first[-1]))
        return cls(
            shape=shape,
            first=first,
            chunk=np.repeat(np.arange(shape.num_chunks, dtype=np.int32), count),
            part=np.concatenate([np.arange(n, dtype=np.int32) for n in [0, *count]]),
            exists=exists,
            pred_ptr=np.concatenate(([0], np.cumsum(sizes))).astype(np.int32),
            pred=before[kept].astype(np.int32),
        )

    @property
    def num_pairs(self) -> int:
        """Chunks times their (sub-)microbatches."""
        return len(self.chunk)

    @property
    def num_stages(self) -> int:
        """Four for each pair."""
        return 4 * len(self.chunk)

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

    def numbers(self, schedule: Schedule) -> I32:
        """Stage numbers of a schedule's stages, rank after rank; they must exist."""
        columns = schedule.columns
        return (4 * (self.first[columns.chunk] + columns.microbatch) + columns.phase).astype(np.int32)

    def key(self, stage: int) -> StageKey:
        """The stage with a number."""
        pair, phase = divmod(int(stage), 4)
        return StageKey(int(self.chunk[pair]), PHASES[phase], int(self.part[pair]))

    def to_schedule(self, name: str, ptr: I64, stages: I32) -> Schedule:
        """Stage numbers, rank after rank, as a schedule."""
        chunks, parts = self.chunk[stages // 4].tolist(), self.part[stages // 4].tolist()
        phases = (stages % 4).tolist()
        keys = [StageKey(c, PHASES[k], i) for c, k, i in zip(chunks, phases, parts, strict=True)]
        bounds = ptr.tolist()
        return Schedule.build(name, (keys[a:b] for a, b in pairwise(bounds)))


def _edges(shape: PipelineShape, first: I64) -> tuple[I64, I64]:
    """Stages that must end, and those that wait for them: int64[num_edges] each."""
    before: list[I64] = []
    after: list[I64] = []

    def add(source: I64, phase: int, target: I64, phases: tuple[int, ...]) -> None:
        for to in phases:
            before.append(4 * source + phase)
            after.append(4 * target + to)

    for chunk, sources in enumerate(shape.sources):
        own = np.arange(first[chunk], first[chunk + 1], dtype=np.int64)
        if shape.has_backward[chunk]:
            add(own, FORWARD, own, (BACKWARD, INPUT))
            add(own, BACKWARD, own, (WEIGHT,))
        for source in dict.fromkeys(sources):
            if source < 0 or source >= shape.num_chunks:
                raise ScheduleError("a chunk reads one that does not exist", where=f"chunk {chunk}", got=source)
            here, there = _shared(shape, chunk, source)
            here, there = here + first[chunk], there + first[source]
            add(there, FORWARD, here, (FORWARD,))
            if shape.has_backward[chunk] and shape.has_backward[source]:
                add(here, BACKWARD, there, (BACKWARD, INPUT))
    none = np.zeros(0, dtype=np.int64)
    return np.concatenate([none, *before]), np.concatenate([none, *after])


def _shared(shape: PipelineShape, chunk: int, source: int) -> tuple[I64, I64]:
    """Numbers of two chunks' stages that share a part of a microbatch: int64[k] each."""
    mine, theirs, m = shape.chunk_split[chunk], shape.chunk_split[source], shape.num_microbatches
    if shape.part_counts or shape.joins:
        found = [
            (part, there)
            for microbatch in range(m)
            for part in range(microbatch * mine, microbatch * mine + shape.count(chunk, microbatch))
            for there in shape.shared(chunk, part, source)
        ]
        both = np.array(found, dtype=np.int64).reshape(-1, 2)
        return both[:, 0], both[:, 1]
    if mine == theirs:
        same = np.arange(m * mine, dtype=np.int64)
        return same, same
    pairs = [(part, there) for part in range(mine) for there in shape.shared(chunk, part, source)]
    here, there = np.array(pairs, dtype=np.int64).T
    shift = np.arange(m, dtype=np.int64)[:, None]
    return (here + shift * mine).ravel(), (there + shift * theirs).ravel()


@memo.remembered(128)
def stages_of(shape: PipelineShape) -> StageArrays:
    """``StageArrays.of``, remembered: nothing in it changes."""
    return StageArrays.of(shape)
