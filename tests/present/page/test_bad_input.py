"""Pages of what is broken or extreme: damaged results, long and right-to-left names, no microbatch, many stages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from present.page.test_page import Read, Tags  # type: ignore[import-not-found]

import semu
from semu.cli import main
from semu.engine.timeline import IterationTimeline, RankTimeline
from semu.present.page import Page, timelines
from semu.present.page.results import add_timelines
from semu.present.report import Report


@pytest.fixture(scope="module")
def report() -> Report:
    return semu.simulate("lm-7b")


@pytest.fixture
def result(report: Report, tmp_path: Path) -> Path:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(report.to_json()))
    return path


def refused(words: Sequence[str], capsys: pytest.CaptureFixture[str], code: int = 2) -> dict[str, Any]:
    assert main([*words, "--json"]) == code
    error: dict[str, Any] = json.loads(capsys.readouterr().out)["error"]
    return error


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_truncated_result(result: Path, share: float, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The file is named, and no page is left behind."""
    text, page = result.read_text(), tmp_path / "page.html"
    broken = tmp_path / "broken.json"
    broken.write_text(text[: int(share * len(text))])
    error = refused(["compare", str(broken), str(result), "--html", str(page)], capsys)
    assert "broken.json" in error["where"] and not page.exists()


@pytest.mark.parametrize("version", [0, 2, "old", None])
def test_a_result_of_another_version(result: Path, version: object, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused with both versions."""
    document = json.loads(result.read_text())
    other = result.with_name("other.json")
    other.write_text(json.dumps({**document, "schema_version": version}))
    error = refused(["compare", str(result), str(other)], capsys)
    assert error["where"].endswith("schema_version") and str(error["got"]) == str(version)
    assert error["expected"].startswith(str(document["schema_version"]))


@pytest.mark.parametrize("damage", ["truncated", "later", "never was"])
def test_a_plan_of_another_version(damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``semu plan --show``, the other page of a file of semu's own: refused with both versions, and no page."""
    file, page = tmp_path / "plan.json", tmp_path / "page.html"
    assert main(["plan", "lm-7b", "--set", "training.global_batch=4", "--schedule", "gpipe", "-o", str(file)]) == 0
    capsys.readouterr()
    text = file.read_text()
    versions = {"later": "semu plan 2", "never was": "semu plan 0"}
    if damage in versions:
        file.write_text(text.replace("semu plan 1", versions[damage], 1))
    else:
        file.write_text(text[: len(text) // 2])
    error = refused(["plan", "--show", str(file), "--html", str(page)], capsys, 4)
    assert "plan.json" in error["where"] and not page.exists()
    if damage in versions:
        assert (error["expected"], error["got"]) == ("semu plan 1", versions[damage]) and damage in error["message"]


def test_long_and_right_to_left_names(report: Report) -> None:
    """A name of a thousand characters is cut in tables and whole in its tooltip; directions stay within their cell."""
    for name in ("m" * 1000, "\u05e9\u05dc\u05d5\u05dd \u202e" * 60):
        row = replace(report.top_operators[0], path=name)
        html = replace(report, title=name, top_operators=(row,)).to_html()
        found = Tags()
        found.feed(html)
        assert ("title", name) in found.attributes
        assert f"<td title='{name}'>{name[:200]}&hellip;</td>" in html
    assert "unicode-bidi: isolate" in html


def test_no_microbatch(report: Report) -> None:
    """Ranks without any stage have rows, and nothing divides by zero."""
    empty = [replace(rank, stages=(), outer=()) for rank in report.timeline.ranks]
    page = Page("empty")
    add_timelines(page, [("empty", IterationTimeline(tuple(empty), 0.0, 0.0))])
    run = Read(page.to_html()).charts["chart0"]["runs"][0]
    assert len(run["ranks"]) == len(empty) and run["stages"]["start"]["n"] == 0 and run["critical"]["row"]["n"] == 0


def test_a_million_stages(report: Report) -> None:
    """Ranks are left out until at most as many as a page shows are left, and the page says so."""
    first = report.timeline.ranks[0]
    stages = tuple(first.stages[0] for _ in range(10_000))
    ranks: list[RankTimeline] = [replace(first, rank=number, stages=stages) for number in range(100)]
    timeline = IterationTimeline(tuple(ranks), report.iteration_time_s, report.timeline.makespan_s)
    assert timelines.left_out(timeline) == "20 of 100 ranks are shown"
    kept = timelines._kept(timeline)
    assert len(kept) * len(stages) <= timelines.MOST_STAGES
    alone = IterationTimeline((replace(first, stages=stages * 100),), report.iteration_time_s, 1.0)
    assert timelines.left_out(alone) == "the first 200,000 stages of every rank are shown"
    assert np.array_equal([*timelines._kept(alone)], [0])
