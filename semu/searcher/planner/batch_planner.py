"""``BatchPlanner``: plans of one batch after another; what serves the next one is kept.

Chunks are placed once, as they are during training (DIP §3.2), and so are their variants: a memory strategy costs and
saves what it does whatever is in the batch. A batch brings its sub-microbatches, the costs of its stages, and its
order. Compiled blocks and results by shape are remembered by the simulator, within bounds of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from semu.baselines import Baseline
from semu.errors import ConfigError, MemoryLimitError
from semu.job import TrainingJob
from semu.parallel.towers import refuse_towers
from semu.schedule.passes import defer_backward
from semu.schedule.stage_plan import STRATEGIES as LAYER_STRATEGIES
from semu.schedule.stage_plan import StagePlan
from semu.searcher.assignment.assignment import Assignment
from semu.searcher.candidates import MOST_CANDIDATES
from semu.searcher.fit import OutOfTimeError, settled
from semu.searcher.job_search import to_cut
from semu.searcher.kept_places import keeps_places
from semu.searcher.memory import check_limits, choose_candidates
from semu.searcher.orders.budgeted import SearchResult
from semu.searcher.orders.interleave import evaluate
from semu.searcher.orders.levels import LEVELS, search_levels
from semu.searcher.orders.loop import Budget
from semu.searcher.orders.refine import compile_chains
from semu.searcher.partitioning import Partition, recut
from semu.searcher.planner.fallback import Fallback
from semu.searcher.planner.kept_limits import KeptLimits
from semu.searcher.planner.warm import Priorities
from semu.searcher.problem.build import JobProblem, build_problem
from semu.searcher.problem.search_problem import Solution
from semu.searcher.starts import Cut, baseline_starts, heuristic_result, heuristic_start, in_order, with_more_segments
from semu.simulation import prepare
from semu.simulation.checks.context_parallel import check_lengths
from semu.workload.batch import AbstractBatch
from semu.workload.listed import ListedBatch

Kept = Callable[[JobProblem, Solution], None]


class BatchPlanner:
    """Plans batches of a job.

    Args:
        job: what to train; its layout, schedule and recomputation are replaced. Its batch is what chunks, candidates
            and the fallback are made for.
        sub_batch, segments, strategies, candidates, memory_limit_bytes: as ``semu.search``.
        strategy: over sequences. seed: of all random numbers. progress: called with a line at the start of each step.
    Attributes:
        given: the caller's job. job: without what a plan decides. changes: what that changed.
        partition: chunks, and how the job's own batch is cut. template: chunks and variants as a plan.
        priorities: of the last batch that was searched; None: of none yet.
    Raises:
        MemoryLimitError: no strategy fits. ConfigError, ScheduleError: as ``semu.search``.
    """

    def __init__(
        self,
        job: TrainingJob,
        *,
        sub_batch: Mapping[str, int] | None = None,
        segments: Mapping[str, int] | None = None,
        strategies: Sequence[str] = LAYER_STRATEGIES,
        candidates: int = MOST_CANDIDATES,
        memory_limit_bytes: int | None = None,
        strategy: str = "mixed",
        seed: int = 0,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        say = progress or (lambda _: None)
        refuse_towers(job.parallel, "planning one batch after another")
        self.given = job
        self.job, self.changes, cut_into = to_cut(job)
        self._is_kept = keeps_places(job)
        self._limit, self._strategy, self._seed = memory_limit_bytes, strategy, seed
        options = {"strategies": strategies, "candidates": candidates, "memory_limit_bytes": memory_limit_bytes}
        self._options: Mapping[str, Any] = options
        again: Callable[..., Cut] = partial(cut_into, self.job, sub_batch=sub_batch, **options)
        start = heuristic_start(self.job, self.changes, again(segments=segments, progress=say))
        if not (segments or self._is_kept):
            start = with_more_segments(start, lambda more: again(segments=more))
        self.partition: Partition = start.partition
        self.template: StagePlan = replace(start.built.plan, parts={})
        say("making the schedule for want of a better one")
        self._fallback = Fallback(self.job, self.template)
        self._fallback.plan(self.job.num_microbatches)
        say("reading the kernels")
        self.priorities: Priorities | None = None
        self._read_kernels()

    def jobs_of(self, batch: AbstractBatch, where: str = "batch") -> tuple[TrainingJob, TrainingJob]:
        """The job with a batch: the caller's, and without what a plan decides.

        Args:
            batch: a ``ListedBatch`` may have another number of microbatches than the job.
            where: the batch, for messages.
        Raises:
            ConfigError: a batch that the job cannot run.
        """
        training, dp = self.given.training, self.given.parallel.replicas
        if isinstance(batch, ListedBatch):
            if where in batch.source:
                where = batch.source
            elif batch.source != "batch":  # such as the line of a stream
                where = f"{where}, {batch.source}"
            if len(batch.items) % dp:
                raise ConfigError(
                    "microbatches that the data-parallel replicas cannot share",
                    where=where,
                    expected=f"a multiple of dp = {dp}",
                    got=len(batch.items),
                    nearest=max(len(batch.items) // dp, 1) * dp,
                )
            training = replace(training, global_batch=len(batch.items) * training.micro_batch)
        try:
            given = replace(self.given, batch=batch, training=training)
            items = batch.microbatches(given.num_microbatches * dp, training.micro_batch, training.seq_len)
            check_lengths(given, items)
        except ConfigError as error:
            if where not in (error.where or ""):
                error.where = where if error.where is None else f"{where}: {error.where}"
            raise
        first = set(items[0].lengths)
        needed = {spec.stream for module in given.model.modules for spec in module.inputs}
        for number, item in enumerate(items):
            if set(item.lengths) != first or not needed <= first:
                raise ConfigError(
                    "a microbatch without the streams that the model reads, or with others than the first one",
                    where=f"{where}, microbatch {number}",
                    expected=", ".join(sorted(needed | first)),
                    got=", ".join(sorted(item.lengths)),
                )
        own = replace(self.job.training, global_batch=training.global_batch)
        return given, replace(self.job, batch=batch, training=own)

    def fallback(self, job: TrainingJob, assigned: Assignment | None = None) -> StagePlan:
        """A plan that is legal whatever is in the batch; it was not simulated with it.

        Args:
            assigned: what defers samples.
        """
        if assigned is not None and assigned.defers:
            return self._fallback.deferring(job, assigned.cut())
        return self._fallback.plan(job.num_microbatches)

    def prepared(self, job: TrainingJob, assigned: Assignment | None = None) -> JobProblem:
        """The search problem of a job of ``jobs_of``.

        Args:
            assigned: whose batch the job has; what it defers stays deferred.
        Raises:
            ConfigError: a batch that this version does not model.
        """
        plan = StagePlan() if self._is_kept else recut(self.partition, job).plan()
        if assigned is not None and assigned.defers:
            plan = assigned.cut({} if self._is_kept else self.partition.sizes)
        plan = replace(self.template, parts=plan.parts, items=plan.items, reads=plan.reads)
        built = build_problem(prepare(job, plan=plan), memory_limit_bytes=self._limit)
        check_limits(built.problem)
        return built

    def heuristic(self, built: JobProblem, kept: KeptLimits | None = None) -> tuple[JobProblem, Solution, float]:
        """The heuristic's schedule, the problem under the limits with which it fits, and its level of memory; where
        chunks keep their places, 1F1B of them where that is faster.

        Args:
            kept: limits of the last batch to begin with; those of this one are kept.
        Raises:
            MemoryLimitError: it does not fit.
        """
        result, begun, default = _within(built, kept, lambda start: settled(start, heuristic_result))
        if self._is_kept:
            orders = built.checkpoint.schedule()
            if built.plan.reads:
                orders = defer_backward(prepare(built.checkpoint.job).schedule(), built.costs.shape, orders.name)
            other = in_order(built, orders)
            if other is not None and iteration_s(*other) < iteration_s(begun, default):
                return *other, result.level
        return begun, default, result.level

    def alike_s(self, given: TrainingJob, baseline: Baseline) -> float | None:
        """Iteration time of Megatron-LM's cut and order with the recomputation that fits best [s]; None: none fits.

        Args:
            given: the caller's job with a batch. baseline: Megatron-LM on it.
        """
        _, alike = baseline_starts(given, baseline, self.partition, has_heuristic=False, **self._options)
        return None if alike is None else alike.time_s

    def search(
        self,
        begun: JobProblem,
        default: Solution,
        level: float,
        budget: Budget,
        keep: Kept | None = None,
        kept: KeptLimits | None = None,
        is_late: Callable[[], bool] = lambda: False,
    ) -> tuple[SearchResult, JobProblem, Solution]:
        """The best schedule that a budget finds; it fits, and its whole iteration is no slower than the heuristic's.

        Args:
            begun, default, level: of ``heuristic``. keep: given schedules that are the best so far, with their problem,
                now and then; they may not fit. kept: as ``heuristic``. is_late: asked where what was found does not
                fit; then the heuristic's schedule is what a budget finds.
        """
        levels, seeds = list(LEVELS), None
        if self.priorities is not None:
            levels, seeds = sorted({level, *_near(self.priorities.level)}), self.priorities.seeds

        found: list[SearchResult] = []
        began = time.perf_counter()

        def _find(built: JobProblem) -> SearchResult:
            own = budget
            if found and budget.time_s is not None:  # again, since nothing fits in the order that was found
                own = replace(budget, time_s=max(budget.time_s - (time.perf_counter() - began), 0.0))
            hold = None if keep is None else (lambda one: keep(built, one))
            options = {"strategy": self._strategy, "seed": self._seed, "seeds": seeds, "keep": hold}
            try:
                result = search_levels(built.problem, own, levels=levels, **options)  # type: ignore[arg-type]
            except MemoryLimitError:
                result = search_levels(built.problem, own, **options)  # type: ignore[arg-type]
            found.append(result)
            return result

        try:
            result, built, best = _within(begun, kept, lambda start: settled(start, _find, is_late))
        except MemoryLimitError:
            if not found:
                raise
            return found[-1], begun, default
        except OutOfTimeError as error:
            if kept is not None:
                kept.keep(begun, error.built)
            return found[-1], begun, default
        if iteration_s(begun, default) < iteration_s(built, best):
            built, best = begun, default
        return result, built, best

    def _read_kernels(self) -> None:
        """Compile, or read, all kernels by a step of each: later they would hold up whoever shares the interpreter."""
        begun, default, level = self.heuristic(self.prepared(self.job))
        chosen = choose_candidates(begun.problem, default.order).choice
        compile_chains(begun.problem, evaluate(begun.problem, default.order, chosen))
        for _ in range(2):  # the second one begins with priorities
            result, built, best = self.search(begun, default, level, Budget(rollouts=4, workers=1))
            self.remember(built, best, result.level)
        self.priorities = None

    def remember(self, built: JobProblem, solution: Solution, level: float) -> None:
        """Begin the next search with a schedule's priorities."""
        self.priorities = Priorities.of(built.problem, solution, level)


def iteration_s(built: JobProblem, solution: Solution) -> float:
    """Iteration time of a solution, simulated in full: gathers, reductions, optimizer step and all [s]."""
    return built.estimate(solution).iteration_time_s


def _within(
    built: JobProblem, kept: KeptLimits | None, find: Callable[[JobProblem], tuple[SearchResult, JobProblem, Solution]]
) -> tuple[SearchResult, JobProblem, Solution]:
    """What is found under the limits that are kept, else without them; the limits with which it fits are kept."""
    if kept is None:
        return find(built)
    start = kept.under(built)
    try:
        found = find(start)
    except MemoryLimitError:
        if start is built:
            raise
        start, found = built, find(built)
    kept.keep(start, found[1])
    return found


def _near(level: float) -> list[float]:
    """A level of memory and those beside it."""
    at = min(range(len(LEVELS)), key=lambda i: abs(LEVELS[i] - level))
    return list(LEVELS[max(at - 1, 0) : at + 2])
