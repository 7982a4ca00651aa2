"""``refine_rounds``: moves of single stages on the critical path of a schedule, after the search over segment groups.

The dual queue never leaves a rank idle that has a stage to run, and it keeps the segments of a group together; the best
schedule may do neither. Chains of tabu search, and every fourth of simulated annealing, start from the best schedule
known, one per worker, in bulk-synchronous rounds as in ``loop``. Candidates of stage pairs stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semu.searcher.interleave import evaluate
from semu.searcher.problem import SearchProblem, Solution
from semu.searcher.tables import tables_of

WARMTH = (0.01, 0.003, 0.02, 0.006)
"""Initial temperatures of annealing chains in turn, as parts of the makespan."""
PATIENCE = ((100, 4), (400, 8), (50, 3))
"""Steps of tabu chains without a better schedule before so many random swaps of the best one, in turn."""
_STAGE_MOVES = 600_000
"""A chain times about so many stages: some 20 ms."""
_TABU_MOVES = 4
"""Moves that a step of tabu search counts for: it times all stages forwards and backwards, and looks at many swaps."""


@dataclass(frozen=True)
class RefineRound:
    """What a round of chains came to: the best schedule so far, and the moves tried so far."""

    best: Solution
    moves: int


def moves_of(problem: SearchProblem) -> int:
    """Moves of one chain."""
    return int(np.clip(_STAGE_MOVES // max(problem.num_stages, 1), 200, 20_000))


def compile_chains(problem: SearchProblem, solution: Solution) -> None:
    """Compile both kinds of chains, or read them from the kernel cache, by a step of each."""
    from semu.searcher.refine_kernels import refine, tabu

    tables = tables_of(problem)
    ptr, flow, costs = tables.flow[0], tables.flow[1:], problem.costs_of(solution.choice)
    warm: tuple[Any, ...] = (solution.order.copy(), *flow, *costs, tables.room, 1, WARMTH[0], 1)
    before = (problem.pred_ptr, problem.pred, problem.transfer_s)
    rest: tuple[Any, ...] = (solution.order.copy(), *flow, *before, *costs, tables.room, 1, *PATIENCE[0], 1)
    refine(ptr, *warm)
    tabu(ptr, *rest)


def refine_rounds(
    problem: SearchProblem,
    solutions: Sequence[Solution],
    *,
    workers: int,
    seed: int,
    pool: ThreadPoolExecutor,
    moves_left: Callable[[], int],
) -> Iterator[RefineRound]:
    """Refine a schedule round by round; the caller stops when it likes.

    Every other chain goes on from the best schedule, the others in turn from the rest, which improve by themselves.

    Args:
        problem: what is scheduled. solutions: what to begin with, the best one first.
        workers: chains side by side. seed: of all random numbers.
        moves_left: told before every round: moves that may still be tried.
    """
    from semu.searcher.refine_kernels import refine, tabu

    tables, islands, turn, moves = tables_of(problem), list(solutions), 0, 0
    ptr, flow = tables.flow[0], tables.flow[1:]
    costs = [problem.costs_of(one.choice) for one in islands]
    usual = moves_of(problem)

    def chain(number: int, steps: int, island: int) -> tuple[float, NDArray[np.int32]]:
        rng = np.random.default_rng((seed, 1, number))
        order, seeded = islands[island].order.copy(), int(rng.integers(1, 1 << 62))
        given = (*costs[island], tables.room)
        if number % 4 == 3:
            warm: tuple[Any, ...] = (*flow, *given, steps, WARMTH[number // 4 % len(WARMTH)], seeded)
            return refine(ptr, order, *warm), order
        before = (problem.pred_ptr, problem.pred, problem.transfer_s)
        rest: tuple[Any, ...] = (*flow, *before, *given, -(-steps // _TABU_MOVES), *PATIENCE[number % 3], seeded)
        return tabu(ptr, order, *rest), order

    while (left := moves_left()) > 0:
        jobs = []
        for worker in range(workers):
            steps, number = min(usual, left - worker * usual), turn * workers + worker
            if steps > 0:
                island = 1 + number // 2 % (len(islands) - 1) if number % 2 and len(islands) > 1 else 0
                jobs.append((island, pool.submit(chain, number, steps, island)))
                moves += steps
        for island, job in jobs:
            found_s, order = job.result()
            if found_s < islands[island].makespan_s:
                islands[island] = evaluate(problem, order, islands[island].choice)
        least = min(range(len(islands)), key=lambda i: islands[i].makespan_s)
        if islands[least].makespan_s < islands[0].makespan_s:
            islands[0], islands[least] = islands[least], islands[0]
            costs[0], costs[least] = costs[least], costs[0]
        turn += 1
        yield RefineRound(islands[0], moves)
