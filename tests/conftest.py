"""What all tests share: where measured data is, how hypothesis runs, and four options.

``--no-skips``: a skipped test fails. ``--passed-to`` and ``--not-in``: a second run, where more is installed, leaves
out what a first run of the same files passed. It takes what the first did not select, skipped or could not collect.
``--one-in K``: of the slow cases of a test that has K or more, one in K, but all of what pages show; the commit says
which.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import zlib
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]

# A shell that starts the tests in the background has Ctrl-C ignored, and processes that a test interrupts inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Kernels compile on first use and machines are shared, so no test is judged by hypothesis' own clock.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("local"), derandomize=True, database=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-skips",
        action="store_true",
        help="a skipped test fails: for an environment in which everything that tests may need is there",
    )
    parser.addoption(
        "--passed-to",
        metavar="FILE",
        help="write the ids of the tests that pass to FILE, but not of those marked extras; with =, see --not-in",
    )
    parser.addoption(
        "--not-in",
        metavar="FILE",
        help="leave out the tests whose ids FILE holds; no file: take all. "
        "Write --not-in=FILE: pytest takes a word that is a file for a folder of tests before it reads this",
    )
    parser.addoption(
        "--one-in",
        metavar="K",
        type=int,
        default=1,
        help="of the slow cases of a test that has K or more, take one in K, but of what pages show all; "
        "the commit says which",
    )


class PassedTests:
    """Writes the ids of passed tests when the run ends: ``--passed-to``.

    Tests marked ``extras`` are left out, so that they are taken again where more is installed.
    """

    def __init__(self, file: Path) -> None:
        self.file, self.passed, self.others = file, set[str](), set[str]()
        file.unlink(missing_ok=True)  # a run that is killed leaves nothing behind that says more than is so

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed" or "extras" in report.keywords:
            self.others.add(report.nodeid)
        elif report.when == "call":
            self.passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text("".join(f"{name}\n" for name in sorted(self.passed - self.others)), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--passed-to")
    if file and not hasattr(config, "workerinput"):  # processes of xdist report to the one that began them
        config.pluginmanager.register(PassedTests(Path(file)))


def pytest_collection_finish() -> None:
    """What collecting made stays to the end: looking through it again and again took 14 of 74 s of a run."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(autouse=True)
def is_compiled_ahead(monkeypatch: pytest.MonkeyPatch) -> bool:
    """Commands that run in the process of a test compile kernels when they call them; see ``tests/test_ahead.py``."""
    monkeypatch.setattr("semu.ahead.missing_kernels", lambda command: [])
    return False


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts the tests has a terminal of some width; commands under test have none."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.hookimpl(tryfirst=True)  # before what is marked slow is left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _mark_sampled(items)
    size = config.getoption("--one-in")
    if size > 1:
        others = _other_parts(items, size)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in others])
        items[:] = [item for item in items if item.nodeid not in others]
    file = config.getoption("--not-in")
    if not file or not Path(file).is_file():
        return
    passed = set(Path(file).read_text(encoding="utf-8").split("\n"))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
    items[:] = [item for item in items if item.nodeid not in passed]


def pytest_report_header(config: pytest.Config) -> str | None:
    size = config.getoption("--one-in")
    return f"of slow cases: part {_part_of(size) + 1} of {size}" if size > 1 else None


def _part_of(size: int) -> int:
    """Which of ``size`` parts of the cases this commit takes; the first where there is no repository."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"]
    try:
        commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(commit.strip()[:8], 16) % size


def _mark_sampled(items: list[pytest.Item]) -> None:
    """Mark slow what ``sampled(k)`` leaves out: of a test's cases that are not slow anyway all but one in k."""
    sampled = (item for item in items if item.get_closest_marker("sampled") is not None)
    for those in _cases(item for item in sampled if item.get_closest_marker("slow") is None):
        mark = those[0].get_closest_marker("sampled")
        assert mark is not None
        for item in _spread(those)[-(-len(those) // mark.args[0]) :]:
            item.add_marker(pytest.mark.slow)


def _spread(cases: list[pytest.Item]) -> list[pytest.Item]:
    """The cases, first those whose names have most parts that none before them has: few show every option's values."""
    parts = {item: {*enumerate(item.nodeid.partition("[")[2].rstrip("]").split("-"))} for item in cases}
    first, seen = dict[pytest.Item, None](), set[tuple[int, str]]()
    while new := max((len(own - seen) for own in parts.values()), default=0):
        item = next(item for item, own in parts.items() if len(own - seen) == new)
        first[item] = None
        seen |= parts.pop(item)
    return [*first, *(item for item in cases if item not in first)]


def _other_parts(items: list[pytest.Item], size: int) -> set[str]:
    """Ids of the slow cases that are not in this commit's part of ``size``."""
    slow = (item for item in items if item.get_closest_marker("slow") is not None)
    shown = ROOT / "tests" / "examples"
    part, others = _part_of(size), set[str]()
    for those in _cases(item for item in slow if shown not in item.path.parents):
        if len(those) >= size:
            others |= {item.nodeid for number, item in enumerate(those) if number % size != part}
    return others


def _cases(items: Iterable[pytest.Item]) -> Iterator[list[pytest.Item]]:
    """The cases of each test, in an order that the hash of their names gives."""
    cases = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    for those in cases.values():
        yield sorted(those, key=lambda item: (zlib.crc32(item.nodeid.partition("[")[2].encode()), item.nodeid))


def _fail_if_skipped(report: pytest.CollectReport | pytest.TestReport, config: pytest.Config) -> None:
    if report.outcome == "skipped" and not hasattr(report, "wasxfail") and config.getoption("--no-skips"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"--no-skips: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_skipped(report, collector.config)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if item.get_closest_marker("by_hand") is None and item.get_closest_marker("browser") is None:
        _fail_if_skipped(report, item.config)
    return report


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The measured data: SEMU_DATA, else ../shared/data beside the repository."""
    folder = Path(os.environ.get("SEMU_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no measured data at {folder}; set SEMU_DATA")
    return folder
