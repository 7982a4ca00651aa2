"""``ReplicaCosts``: what the operators cost on one replica; of all shapes of the batch, only its own are evaluated."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.compile.template import CostColumns
from semu.costs.evaluation import CostedJob
from semu.records import dataclass
from semu.simulation.context import TimedJob


@dataclass(frozen=True, eq=False)
class ReplicaCosts:
    """Costs of all operators for the distinct shapes of one replica.

    Attributes:
        costed: the job. shapes: int64[num_own], its distinct shapes.
        column: int64[num_microbatches], position in ``shapes`` of each microbatch's shape.
        times: int64[num_kinds, num_own], how often each of ``Layout.kinds`` runs each shape; those of stages that run
            in pairs are left out, as their operators are those of the chunks.
    """

    costed: CostedJob
    shapes: NDArray[np.int64]
    column: NDArray[np.int64]
    times: NDArray[np.int64]

    @classmethod
    def of(cls, timed: TimedJob, replica: int) -> ReplicaCosts:
        """Of one distinct replica."""
        shapes, column = np.unique(timed.run.shape[replica], return_inverse=True)
        runs = timed.layout.recipe.runs
        uses = {id(columns): np.bincount(column[columns], minlength=len(shapes)) for columns in runs}
        times = np.stack([uses[id(columns)] for columns in runs])
        if timed.evaluation.shapes.idle >= 0:
            times[:, shapes == timed.evaluation.shapes.idle] = 0
        return cls(timed, shapes, column, times)

    def uses_of(self, kind: int) -> NDArray[np.float64]:
        """How often one of ``Layout.kinds`` runs each shape: float64[num_own]."""
        uses: NDArray[np.float64] = self.times[kind].astype(np.float64)
        return uses

    def row_seconds(self, kind: int) -> NDArray[np.float64]:
        """Time of every operator of the library where one of ``Layout.kinds`` runs it once each time [s]:
        float64[num_rows]."""
        key = self.times[kind].tobytes()
        if key not in self._seconds_of:
            self._seconds_of[key] = self.uses_of(kind) @ self._latencies
        return self._seconds_of[key]

    @cached_property
    def _latencies(self) -> NDArray[np.float64]:
        return self.costed.evaluation.by_shape.latencies_of(self.shapes)

    @cached_property
    def _seconds_of(self) -> dict[bytes, NDArray[np.float64]]:
        return {}

    @cached_property
    def uses(self) -> NDArray[np.float64]:
        """How often each shape occurs: float64[num_own]."""
        return np.bincount(self.column, minlength=len(self.shapes)).astype(np.float64)

    @cached_property
    def columns(self) -> CostColumns:
        """Costs of all operators of the library, for ``shapes``."""
        symbols = {name: values[self.shapes] for name, values in self.costed.evaluation.shapes.columns.items()}
        return self.costed.layout.library.evaluate(symbols)
