"""``search``: a schedule made for a job's batch, from partition to full simulation of the best one (DIP §3.2)."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from semu.baselines import Baseline
from semu.checks import check_integer, check_member, check_word
from semu.errors import ConfigError, MemoryLimitError
from semu.job import TrainingJob
from semu.schedule.stage_plan import STRATEGIES as LAYER_STRATEGIES
from semu.schedule.stage_plan import StagePlan
from semu.searcher.assignment.assignment import Assignment
from semu.searcher.bounds import lower_bounds
from semu.searcher.candidates import MOST_CANDIDATES, candidate_variants
from semu.searcher.fit import fitted, settled
from semu.searcher.kept_places import keeps_places, keeps_ranks, kept_job, kept_partition, kept_problem
from semu.searcher.memory import check_limits
from semu.searcher.orders.budgeted import SearchResult, search_problem
from semu.searcher.orders.levels import search_levels
from semu.searcher.orders.loop import Budget, Incumbent
from semu.searcher.orders.refine import compile_chains
from semu.searcher.orders.strategies import STRATEGIES
from semu.searcher.orders.strategy import Objective
from semu.searcher.partitioning import Partition, partition
from semu.searcher.plain_jobs import plain_job
from semu.searcher.problem.build import JobProblem, build_problem
from semu.searcher.problem.search_problem import SearchProblem, Solution
from semu.searcher.report import SearchReport
from semu.searcher.starts import (
    Cut,
    Start,
    baseline_starts,
    compared_with,
    explored_baselines,
    heuristic_start,
    named_baselines,
    with_more_segments,
)
from semu.simulation import prepare

DEFAULT_ROLLOUTS = 1024
"""Of a search without a limit: the same files again, which a time (DIP §7.4 has 10 s) does not give."""
EXACT_TIME_S = 60.0
"""Time of CP-SAT where the search has no limit of time [s]."""
MOST_TIME_S = 1e6
"""Time of CP-SAT at most [s]; it takes no infinite one."""


def job_problem(
    job: TrainingJob,
    *,
    sub_batch: Mapping[str, int] | None = None,
    segments: Mapping[str, int] | None = None,
    strategies: Sequence[str] = LAYER_STRATEGIES,
    candidates: int = MOST_CANDIDATES,
    memory_limit_bytes: int | None = None,
    progress: Callable[[str], None] | None = None,
    assigned: Assignment | None = None,
) -> tuple[Partition, JobProblem]:
    """What a search would look at.

    Args: as ``search``, but for ``job``: one without layout and schedule (``plain_job``); and ``assigned``, whose batch
    the job has and whose samples are deferred.
    """
    for word in strategies:
        check_word(word, LAYER_STRATEGIES, "memory strategy", "strategies")
    check_integer(candidates, "candidates", "a number of candidates")
    say = progress or (lambda _: None)
    say("cutting the model and the batch")
    cut = partition(job, sub_batch=sub_batch, segments=segments)
    cut, plan = cut.deferring(StagePlan() if assigned is None else assigned.cut(cut.sizes), job.parallel.replicas)
    say("simulating the candidates of every chunk")
    plan = candidate_variants(job, plan, strategies=strategies, most=candidates)
    built = build_problem(prepare(job, plan=plan), memory_limit_bytes=memory_limit_bytes)
    check_limits(built.problem)
    return cut, built


def search(
    job: TrainingJob,
    *,
    assigned: Assignment | None = None,
    rollouts: int | None = None,
    time_s: float | None = None,
    seed: int = 0,
    strategy: str = "mixed",
    workers: int | None = None,
    objective: str = "min",
    sub_batch: Mapping[str, int] | None = None,
    segments: Mapping[str, int] | None = None,
    strategies: Sequence[str] = LAYER_STRATEGIES,
    candidates: int = MOST_CANDIDATES,
    memory_limit_bytes: int | None = None,
    exact: bool = False,
    explore: bool = False,
    progress: Callable[[str], None] | None = None,
) -> SearchReport:
    """Look for the schedule that is best for a job's batch.

    Args:
        job: what to train, on what; its layout, schedule and recomputation are replaced.
        assigned: samples in place of the job's, deferred as they are; Megatron-LM encodes them where they are read.
            Where ``entrain`` has chosen to defer, they are searched as ``coupled`` has them too, with as much time
            or as many rollouts; ``assigned`` of the result is the faster one.
        rollouts: sequences to try; gives the same bytes again. time_s: wall time of the search itself [s]; does not.
            0 of either: the heuristic's schedule. Neither: 1,024 rollouts.
        seed: of all random numbers. strategy: over sequences, one of ``semu.searcher.orders.strategy.STRATEGIES``.
        workers: threads; None: half the cores. objective: ``min``, or ``max`` for the longest schedule.
        sub_batch: module -> items of a sub-microbatch, 0: whole microbatches. segments: module -> chunks per rank.
            Both in place of what ``partition`` chooses. Megatron-LM's cut is compared with all the same; where it is
            faster it is what is returned, and ``is_as_asked`` is false.
        strategies: memory strategies of layers that may be used. memory_limit_bytes: of ranks; None: the device's.
        candidates: ways to run a stage pair, at most. explore: begin with the fastest of ``explore_schedules``, too.
        exact: afterwards let OR-Tools' CP-SAT go on, for ``time_s`` (60 s without one).
        progress: called with a line at the start of each step, and for every incumbent.
    Returns:
        The best schedule with its full simulation. It fits in memory.
    Raises:
        MemoryLimitError: no strategy fits: which rank, how much is missing.
        ConfigError: options that do not fit together, or a job that this version does not model under a plan.
        ScheduleError: sub-microbatches of a module that cannot be cut.
    """
    options: dict[str, Any] = {
        "rollouts": rollouts,
        "time_s": time_s,
        "seed": seed,
        "strategy": strategy,
        "workers": workers,
        "objective": objective,
        "sub_batch": sub_batch,
        "segments": segments,
        "strategies": strategies,
        "candidates": candidates,
        "memory_limit_bytes": memory_limit_bytes,
        "exact": exact,
        "explore": explore,
        "progress": progress,
    }
    found = _search_once(job, assigned, **options)
    beside = None if assigned is None or objective != Objective.MIN.value else assigned.beside
    if beside is None or found.result.ended_by == "interrupt":
        return found
    if progress is not None:
        progress(f"searching the same samples as {beside.method} has them")
    return min(found, _search_once(job, beside, **options), key=lambda one: one.report.iteration_time_s)


def _search_once(
    job: TrainingJob,
    assigned: Assignment | None,
    *,
    rollouts: int | None,
    time_s: float | None,
    seed: int,
    strategy: str,
    workers: int | None,
    objective: str,
    sub_batch: Mapping[str, int] | None,
    segments: Mapping[str, int] | None,
    strategies: Sequence[str],
    candidates: int,
    memory_limit_bytes: int | None,
    exact: bool,
    explore: bool,
    progress: Callable[[str], None] | None,
) -> SearchReport:
    """``search`` of the samples as they are assigned."""
    goal = _objective(objective, strategy=strategy, seed=seed, exact=exact, explore=explore)
    budget = Budget(DEFAULT_ROLLOUTS if rollouts is None and time_s is None else rollouts, time_s, workers)
    say, began = progress or (lambda _: None), time.perf_counter()
    say("simulating Megatron-LM's schedule")
    given, job, changes, cut_into = _given(job, assigned)
    beside, explored = compared_with(given), explored_baselines(given, say) if explore else []
    options: dict[str, Any] = {"strategies": strategies, "candidates": candidates, "assigned": assigned}
    options["memory_limit_bytes"] = memory_limit_bytes
    again = partial(cut_into, job, sub_batch=sub_batch, **options)
    is_least, is_kept = goal is Objective.MIN, keeps_places(job)
    others = [*_beside(given, [one for one, _ in beside]), *explored] if is_least else []
    more = again if is_least and not (segments or is_kept) else None
    plain = _heuristic(job, changes, partial(again, segments=segments, progress=say), has_others=bool(others))
    like = plain.partition if not isinstance(plain, Exception) else _cut_like(job, sub_batch, segments)
    starts, alike, is_stopped = _starts(plain, like, given, others, more, say, options)
    asked: dict[str, Any] = {"strategy": strategy, "objective": goal, "seed": seed, "workers": budget.num_workers()}
    start, first = _searchable(starts, asked)
    prepared_s = time.perf_counter() - began
    say("searching")
    begun, default, bound = start.built, start.solution, _bound(start.target)
    try:
        if is_stopped or _is_stopped(begun, seed, budget):
            raise KeyboardInterrupt
        levels = partial(search_levels, strategy=strategy, objective=goal, seed=seed, progress=_told(say, bound[0]))
        result, built, best = settled(begun, lambda one: levels(one.problem, budget))
    except KeyboardInterrupt:  # the start is the best so far
        result = replace(first, ended_by="interrupt", is_reproducible=False, **asked)
        built, best = begun, default
    except MemoryLimitError:  # no sequence's schedule fits, the start's does
        result, built, best = start.unsearched(**asked).result or first, begun, default
    if is_least and default.makespan_s < best.makespan_s:
        built, best = begun, default
    if exact and result.ended_by != "interrupt":
        say("solving with CP-SAT")
        result, best, bound = _solved(result, _exact(built, best, budget, seed, bound))
    say("simulating the best schedule")
    found = start.of(built, best)
    if is_least and (other := min(starts, key=lambda one: one.time_s)).time_s < found.time_s:
        bound = bound if other.target is start.target else _bound(other.target)
        found = other.of(other.built, other.solution)
    return SearchReport(
        job=found.job,
        changes=found.changes,
        partition=found.partition,
        plan=found.built.plan_of(found.solution, "search"),
        report=found.report,
        heuristic=start,
        baseline=beside[0][1] if beside else None,
        explored=explored[0].simulate() if explored else None,
        limit_bytes=int(found.built.costs.capacity_bytes if memory_limit_bytes is None else memory_limit_bytes),
        problem=found.built,
        solution=replace(found.solution, makespan_s=found.built.length_s(found.solution), lower_bound_s=bound[0]),
        bound_name=bound[1],
        result=result,
        prepare_s=prepared_s,
        ordered=alike,
        is_as_asked=_is_as_asked(found.partition, like, sub_batch or {}, segments or {}),
        assigned=assigned,
    )


def to_cut(job: TrainingJob) -> tuple[TrainingJob, Mapping[str, object], Callable[..., Cut]]:
    """The job that is cut or keeps its chunks, what was changed of it, and what makes its problem."""
    return (*kept_job(job), kept_problem) if keeps_places(job) else (*plain_job(job), job_problem)


def _given(
    job: TrainingJob, assigned: Assignment | None
) -> tuple[TrainingJob, TrainingJob, Mapping[str, object], Callable[..., Cut]]:
    """The job whose schedules are compared, with samples of which none is deferred; and ``to_cut`` of it, with the
    batch that is searched."""
    if assigned is None:
        return (job, *to_cut(job))
    given = assigned.given_to(job, assigned.undeferred)
    plain, changes, cut_into = to_cut(given)
    return given, replace(plain, batch=assigned.batch), changes, cut_into


def _beside(given: TrainingJob, megatron: Sequence[Baseline]) -> list[Baseline]:
    """Schedules of others with which a search begins too: the fastest named one where chunks stay, and Megatron-LM's
    where nothing else was asked for."""
    named = named_baselines(given) if keeps_places(given) else []
    return [*named, *(megatron if not keeps_places(given) or not keeps_ranks(given) else [])]


def _solved(
    result: SearchResult, solved: tuple[Solution, tuple[float, str], bool]
) -> tuple[SearchResult, Solution, tuple[float, str]]:
    """A search's result after the exact solver, its solution and its bound."""
    best, bound, is_stopped = solved
    ended_by = "interrupt" if is_stopped else result.ended_by
    return replace(result, is_reproducible=False, ended_by=ended_by), best, bound


def _searchable(starts: Sequence[Start], asked: Mapping[str, Any]) -> tuple[Start, SearchResult]:
    """The fastest start of those that a heuristic made, of all where it made none; and how it was found."""
    made = [one for one in starts if one.result is not None]
    start = min(made or [one.unsearched(**asked) for one in starts], key=lambda one: one.time_s)
    assert start.result is not None
    return start, start.result


def _is_as_asked(found: Partition, like: Partition, sub_batch: Container[str], segments: Container[str]) -> bool:
    """Whether the modules for which they were given have the sub-microbatches and segments of ``like``."""
    return all(
        (own.name not in sub_batch or own.sub_batch == asked.sub_batch)
        and (own.name not in segments or own.segments == asked.segments)
        for own, asked in zip(found.modules, like.modules, strict=True)
    )


def _cut_like(job: TrainingJob, sub_batch: Mapping[str, int] | None, segments: Mapping[str, int] | None) -> Partition:
    """How a job is cut whose heuristic schedule cannot be."""
    if keeps_places(job):
        return kept_partition(prepare(job))
    return partition(job, sub_batch=sub_batch, segments=segments)


def _heuristic(
    job: TrainingJob, changes: Mapping[str, object], cut: Callable[[], Cut], *, has_others: bool
) -> Start | MemoryLimitError:
    """The heuristic's start; its error where nothing fits, and there are other starts."""
    try:
        return heuristic_start(job, changes, cut())
    except MemoryLimitError as error:
        if not has_others:
            raise
        return error


_WHOSE = {"explored": "an explored schedule's", "named": "the fastest named schedule's"}
"""Baselines that are not Megatron-LM's."""


def _starts(
    plain: Start | MemoryLimitError,
    like: Partition,
    given: TrainingJob,
    beside: Sequence[Baseline],
    again: Callable[..., Cut] | None,
    say: Callable[[str], None],
    options: Mapping[str, Any],
) -> tuple[list[Start], Start | None, bool]:
    """Everything that a search for the shortest schedule begins with; Megatron-LM's order with the candidates that fit
    best; and whether Ctrl-C came, which leaves what there was.

    Args:
        plain: the cut of ``partition`` under the heuristic's schedule, or why nothing of it fits. like: that cut.
        given: the job as it came. beside: Megatron-LM, the fastest named schedule where chunks stay, and an explored
            one. again: makes a cut of other segments; None: they are given. options: of ``baseline_starts``.
    Raises:
        MemoryLimitError: nothing fits.
    """
    starts, alike = [] if isinstance(plain, Exception) else [plain], None
    try:
        if again is not None and not isinstance(plain, Exception):
            starts = [with_more_segments(plain, lambda more: again(segments=more))]
        for baseline in beside:
            whose = _WHOSE.get(baseline.name, "Megatron-LM's")
            say(f"simulating {whose} cut with the candidates")
            others, same = baseline_starts(given, baseline, like, **options)
            starts, alike = starts + others, same if baseline is beside[0] and baseline.name not in _WHOSE else alike
    except KeyboardInterrupt:
        if starts:
            return starts, alike, True
        raise
    if isinstance(plain, MemoryLimitError) and not starts:
        raise plain
    return starts, alike, any(one.result is not None and one.result.ended_by == "interrupt" for one in starts)


def _objective(objective: str, *, strategy: str, seed: int, exact: bool, explore: bool) -> Objective:
    """The objective of a search, whose other options are checked.

    Raises:
        ConfigError: an unknown name, no seed, an exact search for the longest schedule, or one that explores.
    """
    check_word(strategy, STRATEGIES, "search strategy", "strategy")
    check_integer(seed, "seed", "a seed", least=0)
    goal = check_member(objective, Objective, "objective")
    if exact and goal is Objective.MAX:
        raise ConfigError("the exact solver looks for the shortest schedule", where="exact", expected="objective min")
    if explore and goal is Objective.MAX:
        raise ConfigError("rules are explored for the shortest schedule", where="explore", expected="objective min")
    return goal


def _is_stopped(built: JobProblem, seed: int, budget: Budget) -> bool:
    """Compile, or read, the kernels before the clock starts, if they are needed; True: Ctrl-C came meanwhile."""
    if budget.time_s == 0 or budget.rollouts == 0:
        return False
    found = search_problem(built.problem, Budget(rollouts=1, workers=1), seed=seed)
    compile_chains(built.problem, found.solution, is_timed=budget.time_s is not None)
    return found.ended_by == "interrupt"


def _told(say: Callable[[str], None], bound: float) -> Callable[[Incumbent], None]:
    """What progress says of an incumbent. ``bound``: [s]."""

    def _tell(one: Incumbent) -> None:
        gap = f", gap {100 * (one.makespan_s / bound - 1):.2f} %" if bound > 0 and np.isfinite(one.makespan_s) else ""
        rate = f", {one.rollouts / one.time_s:.0f} rollouts/s" if one.rollouts and one.time_s > 0 else ""
        say(f"best {one.makespan_s:.4f} s{gap} after {one.rollouts} rollouts{rate}")

    return _tell


def _bound(problem: SearchProblem) -> tuple[float, str]:
    """The best lower bound [s], and its name."""
    bound = lower_bounds(problem)
    return bound.value_s, bound.name


def _exact(
    built: JobProblem, best: Solution, budget: Budget, seed: int, bound: tuple[float, str]
) -> tuple[Solution, tuple[float, str], bool]:
    """What CP-SAT makes of the best schedule, the better bound, and whether Ctrl-C, which it catches, ended it."""
    from semu.searcher.exact import solve_exact
    from semu.searcher.orders.interleave import evaluate

    limit_s = min(budget.time_s or EXACT_TIME_S, MOST_TIME_S)
    hint = best.start_s, best.choice
    try:
        found = solve_exact(built.problem, time_s=limit_s, workers=budget.num_workers(), seed=seed, hint=hint)
    except KeyboardInterrupt:
        return best, bound, True
    is_stopped = not found.is_optimal and found.wall_s < 0.9 * limit_s
    slack = found.tick_s * (built.problem.num_stages + np.count_nonzero(built.problem.transfer_s))
    if np.isfinite(found.bound_s) and found.bound_s - slack > bound[0]:
        bound = float(found.bound_s - slack), "CP-SAT"
    if found.orders:
        other = evaluate(built.problem, np.concatenate(found.orders), found.choice)
        if other.makespan_s < best.makespan_s:
            try:
                _, other = fitted(built, other)
            except MemoryLimitError:
                return best, bound, is_stopped
            if other.makespan_s < best.makespan_s:
                return other, bound, is_stopped
    return best, bound, is_stopped
