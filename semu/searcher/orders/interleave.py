"""``Interleaver``: schedules of a search problem from priorities of its segment groups; ``evaluate``, of any orders."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from semu.errors import ConfigError, MemoryLimitError, ScheduleError
from semu.records import dataclass
from semu.searcher.problem.problem_arrays import F64, I16, I32, I64
from semu.searcher.problem.search_problem import SearchProblem, Solution
from semu.searcher.problem.tables import tables_of
from semu.units import format_bytes

MEMORY_GOAL = 0.01
"""Gap at which the choice of candidates of a rank ends."""
MEMORY_ROUNDS = 300
"""Rounds of its Lagrangian at most; it hardly ever takes a hundred."""


@dataclass(frozen=True, eq=False)
class Rollouts:
    """What a batch of sequences comes to.

    Attributes:
        makespan_s: float64[B] [s], with the chosen candidates; infinite where the memory does not suffice.
        lean_s: float64[B] [s], the same order with the leanest candidates.
        missing: int64[B, 2], where the memory does not suffice: a rank and the bytes that it lacks; else -1 and 0.
    """

    makespan_s: F64
    lean_s: F64
    missing: I64


class Interleaver:
    """Schedules of one problem from sequences of segment groups, by falling priority.

    Holds buffers of its own: one per thread. Kernels do not hold the interpreter's lock.

    Args:
        problem: what to schedule.
        choice: int16[n], candidates that are given, none is chosen then; None: the leanest, then ``choose_memory``.
    """

    def __init__(self, problem: SearchProblem, choice: ArrayLike | None = None) -> None:
        self.problem, self.tables = problem, tables_of(problem)
        self.given = None if choice is None else checked_choice(problem, choice)
        total, n = int(problem.rank_ptr[-1]), problem.num_pairs
        self._order, self._run = np.zeros((1, total), dtype=np.int32), np.zeros((1, total), dtype=np.int32)
        self._choice = np.zeros((1, n), dtype=np.int16)
        self._start, self._end = np.full((1, 2 * n), np.nan), np.full((1, 2 * n), np.nan)
        if self.given is not None:
            self._choice[0] = self.given
        self._costs, self._limits = problem.costs_of(self.given), self.tables.limits(self.given)

    def run(
        self, sequences: ArrayLike, back_sequences: ArrayLike | None = None, *, worth_s: float = np.inf
    ) -> Rollouts:
        """Makespans of many sequences in one call.

        Args:
            sequences: int32[B, num_groups] or one of them: groups by falling priority.
            back_sequences: the same for backward stages; by default as the forward ones.
            worth_s: a sequence that takes longer with the leanest candidates gets no others [s].
        Raises:
            ConfigError: not permutations of the groups.
        """
        from semu.searcher.kernels.interleaving import interleave
        from semu.searcher.kernels.rollout import rollouts

        forward = self._checked("sequences", sequences)
        backward = forward if back_sequences is None else self._checked("back_sequences", back_sequences)
        if len(forward) != len(backward):
            got = f"{len(forward)} and {len(backward)}"
            raise ConfigError("as many of both", where="back_sequences", expected="one per sequence", got=got)
        size, problem, tables = len(forward), self.problem, self.tables
        makespan, lean = np.zeros(size), np.zeros(size)
        count, missing = np.zeros(size, dtype=np.int64), np.zeros((size, 2), dtype=np.int64)
        given, way = (tables.flow, tables.queues, self._limits), (tables.room, forward, backward)
        times = (self._start, self._end, makespan)
        if self.given is None:
            found: tuple[Any, ...] = (self._order, self._choice, times, lean, count, missing)
            rollouts(*given, candidates(problem), *way, MEMORY_GOAL, MEMORY_ROUNDS, worth_s, *found)
        else:
            interleave(*given, self._costs, *way, (self._order, self._run), times, count, missing)
            lean = makespan
        return Rollouts(makespan, lean, missing)

    def solution(self, sequence: ArrayLike, back_sequence: ArrayLike | None = None) -> Solution:
        """The schedule of one sequence.

        Raises:
            MemoryLimitError: the memory does not suffice: which rank, how much is missing.
        """
        found = self.run(sequence, back_sequence)
        if not np.isfinite(found.makespan_s[0]):
            raise no_memory(self.problem, int(found.missing[0, 0]), int(found.missing[0, 1]))
        return evaluate(self.problem, self._order[0].copy(), self._choice[0].copy())

    def _checked(self, name: str, values: ArrayLike) -> I32:
        groups = self.problem.num_groups
        found = np.ascontiguousarray(np.atleast_2d(np.asarray(values)).astype(np.int32))
        if found.ndim != 2 or found.shape[1] != groups:
            expected = f"{groups} groups in each"
            raise ConfigError("not sequences of groups", where=name, expected=expected, got=f"shape {found.shape}")
        wrong = np.flatnonzero(np.any(np.sort(found, axis=1) != np.arange(groups), axis=1))
        if len(wrong):
            expected = f"each of 0..{groups - 1} once"
            raise ConfigError("not a permutation", where=f"{name}[{wrong[0]}]", expected=expected, got=found[wrong[0]])
        return found


def candidates(problem: SearchProblem) -> tuple[Any, ...]:
    """``candidates`` of the kernels."""
    times = (problem.forward_s, problem.backward_s)
    sizes = (problem.held_bytes, problem.forward_peak_bytes, problem.backward_peak_bytes)
    return (*times, *sizes, problem.has_backward, problem.num_candidates)


def evaluate(problem: SearchProblem, order: ArrayLike, choice: ArrayLike | None = None) -> Solution:
    """Times and memory of an order with a choice of candidates; limits are not looked at.

    Args:
        problem: what is scheduled. order: int32[num existing stages], rank after rank.
        choice: int16[n]; None: the leanest.
    Raises:
        ScheduleError: a stage that is missing, on another rank, or twice, or an order that deadlocks.
        ConfigError: a candidate that does not exist.
    """
    from semu.searcher.kernels.times import evaluate_orders

    tables, ptr = tables_of(problem), problem.rank_ptr
    stages = np.ascontiguousarray(np.asarray(order), dtype=np.int32)
    exists = np.flatnonzero(problem.exists)
    if stages.shape != exists.shape or not np.array_equal(np.sort(stages), exists):
        raise ScheduleError("not every stage once", where="order", expected=f"{len(exists)} stages")
    wrong = np.flatnonzero(problem.stage_rank[stages] != np.repeat(np.arange(problem.num_ranks), np.diff(ptr)))
    if len(wrong):
        raise ScheduleError(
            "a stage on another rank", where=f"order[{wrong[0]}]", got=problem.name_of(stages[wrong[0]])
        )
    chosen = checked_choice(problem, np.zeros(problem.num_pairs) if choice is None else choice)
    start, end = np.full((1, problem.num_stages), np.nan), np.full((1, problem.num_stages), np.nan)
    makespan, top = np.zeros(1), np.zeros((1, problem.num_ranks), dtype=np.int64)
    orders = (stages[None], chosen[None], (start, end, makespan), top)
    evaluate_orders(tables.flow, candidates(problem), *orders)
    if not np.isfinite(makespan[0]):
        raise ScheduleError("the order deadlocks", where="order", expected="stages after those that they need")
    peak = top[0] + problem.static_bytes
    return Solution(ptr, stages, chosen, start[0], end[0], float(makespan[0]), peak)


def checked_choice(problem: SearchProblem, choice: ArrayLike) -> I16:
    """Candidates as the kernels want them.

    Raises:
        ConfigError: not one existing column per pair.
    """
    found = np.asarray(choice)
    if found.shape != (problem.num_pairs,):
        raise ConfigError("not a choice", where="choice", expected=f"{problem.num_pairs} numbers", got=found.shape)
    wrong = np.flatnonzero((found < 0) | (found >= problem.num_candidates))
    if len(wrong):
        expected = f"below {problem.num_candidates[wrong[0]]}"
        raise ConfigError("no such candidate", where=f"choice[{wrong[0]}]", expected=expected, got=found[wrong[0]])
    return np.ascontiguousarray(found, dtype=np.int16)


def no_memory(problem: SearchProblem, rank: int, missing_bytes: int) -> MemoryLimitError:
    """The error of a rank whose memory no strategy meets."""
    limit = int(problem.limit_bytes[rank])
    return MemoryLimitError(
        f"no schedule was found that fits in the memory of rank {rank}: {format_bytes(missing_bytes)} are missing",
        where=f"rank {rank}",
        expected=f"at least {format_bytes(limit + missing_bytes)}",
        got=format_bytes(limit),
    )
