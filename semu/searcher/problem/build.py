"""``build_problem``: what the searcher must know of a job under a partition, from the simulator."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu import memo
from semu.checks import is_integer
from semu.errors import ConfigError
from semu.present.estimate import Estimate
from semu.records import dataclass
from semu.schedule.phases import BACKWARD, FORWARD
from semu.schedule.schedule import Schedule, StageColumns
from semu.schedule.stage_plan import StagePlan
from semu.schedule.study import PipelineStudy
from semu.searcher.problem.gangs import met, without_meetings
from semu.searcher.problem.problem_arrays import I32, I64
from semu.searcher.problem.search_problem import SearchProblem, Solution
from semu.simulation import JobCheckpoint
from semu.simulation.schedules.costs_of_pairs import PairCosts
from semu.simulation.schedules.named import pipeline_study

_MET = memo.ScopedTable[Schedule]("orders in which gangs meet, by a problem's orders", 16)
_ESTIMATES = memo.ScopedTable[Estimate]("schedules, simulated in full, by their prepared jobs", 1)


@dataclass(frozen=True, eq=False)
class JobProblem:
    """A job as the searcher sees it, and the way back.

    Attributes:
        problem: for the search. variant: int32[n, S], the variant of its chunk that every candidate is.
        checkpoint: the job, prepared under ``plan``. plan: chunks, parts and variants. costs: of its pairs.
        target_bytes: int64[num_ranks], memory that a rank has; the problem's limits may be lower.
    """

    problem: SearchProblem
    variant: I32
    checkpoint: JobCheckpoint
    plan: StagePlan
    costs: PairCosts
    target_bytes: I64

    def plan_of(self, solution: Solution, name: str = "search") -> StagePlan:
        """A schedule as a plan that ``semu.simulate`` runs."""
        costs, problem = self.costs, self.problem
        picked = self.variant[np.arange(problem.num_pairs), solution.choice]
        stage = solution.order
        columns = costs.chunk[stage // 2], np.where(stage % 2, BACKWARD, FORWARD), costs.number[stage // 2]
        schedule = Schedule(name, StageColumns(solution.ptr, *(column.astype(np.int64) for column in columns)))
        if costs.shape.chunk_gang:
            schedule = Schedule(name, self._met(solution, schedule).columns)
        choice = tuple(tuple(picked[costs.chunk == c].tolist()) for c in range(costs.shape.num_chunks))
        return replace(
            self.plan,
            choice=choice,
            orders=schedule,
            problem=self.checkpoint.described(),
        )

    def _met(self, solution: Solution, schedule: Schedule) -> Schedule:
        """A solution's schedule, in an order in which the members of gangs meet."""

        def _make() -> Schedule:
            room = self.problem.limit_bytes - self.problem.static_bytes
            return met(schedule, self.study, solution.start_s[solution.order], room)

        return _MET.get(self, solution.order.tobytes(), _make)

    @cached_property
    def study(self) -> PipelineStudy:
        """The job on plain numbers, with its gangs."""
        return pipeline_study(self.checkpoint, splits=False)

    def length_s(self, solution: Solution) -> float:
        """How long the pipeline takes in the order that ``plan_of`` makes of a solution [s]; nothing is shorter than
        the solution, whose gangs need not meet."""
        orders = self.plan_of(solution).orders
        if not self.costs.shape.chunk_gang or orders is None:
            return solution.makespan_s
        return max(self.study.evaluate(orders).makespan_s, solution.makespan_s)

    def limited(self, limit_bytes: I64) -> JobProblem:
        """The same with other limits. ``limit_bytes``: int64[num_ranks]."""
        return replace(self, problem=replace(self.problem, limit_bytes=limit_bytes))

    def simulated(self, plan: StagePlan) -> JobCheckpoint:
        """The job under a plan of ``plan_of``, ready to be reported; as ``semu.simulate`` would prepare it."""
        found = self.checkpoint.decided(plan)
        assert plan.orders is not None
        training = replace(found.job.training, schedule_file=plan.orders.name)
        return replace(found, layout=replace(found.layout, job=replace(found.job, training=training)))

    def estimate(self, solution: Solution) -> Estimate:
        """A schedule, simulated in full; once for each."""
        return _ESTIMATES.get(
            solution, memo.Same((self.checkpoint,)), lambda: self.simulated(self.plan_of(solution)).estimate()
        )

    def excess_of(self, solution: Solution) -> I64:
        """By how much the full simulation of a schedule is above what every rank has: int64[num_ranks] [bytes].

        Above the limits on what is allocated, or above what the allocator may hold of a device.
        """
        found = self.estimate(solution)
        excess: I64 = np.array(found.peak_memory_bytes, dtype=np.int64) - self.target_bytes
        if not np.any(excess > 0) and not found.fits:  # the first costs nothing
            excess = np.maximum(excess, np.array(found.deciding_bytes, dtype=np.int64) - found.room.usable_bytes)
        return excess


def build_problem(
    checkpoint: JobCheckpoint, *, memory_limit_bytes: int | None = None, replica: int | None = None
) -> JobProblem:
    """The search problem of a prepared job.

    Of several data-parallel replicas, which all run one order, every stage takes as long, and as much memory, as on the
    replica where that is most: no replica is slower than what the search computes, and none needs more.

    Args:
        checkpoint: prepared under a plan with variants, or under one without: then there is one candidate.
        memory_limit_bytes: of every rank; None: the device's memory. replica: only this one.
    Raises:
        ConfigError: a limit that is none.
    """
    costs = checkpoint.pair_costs(replica)
    limit = costs.capacity_bytes if memory_limit_bytes is None else memory_limit_bytes
    if not is_integer(limit) or not 1 <= limit <= costs.capacity_bytes:
        raise ConfigError(
            "not a part of the device's memory",
            where="memory_limit_bytes",
            expected=f"1 to {costs.capacity_bytes} bytes",
            got=limit,
            nearest=costs.capacity_bytes,
        )
    columns, count = _columns(costs)
    graph, transfer_s = without_meetings(costs.graph, costs.transfer_s)
    rows = np.arange(len(costs.pairs))[:, None]
    problem = SearchProblem.on(
        graph,
        num_candidates=count,
        forward_s=costs.forward_s[rows, columns],
        backward_s=costs.backward_s[rows, columns],
        held_bytes=costs.held_bytes[rows, columns],
        forward_peak_bytes=costs.forward_peak_bytes[rows, columns],
        backward_peak_bytes=costs.backward_peak_bytes[rows, columns],
        transfer_s=transfer_s,
        static_bytes=costs.static_bytes,
        limit_bytes=np.full(costs.shape.num_ranks, limit, dtype=np.int64),
    )
    plan = checkpoint.layout.recipe.plan
    return JobProblem(
        problem, columns, checkpoint, plan if plan is not None else StagePlan(), costs, problem.limit_bytes
    )


def _columns(costs: PairCosts) -> tuple[I32, NDArray[np.int16]]:
    """Per pair, its candidates by rising memory and falling time: variants, the last one repeated, int32[n, S]; how
    many there are: int16[n]."""
    n, width = costs.forward_s.shape
    time = costs.forward_s + costs.backward_s
    order = np.lexsort((np.broadcast_to(np.arange(width), (n, width)), time, costs.held_bytes), axis=1)
    sorted_time = np.take_along_axis(time, order, axis=1)
    best = np.minimum.accumulate(sorted_time, axis=1)
    kept = np.ones((n, width), dtype=np.bool_)
    kept[:, 1:] = sorted_time[:, 1:] < best[:, :-1]
    count = kept.sum(axis=1)
    place = np.argsort(~kept, axis=1, kind="stable")
    last = np.minimum(np.arange(width)[None, :], count[:, None] - 1)
    columns = np.take_along_axis(order, np.take_along_axis(place, last, axis=1), axis=1)
    most = int(count.max(initial=1))
    return columns[:, :most].astype(np.int32), count.astype(np.int16)
