"""Parts of the planner: prefetching, priorities that outlive a batch, the fallback, searches that are stopped."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from searcher.planner_jobs import MODELS, video_job, vision_job, vision_stream
from searcher.reference import is_legal_sequence
from simulation.jobs import ListedBatch as Items
from simulation.jobs import t2v_items, vlm_items

import semu
from semu.job import TrainingJob
from semu.prefetch import Prefetcher
from semu.runfile import load_run
from semu.searcher.job_search import job_problem
from semu.searcher.orders.interleave import Interleaver
from semu.searcher.orders.levels import above, search_levels
from semu.searcher.orders.loop import Budget
from semu.searcher.orders.space import OrderSpace
from semu.searcher.plain_jobs import plain_job
from semu.searcher.planner import fallback as fallbacks
from semu.searcher.planner.batch_planner import BatchPlanner
from semu.searcher.planner.kept_limits import KeptLimits
from semu.searcher.planner.own_stream import own_batches
from semu.searcher.planner.planned_iteration import Outcome
from semu.searcher.planner.planner import Planner
from semu.searcher.planner.warm import Priorities
from semu.searcher.problem.build import JobProblem
from semu.workload import file_batch, vlm_batch


def test_a_prefetcher_holds_one_item_and_fetches_another() -> None:
    asked: list[int] = []
    there = threading.Semaphore(0)

    def source() -> Iterator[int]:
        for number in range(6):
            asked.append(number)
            there.release()
            yield number

    items = Prefetcher(source())
    for number in range(6):
        for _ in range(2 if number == 0 else 1):  # the one that waits, and the one that is in hand
            if len(asked) < 6:
                assert there.acquire(timeout=60)
        assert len(asked) <= number + 2
        assert next(items) == number
    with pytest.raises(StopIteration):
        next(items)
    with pytest.raises(StopIteration):
        next(items)


def test_a_prefetcher_hands_on_errors_and_closes() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise ValueError("gone")

    items = Prefetcher(broken())
    assert next(items) == 1
    with pytest.raises(ValueError, match="gone"):
        next(items)
    with pytest.raises(StopIteration):
        next(items)
    endless = Prefetcher(iter(int, 1))
    assert next(endless) == 0
    endless.close()
    endless._thread.join(60)
    assert not endless._thread.is_alive()
    assert list(endless) in ([], [0])


def test_own_batches_go_seed_by_seed() -> None:
    job = load_run("vlm-s", seed=7)
    seeds = [batch.seed for _, batch in zip(range(3), own_batches(job), strict=False)]  # type: ignore[attr-defined]
    assert seeds == [7, 8, 9]
    assert next(own_batches(job)) == vlm_batch(seed=7)


def test_own_batches_of_a_file_are_its_samples_in_order(tmp_path: Path) -> None:
    """Three iterations of two sequences of 100 tokens, each of two samples; the last one fills none."""
    path = tmp_path / "samples.jsonl"
    lengths = [60, 40, 70, 30, 10, 90, 20, 80, 55, 45, 25, 75, 100]
    path.write_text("".join(f'{{"text_tokens": {length}}}\n' for length in lengths))
    job = load_run("lm-7b")
    training = semu.Training(micro_batch=1, global_batch=2, seq_len=100)
    parallel = replace(job.parallel, pp=1, dp=1, vpp=1, tp=1, sequence_parallel=False)
    job = semu.TrainingJob(job.model, semu.Cluster("h100", gpus_per_node=1), parallel, training, file_batch(path))
    seen: list[int] = []
    for batch in islice(own_batches(job), 5):
        items = batch.microbatches(2, 1, 100)
        seen += [length for item in items for length in item.lengths["text"]]
    assert seen == lengths[:12]


def problem_of(job: TrainingJob) -> Any:
    return job_problem(plain_job(job)[0])[1].problem


def with_items(job: TrainingJob, items: Any) -> TrainingJob:
    training = semu.Training(micro_batch=1, global_batch=len(items), overlap=job.training.overlap)
    return semu.TrainingJob(job.model, job.cluster, job.parallel, training, Items(tuple(items)))


@settings(max_examples=4, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 999), st.booleans())
def test_priorities_become_legal_sequences_of_other_batches(first: int, second: int, seed: int, vision: bool) -> None:
    make, items = (vision_job, vlm_items) if vision else (video_job, t2v_items)
    one, other = (problem_of(with_items(make(), items(n, seed=seed + n))) for n in (first, second))
    found = search_levels(one, Budget(rollouts=20))
    told = Priorities.of(one, found.solution, found.level)
    again = Priorities.from_json(json.loads(json.dumps(told.to_json())))
    space = OrderSpace.of(other)
    sequences = told.seeds(other, space)
    assert len(sequences) == 1
    assert is_legal_sequence(space, sequences[0])
    assert np.array_equal(again.seeds(other, space)[0], sequences[0])
    unknown = Priorities(("else",) * len(told.modules), told.wish, told.level)
    assert unknown.seeds(other, space) == []


def test_priorities_of_the_same_batch_are_its_order() -> None:
    """Groups that began earlier come earlier, as far as that is legal."""
    problem = problem_of(with_items(vision_job(), vlm_items(5, seed=0)))
    space = OrderSpace.of(problem)
    solution = search_levels(problem, Budget(rollouts=60, workers=1), seed=3).solution
    [sequence] = Priorities.of(problem, solution).seeds(problem, space)
    begin = np.full(2 * problem.num_groups, np.inf)
    for stage in solution.order.tolist():
        item = problem.group[stage // 2] + (stage % 2) * problem.num_groups
        begin[item] = min(begin[item], solution.start_s[stage])
    assert np.array_equal(sequence, space.nearest(begin[None])[0])


def test_a_seed_is_tried_first() -> None:
    problem = problem_of(with_items(vision_job(), vlm_items(5, seed=0)))
    best = search_levels(problem, Budget(rollouts=200, workers=1), seed=3)
    told = Priorities.of(problem, best.solution, best.level)
    tried = search_levels(problem, Budget(rollouts=4, workers=1), levels=[best.level], seeds=told.seeds)
    space = OrderSpace.of(problem)
    part, _ = above(problem, best.level)
    own = Interleaver(part).run(*space.orders(np.stack(told.seeds(part, OrderSpace.of(part)))))
    assert tried.solution.makespan_s <= own.makespan_s[0]
    assert tried.rollouts == 4 or tried.solution.makespan_s == tried.solution.lower_bound_s


@pytest.mark.parametrize(("make", "stream"), MODELS)
def test_the_fallback_is_legal_whatever_comes(make: Any, stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    planner = BatchPlanner(make())
    for count in (1, 2, 5):
        [batch] = stream(1, microbatches=count)
        _, job = planner.jobs_of(batch)
        plan = planner.fallback(job)
        assert plan is planner.fallback(job)
        assert not plan.parts
        quick = semu.simulate(job, plan=plan)
        monkeypatch.setattr(fallbacks, "ROOM", 0.0)  # not even one microbatch: one after another
        slow = semu.simulate(job, plan=fallbacks.Fallback(planner.job, planner.template).plan(count))
        monkeypatch.undo()
        assert slow.iteration_time_s >= quick.iteration_time_s
        assert max(slow.peak_memory_bytes) <= max(quick.peak_memory_bytes)


@pytest.mark.parametrize("strategy", ["mixed", "mcts", "local", "dfs", "random"])
def test_a_search_that_is_stopped(strategy: str) -> None:
    problem = problem_of(with_items(vision_job(), vlm_items(5, seed=0)))
    calls = []

    def stop() -> bool:
        calls.append(0)
        return len(calls) > 6

    kept: list[float] = []
    found = search_levels(
        problem,
        Budget(rollouts=10**6, workers=1, stop=stop),
        strategy=strategy,
        keep=lambda one: kept.append(one.makespan_s),
    )
    assert found.ended_by == "stopped"
    assert not found.is_reproducible
    assert found.rollouts < 1000
    assert kept == sorted(kept, reverse=True)
    assert kept[-1] >= found.solution.makespan_s


@pytest.mark.parametrize(("make", "stream"), MODELS)
def test_limits_of_a_batch_are_where_the_next_one_begins(make: Any, stream: Any) -> None:
    planner, kept = BatchPlanner(make()), KeptLimits()
    built = planner.prepared(planner.jobs_of(next(iter(stream(1))))[1])
    assert kept.under(built) is built
    static, limit = built.problem.static_bytes, built.problem.limit_bytes
    lower = limit - (limit - static) // 8
    kept.keep(built, built.limited(lower))
    begun = kept.under(built)
    assert np.array_equal(begun.problem.limit_bytes, lower)
    kept.keep(begun, begun)  # fitted at once
    assert np.array_equal(kept.under(built).problem.limit_bytes, lower + (limit - lower) // 4)
    kept.keep(built, built.limited(static))
    assert kept.under(built) is built, "nothing fits in no memory"
    own, plain = planner.heuristic(built, kept), planner.heuristic(built)
    assert own[0].plan_of(own[1]).to_json() == plain[0].plan_of(plain[1]).to_json()


def test_a_search_that_is_late_is_the_heuristic(monkeypatch: pytest.MonkeyPatch) -> None:
    planner, kept = BatchPlanner(vision_job()), KeptLimits()
    built = planner.prepared(planner.job)
    begun, default, level = planner.heuristic(built)
    missing = np.full(built.problem.num_ranks, 64, dtype=np.int64)
    monkeypatch.setattr(JobProblem, "excess_of", lambda *_: missing)
    late: list[bool] = [False, True]
    budget = Budget(rollouts=4, workers=1)
    found, *best = planner.search(begun, default, level, budget, None, kept, lambda: late.pop(0))
    assert best == [begun, default]
    assert found.rollouts
    assert not late
    assert (kept.under(begun).problem.limit_bytes < begun.problem.limit_bytes).all()


PATIENCE_S = 60.0
"""Longer than anything here takes."""


class _Delayed(Planner):
    """Its thread comes too late for iteration 1: the trainer has taken it, and asked for the one behind it."""

    begins, behind = threading.Event(), threading.Event()

    def _slot_of(self, index: int) -> Any:
        if threading.current_thread().name == "semu-planner":
            if index == 1:
                self.begins.set()
                assert self.behind.wait(PATIENCE_S)
            return super()._slot_of(index)
        slot = super()._slot_of(index)
        if index == 2:
            self.behind.set()
        return slot


def test_an_iteration_that_is_taken_before_planning_begins() -> None:
    """The thread took the next batch from the stream for it, a trainer that waited for its own waited for ever."""
    batches = list(vision_stream(4))
    with _Delayed(vision_job(), iter(batches), rollouts=4) as planner:
        steps = [planner.take(PATIENCE_S)]
        assert planner.begins.wait(PATIENCE_S)
        steps += [planner.take(wait_s) for wait_s in (0.0, PATIENCE_S, PATIENCE_S)]
        assert planner.take() is None
    outcomes = [Outcome.PLANNED, Outcome.FALLBACK, Outcome.PLANNED, Outcome.PLANNED]
    for number, (step, batch, outcome) in enumerate(zip(steps, batches, outcomes, strict=True)):
        assert step is not None
        assert (step.index, step.outcome, step.error) == (number, outcome, None)
        assert step.batch.items == batch.items
