"""``Recipe``: which program every stage of a job runs, and on which part of the batch.

Without a ``StagePlan`` the recipe is trivial: every chunk has one variant and runs every microbatch whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.compile.chunk import ChunkStages
from semu.compile.recipe.sub_microbatches import SubMicrobatches
from semu.records import dataclass
from semu.schedule.shape import PipelineShape
from semu.schedule.stage_plan import StagePlan

I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Recipe:
    """What the stages of a job run.

    Attributes:
        plan: the user's; None: there is none. cutting: how microbatches are cut.
        kinds: the chunks in order of data flow, then their further variants; where stages run in pairs
            (``PipelineShape.combines``), then the chunks as they run in one.
        numbers: per chunk, the numbers of its variants in ``kinds``.
        parts: per chunk, the numbers of its parts (``StageKey``), in order: int64[num_parts].
        choice: per chunk, the kind that each of its parts runs: int64[num_parts].
    """

    plan: StagePlan | None
    cutting: SubMicrobatches
    kinds: tuple[ChunkStages, ...]
    numbers: tuple[tuple[int, ...], ...]
    parts: tuple[I64, ...]
    choice: tuple[I64, ...]

    @classmethod
    def trivial(
        cls, chunks: Sequence[ChunkStages], num_microbatches: int, combined: Sequence[ChunkStages] = ()
    ) -> Recipe:
        """Every chunk runs every microbatch whole. ``combined``: the chunks as they run in pairs."""
        every, count = np.arange(num_microbatches, dtype=np.int64), range(len(chunks))
        return cls(
            plan=None,
            cutting=SubMicrobatches.whole(num_microbatches),
            kinds=(*chunks, *combined),
            numbers=tuple([(number,) for number in count]),
            parts=(every,) * len(chunks),
            choice=tuple([np.full(num_microbatches, number, dtype=np.int64) for number in count]),
        )

    @cached_property
    def columns(self) -> tuple[I64, ...]:
        """Per chunk, the columns of the table of shapes that its parts are: int64[num_parts]."""
        by_module: dict[str, I64] = {}
        for chunk, parts in zip(self.kinds, self.parts, strict=False):
            if chunk.module not in by_module:
                by_module[chunk.module] = self.cutting.columns(chunk.module, parts)
        return tuple([by_module[chunk.module] for chunk, _ in zip(self.kinds, self.parts, strict=False)])

    @cached_property
    def runs(self) -> tuple[I64, ...]:
        """Per kind, those of pairs left out, the columns of the table of shapes that it runs, in order:
        int64[num_runs]."""
        found: dict[int, I64] = {}
        for numbers, choice, columns in zip(self.numbers, self.choice, self.columns, strict=True):
            for kind in numbers:
                found[kind] = columns[choice == kind] if len(numbers) > 1 else columns
        return tuple([found[kind] for kind in sorted(found)])

    @cached_property
    def kinds_by_columns(self) -> tuple[tuple[I64, tuple[int, ...]], ...]:
        """The kinds of one copy of the model that run the same columns of the table of shapes, with these columns."""
        found: dict[bytes, tuple[I64, list[int]]] = {}
        for number, columns in enumerate(self.runs):
            if self.kinds[number].chunk.flow == 0:  # a microbatch runs through one copy
                found.setdefault(columns.tobytes(), (columns, []))[1].append(number)
        return tuple([(columns, tuple(numbers)) for columns, numbers in found.values()])

    @cached_property
    def _first(self) -> I64:
        """Where each chunk begins in a table of all chunks and numbers of parts."""
        return np.cumsum([0, *(int(own.max(initial=-1)) + 1 for own in self.parts)], dtype=np.int64)

    def _table(self, values: Sequence[I64]) -> I64:
        """A table of all chunks and numbers of parts; -1 where there is no such part. ``values``: per chunk."""
        table = np.full(int(self._first[-1]), -1, dtype=np.int64)
        for first, parts, own in zip(self._first.tolist(), self.parts, values, strict=False):
            table[first + parts] = own
        return table

    @cached_property
    def _kind_table(self) -> I64:
        return self._table(self.choice)

    @cached_property
    def _column_table(self) -> I64:
        return self._table(self.columns)

    def kind_of(self, chunk: int | NDArray[np.integer], part: int | NDArray[np.integer]) -> I64:
        """Which of ``kinds`` stages run: int64[n]. ``chunk``, ``part``: int[n], or one, as in ``StageKey``."""
        found: I64 = self._kind_table[self._first[chunk] + part]
        return found

    def column_of(self, chunk: int | NDArray[np.integer], part: int | NDArray[np.integer]) -> I64:
        """Columns of the table of shapes that stages run with: int64[n]. Arguments as ``kind_of``."""
        found: I64 = self._column_table[self._first[chunk] + part]
        return found

    def moved_columns(
        self,
        source: NDArray[np.integer],
        given: NDArray[np.integer],
        target: NDArray[np.integer],
        taken: NDArray[np.integer],
    ) -> I64:
        """Columns of the table of shapes of what stages hand to one another: int64[n].

        Args:
            source, given: int[n], chunk and part of the stage that makes it. target, taken: int[n], of its reader.
        """
        here, there = self.column_of(source, given), self.column_of(target, taken)
        if not self.cutting.modules:
            return here
        module, is_cut = self._modules, self._is_cut
        column = np.where(is_cut[source], here, there)
        for place in np.argwhere(is_cut[source] & is_cut[target] & (module[source] != module[target])).tolist():
            number = tuple(place)
            ends = [(int(source[number]), int(given[number])), (int(target[number]), int(taken[number]))]
            (a, part), (b, other) = sorted(ends)  # a gradient goes the other way round
            names = self.kinds[a].module, self.kinds[b].module
            split = self.cutting.modules[names[0]].split
            column[number] = self.cutting.between(
                *names, part // split, part % split, other % self.cutting.modules[names[1]].split
            )
        return column

    @cached_property
    def _modules(self) -> I64:
        """Per chunk, the number of its module."""
        names = [chunk.module for chunk, _ in zip(self.kinds, self.parts, strict=False)]
        return np.array([names.index(name) for name in names], dtype=np.int64)

    @cached_property
    def _is_cut(self) -> NDArray[np.bool_]:
        """Per chunk, whether its module cuts microbatches."""
        return np.array([self.kinds[c].module in self.cutting.modules for c in range(len(self.parts))], dtype=np.bool_)

    def pipeline_shape(self, shape: PipelineShape) -> PipelineShape:
        """What a schedule must order; ``shape``: where no microbatch is cut."""
        if not self.cutting.modules:
            return shape
        counts = tuple(self.cutting.counts(module) for module in shape.chunk_module)
        split = tuple(max(1, *own) for own in counts)
        reads = tuple(self.cutting.reads.items())
        return replace(shape, chunk_split=split, part_counts=counts, joins=True, reads=reads)
