"""``semu.search``: options of another type, and Ctrl-C at any moment once there is a schedule."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from simulation.jobs import job_of, overlap, vlm, vlm_items

import semu
import semu.searcher.job_search as whole
from semu.errors import ConfigError, MemoryLimitError, ScheduleError
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.schedule.stage_plan import StagePlan
from semu.searcher import fit
from semu.searcher.orders import levels
from semu.simulation import simulate


def small_job() -> TrainingJob:
    return job_of(vlm(layers=4), vlm_items(3, seed=3), Parallel(pp=2), overlap=overlap(pipeline=True))


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"rollouts": 2.5}, "rollouts"),
        ({"rollouts": "5"}, "rollouts"),
        ({"rollouts": True}, "rollouts"),
        ({"time_s": "3"}, "time_s"),
        ({"time_s": float("nan")}, "time_s"),
        ({"workers": 1.5}, "workers"),
        ({"workers": 1025}, "workers"),
        ({"strategy": None}, "strategy"),
        ({"objective": 3}, "objective"),
        ({"candidates": 2.5}, "candidates"),
        ({"sub_batch": {"vit": 2**31}}, "sub_batch.vit"),
        ({"segments": {3: 1}}, "segments.3"),
    ],
)
def test_options_of_another_type_are_named(options: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        semu.search(small_job(), **{"rollouts": 1, **options})
    assert caught.value.where == where


def is_heuristic(found: semu.searcher.report.SearchReport) -> bool:
    assert simulate(found.job, plan=found.plan).iteration_time_s == found.report.iteration_time_s
    return found.report.iteration_time_s == found.default.iteration_time_s


@pytest.mark.parametrize("at", ["search_levels", "search_problem"])
def test_an_interrupt_leaves_the_heuristic(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The heuristic's schedule is there; then Ctrl-C comes, while kernels are compiled or before a first round."""

    def stopped(*arguments: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(whole, at, stopped)
    found = semu.search(small_job(), rollouts=50, seed=4, strategy="local")
    assert is_heuristic(found)
    assert (found.result.ended_by, found.result.seed, found.result.strategy) == ("interrupt", 4, "local")
    assert not found.result.is_reproducible
    assert "interrupted: not reproducible" in " ".join(repr(found).split())


def test_an_interrupt_while_other_cuts_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The heuristic's schedule of the first cut is there; Megatron-LM's is not simulated to its end."""

    def stopped(*arguments: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(whole, "baseline_starts", stopped)
    found = semu.search(small_job(), rollouts=50)
    assert is_heuristic(found)
    assert found.result.ended_by == "interrupt"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", [2, 4, 5])
def test_an_interrupt_between_levels(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the levels before found is kept."""
    inner, calls = levels.search_problem, []

    def stopped(*arguments: Any, **options: Any) -> Any:
        calls.append(number)
        if len(calls) == number:
            raise KeyboardInterrupt
        return inner(*arguments, **options)

    job = small_job()
    limit = max(semu.search(job, rollouts=0).report.peak_memory_bytes)
    problem = whole.job_problem(whole.plain_job(job)[0], memory_limit_bytes=limit)[1].problem
    monkeypatch.setattr(levels, "search_problem", stopped)
    found = levels.search_levels(problem, levels.Budget(rollouts=100))
    assert len(calls) == number
    assert found.ended_by == "interrupt"
    assert not found.is_reproducible
    assert found.solution.makespan_s <= found.default.makespan_s


def test_an_interrupted_search_whose_schedule_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not begun again: the heuristic's schedule, which fits, is what there is."""
    inner, calls = whole.search_levels, []

    def stopped(*arguments: Any, **options: Any) -> Any:
        calls.append(0)
        return whole.replace(inner(*arguments, **options), ended_by="interrupt")

    fits, asked = fit.fitted, []

    def fitted(*arguments: Any) -> Any:
        if calls and not asked:
            asked.append(0)
            raise MemoryLimitError("too full")
        return fits(*arguments)

    monkeypatch.setattr(whole, "search_levels", stopped)
    monkeypatch.setattr(fit, "fitted", fitted)
    found = semu.search(small_job(), rollouts=50)
    assert len(calls) == len(asked) == 1
    assert is_heuristic(found)
    assert found.result.ended_by == "interrupt"


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "[" * 100_000, '{"format": ' + "9" * 5000 + "}", '{"format": "other"}']
)
def test_a_file_that_is_no_schedule(text: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        StagePlan.from_json(text)
    assert caught.value.exit_code == 4
    assert caught.value.where == "schedule.json"


def test_a_damaged_schedule_never_counts_as_a_defect(tmp_path: Path) -> None:
    """Whatever single entry of it is gone or of another kind: refused by name, or a schedule that runs."""
    job = small_job()
    found = semu.search(job, rollouts=4)
    table = json.loads(found.plan.to_json())
    random = Random(5)
    refused = 0
    for _ in range(120):
        damaged = json.loads(json.dumps(table))
        at: Any = damaged
        while True:
            keys = sorted(at) if isinstance(at, dict) else list(range(len(at)))
            key = random.choice(keys)
            if not isinstance(at[key], dict | list) or not at[key] or random.random() < 0.3:
                break
            at = at[key]
        if random.random() < 0.3:
            del at[key]
        else:
            at[key] = random.choice([None, -1, 0, 1.5, "x", [], {}, 10**30, True, float("inf")])
        path = tmp_path / "schedule.json"
        path.write_text(json.dumps(damaged))
        try:
            report = simulate(replace(job, training=replace(job.training, schedule_file=str(path))))
        except (ScheduleError, ConfigError) as error:
            assert error.where
            refused += 1
        else:
            assert report.iteration_time_s > 0
    assert refused > 60
