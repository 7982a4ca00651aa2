"""``ReplicaCosts``: what the operators cost on one replica; of all shapes of the batch, only its own are evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.compile.template import CostColumns
from semu.costs.evaluation import CostedJob
from semu.schedule.phases import FORWARD
from semu.simulation.context import TimedJob


@dataclass(frozen=True, eq=False)
class ReplicaCosts:
    """Costs of all operators for the distinct shapes of one replica.

    Attributes:
        costed: the job. shapes: int64[num_own], its distinct shapes.
        column: int64[num_microbatches], position in ``shapes`` of each microbatch's shape.
        times: int64[num_kinds, num_own], how often each of ``Layout.kinds`` runs each shape, under a plan; None: every
            chunk runs every microbatch.
    """

    costed: CostedJob
    shapes: NDArray[np.int64]
    column: NDArray[np.int64]
    times: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, timed: TimedJob, replica: int) -> ReplicaCosts:
        """Of one distinct replica."""
        layout, run, idle = timed.layout, timed.run, timed.evaluation.shapes.idle
        shapes, column = np.unique(run.shape[replica], return_inverse=True)
        if layout.planned is None:
            return cls(timed, shapes, column)
        times = np.zeros((len(layout.kinds), len(shapes)), dtype=np.int64)
        is_forward = run.problem.phase == FORWARD
        np.add.at(times, (run.kind[is_forward], column[run.column[is_forward]]), 1)
        if idle >= 0:
            times[:, shapes == idle] = 0
        return cls(timed, shapes, column, times)

    def uses_of(self, kind: int) -> NDArray[np.float64]:
        """How often one of ``Layout.kinds`` runs each shape: float64[num_own]."""
        return self.uses if self.times is None else self.times[kind].astype(np.float64)

    def row_seconds(self, kind: int) -> NDArray[np.float64]:
        """``seconds`` of the operators where one of ``Layout.kinds`` runs them once each time."""
        if self.times is None:
            return self.seconds
        if kind not in self._seconds_of:
            self._seconds_of[kind] = self.uses_of(kind) @ self._latencies
        return self._seconds_of[kind]

    @cached_property
    def _latencies(self) -> NDArray[np.float64]:
        return self.costed.evaluation.latencies_of(self.shapes)

    @cached_property
    def _seconds_of(self) -> dict[int, NDArray[np.float64]]:
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

    @cached_property
    def seconds(self) -> NDArray[np.float64]:
        """Time of every operator of the library over all microbatches [s]: float64[num_rows]."""
        total: NDArray[np.float64] = self.uses @ self.costed.evaluation.latencies_of(self.shapes)
        return total
