"""Pages of validations and context ranks in a real browser: dots and squares say what they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semu.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.browser]


def test_squares_say_whose_they_are(opened: Callable[[Path], Any], tmp_path: Path) -> None:
    """Under a contiguous policy the last queries are the last rank's; above the diagonal is nothing."""
    path = tmp_path / "page.html"
    run = ["llama3-8b", "--cluster", "h100:2x8", "--parallel", "tp4-cp4", "--set", "training.seq_len=8192"]
    assert main(["context", *run, "--policies", "contiguous,lpt", "--html", str(path)]) == 0
    driver = opened(path)
    point = """
        const m = window.semu.chart0, {wide, tall} = m.sizes(), box = m.canvas.getBoundingClientRect();
        m.canvas.dispatchEvent(new PointerEvent('pointermove', {bubbles: true,
            clientX: box.left + LEFT + (arguments[1] + 0.5) * wide, clientY: box.top + (arguments[0] + 0.5) * tall}));
        return m.said.textContent;
    """
    assert driver.execute_script(point, 63, 2) == "queries 63, keys 2: rank 3"
    assert driver.execute_script(point, 63, 63) == "queries 63, keys 63: part of it, rank 3"
    assert driver.execute_script(point, 2, 63) == "queries 2, keys 63: nothing"


def test_dots_of_a_validation(
    opened: Callable[[Path], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As many dots as scored rows; a click says which row it is and how far it is off."""
    path = tmp_path / "page.html"
    assert main(["validate", "--group", "h100", "--json", "--html", str(path)]) == 0
    rows = [row for row in json.loads(capsys.readouterr().out)["rows"] if row["scored"]]
    driver = opened(path)
    click = """
        const s = window.semu.chart0, r = devicePixelRatio || 1, [x, y] = s.dots[0], box = s.plot.bbox;
        s.pick({offsetX: (x - box.left) / r, offsetY: (y - box.top) / r});
        return [s.kept.length, s.picked.textContent];
    """
    count, said = driver.execute_script(click)
    assert count == len(rows)
    named = next(row for row in rows if row["id"] == said.split("\n")[0])
    assert f"{named['time_error_percent']:+.1f} %" in said


def test_a_page_is_ready_when_its_charts_are_drawn(
    opened: Callable[[Path], Any], browser: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asked in the moment in which the page says so: a program that waits for it may click at once."""
    path = tmp_path / "page.html"
    assert main(["validate", "--group", "h100", "--html", str(path)]) == 0
    capsys.readouterr()
    asked = """
        document.addEventListener('DOMContentLoaded', () => new MutationObserver(() => {
            window.drawnWhenReady = (window.semu.chart0.dots || []).length;
        }).observe(document.body, {attributeFilter: ['data-ready']}));
    """
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": asked})
    opened(path)
    browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
    drawn, kept = browser.execute_script("return [window.drawnWhenReady, window.semu.chart0.kept.length]")
    assert drawn == kept > 0
