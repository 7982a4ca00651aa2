"""Pages in Chromium: size, load, and frames while a timeline of 100,000 boxes is zoomed and panned.

Needs Chromium, chromedriver and selenium (extra ``browser``); without them only sizes are printed. ``--quick``: vlm-l
and a timeline of 20,000 boxes.

    python benchmarks/pages.py [--quick] [--json]
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT))

from _rows import Row, print_rows

import semu

MB = 1e6
FRAMES = 120
"""Frames of a journey over a timeline."""
LOADS = 5
_MOVE = """
    const done = arguments[arguments.length - 1], chart = window.semu.chart0, [kind, count] = arguments;
    const work = [], beats = [];
    let left = count, last = performance.now();
    chart.show(0, chart.endS);
    const paint = chart.paint.bind(chart);
    chart.paint = () => { const begin = performance.now(); paint(); work.push(performance.now() - begin); };
    const step = (now) => {
        beats.push(now - last);
        last = now;
        if (left-- === 0) { delete chart.paint; done({work, beats: beats.slice(1)}); return; }
        if (kind === "zoom") chart.zoom(left % 24 < 12 ? 0.8 : 1.25, chart.endS * 0.4);
        else {
            const span = chart.endS * 0.5, at = (chart.endS - span) * (left / count);
            chart.show(at, at + span);
        }
        requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
"""


def start() -> Any:
    """A headless Chromium; None: there is none."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    try:
        from selenium import webdriver
    except ImportError:
        return None
    if binary is None or driver is None:
        return None
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
    ):
        options.add_argument(flag)
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    found.set_window_size(1300, 1000)
    found.set_script_timeout(600)
    return found


def load_s(browser: Any, path: Path) -> float:
    """Seconds from the beginning of the navigation until all charts are drawn."""
    browser.get(path.as_uri())
    deadline = time.monotonic() + 60
    while browser.execute_script("return document.body.dataset.ready") != "yes":
        if time.monotonic() > deadline:
            raise TimeoutError(path)
        time.sleep(0.01)
    return float(browser.execute_script("return window.semu.readyMs")) / 1e3


def measure(is_quick: bool) -> Iterator[Row]:
    """Sizes and loads of pages, then frames."""
    where = f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}"
    browser = start()
    boxes = 20_000 if is_quick else 100_000
    many = (f"training.global_batch={boxes // 8}", "training.recompute=full")
    runs: list[tuple[str, str, tuple[str, ...], float]] = [("vlm-l", "vlm-l", (), 3.0)]
    if not is_quick:
        runs.append(("vlm-xl-16k", "vlm-xl-16k", (), 10.0))
    runs.append((f"{boxes:,} boxes", "lm-7b", many, 10.0))
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name, run, overrides, most in runs:
                report = semu.simulate(run, overrides=overrides)
                begin = time.perf_counter()
                path = report.page().save(Path(folder) / "page.html")
                yield Row(f"{name}: making the page", time.perf_counter() - begin, "s", where)
                size = path.stat().st_size / MB
                yield Row(f"{name}: size", size, "MB", "the file", f"<= {most:g}", size <= most)
                if browser is None:
                    continue
                loads = [load_s(browser, path) for _ in range(LOADS)]
                median = statistics.median(loads)
                yield Row(f"{name}: load until drawn", median, "s", f"median of {LOADS}, Chromium", "<= 1", median <= 1)
            if browser is None:
                return
            for kind in ("zoom", "pan"):
                found = browser.execute_async_script(_MOVE, kind, FRAMES)
                beats, work = sorted(found["beats"]), sorted(found["work"])
                rate = 1e3 / statistics.fmean(beats)
                said = f"{FRAMES} frames without a GPU, {where}"
                yield Row(f"{boxes:,} boxes: {kind}, frames a second", rate, "1/s", said, ">= 57", rate >= 57)
                late = work[int(0.95 * len(work))]
                yield Row(f"{boxes:,} boxes: {kind}, drawing at p95", late, "ms", said, "<= 16.7", late <= 16.7)
    finally:
        if browser is not None:
            browser.quit()


if __name__ == "__main__":
    print_rows(__doc__, measure)
