"""``Covered``: which tests execute which lines of semu, and how long each test takes.

    python -m tests.proof.covered FOLDER [ARGUMENT OF PYTEST ...]

Runs the default tests once under coverage.py (``pip install coverage``; no extra installs it), of a test with many
cases the first ``CASES``, and writes ``FOLDER/lines.db`` and, after each file of tests, ``FOLDER/tests.json``.
What runs in other processes is not seen, nor what runs as machine code: a line of a kernel is looked for where semu
calls it, or calls kernels that call it.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES, TESTS = "lines.db", "tests.json"
CASES = 2


class Recorder:
    """A plugin of pytest: the lines that each test executes, its preparation included, and its processor time."""

    def __init__(self, folder: Path) -> None:
        import coverage

        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.seconds = folder, dict[str, float]()
        self.coverage = coverage.Coverage(
            data_file=str(folder / LINES),
            include=[f"{ROOT}/semu/*", f"{ROOT}/semu_models/*"],
            config_file=False,
            messages=False,
        )
        self.coverage.start()
        self._file: Path | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        cases: Counter[str] = Counter()
        chosen = []
        for item in items:
            cases[item.nodeid.partition("[")[0]] += 1
            if cases[item.nodeid.partition("[")[0]] <= CASES:
                chosen.append(item)
        items[:] = chosen

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self.coverage.switch_context(item.nodeid)
        if item.path != self._file:
            self._file = item.path
            self._write()
        begin = time.process_time()
        result = yield
        self.seconds[item.nodeid] = time.process_time() - begin
        return result

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        self._write()

    def _write(self) -> None:
        (self.folder / TESTS).write_text(json.dumps({"root": str(ROOT), "seconds": self.seconds}))


def is_kernel(name: str) -> bool:
    """Whether a file of semu's is compiled, so that nobody sees which of its lines run."""
    return name.endswith("/kernels.py") or "/kernels/" in name


def _functions(source: str) -> Iterator[tuple[str, int, int]]:
    """Name, first and last line of the functions of a file's top level."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node.lineno, node.end_lineno or node.lineno


def callers(name: str, line: int, sources: dict[str, str]) -> list[tuple[str, int]]:
    """Lines of files that are not compiled which name a kernel's function, or a kernel that names it.

    Args:
        name, line: of the kernel's file. sources: all files of semu by name.
    """
    wanted = {one for one, first, last in _functions(sources[name]) if first <= line <= last}
    kernels = [
        (one, set(re.findall(r"\w+", "\n".join(text.splitlines()[first:last]))))
        for path, text in sources.items()
        if is_kernel(path)
        for one, first, last in _functions(text)
    ]
    while more := {one for one, words in kernels if words & wanted} - wanted:
        wanted |= more
    return [
        (path, number)
        for path, text in sources.items()
        if not is_kernel(path) and any(one in text for one in wanted)
        for number, words in enumerate(text.splitlines(), 1)
        if not words.startswith(("from ", "import ", "    from ")) and wanted.intersection(re.findall(r"\w+", words))
    ]


class Covered:
    """What ``python -m tests.proof.covered`` wrote.

    Attributes:
        seconds: processor time of each test, under coverage.py.
    """

    def __init__(self, folder: Path) -> None:
        import coverage

        found = json.loads((folder / TESTS).read_text())
        self.root: str = found["root"]
        self.seconds: dict[str, float] = found["seconds"]
        self._data = coverage.CoverageData(str(folder / LINES))
        self._data.read()
        self._lines = cache(self._lines_of)

    def _lines_of(self, name: str) -> dict[int, list[str]]:
        return self._data.contexts_by_lineno(f"{self.root}/{name}")

    @cached_property
    def sources(self) -> dict[str, str]:
        """All files of semu by name."""
        paths = [path for part in ("semu", "semu_models") for path in sorted((ROOT / part).rglob("*.py"))]
        return {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}

    def tests_of(self, name: str, line: int) -> set[str]:
        """Tests that execute a line of a file, or the first line of its statement where none has the line itself."""
        places: Iterable[tuple[str, int]] = [(name, line)]
        if is_kernel(name):
            places = callers(name, line, self.sources)
        elif not self._lines(name).get(line):
            statements = [
                (node.lineno, node.end_lineno or node.lineno)
                for node in ast.walk(ast.parse(self.sources[name]))
                if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
            ]
            places = [(name, max(statements)[0])] if statements else []
        return {test for path, number in places for test in self._lines(path).get(number, ()) if test in self.seconds}


def main() -> int:
    """Run; returns pytest's exit code."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    recorder = Recorder(Path(sys.argv[1]).resolve())
    return int(pytest.main(["-q", "-p", "no:cacheprovider", "--tb=line", *sys.argv[2:]], plugins=[recorder]))


if __name__ == "__main__":
    sys.exit(main())
