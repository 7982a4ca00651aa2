"""The file itself, read without a browser: what it carries, what it escapes, what it leaves out."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semu
from semu.present.page import Column, Page, timelines
from semu.present.report import Report
from semu.simulation.memory.ranks import RankMemory
from semu.units import GIB

TYPES = {"f8": "<f8", "f4": "<f4", "u4": "<u4", "u2": "<u2", "u1": "u1"}


def unpacked(html: str, name: str) -> bytes:
    found = re.search(rf"<script type=text/plain id={name}>([^<]*)</script>", html)
    assert found is not None
    return zlib.decompress(base64.b64decode(found[1]))


class Read:
    """What a browser finds in a page."""

    def __init__(self, html: str) -> None:
        self.charts: dict[str, Any] = json.loads(unpacked(html, "data"))
        self._raw = unpacked(html, "arrays")

    def of(self, place: dict[str, Any]) -> np.ndarray[Any, Any]:
        return np.frombuffer(self._raw, TYPES[place["type"]], place["n"], place["at"])


@pytest.fixture(scope="module", params=["lm-7b", "vlm-s"])
def report(request: pytest.FixtureRequest) -> Report:
    return semu.simulate(request.param)


def test_arrays_are_the_timeline(report: Report) -> None:
    """Stages, transfers and the critical path, value for value."""
    read = Read(report.to_html())
    run = read.charts["chart0"]["runs"][0]
    stages, timeline = run["stages"], report.timeline
    every = [stage for rank in timeline.ranks for stage in rank.stages]
    assert read.of(stages["start"]).tolist() == [stage.start_s for stage in every]
    assert np.allclose(read.of(stages["lasted"]), [stage.end_s - stage.start_s for stage in every], rtol=1e-6)
    assert [run["texts"][number] for number in read.of(stages["label"])] == [stage.label for stage in every]
    assert read.of(stages["microbatch"]).tolist() == [stage.microbatch for stage in every]
    kinds = [stages["kinds"][number]["module"] for number in read.of(stages["kind"])]
    assert kinds == [stage.module for stage in every]
    assert np.diff(read.of(stages["first"])).tolist() == [len(rank.stages) for rank in timeline.ranks]
    outer = [piece.start_s for rank in timeline.ranks for piece in rank.outer]
    assert read.of(run["outer"]["start"]).tolist() == outer
    path = read.of(run["critical"]["start"]), read.of(run["critical"]["lasted"])
    ends = path[0] + path[1]
    assert ends[-1] == pytest.approx(report.iteration_time_s, rel=1e-5)
    assert np.allclose(ends[:-1], path[0][1:], rtol=1e-5), "each piece begins when the one before ends"


def test_waits_are_idle_time(report: Report) -> None:
    """A stage has a reason exactly where its rank stood idle before it."""
    read = Read(report.to_html())
    run = read.charts["chart0"]["runs"][0]
    waits, expected = read.of(run["stages"]["wait"]), []
    for rank in report.timeline.ranks:
        before = 0.0
        for stage in rank.stages:
            expected.append(stage.start_s > before)
            before = stage.end_s
    assert (waits > 0).tolist() == expected
    assert any(run["texts"][number].startswith("waited for send") for number in waits)


def test_memory_is_the_curve(report: Report) -> None:
    """Of every rank the peak, and the highest allocation of each part of the iteration."""
    read = Read(report.to_html())
    for rank, table in zip(report.timeline.ranks, read.charts["chart0"]["runs"][0]["memory"], strict=True):
        total = sum(read.of(place).astype(float) for place in table["byRole"])
        assert table["peak"]["GiB"] * GIB == pytest.approx(rank.peak.size_bytes)
        assert total.max() * GIB == pytest.approx(rank.peak.size_bytes, rel=1e-6)
        times, points = rank.memory.times_s, table["points"]
        for part in (0, points // 3, points - 1):
            low, high = (report.iteration_time_s * (part + side) / points for side in (0, 1))
            inside = (times < high) & (np.append(times[1:], np.inf) > low)
            assert total[part] * GIB == pytest.approx(rank.memory.total[inside].max(), rel=1e-5)


def test_no_whole_curve_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100,000 stages they would take gigabytes."""
    report = semu.simulate("lm-7b")
    page = report.page().to_html()
    monkeypatch.setattr(RankMemory, "curve", None)
    assert semu.simulate("lm-7b").page().to_html() == page


def test_the_same_bytes(report: Report, tmp_path: Path) -> None:
    report.page().save(tmp_path / "one.html")
    semu.simulate(report.title.split(" on ")[0]).page().save(tmp_path / "other.html")
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "other.html").read_bytes()


class Tags(HTMLParser):
    """The elements of a page, and the text outside scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts = 0
        self.words = ""
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] not in ("script", "style"):
            self.words += data


EVIL = "</script><script>document.title='hurt'</script><img src=x onerror=alert(1)>\"' &amp; \u202eabc"


def test_names_are_harmless(report: Report) -> None:
    """A title, a table and a chart full of HTML make no element and no attribute."""
    plain = Tags()
    plain.feed(report.to_html())
    page = replace(report, title=EVIL).page()
    page.add_table(EVIL, [{"key": EVIL}], [Column("key", EVIL)])
    page.add_list(EVIL, [EVIL])
    page.add_facts(EVIL, [(EVIL, EVIL)])
    page.add_bars(EVIL, [(EVIL, 1.0, EVIL)], EVIL)
    found = Tags()
    found.feed(page.to_html())
    assert found.tags.count("script") == plain.tags.count("script") and "img" not in found.tags
    assert not any(name.startswith("on") for name, _ in found.attributes)
    assert EVIL in found.words


def test_nothing_is_loaded(report: Report) -> None:
    """No address stands in an attribute, and a policy forbids requests."""
    found = Tags()
    found.feed(report.to_html())
    named = {name for name, _ in found.attributes}
    assert not named & {"src", "href", "srcset", "action", "background"}
    policy = next(value for name, value in found.attributes if name == "content" and value and "default-src" in value)
    assert "default-src 'none'" in policy and "connect-src" not in policy


def test_long_tables_say_so() -> None:
    page = Page("many")
    page.add_table("Rows", [{"n": number} for number in range(1200)], [Column("n", "n", 0)])
    html = page.to_html()
    assert "the first 500 of 1,200" in html and html.count("<tr>") == 501


def test_too_many_stages(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are left out, then stages that begin last, and both are said."""
    stages = sum(len(rank.stages) for rank in report.timeline.ranks)
    monkeypatch.setattr(timelines, "MOST_STAGES", stages // 2)
    html = report.to_html()
    ranks, count = Read(html).charts["chart0"]["runs"][0]["ranks"], len(report.timeline.ranks)
    assert ranks == list(range(0, count, 3 if stages % 2 else 2))
    assert f"{len(ranks)} of {count} ranks are shown" in html


def test_sizes() -> None:
    """vlm-l's page stays within 3 MB."""
    assert len(semu.simulate("vlm-l").to_html()) < 3_000_000
