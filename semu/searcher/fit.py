"""``fitted``: candidates of a schedule chosen so that its full simulation fits in memory; ``settled``: a search asked
again where none fit.

The search counts what stages hold and need; the simulation also knows of buffers of transfers that wait. Where a rank
is above its limit for them, its candidates are chosen anew under a limit lower by as much, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from semu.errors import MemoryLimitError
from semu.searcher.memory import check_limits, choose_candidates
from semu.searcher.orders.budgeted import SearchResult
from semu.searcher.orders.interleave import evaluate, no_memory
from semu.searcher.problem.build import JobProblem
from semu.searcher.problem.search_problem import Solution

ROUNDS = 12
"""Times that the limits are lowered."""
ATTEMPTS = 6
"""Searches at most, each with less memory than the one before, where its schedule does not fit."""


class OutOfTimeError(Exception):
    """A schedule does not fit, and no time is left for other candidates. ``built``: under the limits to try next."""

    def __init__(self, built: JobProblem) -> None:
        super().__init__("no time is left")
        self.built = built


def fitted(
    built: JobProblem, solution: Solution, is_late: Callable[[], bool] = lambda: False
) -> tuple[JobProblem, Solution]:
    """A schedule that fits, in the order of one that may not, and the problem under the limits that made it so.

    Args:
        built: with the limits to keep in ``target_bytes``, and those to plan with in its problem.
        solution: of its problem. is_late: asked after every schedule that does not fit.
    Raises:
        MemoryLimitError: no schedule fits: which rank, how much is missing. OutOfTimeError: it was late.
    """
    for turn in range(ROUNDS):
        excess = built.excess_of(solution)
        if np.all(excess <= 0):
            return built, solution
        limits = lowered(built, solution, excess * (1 + turn // 3))
        if np.any(limits < built.problem.static_bytes):
            break
        built = built.limited(limits)
        if is_late():
            raise OutOfTimeError(built)
        chosen = choose_candidates(built.problem, solution.order).choice
        found = evaluate(built.problem, solution.order, chosen)
        solution = replace(found, lower_bound_s=solution.lower_bound_s)
    raise _missing(built, built.excess_of(solution))


def lowered(built: JobProblem, solution: Solution, excess: NDArray[np.int64]) -> NDArray[np.int64]:
    """Limits that a schedule above the memory of some ranks does not keep: int64[num_ranks] [bytes].

    Args:
        excess: int64[num_ranks], how much less those ranks should hold [bytes]; others: <= 0.
    """
    limits = built.problem.limit_bytes
    return np.where(excess > 0, np.minimum(limits, solution.peak_bytes) - excess, limits)


def _missing(built: JobProblem, excess: NDArray[np.int64]) -> MemoryLimitError:
    rank = int(excess.argmax())
    return no_memory(built.limited(built.target_bytes).problem, rank, int(max(excess[rank], 1)))


def settled(
    built: JobProblem, find: Callable[[JobProblem], SearchResult], is_late: Callable[[], bool] = lambda: False
) -> tuple[SearchResult, JobProblem, Solution]:
    """A schedule that fits in its full simulation, and the problem under the limits with which it was found.

    Args:
        find: looks for a schedule; asked again under lower limits where no choice of candidates makes its schedule fit.
        is_late: as ``fitted``.
    Raises:
        MemoryLimitError: no schedule fits. OutOfTimeError: it was late.
    """
    for attempt in range(ATTEMPTS):
        result = find(built)
        try:
            tight, best = fitted(built, result.solution, is_late)
        except MemoryLimitError as error:
            if result.ended_by == "interrupt":
                raise KeyboardInterrupt from error
            if attempt == ATTEMPTS - 1 or result.ended_by == "stopped":
                raise
            excess = built.excess_of(result.solution) * (1 << attempt)
            built = built.limited(np.maximum(lowered(built, result.solution, excess), 0))
            check_limits(built.problem)
            continue
        return result, tight, best
    raise AssertionError("unreachable")
