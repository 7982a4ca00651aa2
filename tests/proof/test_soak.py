"""Slices of ``make soak``, and that it notices what it is there for."""

from __future__ import annotations

import os

import pytest

from semu.searcher.planner.planned_iteration import Outcome
from tests.proof.soak import GROWTH_BYTES, Soaked, forked, outcome, soak_evaluate, soak_planner, soak_threads

SEED = int(os.environ.get("SEMU_SOAK_SEED", "1"))


@pytest.mark.slow
def test_jobs_of_all_kinds_in_one_process() -> None:
    done = soak_evaluate(24, SEED, sampled=8)
    assert done.faults == []
    assert done.counts["Estimate"] > 6  # the others are refused by name
    assert (done.counts["equal alone"], done.counts["equal in the opposite order"]) == (3, 24)
    assert sum(done.counts.values()) == 51


def test_an_answer_in_a_process_of_its_own() -> None:
    marks = ["mine"]

    def _works() -> str:
        marks.append("another's")
        return " ".join(marks)

    assert forked(_works) == "mine another's"
    assert marks == ["mine"]
    assert forked(lambda: os._exit(3)).startswith("fault")
    assert forked(lambda: str(1 / 0)).startswith("fault")


@pytest.mark.slow
def test_an_answer_that_depends_on_what_was_asked_before_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here every job is said to be the number of jobs before it; the other process says what it is."""
    asked: list[int] = []

    def _before(_: int, number: int, __: object) -> str:
        asked.append(number)
        return f"Estimate({len(asked)})"

    monkeypatch.setattr("tests.proof.soak.outcome", _before)
    done = soak_evaluate(2, SEED, sampled=1)
    assert len(done.faults) == 4  # each alone, and each in the opposite order


@pytest.mark.slow
def test_a_planner_under_drift() -> None:
    done = soak_planner(8, SEED)
    assert done.faults == []
    assert sum(done.counts.values()) == 8
    assert {*done.counts} <= {outcome.value for outcome in Outcome}


@pytest.mark.slow
def test_searches_among_threads() -> None:
    assert soak_threads(2, SEED).faults == []


def test_growth_is_a_fault() -> None:
    flat, grown = Soaked(), Soaked()
    for number in range(30):
        flat.memory.append((number, 100))
        grown.memory.append((number, 100 + number * GROWTH_BYTES // 10))
    assert flat.judge().faults == []
    assert len(grown.judge().faults) == 1
    early = Soaked(memory=[(number, min(number, 5) * GROWTH_BYTES) for number in range(30)])
    assert early.judge().faults == []  # what is kept of every kind of job is there before long


def test_a_job_is_the_same_whenever_it_is_drawn(tmp_path_factory: pytest.TempPathFactory) -> None:
    one, other = (tmp_path_factory.mktemp("jobs") for _ in range(2))
    said = [outcome(3, number, one) for number in range(4)]
    assert said == [outcome(3, number, other) for number in range(4)]
    assert len({*said}) > 1
