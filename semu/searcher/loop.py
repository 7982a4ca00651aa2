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
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError
from semu.searcher.space import OrderSpace
from semu.searcher.strategy import Objective, Proposal, make_strategy

I32 = NDArray[np.int32]
F64 = NDArray[np.float64]
Evaluate = Callable[[I32, I32], F64]
"""Groups by falling priority, of forwards and of backwards, int32[k, num_groups] each -> makespans float64[k] [s]."""


ELITE = 6
"""Sequences that a search over sequences hands on."""
WHOLE = (int, np.integer)
MOST_WORKERS = 1024
"""Threads at most; each has memory of its own."""


@dataclass(frozen=True)
class Budget:
    """What a search may spend.

    Attributes:
        rollouts: sequences to evaluate beyond the default one; reproducible. time_s: wall time [s]; not. Either, or
            both: what ends first. workers: threads; by default half the cores. batch: sequences of a worker in a
            round; by default from the size of the problem. stop: asked before every round; once it is true the search
            ends (``stopped``).
    Raises:
        ConfigError: neither limit, or a negative one.
    """

    rollouts: int | None = None
    time_s: float | None = None
    workers: int | None = None
    batch: int | None = None
    stop: Callable[[], bool] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.rollouts is None and self.time_s is None:
            raise ConfigError("a search needs an end", where="budget", expected="rollouts, or time_s", got="neither")
        for name, kind, least in (
            ("rollouts", WHOLE, 0),
            ("time_s", (*WHOLE, float, np.floating), 0),
            ("workers", WHOLE, 1),
            ("batch", WHOLE, 1),
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
        """Whether somebody wants the search to end."""
        return self.stop is not None and self.stop()

    @property
    def is_reproducible(self) -> bool:
        """Whether the same problem and seed give the same result again."""
        return not self.time_s

    def num_workers(self) -> int:
        """Threads to use: at most half the cores unless it says otherwise (DIP §6.2)."""
        return self.workers if self.workers is not None else max(1, (os.cpu_count() or 2) // 2)

    def batch_of(self, num_stages: int) -> int:
        """Sequences of a worker in a round."""
        return self.batch if self.batch is not None else int(np.clip(16_384 // max(num_stages, 1), 4, 16))


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
    """What a search over sequences found.

    Attributes:
        sequence: the best one. others: the next best ones, of different makespans. makespan_s: of the best [s].
        default_s: of the default sequence [s].
        curve: incumbents, the default sequence's first. rollouts: evaluated. time_s: spent [s].
        ended_by: ``bound``, ``rollouts``, ``time``, ``stopped``, ``exhausted`` or ``interrupt``.
    """

    sequence: I32
    others: tuple[I32, ...]
    makespan_s: float
    default_s: float
    curve: tuple[Incumbent, ...]
    rollouts: int
    time_s: float
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
        space, evaluate: legal sequences, and their makespans; infinite where memory does not suffice.
        budget: rollouts or time. num_stages: of the problem, for the size of batches.
        bound_s: no schedule is shorter [s]; a search for the shortest ends where it is met.
        strategy: one of ``STRATEGIES``. objective: which end. seed: of all random numbers.
        seeds: legal sequences that may be good, evaluated first; they count as rollouts.
        progress: told every incumbent.
    Raises:
        ConfigError: an unknown strategy.
    """
    began = time.perf_counter()
    proposer = make_strategy(strategy, space)
    workers, batch = budget.num_workers(), budget.batch_of(num_stages)
    best_sequence = space.default
    best = float(evaluate(*space.orders(best_sequence[None]))[0])
    default_s, is_max = best, objective is Objective.MAX
    if is_max and best == np.inf:
        best = -np.inf
    longest = best if np.isfinite(best) else 0.0
    curve = [Incumbent(time.perf_counter() - began, 0, best)]
    elite = {best: best_sequence}
    if progress is not None:
        progress(curve[0])
    done, turn, ended_by = 0, 0, ""
    known = seeds if budget.rollouts is None else seeds[: budget.rollouts]
    if len(known) and budget.time_s != 0:
        found = evaluate(*space.orders(np.stack(known)))
        done = len(known)
        merit = np.where(np.isfinite(found), found, -np.inf) if is_max else -found
        for value, sequence in zip(found.tolist(), known, strict=True):
            _remember(elite, value, sequence, is_max=is_max)
        at = int(merit.argmax())
        if merit[at] > (best if is_max else -best):
            best, best_sequence = float(found[at]), known[at].copy()
            curve.append(Incumbent(time.perf_counter() - began, done, best))
            proposer.begin_at(best_sequence, float(_scores(found[at : at + 1], bound_s, longest, is_max=is_max)[0]))
            if progress is not None:
                progress(curve[-1])
    with ThreadPoolExecutor(workers) as pool:
        try:
            while not ended_by:
                ended_by = _end(budget, done, time.perf_counter() - began, best, bound_s if not is_max else -1.0)
                if ended_by:
                    break
                left = budget.rollouts - done if budget.rollouts is not None else workers * batch
                proposals: list[Proposal] = []
                for worker in range(workers):
                    asked = [len(p.sequences) for p in proposals]
                    size = min(batch, left - sum(asked))
                    if size > 0:
                        proposals.append(proposer.ask(np.random.default_rng((seed, turn, worker, *((part,) if part else ()))), size))
                if not any(len(p.sequences) for p in proposals):
                    ended_by = "exhausted"
                    break
                results = list(pool.map(lambda p: evaluate(*space.orders(p.sequences)), proposals))
                if longest == 0.0:
                    longest = max(float(found[np.isfinite(found)].max(initial=0.0)) for found in results)
                for proposal, found in zip(proposals, results, strict=True):
                    if not len(found):
                        continue
                    proposer.tell(proposal, _scores(found, bound_s, longest, is_max=is_max))
                    done += len(found)
                    merit = np.where(np.isfinite(found), found, -np.inf) if is_max else -found
                    at = int(merit.argmax())
                    _remember(elite, float(found[at]), proposal.sequences[at], is_max=is_max)
                    if merit[at] > (best if is_max else -best):
                        best, best_sequence = float(found[at]), proposal.sequences[at].copy()
                        curve.append(Incumbent(time.perf_counter() - began, done, best))
                        if progress is not None:
                            progress(curve[-1])
                turn += 1
        except KeyboardInterrupt:
            ended_by = "interrupt"
    others = tuple(own for value, own in sorted(elite.items(), reverse=is_max) if value != best)
    spent = time.perf_counter() - began
    return OrderResult(best_sequence, others, best, default_s, tuple(curve), done, spent, ended_by)


def _remember(elite: dict[float, I32], makespan_s: float, sequence: I32, *, is_max: bool) -> None:
    """Keep a sequence if it is among the best few of different makespans."""
    if not np.isfinite(makespan_s) or makespan_s in elite:
        return
    elite[makespan_s] = sequence.copy()
    if len(elite) > ELITE:
        del elite[min(elite) if is_max else max(elite)]


def _end(budget: Budget, done: int, spent_s: float, best_s: float, bound_s: float) -> str:
    """Why a search ends here; empty: it does not."""
    if best_s <= bound_s:
        return "bound"
    if budget.is_stopped:
        return "stopped"
    if budget.rollouts is not None and done >= budget.rollouts:
        return "rollouts"
    if budget.time_s is not None and spent_s >= budget.time_s:
        return "time"
    return ""


def _scores(makespan_s: F64, bound_s: float, longest_s: float, *, is_max: bool) -> F64:
    """The higher the better, on a scale that stays: lower bound over makespan, in [0, 1], or makespan over the default
    sequence's."""
    if is_max:
        return np.where(np.isfinite(makespan_s), makespan_s, 0.0) / max(longest_s, 1e-300)
    least = bound_s if bound_s > 0 else float(makespan_s.min(initial=np.inf))
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(makespan_s) & (makespan_s > 0), least / makespan_s, 0.0)
