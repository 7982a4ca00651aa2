"""``ReplicaCosts``: what the operators cost on one replica; of all shapes of the batch, only its own are evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.engine.template import CostColumns
from semu.simulation.evaluate import Evaluation
from semu.simulation.layout import Layout
from semu.simulation.pipeline import PipelineRun


@dataclass(frozen=True, eq=False)
class ReplicaCosts:
    """Costs of all operators for the distinct shapes of one replica.

    Attributes:
        layout, evaluation: the job. shapes: int64[num_own], its distinct shapes.
        column: int64[num_microbatches], position in ``shapes`` of each microbatch's shape.
    """

    layout: Layout
    evaluation: Evaluation
    shapes: NDArray[np.int64]
    column: NDArray[np.int64]

    @classmethod
    def of(cls, layout: Layout, evaluation: Evaluation, run: PipelineRun, replica: int) -> ReplicaCosts:
        """Of one distinct replica."""
        shapes, column = np.unique(run.shape[replica], return_inverse=True)
        return cls(layout, evaluation, shapes, column)

    @cached_property
    def uses(self) -> NDArray[np.float64]:
        """How often each shape occurs: float64[num_own]."""
        return np.bincount(self.column, minlength=len(self.shapes)).astype(np.float64)

    @cached_property
    def columns(self) -> CostColumns:
        """Costs of all operators of the library, for ``shapes``."""
        symbols = {name: values[self.shapes] for name, values in self.evaluation.shapes.columns.items()}
        return self.layout.library.evaluate(symbols)

    @cached_property
    def seconds(self) -> NDArray[np.float64]:
        """Time of every operator of the library over all microbatches [s]: float64[num_rows]."""
        total: NDArray[np.float64] = self.uses @ self.evaluation.latencies_of(self.shapes)
        return total
