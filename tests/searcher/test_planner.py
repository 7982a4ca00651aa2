"""``semu.Planner``: a plan for every batch, whatever happens to planning."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from searcher.planner_jobs import MODELS, is_legal, video_job, vision_job, vision_stream
from simulation.jobs import vlm_items

import semu
from semu.errors import ConfigError, MemoryLimitError
from semu.schedule import Schedule
from semu.searcher.orders.budgeted import SearchResult
from semu.searcher.orders.interleave import evaluate
from semu.searcher.orders.levels import search_levels
from semu.searcher.orders.loop import Budget
from semu.searcher.planner import batch_planner as planning
from semu.searcher.planner import planner as running
from semu.searcher.planner.planned_iteration import Outcome, PlannedIteration
from semu.searcher.planner.planner import Planner
from semu.searcher.planner.shown_iterations import ShownIterations
from semu.searcher.planner.training_loop import IterationRow, train
from semu.searcher.planner.training_report import TrainingReport
from semu.searcher.problem.search_problem import SearchProblem
from semu.simulation import JobCheckpoint
from semu.workload import Microbatch, listed_batch

PATIENCE_S = 60.0
"""Longer than anything here takes."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("make", "stream"), MODELS)
def test_every_plan_is_what_is_simulated(make: Any, stream: Any) -> None:
    found: list[list[PlannedIteration]] = []
    for _ in range(2):
        with semu.Planner(make(), stream(3), rollouts=30, patience_s=None) as planner:
            found.append(list(planner))
    assert [step.index for step in found[0]] == [0, 1, 2]
    for first, second in zip(*found, strict=True):
        assert first.outcome is Outcome.PLANNED
        assert first.error is None
        assert first.plan.to_json() == second.plan.to_json()
        assert first.problem is not None
        time_s = is_legal(first)
        assert first.problem.simulated(first.plan).estimate().iteration_time_s == time_s
        assert first.heuristic is not None
        assert time_s <= semu.simulate(first.job, plan=first.heuristic).iteration_time_s
    layers = {tuple(step.plan.layers.items()) for step in found[0] if step.plan.layers}
    assert len(layers) == 1, "chunks do not move during training"
    assert len({step.plan.variants for step in found[0]}) == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("make", "stream"), MODELS)
def test_the_loop_compares_and_counts(make: Any, stream: Any) -> None:
    rows: list[IterationRow] = []
    shown = ShownIterations()
    with Planner(make(), stream(5), rollouts=20) as planner:
        train(planner, 3, has_deadline=False, tell=rows.append, keep=shown.add)
    assert [row.index for row in rows] == [0, 1, 2]
    for row, batch in zip(rows, stream(3), strict=True):
        assert row.items == {
            name: sum(len(item.lengths[name]) for item in batch.items) for name in batch.items[0].lengths
        }
        assert row.planned_s is not None
        assert row.heuristic_s is not None
        assert row.megatron_s is not None
        assert row.planned_s <= row.heuristic_s
        assert row.gain == row.megatron_s / row.planned_s
        again = semu.search(replace(make(), batch=batch), rollouts=0, workers=1).alike
        assert again is not None
        assert row.alike_s == again.iteration_time_s
        assert row.gain_alike == again.iteration_time_s / row.planned_s
        assert row.fits
        assert row.trained_s == row.planned_s
    gains = [row.gain or 0.0 for row in rows]
    assert [one.index for one in shown.found()] == sorted({0, int(np.argmax(gains)), int(np.argmin(gains))})
    for one in shown.found():
        times = [timeline.iteration_time_s for _, timeline in one.runs]
        assert times == [rows[one.index].megatron_s, rows[one.index].planned_s]
    report = TrainingReport("tiny", rows, 3, "iterations", True, 1, shown=shown.found())
    page = report.page().to_html()
    assert all(f">Iteration {one.index}</h2>" in page and one.why in page for one in report.shown)
    assert report.hit_rate == 1.0
    assert report.gain("megatron_s") == sum(row.megatron_s or 0 for row in rows) / sum(
        row.planned_s or 0 for row in rows
    )
    assert "3 planned" in repr(report)


def wait_until(is_so: Callable[[], bool]) -> bool:
    """Wait until something holds; whether it did in time."""
    latest_s = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > latest_s:
            return False
        time.sleep(0.001)
    return True


def test_no_plan_is_slower_than_the_heuristics_by_its_whole_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shorter pipeline whose iteration is longer, as where reductions begin later, is not the plan."""
    batches = planning.BatchPlanner(vision_job())
    job = batches.jobs_of(next(vision_stream(1)))[1]
    built = batches.prepared(job)
    begun, default, level = batches.heuristic(built)
    found = batches.search(begun, default, level, Budget(rollouts=30, workers=1))[2]
    assert found.makespan_s < default.makespan_s
    inner = planning.iteration_s
    assert inner(begun, default) == semu.simulate(job, plan=begun.plan_of(default, "own")).iteration_time_s
    monkeypatch.setattr(planning, "iteration_s", lambda problem, one: 1.0 if one is default else 2.0)
    assert batches.search(begun, default, level, Budget(rollouts=30, workers=1))[2] is default


@pytest.mark.parametrize("deadline_s", [None, 1e-9])
def test_the_loop_waits_for_the_heuristics_plan(deadline_s: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterations that take no time: each has the heuristic's plan at least, unless a deadline ends planning before."""
    rows: list[IterationRow] = []
    with Planner(vision_job(), vision_stream(3), rollouts=20, deadline_s=deadline_s) as planner:
        gate = Gate(monkeypatch, planner, "heuristic", at=1)
        timer = threading.Timer(0.2, gate.opened.set)
        timer.start()
        train(planner, 3, speed=1e12, tell=rows.append)
        timer.join()
    said = "began before any plan of their batch was simulated" in " ".join(
        repr(TrainingReport("tiny", rows, 3, "iterations", False, 1)).split()
    )
    if deadline_s is None:
        assert [row.outcome for row in rows] == [Outcome.PLANNED, Outcome.HEURISTIC, Outcome.HEURISTIC]
        assert all(row.planned_s <= row.heuristic_s for row in rows if row.planned_s and row.heuristic_s)
        assert rows[1].stall_s > 0
    else:
        assert [row.outcome for row in rows] == [Outcome.FALLBACK] * 3
    assert said == (deadline_s is not None)


class Gate:
    """A step of planning that waits until it is told to go on, or until nobody wants it any more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, planner: Planner, step: str, at: int) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        inner, calls = getattr(planner.batches, step), []

        def held(*arguments: Any, **options: Any) -> Any:
            calls.append(0)
            if len(calls) - 1 == at:
                self.reached.set()
                assert self.opened.wait(PATIENCE_S)
            return inner(*arguments, **options)

        monkeypatch.setattr(planner.batches, step, held)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("step", "outcome"),
    [("prepared", Outcome.FALLBACK), ("heuristic", Outcome.FALLBACK), ("search", Outcome.HEURISTIC)],
)
def test_training_does_not_wait_for_a_slow_planner(
    step: str, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Planner(vision_job(), vision_stream(4), rollouts=20) as planner:
        gate = Gate(monkeypatch, planner, step, at=1)
        first = planner.take(None)
        assert first is not None
        assert first.outcome is Outcome.PLANNED
        assert gate.reached.wait(PATIENCE_S)
        second = planner.take(0.0)
        assert second is not None
        assert second.outcome is outcome
        assert second.error is None
        is_legal(second)
        gate.opened.set()
        third, fourth = planner.take(None), planner.take(None)
        assert third is not None
        assert fourth is not None
        assert (third.outcome, fourth.outcome) == (Outcome.PLANNED, Outcome.PLANNED)
        is_legal(third)
        assert planner.take(None) is None


def test_the_best_so_far_is_taken_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search finds something better, tells it, and never ends by itself."""
    with Planner(vision_job(), vision_stream(3), rollouts=200) as planner:
        inner, told = planner.batches.search, threading.Event()

        def endless(begun: Any, default: Any, level: Any, budget: Any, keep: Any = None, *rest: Any) -> Any:
            result, tight, best = inner(begun, default, level, budget, None)
            if best.makespan_s < default.makespan_s:
                keep(tight, best)
                told.set()
                wait_until(budget.stop)
            return result, tight, best

        monkeypatch.setattr(planner.batches, "search", endless)
        thread = threading.Thread(target=lambda: planner.go_on())
        thread.start()
        thread.join()
        assert told.wait(PATIENCE_S), "the heuristic's schedule of the first batch is the best there is"
        first = planner.take(0.0)
        assert first is not None
        assert first.outcome is Outcome.BEST_SO_FAR
        assert first.heuristic is not None
        assert is_legal(first) < semu.simulate(first.job, plan=first.heuristic).iteration_time_s


@pytest.mark.parametrize(
    ("case", "outcome"),
    [
        ("better", Outcome.BEST_SO_FAR),
        ("longer iteration", Outcome.HEURISTIC),
        ("does not fit", Outcome.HEURISTIC),
        ("as long once it fits", Outcome.HEURISTIC),
    ],
)
def test_what_a_search_tells_is_taken_if_it_fits_and_its_iteration_is_no_longer(
    case: str, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search tells of a shorter pipeline; its iteration, and whether it fits, are only known when it is simulated."""
    with Planner(vision_job(), vision_stream(3), rollouts=200) as planner:
        inner, told = planner.batches.search, threading.Event()

        def endless(begun: Any, default: Any, level: Any, budget: Any, keep: Any = None, *rest: Any) -> Any:
            result, tight, best = inner(begun, default, level, budget, None)
            assert best.makespan_s < default.makespan_s
            monkeypatch.setattr(running, "iteration_s", lambda *_: 1e9 if case == "longer iteration" else 0.0)
            if case == "as long once it fits":
                longer = replace(best, makespan_s=default.makespan_s)
                monkeypatch.setattr(running, "fitted", lambda *_: (tight, longer))
            if case == "does not fit":
                limits = begun.problem.static_bytes + (best.peak_bytes - begun.problem.static_bytes) // 8
                tight = tight.limited(limits)
                tight = replace(tight, target_bytes=limits)
            keep(tight, best)
            told.set()
            wait_until(budget.stop)
            return result, tight, best

        monkeypatch.setattr(planner.batches, "search", endless)
        planner.go_on()
        assert told.wait(PATIENCE_S)
        first = planner.take(0.0)
        assert first is not None
        assert first.outcome is outcome


class Clock:
    """Seconds that pass only where a test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_deadline_ends_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """An eighth of a second passes whenever the search asks whether it is to end. Its bound is below every schedule of
    these batches, and its rollouts last for many rounds."""
    clock, asked = Clock(), []
    options = {"rollouts": 5000, "workers": 1, "deadline_s": 0.5, "patience_s": None}
    with Planner(video_job(), MODELS[1][1](2), clock=clock, **options) as planner:  # type: ignore[arg-type]
        inner = planner.batches.search

        def search(begun: Any, default: Any, level: float, budget: Budget, keep: Any = None, *rest: Any) -> Any:
            began_s, is_late = clock.now_s, budget.stop
            assert is_late is not None

            def stop() -> bool:
                if not is_late():
                    asked.append(clock.now_s - began_s)
                    clock.now_s += 0.125
                return is_late()

            result, tight, best = inner(begun, default, level, replace(budget, stop=stop), keep)
            return replace(result, time_s=clock.now_s - began_s), tight, best

        monkeypatch.setattr(planner.batches, "search", search)
        steps = list(planner)
    assert asked == 2 * [0.0, 0.125, 0.25, 0.375]
    assert [step.outcome for step in steps] == 2 * [Outcome.BEST_SO_FAR]
    assert [step.ended_by for step in steps] == 2 * ["stopped"]
    assert [step.latency_s for step in steps] == 2 * [0.5]
    for step in steps:
        assert 0 < step.rollouts < 100
        assert step.heuristic is not None
        assert is_legal(step) <= semu.simulate(step.job, plan=step.heuristic).iteration_time_s


@pytest.mark.parametrize(("prepare_s", "left_s"), [(1.0, 7.0), (3.0, 5.0), (7.0, 2.4)])
def test_a_time_counts_from_the_batch(prepare_s: float, left_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search has of 8 s what preparing left, and three tenths at least."""
    clock, given = Clock(), list[float | None]()
    with Planner(vision_job(), vision_stream(1), time_s=8.0, patience_s=None, clock=clock) as planner:
        prepared, search = planner.batches.prepared, planner.batches.search

        def late(*arguments: Any) -> Any:
            clock.now_s += prepare_s
            return prepared(*arguments)

        def told(begun: Any, default: Any, level: float, budget: Budget, keep: Any = None, *rest: Any) -> Any:
            given.append(budget.time_s)
            return search(begun, default, level, Budget(rollouts=1, workers=1), keep)

        monkeypatch.setattr(planner.batches, "prepared", late)
        monkeypatch.setattr(planner.batches, "search", told)
        assert [step.outcome for step in planner] == [Outcome.PLANNED]
    assert given == [left_s]


@pytest.mark.parametrize(("slow", "outcome"), [("prepared", Outcome.FALLBACK), ("heuristic", Outcome.HEURISTIC)])
def test_a_deadline_before_the_search(slow: str, outcome: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    with Planner(vision_job(), vision_stream(1), rollouts=20, deadline_s=0.5, clock=clock) as planner:
        inner = getattr(planner.batches, slow)

        def late(*arguments: Any) -> Any:
            clock.now_s += 0.5
            return inner(*arguments)

        monkeypatch.setattr(planner.batches, slow, late)
        monkeypatch.setattr(planner.batches, "search", None)
        step = planner.take(None)
    assert step is not None
    assert (step.outcome, step.ended_by, step.error, step.latency_s) == (outcome, "", None, 0.5)
    is_legal(step)


def searches_until_late(
    monkeypatch: pytest.MonkeyPatch, planner: Planner, clock: Clock, finish_s: Sequence[float]
) -> list[float]:
    """From now on every search goes on until it is to end, 100 s at most, and takes ``finish_s`` to hand over what it
    found; returns the list to which each search adds how long it went on [s]."""
    inner, spent_s = planner.batches.search, []

    def search(begun: Any, default: Any, level: float, budget: Budget, keep: Any = None, *rest: Any) -> Any:
        began_s = clock.now_s
        assert budget.stop is not None
        while not budget.stop() and clock.now_s < began_s + 100.0:
            clock.now_s += 0.5
        spent_s.append(clock.now_s - began_s)
        result, tight, best = inner(begun, default, level, Budget(rollouts=0, workers=1))
        clock.now_s += finish_s[len(spent_s) - 1]
        return replace(result, time_s=spent_s[-1]), tight, best

    monkeypatch.setattr(planner.batches, "search", search)
    return spent_s


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("deadline_s", "next_s", "expected_s"),
    [(10.0, 50.0, 10.0), (50.0, 10.0, 10.0), (10.0, None, 10.0), (None, 10.0, 10.0), (None, None, 100.0)],
)
def test_a_search_ends_at_the_deadline_or_when_it_is_asked_for(
    deadline_s: float | None, next_s: float | None, expected_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever comes first; of the first iteration nobody knows when it will be asked for."""
    clock = Clock()
    with Planner(vision_job(), vision_stream(2), rollouts=1, deadline_s=deadline_s, clock=clock) as planner:
        spent_s = searches_until_late(monkeypatch, planner, clock, [0.0, 0.0])
        assert planner.take(None, next_s=next_s) is not None
        assert planner.take(None) is not None
    assert spent_s == [100.0 if deadline_s is None else deadline_s, expected_s]


def test_a_search_leaves_time_for_finishing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much as the search before it took to finish, or half of what was kept for that one if that is more."""
    clock, finish_s = Clock(), [2.0, 0.0, 0.0, 6.0, 1.0]
    options = {"rollouts": 1, "deadline_s": 10.0, "patience_s": None}
    with Planner(vision_job(), vision_stream(5), clock=clock, **options) as planner:  # type: ignore[arg-type]
        spent_s = searches_until_late(monkeypatch, planner, clock, finish_s)
        steps = list(planner)
    assert spent_s == [10.0, 10.0 - 2.0, 10.0 - 1.0, 10.0 - 0.5, 10.0 - 6.0]
    assert [step.latency_s for step in steps] == [12.0, 8.0, 9.0, 15.5, 5.0]


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_search_ends_when_its_plan_is_taken_or_the_planner_is_closed(
    is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended, stopped = threading.Event(), threading.Event(), []
    with Planner(vision_job(), vision_stream(1), rollouts=20) as planner:
        inner = planner.batches.search

        def search(problem: Any, default: Any, level: float, budget: Budget, keep: Any = None, *rest: Any) -> Any:
            assert budget.stop is not None
            begun.set()
            stopped.append(wait_until(budget.stop))
            ended.set()
            return inner(problem, default, level, Budget(rollouts=0, workers=1))

        monkeypatch.setattr(planner.batches, "search", search)
        planner.go_on()
        assert begun.wait(PATIENCE_S)
        if is_taken:
            step = planner.take(0.0, hold=True)
            assert step is not None
            assert step.outcome is Outcome.HEURISTIC
            assert ended.wait(0.5 * PATIENCE_S)
    assert stopped == [True]


def one_after_another(problem: SearchProblem, *_: Any, **__: Any) -> SearchResult:
    """A search that finds the schedule without any overlap of microbatches, with the leanest candidates."""
    place = np.argsort(problem.topological)  # every stage exists
    microbatch = np.repeat(problem.microbatch, 2)
    slow = evaluate(problem, np.lexsort((place, microbatch, problem.stage_rank)))
    return replace(search_levels(problem, Budget(rollouts=0, workers=1)), solution=slow)


@pytest.mark.parametrize(("make", "stream"), MODELS)
def test_a_plan_is_never_slower_than_the_heuristic(make: Any, stream: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with Planner(make(), stream(2), rollouts=50, patience_s=None) as planner:
        [batch] = stream(1)
        begun, default, level = planner.batches.heuristic(planner.batches.prepared(planner.batches.jobs_of(batch)[1]))
        best = planner.batches.search(begun, default, level, Budget(rollouts=50, workers=1))[2]
        assert best.makespan_s < default.makespan_s < one_after_another(begun.problem).solution.makespan_s
        monkeypatch.setattr(planning, "search_levels", one_after_another)
        steps = list(planner)
    for step in steps:
        assert step.outcome is Outcome.PLANNED
        assert step.plan.orders is not None
        assert step.heuristic is not None
        assert Schedule("heuristic", step.plan.orders.orders) == step.heuristic.orders
        assert is_legal(step) == semu.simulate(step.job, plan=step.heuristic).iteration_time_s


@pytest.mark.parametrize(("step", "outcome"), [("prepared", Outcome.FALLBACK), ("search", Outcome.HEURISTIC)])
@pytest.mark.parametrize("error", [RuntimeError("disk on fire"), MemoryLimitError("too full", where="rank 1")])
@pytest.mark.sampled(2)
def test_a_planner_that_raises(step: str, outcome: Outcome, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    with Planner(vision_job(), vision_stream(3), rollouts=10, patience_s=None) as planner:
        inner, calls = getattr(planner.batches, step), []

        def raising(*arguments: Any, **options: Any) -> Any:
            calls.append(0)
            if len(calls) == 2:
                raise error
            return inner(*arguments, **options)

        monkeypatch.setattr(planner.batches, step, raising)
        steps = list(planner)
    assert [own.outcome for own in steps] == [Outcome.PLANNED, outcome, Outcome.PLANNED]
    assert [own.error for own in steps] == [None, f"{type(error).__name__}: {error}", None]
    is_legal(steps[1])


def test_a_loop_goes_on_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[IterationRow] = []
    with Planner(video_job(), MODELS[1][1](3), rollouts=10) as planner:
        inner, calls = planner.batches.prepared, []

        def raising(job: Any, assigned: Any = None) -> Any:
            calls.append(0)
            if len(calls) == 2:
                raise RuntimeError("disk on fire")
            return inner(job, assigned)

        monkeypatch.setattr(planner.batches, "prepared", raising)
        train(planner, 3, has_deadline=False, tell=rows.append)
    assert [row.outcome for row in rows] == [Outcome.PLANNED, Outcome.FALLBACK, Outcome.PLANNED]
    assert rows[1].error == "RuntimeError: disk on fire"
    assert rows[1].planned_s is not None
    assert rows[1].heuristic_s is not None
    report = TrainingReport("tiny", rows, 3, "iterations", True, 1)
    assert "iteration 1: RuntimeError: disk on fire" in repr(report)


def test_a_stream_that_ends_early_and_one_that_breaks() -> None:
    rows: list[IterationRow] = []
    with Planner(vision_job(), vision_stream(2), rollouts=0) as planner:
        train(planner, 9, has_deadline=False, tell=rows.append)
        assert planner.take(None) is None
    assert len(rows) == 2

    def broken() -> Iterator[Any]:
        yield from vision_stream(2)
        raise ConfigError("not JSON", where="stream.jsonl:3")

    with Planner(vision_job(), broken(), rollouts=0) as planner:
        rows = []
        with pytest.raises(ConfigError, match=r"stream\.jsonl:3: not JSON"):
            train(planner, 9, has_deadline=False, tell=rows.append)
        assert len(rows) == 2
        with pytest.raises(ConfigError):
            planner.take(None)


def test_batches_without_images_and_of_other_sizes() -> None:
    batches = [
        vlm_items(3, seed=1, empty=[0, 1, 2]),
        vlm_items(5, seed=2),
        vlm_items(1, seed=3),
        vlm_items(3, seed=4, empty=[1]),
    ]
    with Planner(vision_job(), batches, rollouts=20, patience_s=None) as planner:
        steps = list(planner)
        for step in steps:
            assert step.outcome is Outcome.PLANNED
            is_legal(step)
            assert len(step.plan.parts["vit"]) == step.job.num_microbatches
        fallbacks = [planner.batches.fallback(step.job) for step in steps]
    assert [step.job.num_microbatches for step in steps] == [3, 5, 1, 3]
    assert steps[0].plan.parts["vit"] == (0, 0, 0)
    for step, plan in zip(steps, fallbacks, strict=True):
        report = semu.simulate(step.job, plan=plan)
        assert report.fits
        assert report.iteration_time_s >= 0.999 * is_legal(step)


def test_batches_that_the_job_cannot_run() -> None:
    text = [Microbatch({"text": [50]}, samples=1)] * 3
    for batch, said in (
        (text, "streams"),
        ([*vlm_items(2), *text[:1]], "microbatch 2"),
        ([], "no microbatches"),
    ):
        with Planner(vision_job(), [batch], rollouts=0) as planner, pytest.raises(ConfigError, match=said) as caught:
            planner.take(None)
        assert "iteration 0" in str(caught.value.where)
    job = vision_job()
    two = semu.TrainingJob(
        job.model,
        semu.Cluster("h100", nodes=1, gpus_per_node=4),
        semu.Parallel(dp=2, pp=2),
        semu.Training(micro_batch=1, global_batch=4),
        listed_batch(vlm_items(4, seed=1)),
    )
    with Planner(two, [vlm_items(6), vlm_items(3)], rollouts=0, patience_s=None) as planner:
        assert next(planner).job.num_microbatches == 3
        with pytest.raises(ConfigError, match="dp = 2"):
            next(planner)


@pytest.mark.slow
def test_what_is_kept_does_not_grow() -> None:
    def alive(*kinds: type) -> int:
        gc.collect()
        return sum(issubclass(type(thing), kinds) for thing in gc.get_objects())  # asks no object for its class

    before = alive(JobCheckpoint, PlannedIteration), alive(SearchProblem)
    counts = []
    with Planner(vision_job(), vision_stream(12), rollouts=5, patience_s=None) as planner:
        for step in planner:
            if step.index >= 4:
                counts.append((alive(JobCheckpoint, PlannedIteration) - before[0], alive(SearchProblem) - before[1]))
        assert threading.active_count() < 20
    assert max(count for count, _ in counts) <= 8
    assert max(count for _, count in counts) <= 64 + 24  # of those that ``tables_of`` remembers, and of one batch
    assert counts[-1][0] <= counts[0][0]


def test_options_that_are_none() -> None:
    for options, where in (
        ({"workers": 10_000}, "workers"),
        ({"workers": 0}, "workers"),
        ({"rollouts": -1}, "rollouts"),
        ({"deadline_s": -1.0}, "deadline_s"),
        ({"patience_s": float("nan")}, "patience_s"),
        ({"deadline_s": True}, "deadline_s"),
    ):
        with pytest.raises(ConfigError) as caught:
            Planner(vision_job(), [], **options)  # type: ignore[arg-type]
        assert caught.value.where == where
