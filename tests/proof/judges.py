"""``Judge``: asks tests of semu whether they notice a fault; ``Tree``: in a process, with the fault in a copy's file.

Which tests are asked, and in which order, is the same for all judges; ``forked`` has one that is quicker.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path

from tests.proof.covered import Covered, is_kernel
from tests.proof.mutants import Mutant

ROOT = Path(__file__).resolve().parents[2]
CHOSEN = Path(__file__).with_name("chosen.json")
"""Files and folders of semu -> tests that were chosen for them by hand; the longest path that fits counts."""
AREAS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "network": (("semu/costs/collectives/**/*.py", "semu/hardware/network/**/*.py"), ("costs", "hardware")),
    "costs": (("semu/costs/**/*.py",), ("costs",)),
    "rules": (("semu/parallel/**/*.py",), ("parallel",)),
    "schedules": (("semu/schedule/**/*.py",), ("schedule",)),
    "job": (("semu/job/**/*.py",), ("job", "simulation")),
    "memory": (("semu/simulation/memory/**/*.py", "semu/simulation/**/memory*.py"), ("simulation", "engine")),
    "engine": (("semu/engine/**/*.py",), ("engine", "simulation")),
    "simulation": (("semu/simulation/**/*.py",), ("simulation",)),
    "searcher": (("semu/searcher/**/*.py",), ("searcher",)),
    "bounds": (("semu/searcher/**/bounds.py", "semu/schedule/bounds.py"), ("searcher", "schedule")),
    "interleave": (("semu/searcher/orders/*.py", "semu/searcher/kernels/interleaving.py"), ("searcher",)),
    "memory choice": (("semu/searcher/memory.py", "semu/searcher/kernels/memory_choice.py"), ("searcher",)),
    "planner": (("semu/searcher/planner/*.py",), ("searcher",)),
    "grid": (("semu/searcher/grid/**/*.py", "semu/grid/**/*.py"), ("searcher",)),
    "assignment": (("semu/searcher/assignment/**/*.py",), ("searcher/assignment",)),
    "plan": (("semu/plan/**/*.py",), ("plan",)),
    "executor": (("semu/executor/**/*.py",), ("executor",)),
    "caches": (
        ("semu/memo.py", "semu/compiled.py", "semu/ahead.py", "semu/checks.py"),
        ("test_memo.py", "test_checks.py", "engine"),
    ),
    "importers": (("semu/imports/**/*.py",), ("imports",)),
    "exports": (("semu/exports/**/*.py",), ("exports",)),
    "calibration": (("semu/fitting/**/*.py", "semu/hardware/**/*.py"), ("fitting", "hardware", "calibration")),
    "contention": (("semu/simulation/effects/con*.py", "semu/simulation/effects/*_units.py"), ("simulation",)),
    "uncertainty": (("semu/simulation/effects/**/*.py", "semu/validation/**/*.py"), ("simulation", "validation")),
    "resilience": (("semu/resilience/**/*.py",), ("resilience",)),
    "runfile": (("semu/runfile/**/*.py",), ("runfile",)),
    "masks": (("semu/masks/**/*.py",), ("masks",)),
    "workload": (("semu/workload/**/*.py",), ("workload",)),
    "models": (("semu/nn/**/*.py", "semu_models/**/*.py", "semu/graph/**/*.py"), ("nn", "semu_models", "graph")),
    "reports": (("semu/present/**/*.py",), ("present",)),
    "pictures": (("semu/present/plots/*.py",), ("present",)),
    "commands": (("semu/cli/**/*.py", "semu/door/**/*.py"), ("cli",)),
}
"""Files of an area, and the folders of tests of its room."""
NEAR_S = 8.0
ROOM_S = 30.0
"""Measured times of tests that execute a fault's line, and of the files that hold them; of a tree, unless said."""
LIMIT_S = 900.0
WHOLE_S = 3600.0
CPU_FACTOR, CPU_S = 8.0, 120.0
"""Processor time of tests whose times are known: so many times as long as they took, and so much besides."""
NO_END = 10.0
"""Tests without an end notice a fault where they end without it in so small a part of the time, as one in so many."""
UNDECIDED = "endless"
NO_TESTS = 5
"""pytest's exit code where none was selected."""


FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py(?:::.*?)?)(?: - .*)?$", re.MULTILINE)
"""Lines of pytest's summary, with the test's name."""
WORD = re.compile(r"[A-Za-z_]\w{3,}")
NEAR = 12
"""Test files that run first, at most."""
NEAREST = 4
"""Of them, those that are asked even where others execute the line: caches hide who would."""
SLOW = ("examples", "proof", "test_ahead.py", "test_packaging.py", "test_readme.py", "test_stored.py")
"""Of tests, what is near everything, and takes long."""


class Endless(Exception):
    """Tests took too long. Attributes: test: that was running, where known."""

    def __init__(self, test: str = "") -> None:
        super().__init__(test)
        self.test = test


def room_of(area: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Files of an area or a file, and the folders of its tests: of a file, those of its package."""
    return AREAS.get(area) or ((area,), (area.split("/")[1],))


def around(source: str, line: int) -> set[str]:
    """Names of the functions and classes that a line is in."""
    return {
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    }


class Judge(ABC):
    """Asks tests whether they notice a fault.

    Attributes:
        folder: of semu's files and of the tests. near_s, room_s: how many seconds of tests are asked.
    """

    def __init__(self, folder: Path, covered: Covered | None = None, *, has_chosen: bool = False) -> None:
        self.folder, self.covered = folder, covered
        self.chosen: dict[str, list[str]] = json.loads(CHOSEN.read_text()) if has_chosen else {}
        self._sound: dict[str, bool] = {}
        self.near_s, self.room_s = NEAR_S, ROOM_S

    @abstractmethod
    def failed(self, tests: list[str], limit_s: float, skipped: list[str]) -> str | None:
        """The first test that fails, None where all pass; an empty name where pytest says none.

        Raises:
            Endless: they take too long.
        """

    @abstractmethod
    def fault(self, name: str, mutant: Mutant) -> AbstractContextManager[None]:
        """What is asked meanwhile is asked of semu with a fault in a file."""

    def near(self, name: str, source: str, line: int) -> list[str]:
        """Test files that share rare words with a line: its own, those of the functions around it, its module's name.

        A word counts the more the fewer test files have it; a file that imports the module has one word more, and one
        in the folder of the module's tests, or of its name, counts as a rare word each.
        """
        module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        *folders, stem = module.split(".")[1:]
        wanted = {*WORD.findall(source.splitlines()[line - 1]), *around(source, line), stem, module}
        scores: dict[str, float] = defaultdict(float)
        for word in sorted(wanted):
            having = [test for test, words in self.words.items() if word in words]
            for test in having:
                scores[test] += 1 / len(having)
        for test in self.words:
            path = test.removesuffix(".py").split("/")[1:]
            scores[test] += sum(one == two for one, two in zip(folders, path, strict=False)) / max(len(folders), 1)
            scores[test] += stem in path[-1].removeprefix("test_")
        return [test for test, _ in sorted(scores.items(), key=lambda one: (-one[1], one[0]))[:NEAR]]

    @cached_property
    def words(self) -> dict[str, frozenset[str]]:
        """Words of each test file, and the modules that it imports."""
        found = {}
        for path in sorted((self.folder / "tests").rglob("test_*.py")):
            if path.relative_to(self.folder).parts[1] in SLOW:
                continue
            text = path.read_text()
            words = {*WORD.findall(text), *re.findall(r"^\s*(?:from|import) (semu[\w.]*)", text, re.MULTILINE)}
            found[path.relative_to(self.folder).as_posix()] = frozenset(words)
        return found

    def outcome(self, area: str, name: str, mutant: Mutant, is_whole: bool) -> tuple[str, str]:
        """What the tests say of a fault, and which; the file is as it was afterwards."""
        for outcome, tests, limit_s in self._steps(area, name, mutant, is_whole):
            skipped = [one for one, is_sound in self._sound.items() if not is_sound]
            while tests:
                try:
                    begin = time.monotonic()
                    with self.fault(name, mutant):
                        failed = self.failed(tests, limit_s, skipped)
                except Endless as stopped:
                    last_s = time.monotonic() - begin
                    took_s = self._ends_within([stopped.test] if stopped.test else tests, last_s / NO_END, skipped)
                    if took_s is None:
                        return "endless", outcome
                    return outcome, f"{stopped.test or tests[0]} has no end: {took_s:.1f} s become {last_s:.1f} s"
                if failed is None:
                    break
                if self._notices(failed or tests[0], name, mutant):
                    return outcome, failed
                skipped.append(failed)
        return "survived", ""

    def _steps(self, area: str, name: str, mutant: Mutant, is_whole: bool) -> Iterator[tuple[str, list[str], float]]:
        """Tests that are asked one after another: the step's name, the tests, and how long they may take."""
        executing = self.covered.tests_of(name, mutant.line) if self.covered else set()
        if not executing and (own := [path for path in self.chosen if name.startswith(path)]):
            tests = self.chosen[max(own, key=len)]
            stem = Path(name).stem
            yield "room", sorted(tests, key=lambda test: stem not in test), LIMIT_S
            if is_whole:
                yield "whole", ["tests"], WHOLE_S
            return
        near = self.near(name, (self.folder / name).read_text(), mutant.line)
        if self.covered is None or not executing:
            yield "near", near if self.covered is None else self._files(near, near), LIMIT_S
        if self.covered is None and self.room_s:
            yield (
                "room",
                [f"tests/{room}" for room in room_of(area)[1] if (self.folder / "tests" / room).exists()],
                LIMIT_S,
            )
        elif self.covered is not None and executing:
            first = self._within(sorted(executing, key=lambda one: self._place(one, near)), self.near_s)
            yield "near", first, LIMIT_S
            files = self._files([test.split("::")[0] for test in executing], near) if self.room_s else []
            yield "room", list(dict.fromkeys([*(self._files(near[:NEAREST], near) if files else []), *files])), LIMIT_S
        if is_whole:
            yield "whole", ["tests"], WHOLE_S

    def _place(self, test: str, near: list[str]) -> tuple[float, str]:
        """The quickest tests of the nearest files are asked first."""
        assert self.covered is not None
        file = test.split("::")[0]
        rank = near.index(file) if file in near else NEAR
        return (0.05 + self.covered.seconds[test]) * (1 + rank), test

    def _files(self, files: Iterable[str], near: list[str]) -> list[str]:
        """The nearest of some files, as many as take ``room_s`` of measured time, one at least: all their cases, of
        which only the first were measured."""
        assert self.covered is not None
        seconds = Counter[str]()
        for test, took_s in self.covered.seconds.items():
            seconds[test.split("::")[0]] += took_s
        chosen, total = list[str](), 0.0
        for file in sorted(set(files), key=lambda one: (near.index(one) if one in near else NEAR, seconds[one], one)):
            took_s = seconds.get(file, 1.0 + self.room_s / 2)
            if total + took_s <= self.room_s or not chosen:
                chosen.append(file)
                total += took_s
        return chosen

    def _within(self, tests: list[str], seconds: float) -> list[str]:
        """The first tests of a list that take no longer than so many seconds together; one at least."""
        assert self.covered is not None
        total, chosen = 0.0, list[str]()
        for test in tests:
            total += self.covered.seconds[test]
            if chosen and total > seconds:
                break
            chosen.append(test)
        return chosen

    def _ends_within(self, tests: list[str], seconds: float, skipped: list[str]) -> float | None:
        """How long tests take without a fault, where they pass within so many seconds [s]."""
        begin = time.monotonic()
        try:
            failed = self.failed(tests, max(seconds, 1.0), skipped)
        except Endless:
            return None
        took_s = time.monotonic() - begin
        return took_s if failed is None and took_s <= seconds else None

    def _notices(self, test: str, name: str, mutant: Mutant) -> bool:
        """Whether it is for a fault that a test failed."""
        return self._is_sound(test)

    def _is_sound(self, test: str) -> bool:
        """Whether a test passes without a fault."""
        if test not in self._sound:
            self._sound[test] = self.failed([test], LIMIT_S, []) is None
            if not self._sound[test] and "::" not in test:
                raise SystemExit(f"{test} fails without a fault")
        return self._sound[test]


class Tree(Judge):
    """A copy of the repository in which faults are put.

    Args:
        folder: of the copy, and of the kernels that are compiled in it; what is there stays. covered: which tests
            execute which lines. has_chosen: tests that were chosen by hand are asked.
    """

    def __init__(self, folder: Path, covered: Covered | None = None, *, has_chosen: bool = False) -> None:
        super().__init__(folder / "repository", covered, has_chosen=has_chosen)
        self.kernels = self._own = folder / "kernels"
        self.kernels.mkdir(parents=True, exist_ok=True)
        names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        for name in names.decode().split("\0"):
            source, target = ROOT / name, self.folder / name
            if name and source.is_file() and (not target.exists() or source.read_bytes() != target.read_bytes()):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)

    def failed(self, tests: list[str], limit_s: float, skipped: list[str]) -> str | None:
        """See ``Judge``. Tests of which it is known how long they take may take so much of a processor and no more."""
        data = os.environ.get("SEMU_DATA", str(ROOT.parent / "shared" / "data"))
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            "SEMU_DATA": data,
            "CI": "true",
            "NUMBA_CACHE_DIR": str(self.kernels),
        }
        chosen = [test for test in tests if test not in skipped]
        known = self.covered.seconds if self.covered else {}
        usual_s = sum(known[test] for test in chosen) if all(test in known for test in chosen) else math.inf
        most_s = int(CPU_FACTOR * usual_s + CPU_S) if chosen and usual_s < math.inf else resource.RLIM_INFINITY
        words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no"]
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as names:  # longer than a command may be
            names.write("\n".join(chosen))
            names.flush()
            process = subprocess.Popen(
                [*words, *(f"--deselect={name}" for name in skipped), f"@{names.name}"],
                cwd=self.folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s)),
            )
            try:
                text, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                raise Endless from None
        if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
            raise Endless
        if process.returncode in (0, NO_TESTS):
            return None
        found = FAILED.search(text)
        return found.group(1) if found else ""

    @contextmanager
    def fault(self, name: str, mutant: Mutant) -> Iterator[None]:
        """The tree with a fault.

        Python and numba take a file that has the time and size of one that they compiled for that one: the time of the
        file comes back with its text, and kernels of a fault are kept apart.
        """
        path = self.folder / name
        source, stat = path.read_text(), path.stat()
        with tempfile.TemporaryDirectory(dir=self._own.parent) as temporary:
            if is_kernel(name):
                self.kernels = Path(temporary) / "kernels"
                shutil.copytree(self._own, self.kernels)
            _forget(path)
            path.write_text(mutant.text(source))
            try:
                yield
            finally:
                self.kernels = self._own
                path.write_text(source)
                os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
                _forget(path)


def _forget(path: Path) -> None:
    """Remove what Python compiled of a file."""
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()
