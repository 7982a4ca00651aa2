"""``Planner``: plans every iteration while the one before it trains (DIP §3.2, §6.2; PipeWeaver §7.1, §7.2).

A thread takes the next batch's metadata, prepares it, makes the heuristic's schedule, and searches. Each step publishes
a plan that may be taken at any moment: first the fallback, which is legal for every batch; then the heuristic's; then,
now and then, the best so far; then the best.

Kernels let go of the interpreter's lock; what is outside them does not, a few tenths of a second for an iteration
(``benchmarks/planner.py`` measures it). A trainer whose own Python cannot spare that runs its planner in another
process and sends it lengths (``ListedBatch``); DIP's planner, too, is one process that deploys to all ranks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from types import TracebackType
from typing import Self

from semu.checks import check_number
from semu.errors import ConfigError, MemoryLimitError
from semu.job import TrainingJob
from semu.prefetch import Prefetcher
from semu.records import dataclass
from semu.schedule.stage_plan import STRATEGIES as LAYER_STRATEGIES
from semu.schedule.stage_plan import StagePlan
from semu.searcher.assignment.assigner import Assigner, SampleSource
from semu.searcher.assignment.assignment import Assignment
from semu.searcher.candidates import MOST_CANDIDATES
from semu.searcher.fit import fitted
from semu.searcher.orders.loop import Budget
from semu.searcher.planner.batch_planner import BatchPlanner, iteration_s
from semu.searcher.planner.kept_limits import KeptLimits
from semu.searcher.planner.own_stream import assigned_batches, own_batches
from semu.searcher.planner.planned_iteration import Outcome, PlannedIteration
from semu.searcher.problem.build import JobProblem
from semu.searcher.problem.search_problem import Solution
from semu.workload.batch import AbstractBatch, Microbatch
from semu.workload.listed import listed_batch

DEFAULT_TIME_S = 10.0
"""Time of an iteration's search without a limit [s] (DIP §7.4)."""
LEAST_SHARE = 0.3
"""Part of an iteration's time that its search has, whatever preparing and finishing take."""
OVERTIME = 1.25
"""Parts of an iteration's time after which no other candidates are chosen for what does not fit."""
RARELY = 5.0
"""Between two plans of the best so far a search goes on at least so many times as long as making one takes."""


@dataclass(eq=False)
class _Slot:
    """An iteration on its way; what a plan needs is changed under the planner's lock."""

    index: int
    batch: AbstractBatch
    given: TrainingJob
    job: TrainingJob
    plan: StagePlan
    began_s: float
    began_cpu_s: float
    due_s: float | None = None
    end_s: float | None = None
    assigned: Assignment | None = None
    outcome: Outcome = Outcome.FALLBACK
    heuristic: StagePlan | None = None
    problem: JobProblem | None = None
    makespan_s: float = float("inf")
    searched_s: float | None = None
    done_s: float | None = None
    done_cpu_s: float | None = None
    rollouts: int = 0
    moves: int = 0
    ended_by: str = ""
    error: str | None = None
    is_taken: bool = False


class Planner:
    """Plans batch after batch in the background.

    ``for step in planner`` is the training loop: the first step comes when it is planned; every other one is there at
    once, planned while the step before trained. ``take`` is the same with a time to wait.

    Args:
        job: what to train; its batch is what model chunks, which stay where they are, are cut for.
        stream: batches, lists of microbatches, or assignments, in the order of training; None: of the job's own kind,
            seed by seed. What assignments defer stays deferred.
        assign: assigns the samples of every iteration to replicas and microbatches; ``stream`` is then a
            ``SampleSource``. window: iterations among which samples may change places; 1: none.
        rollouts: of every search. time_s: from a batch to its plan [s], of which the search has what preparing and
            finishing leave, at least three tenths; neither: 10 s. Rollouts give the same plans again as long as no
            deadline cuts a search short. workers: threads of a search, at most half the cores (DIP §6.2); None: as
            many.
        deadline_s: planning of an iteration ends at most so long after it began [s]; None: when it is asked for.
        patience_s: how long iterating waits for a plan, but for the first one [s]; None: until it is planned.
        first: number of the stream's first batch.
        seed, strategy, sub_batch, segments, strategies, candidates, memory_limit_bytes: as ``semu.search``.
        progress: called with a line at the start of each step before the first iteration.
        clock: seconds.
    Raises:
        MemoryLimitError: nothing fits the job's own batch. ConfigError, ScheduleError: as ``semu.search``.
    """

    def __init__(
        self,
        job: TrainingJob,
        stream: Iterable[AbstractBatch | Sequence[Microbatch] | Assignment] | SampleSource | None = None,
        *,
        assign: Assigner | None = None,
        window: int = 1,
        rollouts: int | None = None,
        time_s: float | None = None,
        workers: int | None = None,
        deadline_s: float | None = None,
        patience_s: float | None = 0.0,
        first: int = 0,
        seed: int = 0,
        strategy: str = "mixed",
        sub_batch: Mapping[str, int] | None = None,
        segments: Mapping[str, int] | None = None,
        strategies: Sequence[str] = LAYER_STRATEGIES,
        candidates: int = MOST_CANDIDATES,
        memory_limit_bytes: int | None = None,
        progress: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        for name, value in (("deadline_s", deadline_s), ("patience_s", patience_s)):
            if value is not None:
                check_number(value, name, "a time", is_infinite_ok=True)
        time_s = DEFAULT_TIME_S if rollouts is None and time_s is None else time_s
        self._budget = Budget(rollouts, time_s, _workers(workers))
        is_timed = time_s is not None  # else the same plans again, whatever was planned before
        self._kept = (KeptLimits(), KeptLimits()) if is_timed else (None, None)
        self._deadline_s, self._patience_s, self._clock = deadline_s, patience_s, clock
        self.batches = BatchPlanner(
            job,
            sub_batch=sub_batch,
            segments=segments,
            strategies=strategies,
            candidates=candidates,
            memory_limit_bytes=memory_limit_bytes,
            strategy=strategy,
            seed=seed,
            progress=progress,
        )
        if (assign is not None) != isinstance(stream, SampleSource):
            raise ConfigError(
                "an assigner without samples, or samples without an assigner",
                where="assign",
                expected="Planner(job, SampleSource.read(job, FILE), assign=Assigner(job))",
            )
        batches = own_batches(job) if stream is None else stream
        if assign is not None and isinstance(batches, SampleSource):
            batches = assigned_batches(assign, batches, window)
        assert not isinstance(batches, SampleSource)
        self._stream = Prefetcher(batches)
        self._changed = threading.Condition()
        self._intake = threading.Lock()
        self._slot: _Slot | None = None
        self._first = self._next = self._allowed = first
        self._end: Exception | None = None
        self._is_closed = False
        self._due_s: float | None = None
        self._finish_s = 0.0
        self._thread: threading.Thread | None = None

    @property
    def num_workers(self) -> int:
        """Threads of a search."""
        return self._budget.num_workers()

    @property
    def is_reproducible(self) -> bool:
        """Whether searches that run to their end give the same plans again."""
        return self._budget.is_reproducible and self._deadline_s is None

    # -- whoever trains ----------------------------------------------------------------------------------------------
    def __iter__(self) -> Iterator[PlannedIteration]:
        return self

    def __next__(self) -> PlannedIteration:
        step = self.take(None if self._next == self._first else self._patience_s)
        if step is None:
            raise StopIteration
        return step

    def take(
        self,
        wait_s: float | None = 0.0,
        *,
        next_s: float | None = None,
        hold: bool = False,
        is_simulated: bool = False,
    ) -> PlannedIteration | None:
        """The next iteration with the best plan that there is; planning of the one after it begins.

        Args:
            wait_s: time to wait for a plan that is not finished [s]; None: until it is.
            next_s: when the iteration after this one will be asked for [s from now]; its search ends in time for that.
            hold: planning of the one after it does not begin before ``go_on``.
            is_simulated: wait longer where there is nothing but the fallback, for the heuristic's plan, which was
                simulated with the batch; planning that ended without one (``deadline_s``, an error) is not waited for.
        Returns:
            The iteration; None: the stream has ended.
        Raises:
            SemuError: the stream's, at its place; or ConfigError: a batch that the job cannot run.
        """
        asked = self._clock()
        self.go_on(None if wait_s is None else wait_s)
        slot = self._slot_of(self._next)
        if slot is None:
            return None
        with self._changed:
            while slot.done_s is None:
                left = None if wait_s is None else asked + wait_s - self._clock()
                if left is not None and left <= 0:
                    if not is_simulated or slot.outcome is not Outcome.FALLBACK:
                        break
                    left = None
                self._changed.wait(left)
            slot.is_taken = True
            step = _step(slot, self._clock(), asked)
            self._next += 1
        if not hold:
            self.go_on(next_s)
        return step

    def go_on(self, due_s: float | None = None) -> None:
        """Begin to plan the next iteration, where that has not begun.

        Args:
            due_s: when the trainer will ask for it [s from now]; None: unknown.
        """
        with self._changed:
            if self._allowed > self._next:
                return
            self._allowed = self._next + 1
            self._due_s = None if due_s is None else self._clock() + due_s
            self._changed.notify_all()
        if self._thread is None and not self._is_closed:
            self._thread = threading.Thread(target=self._run, name="semu-planner", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End planning; what runs ends soon."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._stream.close()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- both --------------------------------------------------------------------------------------------------------
    def _slot_of(self, index: int) -> _Slot | None:
        """The iteration of a number, the current one or the next; the current one where another thread is past the
        number; None: the stream has ended before it."""
        with self._intake:
            if self._slot is not None and self._slot.index >= index:
                return self._slot
            if self._end is not None:
                if isinstance(self._end, StopIteration):
                    return None
                raise self._end
            try:
                item = next(self._stream)
                assigned = item if isinstance(item, Assignment) else None
                batch = item.batch if isinstance(item, Assignment) else item
                batch = batch if isinstance(batch, AbstractBatch) else listed_batch(batch, f"iteration {index}")
                given, job = self.batches.jobs_of(batch, f"iteration {index}")
                given = given if assigned is None else replace(given, batch=assigned.undeferred)
                plan = self.batches.fallback(job, assigned)
            except Exception as error:
                self._end = error
                if isinstance(error, StopIteration):
                    return None
                raise
            began = self._clock()
            end = due = None if self._deadline_s is None else began + self._deadline_s
            if self._due_s is not None:
                due = self._due_s if due is None else min(due, self._due_s)
            self._slot = _Slot(index, batch, given, job, plan, began, time.process_time(), due, end, assigned)
            return self._slot

    # -- the planner's thread ----------------------------------------------------------------------------------------
    def _run(self) -> None:
        planned = self._first - 1
        while True:
            with self._changed:
                while not self._is_closed and self._allowed - 1 <= planned:
                    self._changed.wait()
                if self._is_closed:
                    return
                planned = self._allowed - 1
            try:
                slot = self._slot_of(planned)
            except Exception:
                return  # whoever asks for it is told
            if slot is None:
                return
            if slot.index != planned:
                continue  # it was taken before this thread could begin, and the one behind it was asked for
            try:
                self._plan(slot)
            except Exception as error:
                slot.error = f"{type(error).__name__}: {error}"
            with self._changed:
                slot.done_s, slot.done_cpu_s = self._clock(), time.process_time()
                self._changed.notify_all()

    def _plan(self, slot: _Slot) -> None:
        """All of an iteration's planning, which stops at the next occasion once it is not wanted any more."""

        def _is_late(due: float | None = slot.due_s) -> bool:
            return slot.is_taken or self._is_closed or (due is not None and self._clock() >= due - self._finish_s)

        if _is_late(slot.end_s):  # whoever needs a plan before the heuristic's takes the fallback
            return
        built = self.batches.prepared(slot.job, slot.assigned)
        if _is_late(slot.end_s):
            return
        begun, default, level = self.batches.heuristic(built, self._kept[0])
        plan = begun.plan_of(default, "heuristic")
        with self._changed:
            slot.heuristic, slot.problem = plan, begun
        self._publish(slot, plan, default.makespan_s, Outcome.HEURISTIC)
        slot.searched_s = self._clock()
        if _is_late() or self._budget.rollouts == 0 or self._budget.time_s == 0:
            if not _is_late():
                slot.outcome, slot.ended_by = Outcome.PLANNED, "rollouts" if self._budget.rollouts == 0 else "time"
            return
        told, least_s = self._clock(), iteration_s(begun, default)

        def _keep(problem: JobProblem, one: Solution) -> None:
            nonlocal told
            if one.makespan_s < slot.makespan_s and self._clock() - told >= RARELY * self._finish_s:
                try:
                    tight, best = fitted(problem, one)
                except MemoryLimitError:
                    return
                if best.makespan_s < slot.makespan_s and iteration_s(tight, best) <= least_s:
                    self._publish(slot, tight.plan_of(best, "search"), best.makespan_s, Outcome.BEST_SO_FAR)
                told = self._clock()

        began, time_s = self._clock(), self._budget.time_s
        most_s = time_s
        if time_s is not None:
            most_s = max(LEAST_SHARE * time_s, time_s - (began - slot.began_s) - self._finish_s)

        def _is_over() -> bool:
            return time_s is not None and self._clock() - slot.began_s >= OVERTIME * time_s

        budget = Budget(self._budget.rollouts, most_s, self._budget.workers, stop=_is_late)
        found = self.batches.search(begun, default, level, budget, _keep, self._kept[1], _is_over)
        result, tight, best = found
        is_whole, plan = result.ended_by != "stopped", tight.plan_of(best, "search")
        if best is default and slot.outcome is Outcome.BEST_SO_FAR and time_s is not None:
            plan = slot.plan  # out of time: what it found before that fits
        self.batches.remember(tight, best, result.level)
        with self._changed:
            slot.rollouts, slot.moves, slot.ended_by = result.rollouts, result.moves, result.ended_by
        self._publish(slot, plan, best.makespan_s, Outcome.PLANNED if is_whole else Outcome.BEST_SO_FAR)
        self._finish_s = max(0.5 * self._finish_s, self._clock() - began - result.time_s)

    def _publish(self, slot: _Slot, plan: StagePlan, makespan_s: float, outcome: Outcome) -> None:
        with self._changed:
            if not slot.is_taken:
                slot.plan, slot.makespan_s, slot.outcome = plan, makespan_s, outcome
                self._changed.notify_all()


def _step(slot: _Slot, now_s: float, asked_s: float) -> PlannedIteration:
    """What the trainer gets."""
    done = now_s if slot.done_s is None else slot.done_s
    cpu = time.process_time() if slot.done_cpu_s is None else slot.done_cpu_s
    prepared = done if slot.searched_s is None else slot.searched_s
    shared = {item.name: getattr(slot, item.name) for item in fields(PlannedIteration) if hasattr(slot, item.name)}
    return PlannedIteration(
        **shared,
        latency_s=done - slot.began_s,
        prepare_s=prepared - slot.began_s,
        cpu_s=cpu - slot.began_cpu_s,
        waited_s=now_s - asked_s,
    )


def _workers(workers: int | None) -> int:
    """Threads of a search.

    Raises:
        ConfigError: more than half the cores.
    """
    most = max(1, (os.cpu_count() or 2) // 2)
    if isinstance(workers, int) and workers > most:
        raise ConfigError(
            "training needs the other cores",
            where="workers",
            expected=f"at most half the cores, {most}",
            got=workers,
            nearest=most,
        )
    return most if workers is None else workers
