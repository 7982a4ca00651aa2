"""``solve_exact``: the scheduling problem as a constraint program, the oracle on small instances.

PipeWeaver §3.1 as an OR-Tools CP-SAT model: a stage is an interval on its rank's machine, a transfer one on its link, a
stage pair holds its memory from the start of its forward to the end of its backward, and one strategy is chosen for
each pair (DIP §5.3). PipeWeaver counts memory by order variables; cumulative constraints over the same intervals are
equivalent and propagate better.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError
from semu.records import dataclass
from semu.searcher.problem.search_problem import SearchProblem

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_TICKS = 1_000_000
"""Resolution: least number of ticks of a lower bound of the makespan."""
_MEMORY_STEPS = 1 << 24
"""Steps in which the largest memory limit is counted; demands are rounded up, so what fits fits in bytes too."""


@dataclass(frozen=True, eq=False)
class ExactResult:
    """Result of the solver.

    Attributes:
        makespan_s: of the best schedule, in whole ticks, rounded up per stage: at least its true makespan [s]; infinite
            where none was found.
        bound_s: no schedule is shorter, up to a tick per stage [s]. is_optimal: proven.
        orders: per rank, stage numbers in order; empty: no schedule.
        choice: int16[n], strategy of each pair. wall_s: time that the solver took [s].
        tick_s: the resolution [s].
    """

    makespan_s: float
    bound_s: float
    is_optimal: bool
    orders: tuple[NDArray[np.int32], ...]
    choice: NDArray[np.int16]
    wall_s: float
    tick_s: float


def solve_exact(
    problem: SearchProblem,
    *,
    time_s: float = 60.0,
    workers: int = 2,
    seed: int = 0,
    hint: tuple[NDArray[np.float64], NDArray[np.int16]] | None = None,
) -> ExactResult:
    """Solve a problem with CP-SAT.

    Args:
        problem: the stages. time_s: limit of wall time [s]. workers: threads. seed: of the solver.
        hint: starts of all stages [s] and the choice of a schedule to begin with.
    Raises:
        ConfigError: no time or workers.
    """
    from ortools.sat.python import cp_model

    if not time_s > 0 or workers < 1:
        raise ConfigError(
            "the exact solver needs time and a worker",
            where="solve_exact",
            expected="time_s > 0, workers >= 1",
            got=f"{time_s}, {workers}",
        )
    model = _Model(problem, cp_model.CpModel(), _tick(problem))
    if hint is not None:
        model.hint(*hint)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_s
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    started = time.perf_counter()
    status = solver.solve(model.cp)
    wall = time.perf_counter() - started
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        is_known = status == cp_model.INFEASIBLE
        bound = np.inf if is_known else solver.best_objective_bound * model.tick_s
        none = np.zeros(problem.num_pairs, dtype=np.int16)
        return ExactResult(np.inf, float(bound), is_known, (), none, wall, model.tick_s)
    return ExactResult(
        makespan_s=solver.objective_value * model.tick_s,
        bound_s=solver.best_objective_bound * model.tick_s,
        is_optimal=status == cp_model.OPTIMAL,
        orders=model.orders(solver),
        choice=model.choice(solver),
        wall_s=wall,
        tick_s=model.tick_s,
    )


def _tick(problem: SearchProblem) -> float:
    """Length of a tick [s]: so that the busiest rank's work has ``_TICKS`` of them."""
    fastest = problem.forward_s.min(axis=1) + np.where(problem.has_backward, problem.backward_s.min(axis=1), 0.0)
    load = np.bincount(problem.rank, weights=fastest, minlength=problem.num_ranks)
    return max(float(load.max(initial=0.0)), 1e-9) / _TICKS


class _Model:
    """The constraint program: variables by stage, and what binds them."""

    def __init__(self, problem: SearchProblem, cp: cp_model.CpModel, tick_s: float) -> None:
        self.problem, self.cp, self.tick_s = problem, cp, tick_s
        n = problem.num_pairs
        self.ticks = np.stack((self._round(problem.forward_s), self._round(problem.backward_s)))
        self.transfer = self._round(problem.transfer_s)
        most = self.ticks.max(axis=2).sum() + self.transfer.sum()
        self.horizon = int(most)
        self.exists = np.stack((np.ones(n, dtype=bool), problem.has_backward))
        self.chosen = [self._choices(i) for i in range(n)]
        self.start: list[Any] = [None] * (2 * n)
        self.end: list[Any] = [None] * (2 * n)
        self.length: list[Any] = [None] * (2 * n)
        self._stages()
        self._transfers()
        self._memory()
        self.makespan = cp.new_int_var(0, self.horizon, "makespan")
        for stage in np.flatnonzero(self.exists.T.reshape(-1)).tolist():
            cp.add(self.end[stage] <= self.makespan)
        self._tails()
        cp.minimize(self.makespan)

    def _round(self, seconds: NDArray[np.float64]) -> NDArray[np.int64]:
        """Whole ticks, rounded up."""
        ticks: NDArray[np.int64] = np.ceil(seconds / self.tick_s - 1e-9).astype(np.int64)
        return ticks

    def _choices(self, pair: int) -> list[Any]:
        """One literal per strategy of a pair; a constant where there is one strategy."""
        count = int(self.problem.num_candidates[pair])
        if count == 1:
            return [1]
        literals = [self.cp.new_bool_var(f"o{pair},{j}") for j in range(count)]
        self.cp.add_exactly_one(literals)
        return literals

    def _of_choice(self, pair: int, values: NDArray[np.int64]) -> Any:
        """A number that depends on the strategy of a pair: a constant, or a variable."""
        own = values.tolist()
        if len(set(own)) == 1:
            return own[0]
        found = self.cp.new_int_var(min(own), max(own), "")
        self.cp.add(found == sum(value * literal for value, literal in zip(own, self.chosen[pair], strict=True)))
        return found

    def _stages(self) -> None:
        cp, problem = self.cp, self.problem
        by_rank: list[list[Any]] = [[] for _ in range(problem.num_ranks)]
        for pair in range(problem.num_pairs):
            for phase in range(2):
                if not self.exists[phase, pair]:
                    continue
                stage = 2 * pair + phase
                ticks = self.ticks[phase, pair, : problem.num_candidates[pair]]
                self.start[stage] = cp.new_int_var(0, self.horizon, f"s{stage}")
                self.end[stage] = cp.new_int_var(0, self.horizon, f"t{stage}")
                self.length[stage] = self._of_choice(pair, ticks)
                interval = cp.new_interval_var(self.start[stage], self.length[stage], self.end[stage], f"i{stage}")
                by_rank[int(problem.rank[pair])].append(interval)
        for intervals in by_rank:
            cp.add_no_overlap(intervals)

    def _transfers(self) -> None:
        """Predecessors, over links where they lie on other ranks; the transfers of a link run one after another."""
        cp, problem = self.cp, self.problem
        links: dict[tuple[int, int], list[Any]] = {}
        for stage in range(2 * problem.num_pairs):
            for edge in range(int(problem.pred_ptr[stage]), int(problem.pred_ptr[stage + 1])):
                before = int(problem.pred[edge])
                source, target = int(problem.rank[before // 2]), int(problem.rank[stage // 2])
                lasts = int(self.transfer[edge])
                if source == target or lasts == 0:
                    cp.add(self.start[stage] >= self.end[before])
                    continue
                sent = cp.new_int_var(0, self.horizon, f"x{edge}")
                cp.add(sent >= self.end[before])
                cp.add(self.start[stage] >= sent + lasts)
                links.setdefault((source, target), []).append(cp.new_fixed_size_interval_var(sent, lasts, f"l{edge}"))
        for intervals in links.values():
            cp.add_no_overlap(intervals)

    def _memory(self) -> None:
        """What pairs hold and what their stages need for a while stays below every rank's limit."""
        cp, problem = self.cp, self.problem
        room = problem.limit_bytes - problem.static_bytes
        unit = max(int(room.max(initial=1)) // _MEMORY_STEPS, 1)
        held = -(-problem.held_bytes // unit)
        peaks = -(-np.stack((problem.forward_peak_bytes, problem.backward_peak_bytes)) // unit)
        for rank in range(problem.num_ranks):
            mine = np.flatnonzero(problem.rank == rank)
            capacity = int(room[rank]) // unit
            worst = int((held[mine].max(axis=1) + peaks[:, mine].max(axis=(0, 2))).sum())
            if worst <= capacity:
                continue
            intervals, demands = [], []
            for pair in mine.tolist():
                count = int(problem.num_candidates[pair])
                forward, backward = 2 * pair, 2 * pair + 1
                extra = [peaks[0, pair, :count], peaks[1, pair, :count]]
                if problem.has_backward[pair]:
                    between = cp.new_int_var(0, self.horizon, f"h{pair}")
                    whole = cp.new_interval_var(self.start[forward], between, self.end[backward], f"p{pair}")
                    intervals.append(whole)
                    demands.append(self._of_choice(pair, held[pair, :count]))
                    extra[0] = np.maximum(extra[0] - held[pair, :count], 0)
                for phase, stage in enumerate((forward, backward)):
                    if self.exists[phase, pair] and extra[phase].any():
                        intervals.append(
                            cp.new_interval_var(self.start[stage], self.length[stage], self.end[stage], f"e{stage}")
                        )
                        demands.append(self._of_choice(pair, extra[phase]))
            cp.add_cumulative(intervals, demands, capacity)

    def _tails(self) -> None:
        """Redundant: what must follow a stage on its way to the end."""
        problem = self.problem
        shortest = self.ticks.min(axis=2).T.reshape(-1)
        tail = np.zeros(2 * problem.num_pairs, dtype=np.int64)
        for stage in problem.topological[::-1].tolist():
            for edge in range(int(problem.pred_ptr[stage]), int(problem.pred_ptr[stage + 1])):
                before = int(problem.pred[edge])
                tail[before] = max(tail[before], tail[stage] + shortest[stage] + self.transfer[edge])
        for stage in np.flatnonzero(self.exists.T.reshape(-1) & (tail > 0)).tolist():
            self.cp.add(self.end[stage] + int(tail[stage]) <= self.makespan)

    def hint(self, start_s: NDArray[np.float64], choice: NDArray[np.int16]) -> None:
        """Begin with a schedule."""
        for stage, start in enumerate(self.start):
            if start is not None:
                self.cp.add_hint(start, round(float(start_s[stage]) / self.tick_s))
        for pair, literals in enumerate(self.chosen):
            for j, literal in enumerate(literals):
                if not isinstance(literal, int):
                    self.cp.add_hint(literal, int(choice[pair]) == j)

    def orders(self, solver: cp_model.CpSolver) -> tuple[NDArray[np.int32], ...]:
        """Stages of every rank by their start."""
        found: list[list[tuple[int, int, int]]] = [[] for _ in range(self.problem.num_ranks)]
        for stage, start in enumerate(self.start):
            if start is not None:
                times = solver.value(start), solver.value(self.end[stage])
                found[int(self.problem.rank[stage // 2])].append((*times, stage))
        return tuple(np.array([stage for *_, stage in sorted(own)], dtype=np.int32) for own in found)

    def choice(self, solver: cp_model.CpSolver) -> NDArray[np.int16]:
        """The strategy of every pair."""
        return np.array(
            [
                next(j for j, literal in enumerate(literals) if isinstance(literal, int) or solver.value(literal))
                for literals in self.chosen
            ],
            dtype=np.int16,
        )
