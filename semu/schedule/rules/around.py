"""``Around``: forwards of the encoders, the order of a rule for all else, backwards of the encoders.

Encoders are the modules that read no other module and that another one reads.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from semu.records import dataclass
from semu.schedule.phases import BACKWARD, FORWARD
from semu.schedule.rules.expressions import Number
from semu.schedule.rules.rule import Rule, joined, one_value
from semu.schedule.rules.turns import Turns, turn_columns
from semu.schedule.schedule import StageColumns
from semu.schedule.shape import PipelineShape

T = TypeVar("T")


@dataclass(frozen=True)
class Around(Rule):
    """Encoders around the order of a rule; a pipeline without encoders has that order.

    Attributes:
        inner: the rule of the other modules, which sees a pipeline of them alone.
        group: microbatches that go through one virtual stage of the encoders before they go through the next.
    """

    inner: Rule
    group: Number = "p"

    @property
    def splits(self) -> bool:
        """See ``Rule``."""
        return self.inner.splits

    def __call__(self, shape: PipelineShape) -> StageColumns:
        """See ``Rule``."""
        first = encoder_chunks(shape)
        if not first:
            return self.inner(shape)
        rest = [chunk for chunk in range(shape.num_chunks) if chunk not in first]
        before, behind = self._encoders(shape, sorted(first))
        return joined([before, _renamed(self.inner(part_of(shape, rest)), rest), behind])

    def _encoders(self, shape: PipelineShape, chunks: list[int]) -> list[StageColumns]:
        """Forwards and backwards: ``group`` microbatches through one slot, the same through the next."""
        own, size = part_of(shape, chunks), one_value(self.group, shape, "group", 1)
        steps = np.array(
            [
                (slot, microbatch)
                for start in range(0, own.num_microbatches, size)
                for slot in range(own.num_slots)
                for microbatch in range(start, min(start + size, own.num_microbatches))
            ],
            dtype=np.int64,
        ).reshape(-1, 2)
        slot, microbatch = np.tile(steps.T[:, None, :], (1, own.num_ranks, 1))
        turns = (Turns(np.full_like(slot, FORWARD), slot, microbatch),
                 Turns(np.full_like(slot, BACKWARD), own.num_slots - 1 - slot, microbatch))  # fmt: skip
        return [_renamed(turn_columns(own, each), chunks) for each in turns]


def encoder_chunks(shape: PipelineShape) -> frozenset[int]:
    """Chunks of modules that read no other module and that another one reads."""
    module = shape.chunk_module
    between = [
        (module[source], module[chunk])
        for chunk, sources in enumerate(shape.sources)
        for source in sources
        if module[source] != module[chunk]
    ]
    names = {source for source, _ in between} - {reader for _, reader in between}
    return frozenset(chunk for chunk, name in enumerate(module) if name in names)


def part_of(shape: PipelineShape, chunks: Collection[int]) -> PipelineShape:
    """The pipeline of some chunks alone, numbered anew; their virtual stages too."""
    number = {chunk: n for n, chunk in enumerate(chunks)}
    slots = sorted({shape.chunk_slot[chunk] for chunk in chunks})

    def _own(values: Sequence[T]) -> tuple[T, ...]:
        return tuple(values[chunk] for chunk in chunks)

    return replace(
        shape,
        chunk_rank=_own(shape.chunk_rank),
        sources=tuple(tuple(number[s] for s in sources if s in number) for sources in _own(shape.sources)),
        has_backward=_own(shape.has_backward),
        chunk_slot=tuple(slots.index(slot) for slot in _own(shape.chunk_slot)),
        chunk_module=_own(shape.chunk_module),
        chunk_split=_own(shape.chunk_split),
        chunk_flow=_own(shape.chunk_flow),
        part_counts=_own(shape.part_counts) if shape.part_counts else (),
    )


def _renamed(columns: StageColumns, chunks: list[int]) -> StageColumns:
    return replace(columns, chunk=np.array(chunks, dtype=np.int64)[columns.chunk])
