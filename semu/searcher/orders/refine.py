"""``refine_rounds``: moves of single stages on the critical path of a schedule, after the search over segment groups.

The dual queue never leaves a rank idle that has a stage to run, and it keeps the segments of a group together; the best
schedule may do neither. And candidates that take the least time in sum (002 §5.3) are not those of the shortest
schedule: that has fast ones on its critical path and lean ones elsewhere. Chains of tabu search over orders, and of
annealing over orders and candidates together, start from the best schedules so far, in bulk-synchronous rounds as in
``loop``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from semu.records import dataclass
from semu.searcher.orders.interleave import candidates, evaluate
from semu.searcher.problem.search_problem import SearchProblem, Solution
from semu.searcher.problem.tables import tables_of

WARMTH = (0.3, 0.5, 0.1)
"""Initial temperatures of annealing in turn, as parts of the mean time of a stage."""
COLD = 0.02
"""The last temperature, as a part of the first one."""
SPANS = (4, 8, 16)
"""Rounds that an annealing lasts, in turn; then twice as many, and so on."""
ORDER_MOVES, FASTER_MOVES = 0.5, 0.3
"""Parts of the steps of annealing that only move stages, that only make pairs faster, where memory binds."""
PATIENCE = ((100, 4), (400, 8), (50, 3))
"""Steps of tabu chains without a better schedule before so many random swaps of the best one, in turn."""
_STAGE_MOVES = 600_000
"""Stages that a chain times in a round, about: some 20 ms."""
_STEPS_PER_MOVE = 4
"""Steps of annealing that a move counts for: most are refused by an estimate."""
_TABU_MOVES = 4
"""Moves that a step of tabu search counts for: it times all stages forwards and backwards, and looks at many swaps."""


@dataclass(frozen=True)
class RefineRound:
    """What a round of chains came to: the best schedule so far, and the moves tried so far."""

    best: Solution
    moves: int


@dataclass
class _Lane:
    """What one worker is at: an annealing that goes on from round to round.

    Attributes:
        number: of its next chain, over all workers. island: where it began. order, choice: where it is.
        at, span: rounds done, rounds in all. warmth: its first temperature [s]; 0: a chain of tabu search.
    """

    number: int
    island: int = 0
    order: NDArray[np.int32] | None = None
    choice: NDArray[np.int16] | None = None
    at: int = 0
    span: int = 0
    warmth: float = 0.0


def moves_of(problem: SearchProblem) -> int:
    """Moves of one chain."""
    return int(np.clip(_STAGE_MOVES // max(problem.num_stages, 1), 50, 20_000))


def has_trades(problem: SearchProblem) -> bool:
    """Whether memory may bind and pairs may have less of it: not all can simply have the fastest candidate."""
    fastest = (problem.num_candidates - 1).astype(np.int16)
    return bool(problem.num_candidates.max(initial=1) > 1 and tables_of(problem).limits(fastest)[0].any())


class Chains:
    """Both kinds of chains on one problem; they do not hold the interpreter's lock.

    Args:
        problem: what is scheduled.
    """

    def __init__(self, problem: SearchProblem) -> None:
        self.problem, self.tables = problem, tables_of(problem)
        self.needs = (problem.pred_ptr, problem.pred, problem.transfer_s)
        self.has_trades = has_trades(problem)

    def anneal(
        self, order: NDArray[np.int32], choice: NDArray[np.int16], steps: int, heat: tuple[float, float], seed: int
    ) -> tuple[float, NDArray[np.int32], NDArray[np.int16]]:
        """A stretch of annealing.

        Args:
            order, choice: a schedule within its memory; written: the best one. steps: to try.
            heat: first and last temperature [s], not 0. seed: > 0.
        Returns:
            the makespan of the best one [s]; order and choice of the last one.
        """
        from semu.searcher.kernels.annealing import anneal

        shares = (ORDER_MOVES, FASTER_MOVES) if self.has_trades else (1.0, 0.0)
        last_order, last_choice = order.copy(), choice.copy()
        given = (self.tables.flow, self.needs, candidates(self.problem), order, choice, self.tables.room)
        found: float = anneal(*given, steps, *heat, *shares, last_order, last_choice, seed)
        return found, last_order, last_choice

    def tabu(
        self, order: NDArray[np.int32], choice: NDArray[np.int16], steps: int, patience: tuple[int, int], seed: int
    ) -> float:
        """A chain of tabu search.

        Args:
            order: a schedule within its memory; written: the best one. choice: its candidates, which stay.
            steps: to take. patience: see ``PATIENCE``. seed: > 0.
        Returns:
            the makespan of the best one [s].
        """
        from semu.searcher.kernels.tabu_search import tabu

        given = (self.tables.flow, self.needs, self.problem.costs_of(choice), order, self.tables.room)
        found: float = tabu(*given, steps, *patience, seed)
        return found


def compile_chains(problem: SearchProblem, solution: Solution, *, is_timed: bool = True) -> None:
    """Compile chains, or read them from the kernel cache, by a step of each.

    Args:
        is_timed: both kinds of chains; else the kind that comes first, and the other one when it is called.
    """
    chains = Chains(problem)
    if is_timed or chains.has_trades:
        chains.anneal(solution.order.copy(), solution.choice.copy(), 1, (1.0, 1.0), 1)
    if is_timed or not chains.has_trades:
        chains.tabu(solution.order.copy(), solution.choice, 1, PATIENCE[0], 1)


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
        moves_left: called before every round: moves that may still be tried.
    """
    chains, islands, moves = Chains(problem), list(solutions), 0
    usual = moves_of(problem)
    lanes = [_Lane(worker) for worker in range(workers)]

    def begin(lane: _Lane) -> None:
        """A new chain."""
        own, number = islands[lane.island], lane.number
        lane.order, lane.choice, lane.at, lane.span, lane.warmth = own.order, own.choice, 0, 1, 0.0
        if (number % 4 != 3) if chains.has_trades else (number % 4 == 3):
            turn = number - number // 4 if chains.has_trades else number // 4
            cycle, kind = divmod(turn, len(WARMTH))
            mean_s = float(problem.costs_of(own.choice)[0][problem.exists].mean())
            lane.warmth, lane.span = WARMTH[kind] * mean_s, SPANS[turn % len(SPANS)] << min(cycle // workers, 8)

    def _chain(lane: _Lane, steps: int) -> tuple[float, NDArray[np.int32], NDArray[np.int16]]:
        assert lane.order is not None
        assert lane.choice is not None
        rng = np.random.default_rng((seed, 1, lane.number, lane.at))
        seeded, order, choice = int(rng.integers(1, 1 << 62)), lane.order.copy(), lane.choice.copy()
        if lane.warmth <= 0.0:
            found = chains.tabu(order, choice, -(-steps // _TABU_MOVES), PATIENCE[lane.number % 3], seeded)
        else:
            heat = (lane.warmth * COLD ** (lane.at / lane.span), lane.warmth * COLD ** ((lane.at + 1) / lane.span))
            found, lane.order, lane.choice = chains.anneal(order, choice, _STEPS_PER_MOVE * steps, heat, seeded)
        return found, order, choice

    while (left := moves_left()) > 0:
        jobs = []
        for worker, lane in enumerate(lanes):
            steps = min(usual, left - worker * usual)
            if steps <= 0:
                continue
            if lane.at == lane.span:
                others, odd = len(islands) - 1, lane.number % 2
                lane.island = 1 + lane.number // 2 % others if odd and others else 0
                begin(lane)
            jobs.append((lane, pool.submit(_chain, lane, steps)))
            moves += steps
        for lane, job in jobs:
            found_s, order, choice = job.result()
            if found_s < islands[lane.island].makespan_s:
                islands[lane.island] = evaluate(problem, order, choice)
            lane.at += 1
            if lane.at == lane.span:
                lane.number += workers
        least = min(range(len(islands)), key=lambda i: islands[i].makespan_s)
        if islands[least].makespan_s < islands[0].makespan_s:
            islands[0], islands[least] = islands[least], islands[0]
            for lane in lanes:
                lane.island = {0: least, least: 0}.get(lane.island, lane.island)
        yield RefineRound(islands[0], moves)
