"""``search_orders``: rounds of proposals, evaluated side by side, until a budget is spent.

Workers are threads, as the kernels let go of the interpreter's lock; a round is bulk-synchronous (DIP §6.2 shares its
tree under a mutex instead, which no two runs repeat): every worker's proposal and random numbers come from (seed,
round, worker), and what they found is merged in the order of workers. So a number of rollouts gives the same bytes
again; a time does not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field

import numpy as np

from semu.errors import ConfigError
from semu.records import dataclass
from semu.searcher.orders.interleave import Rollouts
from semu.searcher.orders.space import OrderSpace
from semu.searcher.orders.strategies import make_strategy
from semu.searcher.orders.strategy import Objective, Proposal
from semu.searcher.problem.problem_arrays import F64, I32

Evaluate = Callable[[I32, I32, float], Rollouts]
"""Groups by falling priority, of forwards and of backwards, int32[k, num_groups] each, and the time with the leanest
candidates beyond which a sequence gets no others [s] -> what they come to."""


ELITE = 6
"""Sequences that a search over sequences hands on."""
HOPE = 0.003
"""How much longer than the best sequence, both with their leanest candidates, one may take that gets others: what the
others gain differs little from sequence to sequence, and to choose them takes most of the time of a rollout."""
WHOLE = (int, np.integer)
MOST_WORKERS = 1024
"""Threads at most; each has its memory."""


@dataclass(frozen=True)
class Budget:
    """What a search may spend.

    Attributes:
        rollouts: sequences to evaluate beyond the default one; reproducible. time_s: wall time [s]; not. Either, or
            both: what ends first. workers: threads; by default half the cores. stop: asked before every round; once
            it is true the search ends (``stopped``).
    Raises:
        ConfigError: neither limit, or a negative one.
    """

    rollouts: int | None = None
    time_s: float | None = None
    workers: int | None = None
    stop: Callable[[], bool] | None = field(default=None, compare=False)
    patience_s: float | None = None

    def __post_init__(self) -> None:
        if self.rollouts is None and self.time_s is None:
            raise ConfigError("a search needs an end", where="budget", expected="rollouts, or time_s", got="neither")
        for name, kind, least in (
            ("rollouts", WHOLE, 0),
            ("time_s", (*WHOLE, float, np.floating), 0),
            ("workers", WHOLE, 1),
            ("patience_s", (*WHOLE, float, np.floating), 0),
        ):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, kind):
                wanted = "an integer" if kind is WHOLE else "seconds"
                raise ConfigError("not a budget", where=name, expected=f"{wanted} >= {least}", got=value)
            if not value >= least:
                raise ConfigError("not a budget", where=name, expected=f">= {least}", got=value, nearest=least)
        if self.workers is not None and self.workers > MOST_WORKERS:
            expected = f"1 to {MOST_WORKERS} threads"
            raise ConfigError(
                "not a budget", where="workers", expected=expected, got=self.workers, nearest=MOST_WORKERS
            )

    @property
    def is_stopped(self) -> bool:
        """Whether the search was asked to end."""
        return self.stop is not None and self.stop()

    @property
    def is_reproducible(self) -> bool:
        """Whether the same problem and seed give the same result again."""
        return not self.time_s

    def num_workers(self) -> int:
        """Threads to use: at most half the cores unless it says otherwise (DIP §6.2)."""
        return self.workers if self.workers is not None else max(1, (os.cpu_count() or 2) // 2)


@dataclass(frozen=True)
class Incumbent:
    """A best schedule so far.

    Attributes:
        time_s: since the search began [s]. rollouts, moves: evaluated before it. makespan_s: [s].
    """

    time_s: float
    rollouts: int
    makespan_s: float
    moves: int = 0


@dataclass(frozen=True, eq=False)
class OrderResult:
    """Result of a search over sequences.

    Attributes:
        sequence: the best one. others: the next best ones, of different makespans.
        curve: incumbents, the default sequence's first. rollouts: evaluated.
        ended_by: ``bound``, ``rollouts``, ``time``, ``stale``, ``stopped``, ``exhausted`` or ``interrupt``.
    """

    sequence: I32
    others: tuple[I32, ...]
    curve: tuple[Incumbent, ...]
    rollouts: int
    ended_by: str


def search_orders(
    space: OrderSpace,
    evaluate: Evaluate,
    budget: Budget,
    *,
    num_stages: int,
    bound_s: float = 0.0,
    strategy: str = "mixed",
    objective: Objective = Objective.MIN,
    seed: int = 0,
    part: int = 0,
    seeds: Sequence[I32] = (),
    progress: Callable[[Incumbent], None] | None = None,
) -> OrderResult:
    """Look for the sequence with the shortest (or longest) schedule.

    Args:
        space, evaluate: legal sequences, and what they come to; infinite makespans where memory does not suffice.
        budget: rollouts or time. num_stages: of the problem, for the size of batches.
        bound_s: no schedule is shorter [s]; a search for the shortest ends where it is met.
        strategy: one of ``STRATEGIES``. objective: which end. seed: of all random numbers.
        seeds: legal sequences that may be good, evaluated first; they count as rollouts.
        progress: called with every incumbent.
    Raises:
        ConfigError: an unknown strategy.
    """
    began = time.perf_counter()
    proposer = make_strategy(strategy, space)
    workers, batch = budget.num_workers(), int(np.clip(16_384 // max(num_stages, 1), 4, 16))
    record = _Record(space.default, bound_s, objective is Objective.MAX, began, progress)
    default = evaluate(*space.orders(space.default[None]), np.inf)
    record.note(space.default[None], default, 0)
    done, turn, ended_by = 0, 0, ""
    known = seeds if budget.rollouts is None else seeds[: budget.rollouts]
    if len(known) and budget.time_s != 0:
        sequences = np.stack(known)
        done = len(known)
        found = evaluate(*space.orders(sequences), np.inf)
        if record.note(sequences, found, done):
            proposer.begin_at(record.sequence, float(record.scores(np.array([record.makespan_s]))[0]))

    def _run(proposal: Proposal) -> Rollouts:
        return evaluate(*space.orders(proposal.sequences), record.worth_s)

    with ThreadPoolExecutor(workers) as pool:
        try:
            while True:
                ended_by = _end(budget, done, record)
                if ended_by:
                    break
                left = budget.rollouts - done if budget.rollouts is not None else workers * batch
                proposals: list[Proposal] = []
                for worker in range(workers):
                    size = min(batch, left - sum(len(p.sequences) for p in proposals))
                    if size > 0:
                        stream = (seed, turn, worker, part) if part else (seed, turn, worker)
                        proposals.append(proposer.ask(np.random.default_rng(stream), size))
                if not any(len(p.sequences) for p in proposals):
                    ended_by = "exhausted"
                    break
                results = list(pool.map(_run, proposals))
                if record.longest_s == 0.0:
                    record.longest_s = max(_longest(found.makespan_s) for found in results)
                for proposal, found in zip(proposals, results, strict=True):
                    if len(proposal.sequences):
                        proposer.tell(proposal, record.scores(found.makespan_s))
                        done += len(proposal.sequences)
                        record.note(proposal.sequences, found, done)
                turn += 1
        except KeyboardInterrupt:
            ended_by = "interrupt"
    return OrderResult(record.sequence, record.others(), tuple(record.curve), done, ended_by)


class _Record:
    """The best schedule of a search so far.

    Attributes:
        sequence, makespan_s, lean_s: the best sequence, its makespan, and that with the leanest candidates [s].
        longest_s: of the first schedules, the scale of scores of a search for the longest [s].
        curve: incumbents.
    """

    def __init__(
        self,
        default: I32,
        bound_s: float,
        is_max: bool,
        began: float,
        progress: Callable[[Incumbent], None] | None,
    ) -> None:
        self.sequence, self.makespan_s, self.lean_s = default, (-np.inf if is_max else np.inf), np.inf
        self.bound_s, self.is_max, self.longest_s = (-1.0 if is_max else bound_s), is_max, 0.0
        self.curve: list[Incumbent] = []
        self._elite: dict[float, I32] = {}
        self._began, self._progress = began, progress

    @property
    def worth_s(self) -> float:
        """Leanest time beyond which a sequence can hardly be the best one [s]."""
        return np.inf if self.is_max else self.lean_s * (1.0 + HOPE)

    @property
    def spent_s(self) -> float:
        """Since the search began [s]."""
        return time.perf_counter() - self._began

    def note(self, sequences: I32, found: Rollouts, done: int) -> bool:
        """Remember the best few, and the best one if it is better than all before: whether it is.

        Args:
            sequences: int32[k, num_items], k > 0. found: what they came to. done: sequences evaluated with these.
        """
        makespan_s = found.makespan_s
        if not self.curve:
            self.longest_s = _longest(makespan_s)
        merit = np.where(np.isfinite(makespan_s), makespan_s, -np.inf) if self.is_max else -makespan_s
        for value, sequence in zip(makespan_s.tolist(), sequences, strict=True):
            if np.isfinite(value) and value not in self._elite:
                self._elite[value] = sequence.copy()
        for value in sorted(self._elite, reverse=self.is_max)[ELITE:]:
            del self._elite[value]
        at = int(merit.argmax())
        is_better = bool(merit[at] > (self.makespan_s if self.is_max else -self.makespan_s))
        if is_better:
            self.makespan_s, self.lean_s = float(makespan_s[at]), float(found.lean_s[at])
            self.sequence = sequences[at].copy()
        if is_better or not self.curve:
            self.curve.append(Incumbent(self.spent_s, done, self.makespan_s))
            if self._progress is not None:
                self._progress(self.curve[-1])
        return is_better

    def scores(self, makespan_s: F64) -> F64:
        """The higher the better, on a scale that stays: lower bound over makespan, in [0, 1], or makespan over the
        default sequence's."""
        if self.is_max:
            return np.where(np.isfinite(makespan_s), makespan_s, 0.0) / max(self.longest_s, 1e-300)
        least = self.bound_s if self.bound_s > 0 else float(makespan_s.min(initial=np.inf))
        with np.errstate(invalid="ignore"):
            return np.where(np.isfinite(makespan_s) & (makespan_s > 0), least / makespan_s, 0.0)

    def others(self) -> tuple[I32, ...]:
        """The next best sequences, of different makespans."""
        best_first = sorted(self._elite.items(), reverse=self.is_max)
        return tuple(sequence for value, sequence in best_first if value != self.makespan_s)


def _longest(makespan_s: F64) -> float:
    return float(makespan_s[np.isfinite(makespan_s)].max(initial=0.0))


def _end(budget: Budget, done: int, record: _Record) -> str:
    """Why a search ends here; empty: it does not."""
    spent_s = record.spent_s
    if record.makespan_s <= record.bound_s:
        return "bound"
    if budget.is_stopped:
        return "stopped"
    if budget.rollouts is not None and done >= budget.rollouts:
        return "rollouts"
    if budget.time_s is not None and spent_s >= budget.time_s:
        return "time"
    if budget.patience_s is not None and spent_s - record.curve[-1].time_s >= budget.patience_s:
        return "stale"
    return ""
