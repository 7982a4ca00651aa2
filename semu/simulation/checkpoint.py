"""``JobCheckpoint``: every microbatch of a job simulated alone; restored under a schedule's edges, again and again.

Everything that no schedule changes is done once (``prepare``): tracing, costing, consolidating stages and transfers.
What is left is one kernel call on a few thousand nodes (PipeWeaver §4.2).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.compile.layout import Layout, build_layout
from semu.compile.module_sharding import check_spread, spreads
from semu.compile.recipe.applied import chosen, plan_layout
from semu.compile.recipe.recipe_job import planned_job, refuse_contention, refuse_split
from semu.compile.recipe.recipe_problem import check_problem, described, plan_of_file
from semu.compile.recipe.sub_microbatches import cut_batch
from semu.compile.template import TemplateLibrary
from semu.costs.evaluation import (
    BatchShapes,
    Evaluation,
    cost_model_of,
    distinct_shapes,
    evaluate,
    template_latencies,
)
from semu.costs.phases import check_split
from semu.costs.result_cache import ResultCache
from semu.costs.roofline import LatencyRules
from semu.engine.unit_graph import Edges, UnitGraph, UnitTimes
from semu.errors import ScheduleError
from semu.job import TrainingJob
from semu.nn.streams import derived_in
from semu.nn.window import Window, windows_in
from semu.present.estimate import Estimate
from semu.present.report import IterationSamples, Report
from semu.schedule import SCHEDULES
from semu.schedule.files import read_schedule
from semu.schedule.problem import PipelineProblem, lower
from semu.schedule.regular import regular_problem
from semu.schedule.schedule import PipelineShape, Schedule
from semu.schedule.stage_plan import StagePlan, first_difference
from semu.schedule.stage_table import StageTable
from semu.schedule.units import Merged, PipelineUnits, units_of
from semu.simulation.checks.context_parallel import check_lengths
from semu.simulation.checks.items import check_items
from semu.simulation.checks.unmodelled import check_streams, refuse_unmodelled
from semu.simulation.data_parallel.gather import ParameterGather, parameter_gathers
from semu.simulation.data_parallel.reduce import Reductions, plan_reductions
from semu.simulation.data_parallel.step import RankTail, rank_tails
from semu.simulation.effects.contention import check_contention, contend
from semu.simulation.effects.noise import check_samples, sample_iterations
from semu.simulation.pipeline import PipelineRun, Replicas, consolidated_units, distinct_replicas, run_pipeline
from semu.simulation.results.assemble import assemble_report
from semu.simulation.results.headline import Headline, headline, iteration_time
from semu.simulation.results.stage_times import stage_table
from semu.simulation.schedules.named import named_schedule, splits_backward
from semu.simulation.schedules.pair_costs import PairCosts, pair_costs
from semu.workload.derived import with_derived

_RESULTS = memo.Table[ResultCache]("results of all simulations that bring no cache", 1)
_PROBLEMS = memo.Table[PipelineProblem](
    "lowered schedules by generator, shape of the pipeline, and whether sends overlap", 64
)


@dataclass(frozen=True)
class OrderTimes:
    """Times of many schedules.

    Attributes:
        start, end: float64[num_orders, num_units] [s]; undefined and infinite for what a deadlock leaves.
        is_legal: bool[num_orders], the order does not deadlock.
    """

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    is_legal: NDArray[np.bool_]

    @property
    def makespan_s(self) -> NDArray[np.float64]:
        """float64[num_orders] [s], infinite for an order that deadlocks."""
        latest: NDArray[np.float64] = self.end.max(axis=1, initial=0.0)
        return latest


@dataclass(frozen=True)
class JobCheckpoint:
    """A job before its schedule; nothing in it changes, threads may share it.

    Attributes:
        layout: the model, cut and compiled. evaluation: costs of every stage for every distinct microbatch.
        units: stages and transfers, microbatch by microbatch. replicas: distinct data-parallel replicas.
        nodes: the units consolidated, one row of latencies per distinct replica. gathers: overlapped parameter gathers.
    """

    layout: Layout
    evaluation: Evaluation
    units: PipelineUnits
    replicas: Replicas
    nodes: UnitGraph
    gathers: Mapping[int, ParameterGather]

    def split(self, merged: Merged | None = frozenset()) -> JobCheckpoint:
        """The same job with its backward stages in two parts, so that schedules which split backwards can be restored.

        Args:
            merged: (chunk, microbatch) of backwards that stay whole; None: all of them do.
        """
        if merged == self.units.merged:
            return self
        known: JobCheckpoint | None = self._others.get(merged)
        if known is None:
            if merged is not None:
                refuse_split(self.layout)
                check_split(self.layout)
            units = units_of(self.units.shape, merged)
            nodes = consolidated_units(self.layout, self.evaluation, units, self.replicas, self.gathers)
            known = replace(self, units=units, nodes=nodes)
            self._others.clear()
            self._others[merged] = known
        return known

    @cached_property
    def _others(self) -> dict[Merged | None, JobCheckpoint]:
        """The same job with other backwards split."""
        return {}

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_others"}  # copies begin empty

    def pair_costs(self, replica: int | None = None) -> PairCosts:
        """What every stage pair costs under each variant of its chunk, before there is a schedule; see there."""
        return pair_costs(self, replica)

    def decided(self, plan: StagePlan) -> JobCheckpoint:
        """The same job, prepared under a plan, with that plan's choice of variants and orders; quicker than anew.

        Args:
            plan: with the parts, chunks and variants that this was prepared for.
        Raises:
            ScheduleError: other parts, chunks or variants; a choice or orders that do not fit.
        """
        mine = self.layout.planned.plan if self.layout.planned is not None else StagePlan()
        for name in ("parts", "layers", "variants"):
            if getattr(plan, name) != getattr(mine, name):
                raise ScheduleError(
                    "a plan with other parts, chunks or variants",
                    where=f"plan.{name}",
                    expected=f"as prepared: {getattr(mine, name)}",
                )
        if self.layout.planned is None:
            raise ScheduleError("not prepared under a plan", where="plan", expected="prepare(job, plan=...)")
        job = planned_job(self.job, replace(plan, layers=None))
        layout = replace(chosen(self.layout, plan), job=job)
        if plan.orders is not None:
            plan.orders.validate(self.units.shape)
        nodes = consolidated_units(layout, self.evaluation, self.units, self.replicas, self.gathers)
        return replace(self, layout=layout, nodes=nodes)

    def described(self) -> dict[str, Any]:
        """What a plan for this job is for, in plain numbers (``StagePlan.problem``)."""
        job = self.job
        count = job.num_microbatches * job.parallel.dp
        items = job.batch.microbatches(count, job.training.micro_batch, job.training.seq_len)
        return described(job, self.layout, items)

    @property
    def job(self) -> TrainingJob:
        """What was prepared."""
        return self.layout.job

    @property
    def pipeline_shape(self) -> PipelineShape:
        """What a schedule must order."""
        return self.units.shape

    def schedule(self, schedule: Schedule | str | None = None) -> Schedule:
        """A legal schedule of this pipeline.

        Args:
            schedule: one to check, the name of a generator, or None for the job's own.
        Raises:
            ConfigError: an unknown name. ScheduleError: it does not order this pipeline.
        """
        chosen = schedule if schedule is not None else self._own_schedule
        if isinstance(chosen, str):
            plain = self.split(None)
            chosen = named_schedule(chosen, self.layout, self.evaluation, plain.units, self.replicas)
        chosen.validate(self.units.shape)
        return chosen

    def problem(self, schedule: Schedule | str | None = None) -> PipelineProblem:
        """A legal schedule of this pipeline as arrays; one that a generator made is remembered.

        Args:
            schedule: as ``schedule``.
        """
        overlapped, chosen = self.job.overlaps_sends, schedule if schedule is not None else self._own_schedule
        if self.layout.planned is not None:
            own = self.schedule(chosen)
            if own.splits_backward:
                refuse_split(self.layout)
            return lower(own, self.units.shape, overlapped_sends=overlapped)

        def make() -> PipelineProblem:
            return lower(self.schedule(chosen), self.units.shape, overlapped_sends=overlapped)

        if isinstance(chosen, Schedule):
            return make()
        if chosen not in SCHEDULES:
            options = self.job.training.activation_limit, self.job.training.optimizer_post_validation
            key = ("schedule", chosen, self.units.shape, overlapped, options, self.replicas.shape.tobytes())
            return self.evaluation.by_shape.found((*key, self.replicas.links), make)

        def quick() -> PipelineProblem:
            return regular_problem(chosen, self.units.shape, overlapped_sends=overlapped) or make()

        return _PROBLEMS.get((SCHEDULES[chosen], self.units.shape, overlapped), quick)

    @property
    def _own_schedule(self) -> Schedule | str:
        """The job's schedule: a name, or what its file holds."""
        training, planned = self.job.training, self.layout.planned
        if planned is not None and planned.plan.orders is not None:
            return planned.plan.orders
        path = training.schedule_file
        return training.schedule if path is None or planned is not None else read_schedule(path)

    def edges_of(self, schedule: Schedule | str | None = None) -> NDArray[np.int32]:
        """A schedule as edges between units: int32[k, 2], (before, after).

        Args:
            schedule: as ``schedule``; one that splits backwards is for the units of ``split()``.
        """
        orders = self.units.orders(self.schedule(schedule))
        return self.units.order_edges(orders, overlapped_sends=self.job.overlaps_sends)

    def restore(self, edges: NDArray[np.integer], *, replica: int | None = None) -> UnitTimes:
        """Go on from here with new edges: times of all units, the quick way.

        Overlapped parameter gathers run, but no stage waits for them here, nor for launches; ``report`` models that.

        Args:
            edges: int[k, 2], (before, after), numbers of units (``units.unit``, ``edges_of``); where they leave the
                order on a stream open, the unit that can start first goes first.
            replica: only this distinct replica; None: all.
        Raises:
            GraphError: the edges close a cycle (printed).
        """
        nodes = self.nodes if replica is None else self.nodes.only(replica)
        return nodes.resume(Edges.given(edges, nodes.num_units, len(nodes.latency)))

    def restore_orders(self, orders: NDArray[np.integer], *, replica: int = 0) -> OrderTimes:
        """Times of many schedules in one call, for search.

        Args:
            orders: int[num_orders, num_stages], each row the units of the stages rank after rank, every rank's in its
                order (``units.orders`` of a schedule, concatenated). replica: which distinct replica.
        Raises:
            ScheduleError: a row that is not an order of each rank's stages.
        """
        from semu.engine.kernels.orders import time_orders

        units, latency = self.units, self.nodes.only(replica).latency[0]
        table = np.ascontiguousarray(orders)
        expected = np.concatenate([np.flatnonzero(units.stream == rank) for rank in range(units.shape.num_ranks)])
        bounds = units.stream_ptr[: units.shape.num_ranks + 1]
        pieces = (
            [np.sort(table[:, a:b], axis=1) for a, b in itertools.pairwise(bounds.tolist())] if table.ndim == 2 else []
        )
        if (
            not pieces
            or table.shape[1] != len(expected)
            or not np.issubdtype(table.dtype, np.integer)
            or (np.concatenate(pieces, axis=1) != expected).any()
        ):
            raise ScheduleError(
                "not orders of this pipeline's stages",
                where="orders",
                expected=f"rows of {len(expected)} units, rank after rank, each once",
                got=f"shape {table.shape}",
            )
        by_target = np.argsort(units.edges[:, 1], kind="stable")
        source, target = units.edges[by_target, 0], units.edges[by_target, 1]
        drains = np.zeros((0, 2), dtype=np.int32)
        if not self.job.overlaps_sends:  # the sender's compute waits for its transfers
            drains = units.edges[(units.stream[units.edges[:, 1]] >= units.shape.num_ranks)]
            drains = drains[np.argsort(drains[:, 0], kind="stable")]
        start, end = np.empty((2, len(table), units.num_units))
        timed = np.zeros(len(table), dtype=np.int64)
        time_orders(
            units.stream_ptr,
            units.node_orders(table.astype(np.int32)),
            _pointer(target, units.num_units),
            np.ascontiguousarray(source),
            _pointer(drains[:, 0], units.num_units),
            np.ascontiguousarray(drains[:, 1]),
            np.ascontiguousarray(latency[: units.num_units]),
            start,
            end,
            timed,
        )
        return OrderTimes(start, end, timed == units.num_units)

    def _run(self, problem: PipelineProblem) -> tuple[PipelineRun, Reductions, list[RankTail]]:
        run = run_pipeline(self.layout, self.evaluation, self.units, self.replicas, self.nodes, self.gathers, problem)
        found = plan_reductions(self.layout, self.evaluation, run)
        return run, found, rank_tails(self.layout, self.evaluation, run, self.gathers, found)

    def run(self, schedule: Schedule | str | None = None) -> tuple[JobCheckpoint, PipelineRun, list[RankTail]]:
        """The pipeline under a schedule, and what follows it on every rank; with the job's parts that it ran.

        Args:
            schedule: as ``schedule``.
        """
        problem = self.problem(schedule)
        own = self.split(problem.merged)
        run, _, tails = own._run(problem)
        return own, run, tails

    def unit_times(self, schedule: Schedule | str | None = None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """When every unit runs on every distinct replica under a schedule, waits for parameters and launches included.

        Args:
            schedule: as ``schedule``; one that splits backwards is for the units of ``split()``.
        Returns:
            Start and end, float64[num_replicas, num_units] [s].
        """
        run = self._run(self.problem(schedule))[0]
        start, end = np.zeros((2, run.num_replicas, self.units.num_units))
        unit = run.problem.unit_of_nodes
        start[:, unit], end[:, unit] = run.start, run.end
        return start, end

    def estimate(self, schedule: Schedule | str | None = None) -> Estimate:
        """The headline figures under a schedule, without the tables and the timeline of ``report``.

        Args:
            schedule: as ``schedule``.
        """
        return self._headline(schedule)[1].estimate

    def staged(self, schedule: Schedule | str | None = None) -> tuple[Estimate, StageTable]:
        """The headline figures under a schedule, and when each stage of the slowest replica runs.

        Args:
            schedule: as ``schedule``.
        """
        run, head = self._headline(schedule)
        return head.estimate, stage_table(run, head)

    def _headline(self, schedule: Schedule | str | None) -> tuple[PipelineRun, Headline]:
        _, run, tails = self.run(schedule)
        return run, headline(self.layout, self.evaluation, run, tails, self.gathers)

    def report(
        self,
        schedule: Schedule | str | None = None,
        *,
        progress: Callable[[str], None] | None = None,
        samples: int = 0,
        seed: int = 0,
        contention: bool = False,
    ) -> Report:
        """The whole report under a schedule.

        Args:
            schedule: as ``schedule``. progress: called with a line at the start of each step.
            samples, seed, contention: as ``simulate``.
        """
        check_samples(samples, seed)
        check_contention(contention, samples, self.job)
        if contention:
            refuse_contention(self.layout)
        say = progress if progress is not None else _silent
        say("running the pipeline")
        problem = self.problem(schedule)
        own = self.split(problem.merged)
        run, found, tails = own._run(problem)
        if contention:
            say("sharing the links")
            return own._contended_report(run, found, iteration_time(self.job, run, tails), say)
        say("finding the memory peaks")
        report = assemble_report(self.layout, self.evaluation, run, tails, self.gathers)
        if not samples:
            return report
        say("drawing the samples")
        times = sample_iterations(
            self.layout, self.evaluation, own.units, self.replicas, own.nodes, run, self.gathers, samples, seed
        )
        return replace(report, samples=IterationSamples.of(times, self.job.training.jitter, seed))

    def _contended_report(
        self, run: PipelineRun, found: Reductions, alone_s: float, say: Callable[[str], None]
    ) -> Report:
        """The report of a pipeline whose transfers share ports."""
        layout, evaluation = self.layout, self.evaluation
        shared = contend(layout, evaluation, self.units, self.replicas, self.nodes, self.gathers, run, found.listed)
        tails = rank_tails(layout, evaluation, shared.run, shared.gathers, shared.reductions)
        say("finding the memory peaks")
        report = assemble_report(layout, evaluation, shared.run, tails, shared.gathers)
        return replace(report, contention=replace(shared.summary, iteration_time_alone_s=float(alone_s)))


def prepare(
    job: TrainingJob,
    *,
    latency_rules: LatencyRules | None = None,
    progress: Callable[[str], None] | None = None,
    cache: ResultCache | None = None,
    plan: StagePlan | None = None,
) -> JobCheckpoint:
    """Everything about a job that does not depend on its schedule.

    Args: as ``simulate``.
    Raises:
        ScheduleError: a plan for another problem.
        ConfigError: sizes or options that do not fit together, or that this version does not model.
    """
    say = progress if progress is not None else _silent
    results = cache if cache is not None else _RESULTS.get((), ResultCache)
    plan = plan if plan is not None else plan_of_file(job)
    if plan is not None:
        check_problem(job, plan)
        job = planned_job(job, plan)
    refuse_unmodelled(job)
    parallel, training = job.parallel, job.training
    say("reading the batch")
    count = job.num_microbatches * parallel.dp
    microbatches = job.batch.microbatches(count, training.micro_batch, training.seq_len)
    check_lengths(job, microbatches)

    def shapes_with(windows: Mapping[str, Sequence[Window]], derived: Sequence[str] = ()) -> BatchShapes:
        sizes = parallel.dp, parallel.token_divisor, parallel.sequence_parts
        return distinct_shapes(with_derived(microbatches, derived), *sizes, spreads(job), windows)

    plain = shapes_with({})
    check_streams(job, plain)
    check_items(job, microbatches, plain)
    cutting = cut_batch(job.model, plan, microbatches, parallel.dp) if plan is not None else None

    def shapes_of(library: TemplateLibrary) -> BatchShapes:
        windows, derived = windows_in(library.symbols), derived_in(library.symbols)
        return shapes_with(windows, derived) if windows or derived else plain

    def all_shapes_of(library: TemplateLibrary) -> BatchShapes:
        """With those of sub-microbatches."""
        if cutting is None:
            return shapes_of(library)
        items = with_derived(cutting.microbatches, derived_in(library.symbols))
        sizes = parallel.dp, parallel.token_divisor, parallel.sequence_parts
        return BatchShapes.with_idle(distinct_shapes(items, *sizes, (), windows_in(library.symbols)))

    say("tracing the model")
    serial = not job.overlaps_tensor_parallel
    layout = build_layout(
        job,
        lambda library: template_latencies(
            library,
            shapes_of(library),
            cost_model_of(library, job.profile, latency_rules),
            serial=serial,
            cache=results,
        ),
        lambda streams: check_spread(job, streams, plain.columns),
    )
    if plan is not None:
        if plan.problem is not None:
            first_difference(plan.problem, described(job, layout, microbatches))
        layout = plan_layout(layout, plan, cutting)
    say("costing the stages")
    evaluation = evaluate(
        layout,
        all_shapes_of(layout.library),
        cost_model_of(layout.library, job.profile, latency_rules),
        results,
        remember=cache is None,
    )
    merged: Merged | None = frozenset() if splits_backward(job) else None
    if merged is not None:
        refuse_split(layout)
        check_split(layout)
    shape = layout.pipeline_shape(job.num_microbatches)
    if plan is not None and plan.orders is not None:
        plan.orders.validate(shape)
    units = units_of(shape, merged)
    gathers = parameter_gathers(layout, evaluation.cost_model)
    replicas = distinct_replicas(layout, evaluation, units.pairs)
    nodes = consolidated_units(layout, evaluation, units, replicas, gathers)
    return JobCheckpoint(layout, evaluation, units, replicas, nodes, gathers)


def _silent(_: str) -> None:
    return None


def _pointer(owner: NDArray[np.int32], n: int) -> NDArray[np.int32]:
    """CSR pointer over a sorted column."""
    return np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=n)))).astype(np.int32)
