"""``search_problem``: from a search problem to a schedule, within a budget.

First sequences of segment groups (``loop``), each interleaved and given its candidates; then moves of single stages
(``refine``). What is returned was evaluated with the candidates that it names: the truth, not an estimate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from semu.records import dataclass
from semu.searcher.bounds import NO_BOUNDS, lower_bounds
from semu.searcher.orders.interleave import Interleaver, Rollouts
from semu.searcher.orders.loop import Budget, Incumbent, search_orders
from semu.searcher.orders.refine import refine_rounds
from semu.searcher.orders.space import OrderSpace
from semu.searcher.orders.strategy import Objective
from semu.searcher.problem.search_problem import SearchProblem, Solution

ORDER_SHARE = 0.65
"""Part of the time for sequences at most; the rest is for moves of stages."""
PATIENCE = 0.25
"""Part of the time without a better sequence after which moves begin."""
MOVES_PER_ROLLOUT = 16
"""Moves that a rollout of a budget stands for, in the second half."""
CUT_SHORT = ("stopped", "interrupt")
"""Ends that came from outside."""
Seeds = Callable[[SearchProblem, OrderSpace], Sequence[NDArray[np.int32]]]
"""Sequences to begin with, for a problem and its legal sequences."""


@dataclass(frozen=True, eq=False)
class SearchResult:
    """Result of a search.

    Attributes:
        solution: the best schedule, with its lower bound. default: the heuristic's, before any search.
        curve: incumbents. rollouts, moves: sequences and moves evaluated. time_s: spent [s].
        ended_by: ``bound``, ``rollouts``, ``time``, ``stopped``, ``exhausted`` or ``interrupt``.
        strategy, objective, seed, workers: as asked. is_reproducible: the same call gives the same again.
        level: which part of the leanest candidates the best search left out (``search_levels``).
        others: the next best schedules of sequences. sequences: those of ``solution``, before moves, and ``others``.
    """

    solution: Solution
    default: Solution
    curve: tuple[Incumbent, ...]
    rollouts: int
    moves: int
    time_s: float
    ended_by: str
    strategy: str
    objective: Objective
    seed: int
    workers: int
    is_reproducible: bool
    others: tuple[Solution, ...] = ()
    level: float = 0.0
    sequences: tuple[NDArray[np.int32], ...] = ()


def search_problem(
    problem: SearchProblem,
    budget: Budget,
    *,
    strategy: str = "mixed",
    objective: Objective = Objective.MIN,
    seed: int = 0,
    part: int = 0,
    refine: bool = True,
    is_bounded: bool = True,
    seeds: Seeds | None = None,
    keep: Callable[[Solution], None] | None = None,
    progress: Callable[[Incumbent], None] | None = None,
) -> SearchResult:
    """Search.

    Args:
        problem: stages, costs, memory. budget: when to end; 0 rollouts: the heuristic's schedule.
        strategy: over sequences, one of ``STRATEGIES``. objective: the shortest or the longest schedule.
        seed: of all random numbers. part: of a search in parts which of them: none draws what another did.
        refine: also move single stages, where the shortest is sought.
        is_bounded: find lower bounds, too. seeds: sequences to begin with beside the default one.
        keep: given the best schedule so far now and then.
        progress: called with every incumbent.
    Raises:
        MemoryLimitError: no candidates fit: which rank, how much is missing.
        ConfigError: an unknown strategy.
    """
    began = time.perf_counter()
    space, workers = OrderSpace.of(problem), budget.num_workers()
    default = _solution(problem, space, space.default)
    bound = lower_bounds(problem, effort=0.0) if is_bounded else NO_BOUNDS
    refine = refine and objective is Objective.MIN
    owned = [Interleaver(problem) for _ in range(workers)]
    free = list(owned)

    def _evaluate(forward: NDArray[np.int32], backward: NDArray[np.int32], worth_s: float) -> Rollouts:
        own = free.pop()
        try:
            return own.run(forward, backward, worth_s=worth_s)
        finally:
            free.append(own)

    spent = time.perf_counter() - began
    share = ORDER_SHARE if refine else 1.0
    left, patience_s = None, budget.patience_s
    if budget.time_s is not None:
        left = max(0.0, share * budget.time_s - spent)
        patience_s = PATIENCE * budget.time_s if refine else patience_s
    found = search_orders(
        space,
        _evaluate,
        replace(budget, time_s=left, patience_s=patience_s),
        num_stages=problem.num_stages,
        bound_s=bound.value_s,
        strategy=strategy,
        objective=objective,
        seed=seed,
        part=part,
        seeds=seeds(problem, space) if seeds is not None else (),
        progress=_later(progress, spent),
    )
    best = _solution(problem, space, found.sequence)
    if keep is not None:
        keep(best)
    curve = [replace(one, time_s=one.time_s + spent) for one in found.curve]
    moves, ended_by = 0, found.ended_by
    others = [*(_solution(problem, space, own) for own in found.others), default]
    if refine and ended_by not in ("bound", "stopped", "interrupt") and budget.rollouts != 0 and budget.time_s != 0:
        ends = (budget, began, bound.value_s)
        islands = [best, *others]
        best, moves, ended_by = refine_solutions(problem, islands, ends, found.rollouts, seed, curve, keep, progress)
    return SearchResult(
        solution=replace(best, lower_bound_s=bound.value_s),
        default=replace(default, lower_bound_s=bound.value_s),
        curve=tuple(curve),
        rollouts=found.rollouts,
        moves=moves,
        time_s=time.perf_counter() - began,
        ended_by=ended_by,
        strategy=strategy,
        objective=objective,
        seed=seed,
        workers=workers,
        is_reproducible=budget.is_reproducible and ended_by not in CUT_SHORT,
        others=tuple(others),
        sequences=(found.sequence, *found.others),
    )


def _solution(problem: SearchProblem, space: OrderSpace, sequence: NDArray[np.int32]) -> Solution:
    forward, backward = space.orders(sequence[None])
    return Interleaver(problem).solution(forward[0], backward[0])


def _later(progress: Callable[[Incumbent], None] | None, by_s: float) -> Callable[[Incumbent], None] | None:
    if progress is None:
        return None
    return lambda one: progress(replace(one, time_s=one.time_s + by_s))


def refine_solutions(
    problem: SearchProblem,
    islands: list[Solution],
    ends: tuple[Budget, float, float],
    rollouts: int,
    seed: int,
    curve: list[Incumbent],
    keep: Callable[[Solution], None] | None,
    progress: Callable[[Incumbent], None] | None,
) -> tuple[Solution, int, str]:
    """The second half: a better schedule if there is one, moves tried, and why it ended; incumbents join ``curve``.

    Args:
        islands: schedules to begin with, the best first.
        ends: budget, when the search began, lower bound [s]. others: as ``search_problem``.
    """
    (budget, began, bound_s), best = ends, islands[0]
    most = (1 << 60) if budget.rollouts is None else MOVES_PER_ROLLOUT * budget.rollouts
    tried, ended_by = 0, ""

    def _moves_left() -> int:
        nonlocal ended_by
        late = budget.time_s is not None and time.perf_counter() - began >= budget.time_s
        is_stopped = budget.is_stopped
        ended_by = "stopped" if is_stopped else "time" if late else "rollouts"
        return 0 if late or is_stopped else most - tried

    workers = budget.num_workers()
    with ThreadPoolExecutor(workers) as pool:
        rounds = refine_rounds(problem, islands, workers=workers, seed=seed, pool=pool, moves_left=_moves_left)
        try:
            for one in rounds:
                tried = one.moves
                if one.best.makespan_s < best.makespan_s:
                    best = one.best
                    curve.append(Incumbent(time.perf_counter() - began, rollouts, best.makespan_s, tried))
                    if keep is not None:
                        keep(best)
                    if progress is not None:
                        progress(curve[-1])
                if best.makespan_s <= bound_s:
                    return best, tried, "bound"
        except KeyboardInterrupt:
            return best, tried, "interrupt"
    return best, tried, ended_by
