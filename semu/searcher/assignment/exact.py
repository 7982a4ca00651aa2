"""``solve_exactly``: the assignment with the shortest pipeline, by CP-SAT; a reference for a dozen or two samples.

A stage or a transfer lasts as long as fitted costs say of the samples that are given to it; what must end before it
begins is what the job's schedule says; the slowest replica is minimised. Samples may be deferred where the job can
defer. Durations are rounded down to ticks, so that the solver's bound holds for every assignment.

Each model looks only for what is faster than the best answer known before it, by more than the tolerance; that it finds
nothing is a proof. Time is the solver's own, which counts its steps: the same answer on every machine, however busy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError, ScheduleError
from semu.records import dataclass
from semu.searcher.assignment.costs import StageKind
from semu.searcher.assignment.deferring import parts_of
from semu.searcher.assignment.pipeline import Pipelines, PipelineTimes
from semu.searcher.assignment.problem import AssignmentProblem, Dealt

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

MOST_CHOICES = 4096
"""Samples times microbatches of all replicas, at most."""
_TICKS = 100_000
"""Ticks of the makespan to begin with."""
_GAP = 1e-3
"""Relative distance of an answer to its bound that counts as optimal: durations are rounded to ticks."""


@dataclass(frozen=True, eq=False)
class ExactAssignment:
    """An answer.

    Attributes:
        dealt: the best assignment found. time_s: of its slowest replica, under fitted costs [s].
        bound_s: no assignment is faster [s].
    """

    dealt: Dealt
    time_s: float
    bound_s: float

    @property
    def is_optimal(self) -> bool:
        """Whether the bound is met, up to the ticks that durations are rounded to."""
        return self.time_s <= self.bound_s * (1 + _GAP)


def solve_exactly(
    problem: AssignmentProblem, features: I64, pipelines: Pipelines, start: Dealt, *, seconds: float = 20.0
) -> ExactAssignment:
    """The assignment with the shortest pipeline under fitted costs.

    Args:
        problem: samples, replicas, microbatches. features: int64[n, num_names], of the samples. pipelines: of the job.
        start: an assignment to begin with; as many microbatches as ``problem`` has are used whatever it has.
        seconds: for the solver, for each of both models (with deferral and without), on its own deterministic clock,
            which is about that of an idle core.
    Raises:
        ConfigError: too many samples; a schedule that leaves an order to be found at run time.
    """
    count = problem.num_samples * problem.dp * problem.num_microbatches
    if count > MOST_CHOICES:
        most = MOST_CHOICES // (problem.dp * problem.num_microbatches)
        raise ConfigError(
            "too many samples for the exact solver",
            where="--exact",
            expected=f"at most {most} samples for {problem.dp} replicas x {problem.num_microbatches} microbatches",
            got=problem.num_samples,
            nearest=f"--count {most}",
        )
    found = [start]
    bounds = []
    for defers in (False, True) if problem.encoder.any() else (False,):
        try:
            times = pipelines.of(problem.num_microbatches, defers)
        except (ConfigError, ScheduleError):  # a job that cannot defer
            if not defers:
                raise
            continue
        best = min(found, key=problem.worst_s)
        model = _Model(problem, features, times, defers=defers)
        solved, bound = model.solve(best, problem.worst_s(best), seconds)
        found += [] if solved is None else [solved]
        bounds.append(bound)
    best = min(found, key=problem.worst_s)
    return ExactAssignment(best, problem.worst_s(best), min(bounds))


@dataclass(frozen=True)
class _Choice:
    """Where a sample may go."""

    replica: int
    microbatch: int
    reader: int


class _Model:
    """One model: with deferral, or without."""

    def __init__(self, problem: AssignmentProblem, features: I64, times: PipelineTimes, *, defers: bool) -> None:
        from ortools.sat.python import cp_model

        self._problem, self._model = problem, cp_model.CpModel()
        count = problem.num_microbatches
        parts = parts_of(count) if defers else (1,) * count
        self._choices = [
            _Choice(replica, number, number + waits)
            for replica in range(problem.dp)
            for number in range(count)
            for waits in range(parts[number])
        ]
        self._has = [[self._model.new_bool_var("") for _ in self._choices] for _ in features]
        self._tick_s = problem.worst_s(self._even()) / _TICKS
        for own in self._has:
            self._model.add_exactly_one(own)
        self._fill()
        if defers:  # what defers nothing is the other model's
            deferred = [c.reader != c.microbatch for c in self._choices]
            self._model.add_at_least_one(has for own in self._has for has, d in zip(own, deferred, strict=True) if d)
        self._is_alike = not len(problem.slowness)
        if self._is_alike:  # the largest sample is in the first replica
            largest = int(problem.load.max(axis=1).argmax())
            for choice, has in zip(self._choices, self._has[largest], strict=True):
                if choice.replica:
                    self._model.add(has == 0)
        self._makespan = self._model.new_int_var(0, 4 * _TICKS, "")
        for replica in range(problem.dp):
            self._pipeline(replica, features, times)
        self._model.minimize(self._makespan)

    def _even(self) -> Dealt:
        """Every sample in turn, to know about how long a pipeline takes."""
        number = np.arange(self._problem.num_samples)
        count = self._problem.num_microbatches
        return Dealt.together(number % self._problem.dp, number // self._problem.dp % count, count)

    def _fill(self) -> None:
        """Every microbatch has a sample and keeps to the limit of tokens, where it is encoded and where it is read."""
        problem = self._problem
        for replica in range(problem.dp):
            for number in range(problem.num_microbatches):
                for of_reader in (False, True):
                    mine = [
                        (own[place], item)
                        for place, choice in enumerate(self._choices)
                        if (choice.replica, choice.reader if of_reader else choice.microbatch) == (replica, number)
                        for item, own in enumerate(self._has)
                    ]
                    self._model.add_at_least_one(has for has, _ in mine)
                    if of_reader and problem.limit is not None:
                        held = sum(int(problem.tokens[item]) * has for has, item in mine)
                        self._model.add(held <= problem.limit)

    def _pipeline(self, replica: int, features: I64, times: PipelineTimes) -> None:
        """Durations and precedence of a replica's units."""
        model = self._model
        mine = [place for place, choice in enumerate(self._choices) if choice.replica == replica]
        used = np.stack([self._used(place, features.shape[1], times) for place in mine])
        starts = [model.new_int_var(0, 4 * _TICKS, "") for _ in times.column]
        durations: dict[tuple[int, int], cp_model.LinearExprT] = {}
        for column, row in dict.fromkeys(zip(times.column.tolist(), times.row.tolist(), strict=True)):
            slow = float(times.slowdown[replica]) if isinstance(times.costs.keys[row], StageKind) else 1.0
            durations[column, row] = self._duration(mine, used[:, column], features, times, column, row, slow)
        for before, after in times.precedence:
            own = durations[int(times.column[before]), int(times.row[before])]
            model.add(starts[after] >= starts[before] + own)
        for unit in times.stages:
            own = durations[int(times.column[unit]), int(times.row[unit])]
            model.add(self._makespan >= starts[unit] + own)

    def _used(self, place: int, num_names: int, times: PipelineTimes) -> F64:
        """The features that a sample adds to every column of the table of shapes: float64[num_columns, num_names]."""
        choice = self._choices[place]
        alone = Dealt(
            np.array([choice.replica]),
            np.array([choice.microbatch]),
            np.array([choice.reader]),
            self._problem.num_microbatches,
        )
        found: F64 = times.table(alone, np.ones((1, num_names), np.int64), self._problem.dp)[choice.replica]
        return found

    def _duration(
        self,
        mine: Sequence[int],
        used: F64,
        features: I64,
        times: PipelineTimes,
        column: int,
        row: int,
        slow: float,
    ) -> cp_model.LinearExprT:
        """Ticks of the units of one kind on one column of the table of shapes."""
        model, slope = self._model, times.costs.slope_s[row] * slow
        seconds = np.array([(features * own) @ slope for own in used])  # choices x samples
        ticks = np.floor(seconds / self._tick_s).astype(np.int64)
        terms: list[Any] = [
            int(ticks[number, item]) * self._has[item][place]
            for number, place in enumerate(mine)
            for item in range(len(features))
            if ticks[number, item]
        ]
        fixed = int(np.floor(times.costs.fixed_s[row] * slow / self._tick_s))
        if column < times.num_microbatches or fixed < 0:
            terms.append(fixed)
        elif fixed > 0:  # of what a plan added, nothing runs without samples
            runs = model.new_bool_var("")
            for number, place in enumerate(mine):
                if used[number].any():
                    for item in range(len(features)):
                        if (features[item] * used[number]).any():
                            model.add_implication(self._has[item][place], runs)
            terms.append(fixed * runs)
        duration = model.new_int_var(0, 4 * _TICKS, "")
        model.add(duration >= sum(terms))
        return duration

    def solve(self, start: Dealt, known_s: float, seconds: float) -> tuple[Dealt | None, float]:
        """The best assignment found, None where none is faster than what is known; and a bound on the slowest replica
        of any [s].

        Args:
            start: to begin with; where it is none of this model's, the solver begins without it.
            known_s: of the best assignment that is known [s]. seconds: as ``solve_exactly``.
        """
        from ortools.sat.python import cp_model

        self._hint(start)
        limit = math.floor(known_s * (1 - _GAP / 2) / self._tick_s)
        self._model.add(self._makespan <= limit)
        solver = cp_model.CpSolver()
        solver.parameters.max_deterministic_time = seconds
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        solver.parameters.relative_gap_limit = _GAP / 2
        status = solver.solve(self._model)
        if status == cp_model.INFEASIBLE:
            return None, limit * self._tick_s
        bound = min(max(0.0, solver.best_objective_bound), limit) * self._tick_s
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None, bound
        chosen = [next(p for p, has in enumerate(own) if solver.value(has)) for own in self._has]
        columns = [
            [getattr(self._choices[place], name) for place in chosen] for name in ("replica", "microbatch", "reader")
        ]
        replica, microbatch, reader = (np.array(column, np.int64) for column in columns)
        return Dealt(replica, microbatch, reader, self._problem.num_microbatches), bound

    def _hint(self, start: Dealt) -> None:
        largest = int(self._problem.load.max(axis=1).argmax())
        first = int(start.replica[largest])
        place = {choice: number for number, choice in enumerate(self._choices)}
        for own, replica, microbatch, reader in zip(
            self._has, start.replica.tolist(), start.microbatch.tolist(), start.reader.tolist(), strict=True
        ):
            swapped = {0: first, first: 0}.get(replica, replica) if self._is_alike else replica
            chosen = place.get(_Choice(swapped, microbatch, reader))
            for number, has in enumerate(own):
                self._model.add_hint(has, number == chosen)
