"""``semu.Planner``: a plan for every batch, whatever happens to planning."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from searcher.planner_jobs import MODELS, is_legal, video_job, vision_job, vision_stream
from simulation.jobs import vlm_items

import semu
from semu.errors import ConfigError, MemoryLimitError
from semu.searcher.planner.planned_iteration import Outcome, PlannedIteration
from semu.searcher.planner.planner import Planner
from semu.searcher.planner.training_loop import IterationRow, train
from semu.searcher.planner.training_report import TrainingReport
from semu.searcher.problem.search_problem import SearchProblem
from semu.simulation import JobCheckpoint
from semu.workload import Microbatch, listed_batch

PATIENCE_S = 60.0
"""Longer than anything here takes."""


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


@pytest.mark.parametrize(("make", "stream"), MODELS)
def test_the_loop_compares_and_counts(make: Any, stream: Any) -> None:
    rows: list[IterationRow] = []
    with Planner(make(), stream(5), rollouts=20) as planner:
        train(planner, 3, has_deadline=False, tell=rows.append)
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
        assert row.fits
        assert row.trained_s == row.planned_s
    report = TrainingReport("tiny", rows, 3, "iterations", True, 1)
    assert report.hit_rate == 1.0
    assert report.gain("megatron_s") == sum(row.megatron_s or 0 for row in rows) / sum(
        row.planned_s or 0 for row in rows
    )
    assert "3 planned" in repr(report)


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

        def endless(begun: Any, default: Any, level: Any, budget: Any, keep: Any = None) -> Any:
            result, tight, best = inner(begun, default, level, budget, None)
            if best.makespan_s < default.makespan_s:
                keep(tight, best)
                told.set()
                while not budget.stop():
                    threading.Event().wait(0.001)
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


def test_a_deadline_ends_a_search() -> None:
    with Planner(vision_job(), vision_stream(2), time_s=1000.0, deadline_s=0.5, patience_s=None) as planner:
        steps = list(planner)
    assert [
        step.outcome in (Outcome.BEST_SO_FAR, Outcome.HEURISTIC, Outcome.FALLBACK) or step.ended_by == "bound"
        for step in steps
    ] == [True, True]
    for step in steps:
        is_legal(step)


@pytest.mark.parametrize(("step", "outcome"), [("prepared", Outcome.FALLBACK), ("search", Outcome.HEURISTIC)])
@pytest.mark.parametrize("error", [RuntimeError("disk on fire"), MemoryLimitError("too full", where="rank 1")])
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

        def raising(job: Any) -> Any:
            calls.append(0)
            if len(calls) == 2:
                raise RuntimeError("disk on fire")
            return inner(job)

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
