"""``search_levels``: the search from several levels of memory.

DIP §5.2 interleaves with the leanest candidates of all stage pairs, and §5.3 then makes them faster under the same
order. Where memory is not the bottleneck the order is then one for stages much slower than those that run. So the
search also begins without the leanest candidates: a third, two thirds, or all but the fastest are left out. Each level
gets a small part of the budget, and the best of them the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.errors import MemoryLimitError
from semu.searcher.bounds import lower_bounds
from semu.searcher.core import SearchResult, search_problem
from semu.searcher.loop import Budget, Incumbent
from semu.searcher.problem import SearchProblem, Solution
from semu.searcher.strategy import Objective

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
    solution: Solution | None = None
    default: Solution | None = None
    sequence_s: float = np.inf
    curve: tuple[Incumbent, ...] = ()
    rollouts: int = 0
    moves: int = 0
    time_s: float = 0.0


def search_levels(
    problem: SearchProblem,
    budget: Budget,
    *,
    strategy: str = "mixed",
    objective: Objective = Objective.MIN,
    seed: int = 0,
    progress: Callable[[Incumbent], None] | None = None,
) -> SearchResult:
    """Search.

    Args: as ``search_problem``; the longest schedule is sought from the leanest candidates alone. Without a budget: the
        best of the default schedules of all levels.
    Raises:
        MemoryLimitError: no candidates fit: which rank, how much is missing.
        ConfigError: an unknown strategy.
    """
    levels = [0.0] if objective is Objective.MAX else list(dict.fromkeys(LEVELS))
    if problem.num_candidates.max(initial=1) < 2:
        levels = [0.0]
    options = {"strategy": strategy, "objective": objective, "seed": seed}
    if len(levels) == 1:
        return search_problem(problem, budget, progress=progress, **options)  # type: ignore[arg-type]
    bound = lower_bounds(problem, effort=0.0)
    total, refused = _Sum(), None
    scores: dict[float, float] = {}

    def run(level: float, share: Budget, *, refine: bool) -> str:
        part, first = above(problem, level)
        tell = _ahead(progress, total)
        try:
            found = search_problem(part, share, progress=tell, refine=refine, **options)  # type: ignore[arg-type]
        except KeyboardInterrupt:  # between two rounds
            if total.solution is None:
                raise
            return "interrupt"
        scores[level] = min(found.solution.makespan_s, scores.get(level, np.inf))
        _add(total, found, first, bound.value_s)
        return found.ended_by

    ended_by = ""
    for level in levels:
        try:
            ended_by = run(level, _part(budget, PROBE), refine=False)
        except MemoryLimitError as error:
            refused = refused or error
            continue
        assert total.solution is not None
        if ended_by == "interrupt" or total.solution.makespan_s <= bound.value_s:
            break
    if total.solution is None:
        assert refused is not None
        raise refused
    if total.solution.makespan_s <= bound.value_s:
        ended_by = "bound"
    elif ended_by != "interrupt" and budget.rollouts != 0 and budget.time_s != 0:
        ended_by = run(min(scores, key=lambda level: scores[level]), _rest(budget, total), refine=True)
        if ended_by == "bound" and total.solution.makespan_s > bound.value_s:
            ended_by = "exhausted"  # it is the bound of the fastest candidates
    assert total.best is not None
    assert total.default is not None
    return replace(
        total.best,
        solution=total.solution,
        default=total.default,
        sequence_s=total.sequence_s,
        bound_name=bound.name,
        curve=total.curve,
        rollouts=total.rollouts,
        moves=total.moves,
        time_s=total.time_s,
        ended_by=ended_by,
        is_reproducible=budget.is_reproducible and ended_by != "interrupt",
    )


def _part(budget: Budget, share: float) -> Budget:
    rollouts = None if budget.rollouts is None else int(share * budget.rollouts)
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

    def tell(one: Incumbent) -> None:
        if one.makespan_s < best_s:
            progress(Incumbent(one.time_s + time_s, one.rollouts + rollouts, one.makespan_s, one.moves + moves))

    return tell


def _add(total: _Sum, found: SearchResult, first: NDArray[np.int16], bound_s: float) -> None:
    """Join a search from a level. ``first``: int16[n], candidates that it did not know."""

    def whole(solution: Solution) -> Solution:
        return replace(solution, choice=(solution.choice + first).astype(np.int16), lower_bound_s=bound_s)

    before = np.inf if total.solution is None else total.solution.makespan_s
    points = [
        Incumbent(one.time_s + total.time_s, one.rollouts + total.rollouts, one.makespan_s, one.moves + total.moves)
        for one in found.curve
        if one.makespan_s < before
    ]
    total.curve += tuple(points)
    if found.solution.makespan_s < before or total.best is None:
        total.best, total.solution = found, whole(found.solution)
    if total.default is None or found.default.makespan_s < total.default.makespan_s:
        total.default = whole(found.default)
    total.sequence_s = min(total.sequence_s, found.sequence_s)
    total.rollouts, total.moves = total.rollouts + found.rollouts, total.moves + found.moves
    total.time_s += found.time_s
