"""``refine_rounds``: moves of single stages on the critical path of a schedule, after the search over segment groups.

The dual queue never leaves a rank idle that has a stage to run, and it keeps the segments of a group together; the best
schedule may do neither. Chains of simulated annealing start from the best schedule known, one per worker, in
bulk-synchronous rounds as in ``loop``. Candidates of stage pairs stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.searcher.interleave import evaluate
from semu.searcher.problem import SearchProblem, Solution
from semu.searcher.tables import tables_of

WARMTH = (0.01, 0.003, 0.02, 0.006)
"""Initial temperatures of the chains in turn, as parts of the makespan."""
_STAGE_MOVES = 300_000
"""A chain times about so many stages: some 10 ms."""


@dataclass(frozen=True)
class RefineRound:
    """What a round of chains came to: the best schedule so far, and the moves tried so far."""

    best: Solution
    moves: int


def moves_of(problem: SearchProblem) -> int:
    """Moves of one chain."""
    return int(np.clip(_STAGE_MOVES // max(problem.num_stages, 1), 200, 20_000))


def refine_rounds(
    problem: SearchProblem,
    solution: Solution,
    *,
    workers: int,
    seed: int,
    pool: ThreadPoolExecutor,
    moves_left: Callable[[], int],
) -> Iterator[RefineRound]:
    """Refine a schedule round by round; the caller stops when it likes.

    Args:
        problem, solution: what to begin with. workers: chains side by side. seed: of all random numbers.
        moves_left: told before every round: moves that may still be tried.
    """
    from semu.searcher.refine_kernels import refine

    tables, best, turn, moves = tables_of(problem), solution, 0, 0
    ptr, flow = tables.flow[0], tables.flow[1:]
    costs = problem.costs_of(solution.choice)
    usual = moves_of(problem)

    def chain(worker: int, steps: int) -> tuple[float, NDArray[np.int32]]:
        rng = np.random.default_rng((seed, 1, turn, worker))
        order = best.order.copy()
        warmth = WARMTH[(turn * workers + worker) % len(WARMTH)]
        seeded = int(rng.integers(1, 1 << 62))
        given: tuple[Any, ...] = (ptr, order, *flow, *costs, tables.room, steps, warmth, seeded)
        return refine(*given), order

    while (left := moves_left()) > 0:
        steps = [min(usual, left - worker * usual) for worker in range(workers)]
        jobs = [pool.submit(chain, worker, own) for worker, own in enumerate(steps) if own > 0]
        for found_s, order in [job.result() for job in jobs]:
            if found_s < best.makespan_s:
                best = evaluate(problem, order, best.choice)
        moves += sum(own for own in steps if own > 0)
        turn += 1
        yield RefineRound(best, moves)
