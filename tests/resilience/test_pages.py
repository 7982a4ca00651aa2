"""Pages of long runs and of pipeline templates: their numbers are those of the reports."""

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
from semu.cli.command import main
from semu.resilience.accounts import Account
from semu.resilience.pages import goodput_page, templates_page
from semu.resilience.pictures import goodput_picture
from semu.resilience.report import GoodputReport

WORDS = ["parallel.zero=0", "training.recompute=full", "training.global_batch=32"]


def unpacked(html: str, name: str) -> bytes:
    found = re.search(rf"<script type=text/plain id={name}>([^<]*)</script>", html)
    assert found is not None
    return zlib.decompress(base64.b64decode(found[1]))


class Tables(HTMLParser):
    """Rows of all tables, as text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._is_cell = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._is_cell = True
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._is_cell = self._is_cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._is_cell:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module", params=["lm-7b", "qwen3-4b"])
def report(request: pytest.FixtureRequest) -> GoodputReport:
    return semu.goodput(
        request.param,
        WORDS,
        cluster="h100:5x1",
        parallel="pp5",
        failures="2h",
        strategies=("checkpoint", "spares", "oobleck"),
        days=1,
        seeds=2,
        tokens=1e9,
        gpu_hour_usd=2.0,
        against_mtbf=True,
    )


@pytest.mark.sampled(2)
def test_numbers_of_a_long_run(report: GoodputReport) -> None:
    html = goodput_page(report).to_html()
    assert html == report.page().to_html()  # the same bytes
    rows = Tables(html).rows
    charts = json.loads(unpacked(html, "data"))
    raw = unpacked(html, "arrays")

    def of(place: dict[str, Any]) -> np.ndarray[Any, Any]:
        return np.frombuffer(raw, "<" + place["type"], place["n"], place["at"])

    for one in report.strategies:
        assert [len(each.log) > 0 for each in one.outcomes] == [True, False], "the first run's curve is drawn"
        table = [row for row in rows if row and row[0] == one.name]
        usd = one.budget(1e9, 2.0)["usd"]
        assert any(row[1] == f"{100 * one.goodput:.1f}" and f"{usd:,.0f}" in row for row in table)
        hours = next(row for row in table if len(row) == len(Account) + 2)
        outcome = one.outcomes[0]
        assert float(hours[-1].replace(",", "")) == pytest.approx(24.0 * outcome.gpus, abs=0.06)
        assert sum(float(cell.replace(",", "")) for cell in hours[1:-1]) == pytest.approx(24.0 * outcome.gpus, abs=0.6)
    assert f"<dt>cost</dt><dd>{report.best.budget(1e9, 2.0)['usd']:.2f} USD</dd>" in html
    assert "<dt>cost</dt>" not in goodput_page(replace(report, gpu_hour_usd=None)).to_html()
    speed, nodes, against = (charts[f"chart{k}"] for k in range(3))
    for picture, drawn, alive in zip(goodput_picture(report).curves, speed["series"], nodes["series"], strict=True):
        assert drawn["name"] == alive["name"] == picture.name
        assert of(drawn["of"])[:-1].tolist() == picture.speed.tolist()
        assert of(alive["of"])[:-1].tolist() == picture.nodes.tolist()
        assert of(speed["x"]["of"]).tolist() == picture.days.tolist()
    assert against["x"]["isLog"]
    for line in against["series"]:
        points = report.against_mtbf[line["name"]]
        assert of(line["of"]).tolist() == [goodput for _, goodput in points]
        assert of(against["x"]["of"]) == pytest.approx([mtbf / 3600 for mtbf, _ in points])
    stacks = re.findall(r"<td class='track stack'>(.*?)</td>", html)
    for stack, one in zip(stacks, report.strategies, strict=True):
        widths = [float(width) for width in re.findall(r"width:([0-9.]+)%", stack)]
        assert sum(widths) == pytest.approx(100.0, abs=0.01)
        assert f"{one.shares()[Account.USEFUL]:.2%}" in stack


@pytest.mark.slow
def test_templates_and_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["lm-7b", "--cluster", "h100:5x1", "--parallel", "pp5", *(f"--set={word}" for word in WORDS)]
    where = tmp_path / "page.html"
    assert main(["templates", *words, "--nodes", "5", "--out", str(tmp_path), "--html", str(where), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    html = where.read_text()
    assert (tmp_path / "report.html").read_text() == html
    rows = Tables(html).rows
    for one in found["templates"]:
        assert any(row[0] == str(one["nodes"]) and f"{one['period_s']:,.4f}" in row for row in rows if row)
    for one in found["simulated"]["pipelines"]:
        assert any(str(one["microbatches"]) in row and f"{one['makespan_s']:,.4f}" in row for row in rows)
    runs = json.loads(unpacked(html, "data"))["chart0"]["runs"]
    assert len(runs) == len(found["simulated"]["pipelines"])
    alone = semu.pipeline_templates(semu.load_run("lm-7b", WORDS, cluster="h100:5x1", parallel="pp5"))
    assert "Templates" in templates_page(alone, None, None).to_html()
    assert main(["goodput", *words, "--strategy", "oobleck", "--days", "0.1", "--html", str(where)]) == 0
    assert "Goodput against the time between failures" in where.read_text()
    assert main(["goodput", *words, "--days", "0.1", "--html", str(tmp_path / "no" / "page.html")]) == 2


def test_no_progress_is_a_result_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A failure a second, restarts of ten minutes: text, document and page say zero and why."""
    where = tmp_path / "page.html"
    words = ["goodput", "qwen2.5-0.5b", "--cluster", "h100:2x1", "--mtbf", "1s", "--strategy", "checkpoint,spares"]
    more = ["--set", "resilience.days=0.01", "--set", "resilience.seeds=2", "--html", str(where)]
    assert main([*words, *more]) == 0
    said = capsys.readouterr().out
    assert "0.0%" in said and said.count("no work outlives the next failure") == 2
    assert "no work outlives the next failure" in where.read_text()
