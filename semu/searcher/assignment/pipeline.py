"""``PipelineTimes``: the pipeline of every data-parallel replica from fitted costs, in milliseconds.

It is the engine's own pipeline (units, edges of the job's schedule, replay) with latencies from ``SampleCosts`` instead
of costed shapes. Left out are launches of hosts, waits for parameters, gradient reduction and the step, which an
assignment hardly changes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.engine.unit_graph import Edges, UnitGraph
from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.searcher.assignment.costs import SampleCosts, prepared_with
from semu.searcher.assignment.dealing import summed
from semu.searcher.assignment.deferring import (
    deferring_job,
    deferring_orders,
    deferring_plan,
    deferring_streams,
    some_deferred,
)
from semu.searcher.assignment.problem import Dealt
from semu.simulation.checkpoint import JobCheckpoint
from semu.simulation.pipeline import unit_graph
from semu.simulation.unit_programs import programs_of
from semu.workload.batch import Microbatch

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


class PipelineTimes:
    """Times of the replicas of a job.

    Args:
        costs: of samples. checkpoint: the same job, with as many microbatches as will be asked for.
        slowdown: float64[dp], time of every replica's stages over that of a usual one's.

    Attributes:
        costs, slowdown: as given. num_microbatches: of a replica; the first columns of the table of shapes.
        column, row: int64[num_units], of the table of shapes, and of ``costs``, of every unit of a replica.
        stages: int64[num_stages], units that are stages.
    """

    def __init__(self, costs: SampleCosts, checkpoint: JobCheckpoint, slowdown: F64) -> None:
        self.costs, self._checkpoint, self.slowdown = costs, checkpoint, slowdown
        self.num_microbatches = checkpoint.job.num_microbatches
        problem = checkpoint.problem()
        units = checkpoint.split(problem.merged).units
        self._dp = checkpoint.job.parallel.replicas
        self.column = programs_of(checkpoint.layout.recipe, units).column
        self.row = costs.rows_of(checkpoint)
        graph = unit_graph(units, (), (self._dp, units.num_units))
        pairs = problem.unit_edges(overlapped_sends=checkpoint.job.overlaps_sends)
        self._edges = Edges.between(pairs, self._dp)
        self._graph: UnitGraph = replace(graph, name=units.name)
        self._order = graph.forced_order(self._edges)
        self._of_one = self._graph.only(0), Edges.between(pairs)
        self.stages = problem.unit_of_nodes[: problem.num_stages]
        self._is_stage = np.zeros(len(self.column), np.int64)
        self._is_stage[self.stages] = 1

    def of_features(self, features: F64, replica: int | None = None) -> F64:
        """End of every replica's last stage: float64[dp] [s].

        Args:
            features: float64[dp, num_columns, num_names], sums over the samples of every column of the table of
                shapes: microbatches, then what a plan adds. Nothing runs on a column of zeros that a plan added.
            replica: the only one; None: all.
        """
        from semu.searcher.assignment.kernels.bins import unit_latencies

        graph, edges = (self._graph, self._edges) if replica is None else self._of_one
        slowdown = self.slowdown if replica is None else self.slowdown[[replica]]
        latency, costs = np.empty((len(slowdown), len(self.column))), self.costs
        where = self.column, self.row, costs.fixed_s, costs.slope_s, self.num_microbatches
        unit_latencies(features, *where, slowdown, self._is_stage, latency)
        times = replace(graph, latency=latency).resume(edges, forced=self._order)
        return np.ascontiguousarray(times.end[:, self.stages].max(axis=1))

    @cached_property
    def precedence(self) -> I64:
        """Units of a replica that must end before others begin: int64[k, 2], with the orders of streams.

        Raises:
            ConfigError: the schedule leaves an order to be found at run time.
        """
        if self._order is None:
            raise ConfigError(
                "a schedule in which the order of stages or transfers depends on their times",
                where="training.schedule",
                expected="an order that is known beforehand",
                got=self._checkpoint.job.training.schedule,
                nearest="1f1b",
            )
        graph = self._graph
        held: dict[int, int] = {}
        in_turn = []
        for unit in self._order.tolist():
            for stream in graph.hold[graph.hold_ptr[unit] : graph.hold_ptr[unit + 1]].tolist():
                if stream in held:
                    in_turn.append((held[stream], unit))
                held[stream] = unit
        edges = [np.stack((own.source, own.target), axis=1) for own in (graph.edges, self._edges)]
        return np.unique(np.concatenate((*edges, np.array(in_turn).reshape(-1, 2))).astype(np.int64), axis=0)

    def of_dealt(self, dealt: Dealt, features: I64, replica: int | None = None) -> F64:
        """``of_features`` of an assignment. ``features``: int64[num_samples, num_names], of every sample."""
        return self.of_features(self.table(dealt, features, self._dp if replica is None else 1), replica)

    def table(self, dealt: Dealt, features: I64, dp: int) -> F64:
        """Sums over the samples of every column of the table of shapes: float64[dp, num_columns, num_names].

        Args:
            features: int64[num_samples, num_names], of every sample. dp: replicas of ``dealt``.
        """
        count = dealt.num_microbatches
        whole = summed(features, dealt.bins, dp * count).reshape(dp, count, -1)
        cutting = self._checkpoint.layout.recipe.cutting
        if not cutting.modules:
            return whole
        table = np.zeros((dp, len(cutting.table), features.shape[1]))
        table[:, :count] = whole
        part = 2 * dealt.bins + dealt.is_deferred
        halves = summed(features, part, 2 * dp * count).reshape(dp, count, 2, -1)
        names = self.costs.names
        for cut in cutting.modules.values():
            own = np.array([name.partition(".")[0] in cut.streams for name in names])
            for number in range(cut.first[-1]):
                microbatch = int(np.searchsorted(cut.first, number, side="right")) - 1
                half = halves[:, microbatch, number - cut.first[microbatch]]
                table[:, cut.column + number] = half * own
        read = summed(features, dealt.reader_bins, dp * count).reshape(dp, count, -1)
        for column in cutting.readers.values():
            table[:, column : column + count] = read
        return table


class Pipelines:
    """``PipelineTimes`` of a job by number of microbatches, with and without deferral; each is made once.

    Args:
        job: the job. costs: of samples. slowdown: as ``PipelineTimes``.
    """

    def __init__(self, job: TrainingJob, costs: SampleCosts, slowdown: F64) -> None:
        self._job, self.costs, self._slowdown = job, costs, slowdown
        self._bases: dict[int, JobCheckpoint] = {job.num_microbatches: costs.checkpoint}
        self._deferring: dict[int, JobCheckpoint] = {}
        self._times: dict[tuple[int, bool], PipelineTimes] = {}

    def base(self, count: int) -> JobCheckpoint:
        """The job with ``count`` microbatches of some samples, without deferral."""
        if count not in self._bases:
            self._bases[count] = prepared_with(self._job, self._items(count), count)
        return self._bases[count]

    def _items(self, count: int) -> list[Microbatch]:
        return self.costs.checkpoint.job.batch.microbatches(count * self._job.parallel.replicas, 1)

    def of(self, count: int, defers: bool) -> PipelineTimes:
        """Times of ``count`` microbatches. ``defers``: under the plan of ``deferring_plan``.

        Raises:
            ConfigError: a job that cannot defer.
        """
        key = count, defers
        if key not in self._times:
            prepared = self.deferring(count) if defers else self.base(count)
            self._times[key] = PipelineTimes(self.costs, prepared, self._slowdown)
        return self._times[key]

    def deferring(self, count: int) -> JobCheckpoint:
        """The job with ``count`` microbatches of some samples, of which some wait: its order of stages serves all
        iterations.

        Raises:
            ConfigError: a job that cannot defer.
        """
        if count not in self._deferring:
            streams, dp = deferring_streams(self._job), self._job.parallel.replicas
            items, cut = some_deferred(self._items(count), streams, dp, count)
            prepared = deferring_job(self._job, items, deferring_plan(cut, count), None, count)
            orders = deferring_orders(prepared, self.base(count).schedule())
            plan = prepared.layout.recipe.plan
            assert plan is not None
            self._deferring[count] = prepared.decided(replace(plan, orders=orders))
        return self._deferring[count]

    def seconds(self, dealt: Dealt, replica: int | None = None, samples: I64 | None = None, *, features: I64) -> F64:
        """``PipelineEnds``. ``features``: int64[num_samples, num_names], of every sample."""
        own = features if samples is None else features[samples]
        return self.of(dealt.num_microbatches, bool(dealt.is_deferred.any())).of_dealt(dealt, own, replica)
