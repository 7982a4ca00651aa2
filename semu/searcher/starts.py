"""What a search begins with: cuts of the model with a first schedule each, Megatron-LM's own cut and schedule too.

A search returns the best of what it found and of all starts, by their full simulations: never less than what it is
compared with, where that fits in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from semu.baselines import Baseline, megatron, megatron_1f1b
from semu.baselines.baseline import NO_SCHEDULE, differences
from semu.errors import ConfigError, MemoryLimitError, ScheduleError
from semu.graph.operator import Phase
from semu.job import TrainingJob
from semu.present.estimate import Estimate
from semu.present.report import Report
from semu.records import dataclass
from semu.schedule.passes import defer_backward
from semu.schedule.registry import ALL_SCHEDULES, schedule_family
from semu.schedule.schedule import Schedule
from semu.schedule.stage_plan import StagePlan
from semu.searcher.candidates import candidate_variants
from semu.searcher.fit import fitted, settled
from semu.searcher.memory import check_limits, choose_candidates
from semu.searcher.orders.budgeted import SearchResult
from semu.searcher.orders.interleave import evaluate
from semu.searcher.orders.levels import search_levels
from semu.searcher.orders.loop import Budget
from semu.searcher.partitioning import Partition
from semu.searcher.plain_jobs import without_strategies
from semu.searcher.problem.build import JobProblem, build_problem
from semu.searcher.problem.problem_arrays import I32
from semu.searcher.problem.search_problem import SearchProblem, Solution
from semu.simulation import prepare
from semu.simulation.schedules.exploring import explore_schedules

if TYPE_CHECKING:
    from semu.searcher.assignment.assignment import Assignment

Cut = tuple[Partition, JobProblem]


@dataclass(frozen=True, eq=False)
class Start:
    """A cut with a schedule that fits in memory.

    Attributes:
        job: under which the plan runs. changes: what it changed about the job given, as ``SearchReport``.
        partition: the cut. target: what would be searched. built: the same, under limits that make the schedule fit.
        solution: the schedule. name: of the schedule. result: how it was found; None: it is a baseline's.
    """

    job: TrainingJob
    changes: Mapping[str, object]
    partition: Partition
    target: SearchProblem
    built: JobProblem
    solution: Solution
    name: str = "heuristic"
    result: SearchResult | None = None

    @cached_property
    def estimate(self) -> Estimate:
        """The full simulation without its tables; every figure is the report's."""
        return self.built.estimate(self.solution)

    @property
    def time_s(self) -> float:
        """Of the iteration [s]."""
        return self.estimate.iteration_time_s

    @cached_property
    def report(self) -> Report:
        """The full simulation, with its tables; made when it is asked for."""
        return self.built.simulated(self.built.plan_of(self.solution, self.name)).report()

    def of(self, built: JobProblem, solution: Solution) -> Start:
        """A schedule that a search found for the same cut."""
        return replace(self, built=built, solution=solution, name="search")

    def unsearched(self, **asked: Any) -> Start:
        """The same as the result of a search that found nothing else. ``asked``: strategy, objective, seed, workers."""
        one = SearchResult(self.solution, self.solution, (), 0, 0, 0.0, "rollouts", is_reproducible=True, **asked)
        return replace(self, result=one)


def compared_with(job: TrainingJob) -> list[tuple[Baseline, Report]]:
    """Megatron-LM on the job, interleaved where it can be; 1F1B before that, where only this fits as it stands; empty:
    it cannot run the job."""
    found: list[tuple[Baseline, Report]] = []
    for make in (megatron, megatron_1f1b):
        try:
            made = make(job)
            found.append((made, made.simulate()))
        except ConfigError:
            continue
        if found[-1][1].fits:
            return found[::-1]
    return found


def explored_baselines(job: TrainingJob, progress: Callable[[str], None]) -> list[Baseline]:
    """The fastest explored schedule that fits in memory, of those that a search can order: one copy of the model and
    whole backwards; empty: none of them does.

    Raises:
        ConfigError, ScheduleError: as ``explore_schedules``.
    """
    for row in explore_schedules(job, progress=progress).rows:
        is_one_copy = not any(row.stages.shape.chunk_flow)
        if row.estimate.fits and is_one_copy and not row.stages.schedule.splits_backward:
            return [Baseline("explored", "FlexPipe §6", row.job, dict(differences(job, row.job)))]
    return []


def named_baselines(job: TrainingJob) -> list[Baseline]:
    """The fastest schedule that ships and keeps backwards whole, or the job's own where it does, on the job's chunks as
    they are; empty: none fits in memory."""
    found = []
    own = [] if job.training.schedule_file is not None else [job.training.schedule]
    for name in dict.fromkeys([*own, *ALL_SCHEDULES]):
        if schedule_family(name).splits_backward:
            continue
        try:
            training = replace(job.training, **{**NO_SCHEDULE, "schedule": name})
            other = replace(job, training=training)
            estimate = prepare(other).estimate()
        except (ConfigError, ScheduleError, MemoryLimitError):
            continue
        if estimate.fits:
            found.append((estimate.iteration_time_s, other))
    if not found:
        return []
    best = min(found, key=lambda one: one[0])[1]
    return [Baseline("named", "", best, dict(differences(job, best)))]


def heuristic_result(built: JobProblem) -> SearchResult:
    """The best of the default schedules of all levels of memory."""
    return search_levels(built.problem, Budget(rollouts=0), is_bounded=False)


def heuristic_start(job: TrainingJob, changes: Mapping[str, object], cut: Cut) -> Start:
    """A cut under the heuristic's schedule.

    Raises:
        MemoryLimitError: no schedule fits.
    """
    partition, target = cut
    result, built, solution = settled(target, heuristic_result)
    return Start(job, changes, partition, target.problem, built, solution, result=result)


def with_more_segments(first: Start, cut_into: Callable[[Mapping[str, int]], Cut]) -> Start:
    """Where no module has several segments, the balance of modules says nothing of how many there should be: all are
    given twice as many, then one more, for as long as the heuristic's schedule gets faster by it.

    Args:
        first: the cut as it is. cut_into: module -> segments to another cut.
    """
    best = first
    if first.job.parallel.pp == 1 or any(m.segments > 1 for m in first.partition.modules):
        return first
    for factor, more in ((2, 0), (1, 1)):
        while True:
            try:
                cut = cut_into({m.name: factor * m.segments + more for m in best.partition.modules})
                other = heuristic_start(first.job, first.changes, cut)
            except (ConfigError, MemoryLimitError):  # fewer layers than chunks, or no room for what they hold
                break
            if other.time_s >= best.time_s:
                break
            best = other
    return best


def baseline_starts(
    job: TrainingJob,
    baseline: Baseline,
    like: Partition,
    *,
    strategies: Sequence[str],
    candidates: int,
    memory_limit_bytes: int | None,
    has_heuristic: bool = True,
    assigned: Assignment | None = None,
) -> tuple[list[Start], Start | None]:
    """The cut of Megatron-LM, or of an explored schedule: its schedule as it is, its schedule with the memory
    strategies that fit best, and the heuristic's schedule; those of them that fit in memory.

    Args:
        job: as it was given. baseline: Megatron-LM, or an explored schedule, on it. like: a partition of the same
            batch. has_heuristic: with the heuristic's schedule of that cut. Others: as ``search``.
        assigned: what defers samples; the baseline's job reads each where it is encoded.
    Returns:
        The starts, and the faster of the first two.
    """
    own_job, cut, order = baseline.job, StagePlan(), baseline.schedule
    if assigned is not None and assigned.defers:
        own_job, cut = replace(own_job, batch=assigned.batch), assigned.cut()
        try:
            order = defer_backward(order, prepare(own_job, plan=cut).pipeline_shape, f"{order.name}, deferring")
        except (ConfigError, ScheduleError):  # split backwards, another schedule or sharding that cannot be cut
            return [], None
    own = _ordered(own_job, baseline.changes, cut, order, like, memory_limit_bytes)
    found = [own] if own is not None else []
    try:
        plain = without_strategies(own_job)
        plan = candidate_variants(plain, cut, strategies=strategies, most=candidates)
        changes = dict(differences(job, plain))
        chosen = _ordered(plain, changes, plan, order, like, memory_limit_bytes)
        found += [chosen] if chosen is not None else []
        alike = min(found, key=lambda start: start.time_s, default=None)
        if not has_heuristic:
            return found, alike
        target = build_problem(prepare(plain, plan=plan), memory_limit_bytes=memory_limit_bytes)
        check_limits(target.problem)
        return [*found, heuristic_start(plain, changes, (_partition_of(target, like), target))], alike
    except (ConfigError, ScheduleError, MemoryLimitError):  # not modelled under candidates, or nothing fits
        return found, min(found, key=lambda start: start.time_s, default=None)


def _ordered(
    job: TrainingJob,
    changes: Mapping[str, object],
    plan: StagePlan,
    order: Schedule,
    like: Partition,
    memory_limit_bytes: int | None,
) -> Start | None:
    """A job's own cut in a given order, under the best candidates of the plan; None: nothing fits."""
    try:
        target = build_problem(prepare(job, plan=plan), memory_limit_bytes=memory_limit_bytes)
    except (ConfigError, ScheduleError, MemoryLimitError):
        return None
    found = in_order(target, order)
    if found is None:
        return None
    return Start(job, changes, _partition_of(target, like), target.problem, *found, order.name)


def in_order(target: JobProblem, order: Schedule) -> tuple[JobProblem, Solution] | None:
    """A given order under the best candidates, and the problem under the limits with which it fits; None: it does not.

    Args:
        order: of the stages of the problem's chunks.
    """
    try:
        stages = _stages_of(target, order)
        solution = evaluate(target.problem, stages, choose_candidates(target.problem, stages).choice)
        return fitted(target, solution)
    except (ConfigError, ScheduleError, MemoryLimitError):
        return None


def _stages_of(built: JobProblem, order: Schedule) -> I32:
    """Stages of a schedule as the search numbers them, rank after rank."""
    places = zip(built.costs.chunk.tolist(), built.costs.number.tolist(), strict=True)
    pair = {place: number for number, place in enumerate(places)}
    keys = [key for own in order.orders for key in own]
    return np.array(
        [2 * pair[key.chunk, key.microbatch] + (key.phase is not Phase.FORWARD) for key in keys], dtype=np.int32
    )


def _partition_of(built: JobProblem, like: Partition) -> Partition:
    """The cut of a job's own layout, whose modules run microbatches whole."""
    chunks = built.checkpoint.layout.chunks
    modules = []
    for m in like.modules:
        mine = [number for number, chunk in enumerate(chunks) if chunk.module == m.name]
        on_rank = np.bincount([chunks[number].chunk.rank for number in mine], minlength=like.num_ranks)
        counts = tuple(sum(block.is_layer for block in chunks[number].blocks) for number in mine)
        parts = tuple((1,) * len(own) for own in m.parts)
        modules.append(replace(m, sub_batch=None, rates=(), segments=int(on_rank.max()), layers=counts, parts=parts))
    found, _ = replace(like, modules=tuple(modules)).deferring(built.plan, built.checkpoint.job.parallel.replicas)
    return found
