"""Figures of a planned loop: of random rows, each against a plain loop over them; stalls and sleeps by a clock."""

from __future__ import annotations

import json
import random
import statistics
from typing import Any

import pytest

from semu.searcher.planner import training_loop
from semu.searcher.planner.page import loop_page
from semu.searcher.planner.planned_iteration import Outcome
from semu.searcher.planner.training_loop import IterationRow, train
from semu.searcher.planner.training_report import SHOWN, TrainingReport, measured_json, row_json, row_of_json


def row_of(index: int, draw: random.Random) -> IterationRow:
    def maybe() -> float | None:
        return draw.choice((None, draw.uniform(1.0, 2.0), draw.uniform(1.0, 2.0)))

    return IterationRow(
        index=index,
        microbatches=2,
        items={"text": draw.randint(1, 9), "vision": draw.randint(0, 9), "vision_tokens": 7},
        outcome=draw.choice(list(Outcome)),
        planned_s=maybe(),
        heuristic_s=maybe(),
        megatron_s=maybe(),
        fits=draw.choice((None, True, False)),
        peak_memory_bytes=draw.choice((None, 2**30)),
        latency_s=draw.uniform(0.5, 1.0),
        prepare_s=draw.uniform(0.1, 0.4),
        cpu_s=draw.uniform(0.5, 3.0),
        trained_s=draw.uniform(0.5, 2.0),
        stall_s=draw.choice((0.0, draw.uniform(0.0, 0.2))),
        rollouts=draw.randint(0, 9),
        moves=draw.randint(0, 9),
        ended_by=draw.choice(("", "time")),
        error=draw.choice((None, None, "broken")),
        alike_s=maybe(),
    )


def report_of(count: int, seed: int = 0, **options: Any) -> TrainingReport:
    draw = random.Random(f"{count}:{seed}")
    return TrainingReport("tiny", [row_of(k, draw) for k in range(count)], count + 1, "stream", False, 2, **options)


@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_figures_are_those_of_the_rows(count: int) -> None:
    report = report_of(count)
    rows, later = list(report.rows), list(report.rows)[1:]
    planned = [row for row in rows if row.outcome is Outcome.PLANNED]
    assert report.hit_rate == len(planned) / count
    assert sum(report.counts.values()) == count
    for name in ("megatron_s", "alike_s", "heuristic_s"):
        times, own = 0.0, 0.0
        for row in rows:
            if getattr(row, name) is not None and row.planned_s is not None:
                times, own = times + getattr(row, name), own + row.planned_s
        assert report.gain(name) == (pytest.approx(times / own) if own else None)
        known = [getattr(row, name) for row in rows if getattr(row, name) is not None]
        assert report.mean(name) == (pytest.approx(statistics.fmean(known)) if known else None)
    stalled, took = sum(row.stall_s for row in later), sum(row.latency_s for row in later)
    assert report.stall_s == pytest.approx(stalled)
    assert report.hidden_share == (pytest.approx((took - stalled) / took) if later else None)
    assert report.latency(50) == (pytest.approx(statistics.median([r.latency_s for r in later])) if later else None)
    assert report.latency(100, "cpu_s") == (max(row.cpu_s for row in later) if later else None)
    document = json.loads(json.dumps(report.to_json()))
    assert document["errors"] == sum(row.error == "broken" for row in rows)
    assert document["measured"]["first_plan_s"] == rows[0].stall_s
    assert [
        row_of_json({**a, **b}) for a, b in zip(document["rows"], document["measured"]["rows"], strict=True)
    ] == rows
    assert [row["index"] for row in report.to_dicts()] == list(range(count))
    for row in rows:
        assert row.gain == (None if None in (row.megatron_s, row.planned_s) else row.megatron_s / row.planned_s)
        assert row.gain_alike == (None if None in (row.alike_s, row.planned_s) else row.alike_s / row.planned_s)


def test_waiting_longer_than_planning_took_hides_nothing() -> None:
    draw = random.Random(3)
    rows = [row_of(k, draw) for k in range(3)]
    late = [IterationRow(**{**{n: getattr(r, n) for n in r.__dataclass_fields__}, "stall_s": 5.0}) for r in rows]
    assert TrainingReport("tiny", late, 3, "iterations", True, 1).hidden_share == 0.0
    none = TrainingReport("tiny", [], 3, "interrupt", True, 1)
    assert (none.hit_rate, none.hidden_share, none.gain("megatron_s"), none.mean("planned_s")) == (
        0.0,
        None,
        None,
        None,
    )
    assert repr(none) == "no iteration was trained; ended by interrupt"
    assert "tiny: a training loop" in loop_page(none).to_html()


@pytest.mark.parametrize("count", [SHOWN, SHOWN + 1, SHOWN + 9])
def test_the_table_shows_the_first_and_the_last(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    report = report_of(count, speed=2.0)
    head, *lines = repr(report).splitlines()
    assert head.split("  ")[0] == "iteration"
    last = next(number for number, line in enumerate(lines) if line.startswith(f"{count} of "))
    numbers = [line.split()[0] for line in lines[:last]]
    half = SHOWN // 2
    cut = [*range(half), "...", *range(count - half, count)]
    assert numbers == [str(one) for one in (range(count) if count <= SHOWN else cut)]
    text = " ".join(repr(report).split())
    assert f"{count} of {count + 1} iterations, ended by stream" in text
    assert "iterations went by 2 times as fast as simulated" in text
    assert f"before the first iteration training waited {report.rows[0].stall_s:.2f} s" in text
    errors = [row for row in report.rows if row.error]
    assert text.count(": broken") == min(len(errors), SHOWN)
    fallbacks = sum(row.outcome is Outcome.FALLBACK for row in report.rows)
    assert (f"{fallbacks} began before any plan" in text) == (fallbacks > 0)
    assert text.count("(does not fit)") == sum(report.rows[int(k)].fits is False for k in numbers if k != "...")


def test_many_errors_are_counted() -> None:
    report = report_of(60)
    errors = sum(row.error is not None for row in report.rows)
    assert errors > SHOWN + 1
    assert f"and {errors - SHOWN} more errors" in report.summary()


def test_the_page_has_a_column_for_each_stream_and_none_for_its_tokens() -> None:
    report = report_of(3)
    page = loop_page(report).to_html()
    for name in ("text", "vision", "Megatron-LM [s]", "waited [s]"):
        assert f'"{name}"' in page or f">{name}<" in page
    assert '"vision tokens"' not in page and ">vision tokens<" not in page
    assert "Iteration times" in page
    assert "Iteration times" not in loop_page(report_of(1)).to_html()


@pytest.mark.parametrize(
    ("name", "value"),
    [("latency_s", None), ("latency_s", "1"), ("stall_s", float("nan")), ("planned_s", float("inf")), ("error", 3),
     ("ended_by", None), ("items", [1]), ("items", {"text": None}), ("outcome", "guessed")],
)  # fmt: skip
def test_rows_of_other_things_are_refused(name: str, value: Any) -> None:
    row = row_of(0, random.Random(0))
    table = {**row_json(row), **measured_json(row)}
    assert row_of_json(table) == row
    with pytest.raises((KeyError, TypeError, ValueError)):
        row_of_json({**table, name: value})
    with pytest.raises((KeyError, TypeError, ValueError)):
        row_of_json({key: one for key, one in table.items() if key != "rollouts"})


@pytest.mark.parametrize("sleeps", [True, False])
@pytest.mark.parametrize("has_deadline", [True, False])
def test_stalls_and_sleeps_by_a_clock(sleeps: bool, has_deadline: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans take scripted times from when their planning begins; an iteration trains 1 s."""
    now, slept, waits, begun = [0.0], list[float](), list[float | None](), list[float | None]()
    plan_s = [3.0, 0.25, 1.5, 1.0]
    rows: list[Any] = []

    class Scripted:
        """As ``Planner``, with a plan that is there when its time is over."""

        def take(self, wait_s: float | None, *, hold: bool, is_simulated: bool) -> Any:
            assert hold and is_simulated
            waits.append(wait_s)
            if len(waits) > len(plan_s):
                return None
            now[0] += plan_s[len(waits) - 1]
            return len(waits) - 1

        def go_on(self, due_s: float | None) -> None:
            begun.append(due_s)

    class Row:
        trained_s = 1.0

        def __init__(self, stall_s: float) -> None:
            self.stall_s = stall_s

    monkeypatch.setattr(training_loop, "_row", lambda planner, step, stall, speed: Row(stall))

    def sleep(time_s: float) -> None:
        slept.append(time_s)
        now[0] += time_s

    train(
        Scripted(),
        9,
        sleeps=sleeps,
        has_deadline=has_deadline,
        tell=rows.append,
        sleep=sleep,
        clock=lambda: now[0],
    )
    assert [row.stall_s for row in rows] == [3.0, 0.0, 0.5, 0.0]
    assert slept == ([0.75] if sleeps else [])
    assert waits == ([None, 1.0, 1.0, 1.0, 1.0] if has_deadline else [None] * 5)
    assert begun == ([1.0] * 4 if has_deadline else [None] * 4)
