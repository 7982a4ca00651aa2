"""What notebooks show: small static tables, and figures of a report."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

import semu
from semu.engine.timeline import IterationTimeline
from semu.frames import Tabular
from semu.present.report import Report
from semu.present.summary import seconds_of_parts
from semu.schedule.schedule import Schedule

EVIL = "<script>alert(1)</script>\u202eabc" + "x" * 1000


@pytest.fixture(scope="module", params=["lm-7b", "vlm-s"])
def report(request: pytest.FixtureRequest) -> Report:
    return semu.simulate(request.param)


def is_static(html: str) -> bool:
    """Only a table, no script, no attribute but its alignment."""
    tags = set(re.findall(r"<(\w+)", html))
    return (
        tags <= {"table", "caption", "tr", "th", "td"}
        and len(html) < 50_000
        and "on" not in re.findall(r" (on)\w+=", html)
    )


def test_report_and_timeline(report: Report) -> None:
    html = replace(report, title=EVIL)._repr_html_()
    assert is_static(html) and "&lt;script&gt;" in html and "x" * 300 not in html
    html = report.timeline._repr_html_()
    assert is_static(html) and f"bubble {report.bubble_ratio:.1%}" in html
    assert html.count("<tr>") == 1 + len(report.timeline.ranks)
    idle = tuple(replace(rank, stages=()) for rank in report.timeline.ranks)
    empty = IterationTimeline(idle, report.iteration_time_s, 0.0)._repr_html_()
    assert is_static(empty) and empty.count(">0.0%<") == len(idle)
    assert len(repr(report.timeline)) < 200 and f"on {len(report.timeline.ranks)} ranks" in repr(report.timeline)


def test_schedule() -> None:
    text = "\n".join(" ".join(f"0F{m} 0B{m}" for m in range(500)) for _ in range(40))
    html = Schedule.from_text(text, EVIL)._repr_html_()
    assert is_static(html) and "0F0 0B0 0F1" in html and "(976 more)" in html
    html = Schedule.from_text(text, "mine")._repr_html_()
    assert "mine; 24 further ranks" in html and html.count("<tr>") == 17
    assert "empty" in Schedule.from_text("", "empty")._repr_html_()


class Many(Tabular):
    """Ten thousand records."""

    def to_dicts(self) -> list[dict[str, Any]]:
        return [{"number": number, "name": EVIL} for number in range(10_000)]


def test_results_are_bounded() -> None:
    """Of ten thousand rows sixty are shown, which is said; all are in the frame."""
    html = Many()._repr_html_()
    assert is_static(html) and html.count("<tr>") == 61 and "the first 60 of 10,000 rows" in html


@pytest.mark.extras
def test_frames() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = Many().to_pandas()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == 10_000


def test_figures(report: Report) -> None:
    """Bars add up to the iteration; the others have a panel for what they show."""
    figure = report.plot.breakdown()
    widths = sorted(bar.get_width() for bar in figure.axes[0].patches)
    assert widths == pytest.approx(sorted(time for _, time in seconds_of_parts(report.breakdown_s)))
    assert sum(widths) == pytest.approx(report.iteration_time_s, rel=1e-6)
    assert len(report.plot.memory().axes) >= min(8, len(report.timeline.ranks))
    assert report.plot.timeline().axes[0].get_xlim()[1] == pytest.approx(report.iteration_time_s)
    shown = pickle.loads(pickle.dumps(figure))._repr_png_()
    assert shown.startswith(b"\x89PNG") and shown == figure._repr_png_(), "a cell shows it without pyplot"


def test_matplotlib_waits() -> None:
    """``report.plot`` alone imports nothing of it."""
    code = "import sys, semu; r = semu.simulate('lm-7b'); r.plot; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
