"""``choose_candidates``: the fastest candidates that fit in memory under given orders; ``check_limits``: can any."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from semu.errors import MemoryLimitError
from semu.records import dataclass
from semu.searcher.orders.interleave import MEMORY_GOAL, MEMORY_ROUNDS, candidates, evaluate, no_memory
from semu.searcher.problem.problem_arrays import F64, I16
from semu.searcher.problem.search_problem import SearchProblem
from semu.units import format_bytes


@dataclass(frozen=True, eq=False)
class MemoryChoice:
    """Candidates of all pairs under given orders.

    Attributes:
        choice: int16[n]. time_s: float64[P] [s], of each rank's stages in sum. bound_s: float64[P] [s], no choice that
            fits takes less.
    """

    choice: I16
    time_s: F64
    bound_s: F64

    @property
    def gap(self) -> F64:
        """float64[P], certified: how much of its time a rank could save at most."""
        return np.where(self.time_s > 0, 1.0 - self.bound_s / np.where(self.time_s > 0, self.time_s, 1.0), 0.0)


def choose_candidates(
    problem: SearchProblem, order: ArrayLike, *, goal: float = MEMORY_GOAL, max_rounds: int = MEMORY_ROUNDS
) -> MemoryChoice:
    """002 §5.3 on every rank: the least time in sum under the rank's limit at every stage.

    Args:
        problem: what is scheduled. order: int32[num existing stages], rank after rank.
        goal: gap at which it ends. max_rounds: of the Lagrangian, per rank.
    Raises:
        ScheduleError: not an order of the problem, see ``evaluate``.
        MemoryLimitError: no choice fits: which rank, how much the leanest candidates lack.
    """
    from semu.searcher.kernels.memory_choice import choose_memory

    leanest = evaluate(problem, order)
    choice, local = np.zeros(problem.num_pairs, dtype=np.int16), np.zeros(problem.num_pairs, dtype=np.int64)
    time, bound = np.zeros(problem.num_ranks), np.zeros(problem.num_ranks)
    room = problem.limit_bytes - problem.static_bytes
    for rank, stages in enumerate(leanest.orders()):
        given = (stages, candidates(problem), int(room[rank]))
        time[rank], bound[rank] = choose_memory(*given, goal, max_rounds, local, choice)
        if not np.isfinite(time[rank]):
            raise no_memory(problem, rank, int(leanest.peak_bytes[rank] - problem.limit_bytes[rank]))
    return MemoryChoice(choice, time, bound)


def check_limits(problem: SearchProblem) -> None:
    """Refuse limits under which a single pair does not fit beside static memory with any of its candidates.

    Raises:
        MemoryLimitError: which rank, how much is missing, for which pair.
    """
    peak = np.maximum(problem.forward_peak_bytes, problem.held_bytes + problem.backward_peak_bytes).min(axis=1)
    missing = peak + (problem.static_bytes - problem.limit_bytes)[problem.rank]
    if not len(missing) or missing.max() <= 0:
        return
    pair = int(missing.argmax())
    rank = int(problem.rank[pair])
    limit = int(problem.limit_bytes[rank])
    raise MemoryLimitError(
        f"no strategy fits in the memory of rank {rank}: {format_bytes(int(missing[pair]))} are missing for the "
        f"{problem.name_of(2 * pair)} alone",
        where=f"rank {rank}",
        expected=f"at least {format_bytes(limit + int(missing[pair]))}",
        got=format_bytes(limit),
    )
