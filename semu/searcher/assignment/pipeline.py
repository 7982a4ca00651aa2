"""``PipelineTimes``: the pipeline of every data-parallel replica from fitted costs, in milliseconds.

It is the engine's own pipeline (units, edges of the job's schedule, replay) with latencies from ``SampleCosts`` instead
of costed shapes. Left out are launches of hosts, waits for parameters, gradient reduction and the step, which an
assignment hardly changes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from semu.engine.unit_graph import Edges, UnitGraph
from semu.searcher.assignment.costs import SampleCosts, weighted
from semu.searcher.assignment.problem import Dealt
from semu.simulation.checkpoint import JobCheckpoint
from semu.simulation.pipeline import unit_graph
from semu.simulation.unit_programs import programs_of

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


class PipelineTimes:
    """Times of the replicas of a job.

    Args:
        costs: of samples. checkpoint: the same job, with as many microbatches as will be asked for.
    """

    def __init__(self, costs: SampleCosts, checkpoint: JobCheckpoint) -> None:
        self._costs = costs
        problem = checkpoint.problem()
        units = checkpoint.split(problem.merged).units
        self._dp = checkpoint.job.parallel.replicas
        self._column = programs_of(checkpoint.layout.recipe, units).column
        self._row = costs.rows_of(checkpoint)
        graph = unit_graph(units, (), (self._dp, units.num_units))
        self._edges = Edges.between(problem.unit_edges(overlapped_sends=checkpoint.job.overlaps_sends), self._dp)
        self._graph: UnitGraph = replace(graph, name=units.name)
        self._order = graph.forced_order(self._edges)
        self._stages = problem.unit_of_nodes[: problem.num_stages]

    @property
    def num_columns(self) -> int:
        """Columns of the table of shapes: microbatches, then whatever a plan adds."""
        return int(self._column.max()) + 1

    def of_features(self, features: F64) -> F64:
        """End of every replica's last stage: float64[dp] [s].

        Args:
            features: float64[dp, num_columns, num_names], sums over the samples of every column.
        """
        costs = self._costs
        table = weighted(features, costs.slope_s) + costs.fixed_s
        rows = table.shape[2]
        latency = table.reshape(self._dp, -1)[:, self._column * rows + self._row]
        times = replace(self._graph, latency=np.ascontiguousarray(np.maximum(latency, 0.0))).resume(
            self._edges, forced=self._order
        )
        return np.ascontiguousarray(times.end[:, self._stages].max(axis=1))

    def of_dealt(self, dealt: Dealt, features: I64) -> F64:
        """The same of an assignment without deferral.

        Args:
            features: int64[num_samples, num_names], of every sample.
        """
        count = dealt.num_microbatches
        return self.of_features(summed(features, dealt.bins, self._dp * count).reshape(self._dp, count, -1))


def summed(features: I64, bins: I64, count: int) -> F64:
    """Sums of features of samples by bin: float64[count, num_names], exact below 2^53."""
    columns = [np.bincount(bins, weights=column, minlength=count) for column in features.T]
    return np.stack(columns, axis=1).astype(np.float64)
