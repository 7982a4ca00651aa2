"""``UnitPrograms``: what the units of a pipeline run under a recipe, for any batch and device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.compile.recipe.recipe import Recipe
from semu.records import dataclass
from semu.schedule.units import PipelineUnits

I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class UnitPrograms:
    """What stages and transfers run.

    Attributes:
        kind: int64[num_units], of ``Layout.kinds``; -1: a transfer.
        column: int64[num_units], of the table of shapes: what a stage runs with, what a transfer moves.
        edges: (sending chunk, receiving chunk, 1 for gradients, pair of ranks) of all distinct transfers.
        edge: int64[num_copies, num_transfers], which of them each transfer is.
    """

    kind: I64
    column: I64
    edges: tuple[tuple[int, int, int, int], ...]
    edge: I64


_PROGRAMS = memo.ScopedTable[UnitPrograms](
    "what units run under a recipe, by the pipeline's shape and split", 8, is_large=True
)


def programs_of(recipe: Recipe, units: PipelineUnits) -> UnitPrograms:
    """What a pipeline's units run; remembered as long as the recipe."""
    return _PROGRAMS.get(recipe, (units.shape, units.merged), lambda: _find(recipe, units))


def _find(recipe: Recipe, units: PipelineUnits) -> UnitPrograms:
    chunk, part, producer, consumer = units.chunk[units.copy], units.parts, units.producer, units.consumer
    ends = units.chunk[:, producer], units.chunk[:, consumer], units.phase[producer] > 0, units.pair
    sizes = units.shape.num_chunks, units.shape.num_chunks, 2, max(len(units.pairs), 1)
    code = ((ends[0].astype(np.int64) * sizes[1] + ends[1]) * sizes[2] + ends[2]) * sizes[3] + ends[3]
    distinct, edge = np.unique(code.ravel(), return_inverse=True)
    edges = np.unravel_index(distinct, sizes)
    moved = recipe.moved_columns(chunk[:, producer], part[:, producer], chunk[:, consumer], part[:, consumer])
    kind = np.concatenate((recipe.kind_of(chunk, part), np.full_like(moved, -1)), axis=1).ravel()
    kind[units.combined] += len(recipe.numbers)  # behind the chunks as they run one by one
    return UnitPrograms(
        kind=kind,
        column=np.concatenate((recipe.column_of(chunk, part), moved), axis=1).ravel(),
        edges=tuple(zip(*(end.tolist() for end in edges), strict=True)),
        edge=edge.reshape(units.pair.shape),
    )
