"""Pages in a real browser, without a network: what people do with them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import semu
from semu.cli import main
from semu.present.report import Report

pytestmark = [pytest.mark.slow, pytest.mark.browser]

Opened = Callable[[Path], Any]
TIMELINE = "window.semu.chart0"


@pytest.fixture(scope="module")
def report() -> Report:
    return semu.simulate("vlm-s")


@pytest.fixture
def page(report: Report, tmp_path: Path) -> Path:
    return report.page().save(tmp_path / "report.html")


def hover(driver: Any, x: float, y: float) -> str:
    """Move to a point of the timeline [CSS pixels]; returns what the tip says."""
    script = """
        const canvas = document.querySelector('canvas.time'), box = canvas.getBoundingClientRect();
        canvas.dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + arguments[0],
            clientY: box.top + arguments[1], bubbles: true}));
        const tip = document.querySelector('.tip');
        return tip.hidden ? '' : tip.textContent;
    """
    said: str = driver.execute_script(script, x, y)
    return said


def place(driver: Any, row: int, time_s: float) -> tuple[float, float]:
    """Where a time of a row is on the timeline."""
    x, y = driver.execute_script(
        f"const t = {TIMELINE}; return [t.x(arguments[0]), t.top(0) + (arguments[1] + 0.4) * t.rowHeight];", time_s, row
    )
    return x, y


def test_numbers_are_those_of_the_result(opened: Opened, page: Path, report: Report) -> None:
    """Iteration, bubble, peak, and every rank's memory as the table has it."""
    driver = opened(page)
    text = driver.find_element("tag name", "body").text
    assert f"{report.iteration_time_s:.3f} s" in text and f"{report.mfu:.1%}" in text
    fullest = max(range(len(report.peak_memory_bytes)), key=lambda rank: report.timeline.ranks[rank].peak.size_bytes)
    peak = report.timeline.ranks[fullest].peak
    assert f"peak {peak.size_bytes / 2**30:.2f} of" in text
    rows = driver.execute_script(
        "return [...document.querySelectorAll('table.data')].find(t => t.textContent.includes('parameters [GiB]'))"
        ".tBodies[0].rows.length"
    )
    assert rows == len(report.timeline.ranks)


def test_hover_names_the_stage(opened: Opened, page: Path, report: Report) -> None:
    """Its label, microbatch and duration; before a late stage, what it waits for."""
    driver = opened(page)
    for row in (0, len(report.timeline.ranks) - 1):
        for stage in report.timeline.ranks[row].stages[3:20:7]:
            said = hover(driver, *place(driver, row, (stage.start_s + stage.end_s) / 2))
            assert said.startswith(f"{stage.label}: {stage.module}"), said
            assert f"microbatch {stage.microbatch}, rank {row}" in said
            assert "costliest operators" in said
    last = report.timeline.ranks[-1]
    first = last.stages[0]
    assert first.start_s > 0
    said = hover(driver, *place(driver, len(report.timeline.ranks) - 1, first.start_s / 2))
    assert "idle for" in said and "waited for send" in said


def test_zoom_and_pan(opened: Opened, page: Path, report: Report) -> None:
    """By the wheel around the cursor, by keys, and back; the memory below follows."""
    driver = opened(page)
    end = report.iteration_time_s
    script = """
        const canvas = document.querySelector('canvas.time'), box = canvas.getBoundingClientRect();
        canvas.dispatchEvent(new WheelEvent('wheel', {clientX: box.left + arguments[0], clientY: box.top + 40,
            deltaY: -900, bubbles: true, cancelable: true}));
    """
    x, _ = place(driver, 0, end / 4)
    driver.execute_script(script, x)
    start, stop = driver.execute_script(f"return [{TIMELINE}.from, {TIMELINE}.to]")
    assert start < end / 4 < stop and stop - start < end / 2
    assert place(driver, 0, end / 4)[0] == pytest.approx(x, abs=0.5), "what is under the cursor stays there"
    time.sleep(0.1)  # a frame later
    scale = driver.execute_script(f"const s = {TIMELINE}.memory.plot.scales.x; return [s.min, s.max]")
    assert scale == pytest.approx([start, stop])
    canvas = driver.find_element("css selector", "canvas.time")
    canvas.send_keys("\ue014")  # right arrow
    assert driver.execute_script(f"return {TIMELINE}.from") > start
    canvas.send_keys("0")
    assert driver.execute_script(f"return [{TIMELINE}.from, {TIMELINE}.to]") == pytest.approx([0, end])


def test_drawn_colours_are_those_of_the_stages(opened: Opened, page: Path, report: Report) -> None:
    """The pixel in the middle of a wide stage has its module's and phase's colour; the critical path adds its own."""
    driver = opened(page)
    widest = max(report.timeline.ranks[0].stages, key=lambda stage: stage.end_s - stage.start_s)
    x, y = place(driver, 0, widest.start_s + 0.25 * (widest.end_s - widest.start_s))
    pixel = """
        const canvas = document.querySelector('canvas.time'), ratio = devicePixelRatio || 1;
        return [...canvas.getContext('2d').getImageData(arguments[0] * ratio, arguments[1] * ratio, 1, 1).data];
    """
    time.sleep(0.1)
    kind = f"{TIMELINE}.runs[0].kinds.findIndex(k => k.module === arguments[0] && k.phase === arguments[1])"
    color = driver.execute_script(
        f"return {TIMELINE}.colors[0][{kind}]", widest.module, widest.phase.name.lower().replace("_", " ")
    )
    red, green, blue, _ = driver.execute_script(
        pixel, x, y - 0.3 * driver.execute_script(f"return {TIMELINE}.rowHeight")
    )
    assert color == f"rgb({red},{green},{blue})"
    count = """
        const canvas = document.querySelector('canvas.time');
        const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        let found = 0;
        for (let i = 0; i < data.length; i += 4)
            if (data[i] === 176 && data[i + 1] === 0 && data[i + 2] === 32) found++;
        return found;
    """
    before = driver.execute_script(count)
    driver.execute_script("document.querySelector('.controls input').click()")
    time.sleep(0.1)
    assert driver.execute_script(count) > before + 50


def test_tables_sort_and_filter(opened: Opened, page: Path, report: Report) -> None:
    driver = opened(page)
    find = "const t = [...document.querySelectorAll('table.data')].find(t => t.textContent.includes('bound by'));"
    column = f"{find} return [...t.tBodies[0].rows].filter(r => !r.hidden).map(r => r.cells[3].textContent)"
    head = f"{find} t.tHead.rows[0].cells[3].firstElementChild.click()"
    driver.execute_script(head)
    falling = [float(text) for text in driver.execute_script(column)]
    assert falling == sorted(falling, reverse=True) and len(falling) == len(report.top_operators)
    driver.execute_script(head)
    assert [float(text) for text in driver.execute_script(column)] == sorted(falling)
    word = report.top_operators[0].path
    driver.execute_script(
        f"{find} const s = t.parentElement.previousElementSibling.querySelector('input'); s.value = arguments[0];"
        "s.dispatchEvent(new Event('input'))",
        word,
    )
    assert len(driver.execute_script(column)) == sum(word in row.path for row in report.top_operators)


def test_two_runs(opened: Opened, tmp_path: Path) -> None:
    """A search's page has Megatron-LM's schedule above the one found, on one axis, each with its own memory."""
    path = tmp_path / "search.html"
    assert main(["search", "vlm-s", "--rollouts", "8", "--html", str(path)]) == 0
    driver = opened(path)
    names = driver.execute_script(f"return {TIMELINE}.runs.map(r => r.name)")
    assert names == ["Megatron-LM", "search"]
    driver.execute_script(f"const s = {TIMELINE}.memory.select; s.value = '0,1'; s.dispatchEvent(new Event('change'))")
    assert driver.execute_script(f"return [{TIMELINE}.memory.run, {TIMELINE}.memory.row]") == [0, 1]


def test_a_grid_is_filtered(opened: Opened, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fewer dots where an axis is chosen; a click on a dot shows flags that run to the dot's time."""
    path = tmp_path / "grid.html"
    run = ["llama3-8b", "--cluster", "h100:2x8"]
    assert main(["grid", *run, "--vary", "tp=1:4,pp=1:2", "--exhaustive", "--html", str(path)]) == 0
    driver = opened(path)
    scatter = "window.semu.chart0"
    every = driver.execute_script(f"return {scatter}.kept.length")
    driver.execute_script(
        "const s = document.querySelector('select[data-axis=tp]'); s.value = '1'; s.dispatchEvent(new Event('change'))"
    )
    kept = driver.execute_script(f"return {scatter}.kept.length")
    assert 0 < kept < every
    time.sleep(0.1)
    driver.execute_script(f"{scatter}.plot.over.scrollIntoView({{block: 'center'}})")
    x, y, width, height = driver.execute_script(
        f"const s = {scatter}, r = devicePixelRatio || 1, [x, y] = s.dots[0], box = s.plot.bbox;"
        "return [(x - box.left) / r, (y - box.top) / r, box.width / r, box.height / r]"
    )
    from selenium.webdriver.common.action_chains import ActionChains

    over = driver.find_element("css selector", ".u-over")
    ActionChains(driver).move_to_element_with_offset(over, x - width / 2, y - height / 2).click().perform()
    flags = driver.find_element("css selector", ".picked").text.splitlines()[-1].split()
    assert flags[0] == "--parallel"
    capsys.readouterr()
    main(["simulate", *run, *flags, "--json"])
    simulated = json.loads(capsys.readouterr().out)["iteration_time_s"]
    shown = driver.execute_script(f"const s = {scatter}; return s.xs[s.kept[0]]")
    assert shown == pytest.approx(simulated, rel=1e-9)


@pytest.mark.parametrize("width", [800, 1300])
def test_widths(opened: Opened, page: Path, browser: Any, width: int) -> None:
    """Nothing but wide tables sticks out."""
    browser.set_window_size(width, 900)
    driver = opened(page)
    assert driver.execute_script("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    browser.set_window_size(1300, 1000)


@pytest.fixture(scope="module")
def dark(start_browser: Callable[..., Any]) -> Iterator[Any]:
    found = start_browser("--force-dark-mode")
    yield found
    found.quit()


def test_dark(dark: Any, page: Path) -> None:
    """The ground is dark, and text is light on it."""
    from present.page.conftest import open_page  # type: ignore[import-not-found]

    open_page(dark, page)
    colors = dark.execute_script("const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]")
    ground, ink = (sum(map(int, color.strip("rgb()").split(",")[:3])) for color in colors)
    assert ground < 150 < 600 < ink


def test_paper_is_light(dark: Any, page: Path) -> None:
    """Printed from the dark: light, tables whole, no controls; charts are drawn anew and keep their shape."""
    from present.page.conftest import open_page

    open_page(dark, page)
    dark.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    dark.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    ground, controls, tall, shape, own = dark.execute_script("""
        const scroll = [...document.querySelectorAll('.scroll')].every(s => s.scrollHeight <= s.clientHeight + 1);
        const canvas = document.querySelector('canvas.time'), box = canvas.getBoundingClientRect();
        return [getComputedStyle(document.body).backgroundColor,
            getComputedStyle(document.querySelector('.controls')).display, scroll,
            box.width / box.height, canvas.width / canvas.height];
    """)
    assert ground == "rgb(255, 255, 255)" and controls == "none" and tall
    assert shape == pytest.approx(own, rel=0.02)
    corner = "return [...document.querySelector('canvas.time').getContext('2d').getImageData(2, 2, 1, 1).data]"
    assert dark.execute_script(corner)[:3] == [255, 255, 255]
    dark.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "screen"})
    assert dark.execute_cdp_cmd("Page.printToPDF", {})["data"].startswith("JVBERi0")  # %PDF-
    dark.execute_script("window.dispatchEvent(new Event('afterprint'))")
    assert dark.execute_script(corner)[:3] != [255, 255, 255]


def test_many_stages_are_blended(opened: Opened, tmp_path: Path) -> None:
    """Where a pixel has several stages it shows them all: a mean of their colours, and of idle time."""
    report = semu.simulate("lm-7b", overrides=["training.global_batch=1250", "training.recompute=full"])
    driver = opened(report.page().save(tmp_path / "page.html"))
    x, y = place(driver, 0, 0.5 * report.iteration_time_s)
    time.sleep(0.1)
    found = driver.execute_script(
        """const c = document.querySelector('canvas.time'), r = devicePixelRatio || 1;
        return [...c.getContext('2d').getImageData((arguments[0] - 40) * r, arguments[1] * r, 80, 1).data]""",
        x,
        y,
    )
    pixels = [found[k : k + 3] for k in range(0, len(found), 4)]
    palette = driver.execute_script(f"return [...{TIMELINE}.colors[0], ink('--idle')].map(parts)")
    kinds = driver.execute_script(f"return {TIMELINE}.runs[0].kinds.map(k => k.phase)")
    stages = report.timeline.ranks[0].stages
    busy = [sum(s.end_s - s.start_s for s in stages if s.phase.name.lower() == kind) for kind in kinds]
    busy.append(report.makespan_s - sum(busy))
    expected = [sum(b * c[k] for b, c in zip(busy, palette, strict=True)) / sum(busy) for k in range(3)]
    mean = [sum(pixel[k] for pixel in pixels) / len(pixels) for k in range(3)]
    assert mean == pytest.approx(expected, abs=10)


@pytest.mark.parametrize(
    ("run", "options"),
    [
        ("gpt2", ["--cluster", "h100:1x1"]),
        ("vlm-m", ["--cluster", "h800:8x8", "--parallel", "dp8-tp2-pp4", "--set", "training.recompute=none"]),
        ("vlm-xl-16k", []),
    ],
)
def test_other_runs(opened: Opened, tmp_path: Path, run: str, options: list[str]) -> None:
    """One rank; a run that does not fit; 16,384 GPUs, whose page is at most 10 MB."""
    path = tmp_path / "page.html"
    assert main(["simulate", run, *options, "--html", str(path)]) in (0, 3)
    assert path.stat().st_size < 10_000_000
    driver = opened(path)
    assert driver.execute_script(f"return {TIMELINE}.runs[0].ranks.length") >= 1


def test_nothing_is_asked_of_the_network(opened: Opened, page: Path) -> None:
    """But for the file itself."""
    driver = opened(page)
    asked = [
        message["params"]["request"]["url"]
        for entry in driver.get_log("performance")
        if (message := json.loads(entry["message"])["message"])["method"] == "Network.requestWillBeSent"
    ]
    assert all(url.startswith(("file:", "data:")) for url in asked)


def test_long_runs_and_templates(opened: Opened, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines of every strategy, bars of parts that fill their row, pipelines on one time axis."""
    words = ["lm-7b", "--cluster", "h100:5x1", "--parallel", "pp5", "--set=parallel.zero=0"]
    words += ["--set=training.recompute=full", "--set=training.global_batch=32"]
    page = tmp_path / "goodput.html"
    asked = ["--strategy", "checkpoint,oobleck", "--days", "1", "--seeds", "2", "--mtbf", "2h"]
    assert main(["goodput", *words, *asked, "--html", str(page)]) == 0
    driver = opened(page)
    assert driver.execute_script("return document.querySelectorAll('.chart canvas').length") == 3
    assert driver.execute_script("return window.semu.chart0.data.length") == 3
    across = """return [...document.querySelectorAll('td.stack')].map(cell =>
        [cell.clientWidth - 2 * parseFloat(getComputedStyle(cell).paddingLeft),
         [...cell.children].reduce((sum, part) => sum + part.getBoundingClientRect().width, 0)])"""
    for room, filled in driver.execute_script(across):
        assert room > 100 and abs(filled - room) < 4
    plan, shown = tmp_path / "plan.json", tmp_path / "plan.html"
    assert main(["plan", "lm-7b", "--schedule", "zb-h1", "-o", str(plan)]) == 0
    assert main(["plan", "--show", str(plan), "--html", str(shown)]) == 0
    driver = opened(shown)  # knows of no memory
    assert driver.execute_script("return document.querySelectorAll('.chart canvas').length") == 1
    assert "microbatch" in hover(driver, *place(driver, 0, driver.execute_script(f"return {TIMELINE}.endS / 2")))
    page = tmp_path / "templates.html"
    assert main(["templates", *words, "--nodes", "5", "--html", str(page)]) == 0
    driver = opened(page)
    text = driver.find_element("tag name", "body").text
    assert "Templates" in text and "microbatches of each" in text
    assert driver.execute_script("return document.querySelectorAll('canvas.time').length") == 1
    capsys.readouterr()
