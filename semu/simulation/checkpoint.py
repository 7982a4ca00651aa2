"""``JobCheckpoint``: every microbatch of a job simulated alone; restored under a schedule's edges, again and again.

Everything that no schedule changes is done once (``preparation``): tracing, costing, consolidating stages
and transfers. What is left is one kernel call on a few thousand nodes (PipeWeaver §4.2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.compile.recipe.applied import chosen
from semu.compile.recipe.recipe_job import planned_job, refuse_contention, refuse_split
from semu.compile.recipe.recipe_problem import described
from semu.costs.evaluation import CostedJob
from semu.costs.phases import check_split
from semu.engine.unit_graph import Edges, UnitTimes
from semu.errors import ScheduleError
from semu.present.estimate import Estimate
from semu.present.report import IterationSamples, Report
from semu.records import dataclass
from semu.schedule import ALL_SCHEDULES, SCHEDULES
from semu.schedule.files import read_schedule
from semu.schedule.generators.interleaved import is_surely_legal
from semu.schedule.problem import PipelineProblem, lower
from semu.schedule.schedule import PipelineShape, Schedule
from semu.schedule.stage_plan import StagePlan
from semu.schedule.stage_table import StageTable
from semu.schedule.units import Merged, units_of
from semu.simulation.context import SimulatedJob, TimedJob
from semu.simulation.data_parallel.reduce import plan_reductions
from semu.simulation.effects.contention import check_contention, contend
from semu.simulation.effects.noise import check_samples, sample_iterations, slowed_iteration
from semu.simulation.iteration import Iteration, time_iteration
from semu.simulation.pipeline import consolidated_units, run_pipeline
from semu.simulation.results.assemble import assemble_report
from semu.simulation.results.estimated import estimate_iteration, stage_table
from semu.simulation.results.lived import LivedIteration
from semu.simulation.schedules.costs_of_pairs import PairCosts, pair_costs
from semu.simulation.schedules.named import named_schedule

_PROBLEMS = memo.Table[PipelineProblem](
    "lowered schedules by generator, shape of the pipeline, and whether sends overlap", 64, is_large=True
)
_FITTED_PROBLEMS = memo.ScopedTable[PipelineProblem](
    "lowered schedules made for the costs of costed chunks, by name, shape, options, batch and links", 64, is_large=True
)


@dataclass(frozen=True)
class JobCheckpoint(SimulatedJob):
    """A simulated job to be restored under schedules; nothing in it changes, threads may share it.

    ``schedule`` of a method is what ``JobCheckpoint.schedule`` takes: a schedule, a name, or None for the job's own.
    """

    def split(self, merged: Merged | None = frozenset()) -> JobCheckpoint:
        """The same job with its backward stages in two parts, so that schedules which split backwards can be restored.

        Args:
            merged: (chunk, microbatch) of backwards that stay whole; None: all of them do.
        """
        if merged == self.units.merged:
            return self
        if merged is not None:
            refuse_split(self.layout)
            check_split(self.layout)
        units = units_of(self.units.shape, merged)
        return replace(self, units=units, nodes=consolidated_units(self, units, self.replicas, self.gathers))

    def pair_costs(self, replica: int | None = None) -> PairCosts:
        """What every stage pair costs under each variant of its chunk, before there is a schedule."""
        return pair_costs(self, replica)

    def decided(self, plan: StagePlan) -> JobCheckpoint:
        """The same job, prepared under a plan, with that plan's choice of variants and orders; quicker than anew.

        Args:
            plan: with the parts, chunks and variants that this was prepared for.
        Raises:
            ScheduleError: other parts, chunks or variants; a choice or orders that do not fit.
        """
        prepared_for = self.layout.recipe.plan
        prepared = prepared_for if prepared_for is not None else StagePlan()
        for name in ("parts", "layers", "variants", "items", "reads"):
            if getattr(plan, name) != getattr(prepared, name):
                raise ScheduleError(
                    "a plan with other parts, chunks or variants",
                    where=f"plan.{name}",
                    expected=f"as prepared: {getattr(prepared, name)}",
                )
        if prepared_for is None:
            raise ScheduleError("not prepared under a plan", where="plan", expected="prepare(job, plan=...)")
        job = planned_job(self.job, replace(plan, layers=None))
        layout = replace(chosen(self.layout, plan), job=job)
        if plan.orders is not None:
            plan.orders.validate(self.units.shape)
        costed = CostedJob(layout, self.evaluation)
        nodes = consolidated_units(costed, self.units, self.replicas, self.gathers)
        return replace(self, layout=layout, nodes=nodes)

    def described(self) -> dict[str, Any]:
        """What a plan for this job is for, in plain numbers (``StagePlan.problem``)."""
        job = self.job
        count = job.num_microbatches * job.parallel.replicas
        items = job.batch.microbatches(count, job.training.micro_batch, job.training.seq_len)
        return described(job, self.layout, items)

    @property
    def pipeline_shape(self) -> PipelineShape:
        """What a schedule must order."""
        return self.units.shape

    shape = pipeline_shape

    def schedule(self, schedule: Schedule | str | None = None) -> Schedule:
        """A legal schedule of this pipeline.

        Args:
            schedule: one to check, the name of a generator, or None for the job's own.
        Raises:
            ConfigError: an unknown name. ScheduleError: it does not order this pipeline.
        """
        chosen = schedule if schedule is not None else self._own_schedule
        if isinstance(chosen, str):
            chosen = named_schedule(chosen, self)
        chosen.validate(self.units.shape)
        return chosen

    def problem(self, schedule: Schedule | str | None = None) -> PipelineProblem:
        """A legal schedule of this pipeline as arrays; one that a generator made is remembered."""
        overlapped, chosen = self.job.overlaps_sends, schedule if schedule is not None else self._own_schedule
        if self.layout.recipe.plan is not None:
            planned = self.schedule(chosen)
            if planned.splits_backward:
                refuse_split(self.layout, planned.name)
            return lower(planned, self.units.shape, overlapped_sends=overlapped)

        def _make() -> PipelineProblem:
            return lower(self.schedule(chosen), self.units.shape, overlapped_sends=overlapped)

        if isinstance(chosen, Schedule):
            return _make()
        if chosen not in SCHEDULES or self.units.shape.chunk_gang:
            options = self.job.training.activation_limit, self.job.training.optimizer_post_validation
            key = (chosen, self.units.shape, overlapped, options, self.replicas.shape.tobytes(), self.replicas.links)
            return _FITTED_PROBLEMS.get(self.evaluation.by_shape, key, _make)

        def _quick() -> PipelineProblem:
            if ALL_SCHEDULES[chosen].alternates and is_surely_legal(self.units.shape):
                return lower(SCHEDULES[chosen](self.units.shape), self.units.shape, overlapped_sends=overlapped)
            return _make()

        return _PROBLEMS.get((SCHEDULES[chosen], self.units.shape, overlapped), _quick)

    @property
    def _own_schedule(self) -> Schedule | str:
        """The job's schedule: a name, or what its file holds."""
        training, plan = self.job.training, self.layout.recipe.plan
        if plan is not None:
            return plan.orders if plan.orders is not None else training.schedule
        return training.schedule if training.schedule_file is None else read_schedule(training.schedule_file)

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

    def timed(self, schedule: Schedule | str | None = None, *, has_hosts: bool = True) -> TimedJob:
        """The pipeline under a schedule, its backwards split as the schedule splits them; ``has_hosts``: false: without
        launches."""
        problem = self.problem(schedule)
        return run_pipeline(self.split(problem.merged), problem, has_hosts=has_hosts)

    def iteration(self, schedule: Schedule | str | None = None) -> Iteration:
        """The whole iteration under a schedule."""
        return time_iteration(self.timed(schedule))

    def unit_times(self, schedule: Schedule | str | None = None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """When every unit runs on every distinct replica under a schedule, waits for parameters and launches included.

        Args:
            schedule: as ``schedule``; one that splits backwards is for the units of ``split()``.
        Returns:
            Start and end, float64[num_replicas, num_units] [s].
        """
        run = run_pipeline(self, self.problem(schedule)).run
        start, end = np.zeros((2, run.num_replicas, self.units.num_units))
        unit = run.problem.unit_of_nodes
        start[:, unit], end[:, unit] = run.start, run.end
        return start, end

    def estimate(self, schedule: Schedule | str | None = None) -> Estimate:
        """The metrics under a schedule, without the tables and the timeline of ``report``."""
        return estimate_iteration(self.iteration(schedule)).estimate

    def lived(self, schedule: Schedule | str | None = None) -> LivedIteration:
        """The iteration under a schedule with its metrics, and the slowest replica's timeline for whoever asks."""
        iteration = self.iteration(schedule)
        return LivedIteration(iteration, estimate_iteration(iteration))

    def slowed(self, slowdown: NDArray[np.float64], schedule: Schedule | str | None = None) -> float:
        """Iteration time where replicas are not equally fast [s].

        Args:
            slowdown: float64[dp], time of every replica's stages over what they take here. schedule: as ``schedule``.
        """
        return slowed_iteration(self.timed(schedule), slowdown)

    def staged(self, schedule: Schedule | str | None = None) -> tuple[Estimate, StageTable]:
        """The metrics under a schedule, and when each stage of the slowest replica runs."""
        iteration = self.iteration(schedule)
        estimated = estimate_iteration(iteration)
        return estimated.estimate, stage_table(iteration.run, estimated)

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
        say = progress if progress is not None else lambda _: None
        say("running the pipeline")
        timed = self.timed(schedule, has_hosts=not contention)
        reductions = plan_reductions(timed)
        iteration = time_iteration(timed, reductions)
        shared = None
        if contention:
            say("sharing the links")
            shared = contend(timed, reductions.listed)
            alone_s, iteration = iteration.time_s, time_iteration(shared.timed, shared.reductions)
        say("finding the memory peaks")
        report = assemble_report(iteration)
        if shared is not None:
            return replace(report, contention=replace(shared.summary, iteration_time_alone_s=float(alone_s)))
        if not samples:
            return report
        say("drawing the samples")
        times = sample_iterations(timed, samples, seed)
        return replace(report, samples=IterationSamples.of(times, self.job.training.jitter, seed))
