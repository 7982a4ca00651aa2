"""``search_levels``: the search from several levels of memory.

DIP §5.2 interleaves with the leanest candidates of all stage pairs, and §5.3 then makes them faster under the same
order. Where memory is not the bottleneck the order is then one for stages much slower than those that run. So the
search also begins without the leanest candidates: a third, two thirds, or all but the fastest are left out. Each level
gets a small part of the budget, the best of them a larger one, and moves of stages and candidates of the whole problem
the rest, from the best schedules of all levels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.errors import MemoryLimitError
from semu.records import dataclass
from semu.searcher.bounds import NO_BOUNDS, LowerBounds, lower_bounds
from semu.searcher.orders.budgeted import (
    CUT_SHORT,
    ORDER_SHARE,
    PATIENCE,
    SearchResult,
    Seeds,
    refine_solutions,
    search_problem,
)
from semu.searcher.orders.loop import ELITE, Budget, Incumbent
from semu.searcher.orders.refine import has_trades
from semu.searcher.orders.strategy import Objective
from semu.searcher.problem.search_problem import SearchProblem, Solution

LEVELS = (0.0, 1 / 3, 2 / 3, 1.0)
"""Parts of every pair's candidates that are left out; the fastest stays."""
PROBE = 0.05
"""Part of the budget for each level."""


def above(problem: SearchProblem, level: float) -> tuple[SearchProblem, NDArray[np.int16]]:
    """A problem without the leanest candidates, and how many of every pair were left out: int16[n].

    Args:
        level: 0: none; 1: all but the fastest.
    """
    first = np.floor(level * (problem.num_candidates - 1) + 1e-9).astype(np.int16)
    left = (problem.num_candidates - first).astype(np.int16)
    width = int(left.max(initial=1))
    columns = np.minimum(first[:, None] + np.arange(width), problem.num_candidates[:, None] - 1)
    rows = np.arange(problem.num_pairs)[:, None]
    names = ("forward_s", "backward_s", "held_bytes", "forward_peak_bytes", "backward_peak_bytes")
    costs: dict[str, Any] = {name: np.ascontiguousarray(getattr(problem, name)[rows, columns]) for name in names}
    return replace(problem, num_candidates=left, **costs), first


@dataclass
class _Sum:
    """What the searches so far came to."""

    best: SearchResult | None = None
    level: float = 0.0
    solution: Solution | None = None
    default: Solution | None = None
    curve: tuple[Incumbent, ...] = ()
    rollouts: int = 0
    moves: int = 0
    time_s: float = 0.0
    islands: list[Solution] = field(default_factory=list)


@dataclass
class _LevelSearch:
    """A search from several levels as it goes on.

    Attributes:
        problem, budget, seeds, keep, progress: as ``search_levels``; options: the others. levels: distinct ones.
        bound: of the problem. began: when [s]. total: what the searches so far came to.
        parts: level -> ``above``. scores: level -> best makespan [s]. sequences: level -> best sequences.
    """

    problem: SearchProblem
    budget: Budget
    levels: Sequence[float]
    options: dict[str, Any]
    seeds: Seeds | None
    keep: Callable[[Solution], None] | None
    progress: Callable[[Incumbent], None] | None
    bound: LowerBounds
    began: float
    total: _Sum = field(default_factory=_Sum)
    parts: dict[float, tuple[SearchProblem, NDArray[np.int16]]] = field(default_factory=dict)
    scores: dict[float, float] = field(default_factory=dict)
    sequences: dict[float, Sequence[NDArray[np.int32]]] = field(default_factory=dict)

    @property
    def meets_bound(self) -> bool:
        """Whether the best schedule so far is optimal."""
        return self.total.solution is not None and self.total.solution.makespan_s <= self.bound.value_s

    def run(self, level: float, share: Budget) -> str:
        """Search from a level; returns why that ended."""
        if level not in self.parts:
            self.parts[level] = above(self.problem, level)
        part, first = self.parts[level]
        total, known, turn = self.total, self.sequences.get(level), len(self.scores)
        begin = self.seeds if known is None else (lambda *_: known)
        try:
            result = search_problem(
                part,
                share,
                part=turn if known is not None else 0,
                seeds=begin,
                keep=_better(self.keep, total, first),
                progress=_ahead(self.progress, total),
                refine=False,
                **self.options,
            )
        except KeyboardInterrupt:  # between two rounds
            if total.solution is None:
                raise
            return "interrupt"
        self.sequences[level] = result.sequences
        self.scores[level] = min(result.solution.makespan_s, self.scores.get(level, np.inf))
        if total.solution is None or result.solution.makespan_s < total.solution.makespan_s:
            total.level = level
        _add(total, result, first, self.bound.value_s)
        return result.ended_by

    def run_widely(self, level: float, budget: Budget) -> str:
        """Search from a level with the larger part of what is left."""
        patience_s = None if self.budget.time_s is None else PATIENCE * self.budget.time_s
        share = _part(budget, ORDER_SHARE, rollouts=budget.rollouts)
        return self.run(level, replace(share, patience_s=patience_s))

    def refine(self, rest: Budget) -> str:
        """Move stages and candidates of the best schedules of all levels; returns why that ended."""
        total, curve = self.total, list[Incumbent]()
        tell = _ahead(self.progress, replace(total, rollouts=0, moves=0, time_s=0.0))
        rollouts = rest.rollouts if len(self.levels) > 1 else self.budget.rollouts
        ends = (replace(self.budget, rollouts=rollouts), self.began, self.bound.value_s)
        islands = sorted(total.islands, key=lambda one: one.makespan_s)[: ELITE + 1]
        seed = self.options["seed"]
        try:
            best, moves, why = refine_solutions(
                self.problem, islands, ends, total.rollouts, seed, curve, self.keep, tell
            )
        except KeyboardInterrupt:  # between two rounds
            return "interrupt"
        total.curve, total.moves = (*total.curve, *curve), total.moves + moves
        total.solution = replace(best, lower_bound_s=self.bound.value_s)
        return why


def search_levels(
    problem: SearchProblem,
    budget: Budget,
    *,
    strategy: str = "mixed",
    objective: Objective = Objective.MIN,
    seed: int = 0,
    levels: Sequence[float] = LEVELS,
    is_bounded: bool = True,
    seeds: Seeds | None = None,
    keep: Callable[[Solution], None] | None = None,
    progress: Callable[[Incumbent], None] | None = None,
) -> SearchResult:
    """Search.

    Args: as ``search_problem``; the longest schedule is sought from the leanest candidates alone. Without a budget: the
        best of the default schedules of all levels. levels: those to begin from, at least one.
    Raises:
        MemoryLimitError: no candidates fit: which rank, how much is missing.
        ConfigError: an unknown strategy.
    """
    levels = [0.0] if objective is Objective.MAX else distinct_levels(problem, levels)
    options: dict[str, Any] = {"strategy": strategy, "objective": objective, "seed": seed, "is_bounded": is_bounded}
    if levels == [0.0]:
        return search_problem(problem, budget, seeds=seeds, keep=keep, progress=progress, **options)
    began = time.perf_counter()
    bound = lower_bounds(problem, effort=0.0) if is_bounded else NO_BOUNDS
    search = _LevelSearch(problem, budget, levels, options, seeds, keep, progress, bound, began)
    total, refused, ended_by = search.total, None, ""
    if len(levels) == 1:
        ended_by = search.run_widely(levels[0], budget)
    for level in levels if len(levels) > 1 else ():
        try:
            ended_by = search.run(level, _part(budget, PROBE))
        except MemoryLimitError as error:
            refused = refused or error
            continue
        if ended_by in CUT_SHORT or search.meets_bound:
            break
    if total.solution is None:
        assert refused is not None
        raise refused
    if search.meets_bound:
        ended_by = "bound"
    elif ended_by not in CUT_SHORT and budget.rollouts != 0 and budget.time_s != 0:
        rest = _rest(budget, total)
        if len(levels) > 1:
            ended_by = search.run_widely(min(search.scores, key=lambda level: search.scores[level]), rest)
        if search.meets_bound:
            ended_by = "bound"
        elif ended_by not in CUT_SHORT:
            ended_by = search.refine(rest)
    assert total.best is not None
    assert total.default is not None
    return replace(
        total.best,
        solution=total.solution,
        default=total.default,
        curve=total.curve,
        rollouts=total.rollouts,
        moves=total.moves,
        time_s=time.perf_counter() - began,
        others=(),
        ended_by=ended_by,
        is_reproducible=budget.is_reproducible and ended_by not in CUT_SHORT,
        level=total.level,
    )


def distinct_levels(problem: SearchProblem, levels: Sequence[float]) -> list[float]:
    """The levels that leave out different candidates, the first of equal ones; where memory has room for the fastest
    candidates of all pairs, and no others are faster forwards or backwards, these alone."""
    if problem.num_candidates.max(initial=1) < 2:
        return [0.0]
    found: dict[bytes, float] = {}
    for level in levels:
        found.setdefault(above(problem, level)[1].tobytes(), level)
    if 1.0 in found.values() and not has_trades(problem):
        fastest = np.arange(problem.num_pairs), problem.num_candidates - 1
        times = (problem.forward_s, problem.backward_s)
        if all(np.all(own[fastest][:, None] <= own) for own in times):
            return [1.0]
    return list(found.values())


def _part(budget: Budget, share: float, rollouts: int | None = None) -> Budget:
    """A part of a budget; ``rollouts``: their number, in place of the part."""
    if rollouts is None and budget.rollouts is not None:
        rollouts = int(share * budget.rollouts)
    return replace(budget, rollouts=rollouts, time_s=None if budget.time_s is None else share * budget.time_s)


def _rest(budget: Budget, total: _Sum) -> Budget:
    rollouts = None if budget.rollouts is None else max(budget.rollouts - total.rollouts, 0)
    return replace(
        budget, rollouts=rollouts, time_s=None if budget.time_s is None else max(budget.time_s - total.time_s, 0.0)
    )


def _ahead(progress: Callable[[Incumbent], None] | None, total: _Sum) -> Callable[[Incumbent], None] | None:
    """Tells only what is better than all before."""
    if progress is None:
        return None
    rollouts, moves, time_s = total.rollouts, total.moves, total.time_s
    best_s = np.inf if total.solution is None else total.solution.makespan_s

    def _tell(one: Incumbent) -> None:
        if one.makespan_s < best_s:
            progress(Incumbent(one.time_s + time_s, one.rollouts + rollouts, one.makespan_s, one.moves + moves))

    return _tell


def _better(
    keep: Callable[[Solution], None] | None, total: _Sum, first: NDArray[np.int16]
) -> Callable[[Solution], None] | None:
    """Hands on only what is better than all before, with the candidates of the whole problem."""
    if keep is None:
        return None
    best_s = np.inf if total.solution is None else total.solution.makespan_s

    def _hold(one: Solution) -> None:
        if one.makespan_s < best_s:
            keep(replace(one, choice=(one.choice + first).astype(np.int16)))

    return _hold


def _add(total: _Sum, found: SearchResult, first: NDArray[np.int16], bound_s: float) -> None:
    """Join a search from a level. ``first``: int16[n], candidates that were left out."""

    def _whole(solution: Solution) -> Solution:
        return replace(solution, choice=(solution.choice + first).astype(np.int16), lower_bound_s=bound_s)

    before = np.inf if total.solution is None else total.solution.makespan_s
    points = [
        Incumbent(one.time_s + total.time_s, one.rollouts + total.rollouts, one.makespan_s, one.moves + total.moves)
        for one in found.curve
        if one.makespan_s < before
    ]
    total.curve += tuple(points)
    if found.solution.makespan_s < before or total.best is None:
        total.best, total.solution = found, _whole(found.solution)
    if total.default is None or found.default.makespan_s < total.default.makespan_s:
        total.default = _whole(found.default)
    known = {one.makespan_s for one in total.islands}
    for solution in (found.solution, *found.others):
        if solution.makespan_s not in known:
            known.add(solution.makespan_s)
            total.islands.append(_whole(solution))
    total.rollouts, total.moves = total.rollouts + found.rollouts, total.moves + found.moves
    total.time_s += found.time_s
