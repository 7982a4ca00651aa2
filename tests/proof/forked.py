"""``Forked``: a judge whose process has imported semu and the tests once, and forks for every fault.

The child changes the functions that the fault is in, wherever they are held, forgets what is remembered and runs the
tests. What runs when a module is imported, in other processes or as machine code does not see the fault, so a fault
that survives says nothing before another judge has asked the same tests; one in a kernel is not asked here at all.
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import os
import resource
import select
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from semu import memo
from tests.proof.covered import Covered, is_kernel
from tests.proof.judges import LIMIT_S, NO_TESTS, ROOT, Endless, Judge
from tests.proof.mutants import Mutant

WORDS = ("-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no")
WORDS += ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # of what was imported before
MOST_S = 120.0
"""Tests of a child may take so long, waiting included [s]."""


def codes(code: CodeType) -> dict[str, list[CodeType]]:
    """The code of all functions in a piece of code by qualified name, in the order of their text."""
    found: dict[str, list[CodeType]] = defaultdict(list)
    waiting = [code]
    while waiting:
        for one in waiting.pop().co_consts:
            if isinstance(one, CodeType):
                found[one.co_qualname].append(one)
                waiting.append(one)
    return {name: sorted(own, key=lambda one: one.co_firstlineno) for name, own in found.items()}


def change(path: Path, old: str, new: str) -> int:
    """Functions of a file that is imported become those of another text of it; returns how many differ."""
    before, after = (codes(compile(text, str(path), "exec", dont_inherit=True)) for text in (old, new))
    wanted = {}
    for name, own in before.items():
        if len(own) == len(after.get(name, ())):
            for one, other in zip(own, after[name], strict=True):
                if one != other:
                    wanted[name, one.co_firstlineno] = other
    gc.unfreeze()  # get_objects leaves out what is frozen
    changed = 0
    for function in gc.get_objects():
        if type(function) is FunctionType and function.__code__.co_filename == str(path):
            code = function.__code__
            other = wanted.get((code.co_qualname, code.co_firstlineno))
            if other is not None and code.co_freevars == other.co_freevars:
                function.__code__ = other
                changed += 1
    return changed


class _First:
    """A plugin of pytest: writes the test that begins, then the first that fails, to a pipe.

    After ``most_s`` of processor time no more tests begin.
    """

    def __init__(self, pipe: int, most_s: float) -> None:
        self.pipe, self.most_s = pipe, most_s

    def say(self, **words: object) -> None:
        os.write(self.pipe, json.dumps(words).encode() + b"\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.say(begun=nodeid)

    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        item.session.shouldstop = "enough" if time.process_time() > self.most_s else False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.say(failed=report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.say(failed=report.nodeid)


class Forked(Judge):
    """See the module's text; its process has no threads. Where nobody knows which tests execute a line, the nearest are
    asked for ``near_s`` of processor time."""

    def __init__(self, covered: Covered | None = None, *, has_chosen: bool = False) -> None:
        super().__init__(ROOT, covered, has_chosen=has_chosen)
        self._fault: tuple[str, str] | None = None
        self._imported: set[str] = set()

    def can_judge(self, name: str) -> bool:
        """Whether a file's functions can be changed."""
        return not is_kernel(name)

    @contextmanager
    def fault(self, name: str, mutant: Mutant) -> Iterator[None]:
        """The fault is put into the children that are started meanwhile."""
        self._fault = name, mutant.text((ROOT / name).read_text())
        try:
            yield
        finally:
            self._fault = None

    def _notices(self, test: str, name: str, mutant: Mutant) -> bool:
        """What ran before it in the same child may have it fail: alone, it fails with the fault and passes without."""
        with self.fault(name, mutant):
            if self.failed([test], LIMIT_S, []) is None:
                return False
        return super()._notices(test, name, mutant)

    def failed(self, tests: list[str], limit_s: float, skipped: list[str]) -> str | None:
        """See ``Judge``."""
        chosen = [test for test in tests if test not in skipped]
        self._import([test.split("::")[0] for test in chosen])
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            self._run(chosen, skipped, writing)
        os.close(writing)
        said, is_ended = self._heard(reading, time.monotonic() + min(limit_s, MOST_S))
        os.close(reading)
        if not is_ended:
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        begun = [words["begun"] for words in said if "begun" in words]
        if not is_ended:
            raise Endless(begun[-1] if begun else "")
        failed = [words["failed"] for words in said if "failed" in words]
        if failed:
            return str(failed[0])
        fine = (pytest.ExitCode.OK, pytest.ExitCode.INTERRUPTED, NO_TESTS)  # interrupted: enough was asked
        return None if any(words.get("code") in fine for words in said) else (begun or [""])[-1]

    def _heard(self, pipe: int, end: float) -> tuple[list[dict[str, Any]], bool]:
        """What a child said, and whether it ended in time."""
        data = b""
        while (left := end - time.monotonic()) > 0 and select.select([pipe], [], [], left)[0]:
            if not (more := os.read(pipe, 1 << 16)):
                return [json.loads(line) for line in data.splitlines()], True
            data += more
        return [json.loads(line) for line in data.splitlines(keepends=True) if line.endswith(b"\n")], False

    def _import(self, files: list[str]) -> None:
        """Have pytest import files of tests, in this process, before it forks."""
        if new := [file for file in dict.fromkeys(files) if file not in self._imported]:
            self._imported.update(new)
            with redirect_stdout(StringIO()):
                pytest.main([*WORDS, "--collect-only", *new])

    def _run(self, tests: list[str], skipped: list[str], pipe: int) -> None:
        """The child: never returns."""
        try:
            os.setsid()
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, 1)
            os.dup2(nothing, 2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            first = _First(pipe, math.inf if self.covered else time.process_time() + self.near_s)
            if self._fault is not None:
                name, text = self._fault
                path = ROOT / name
                importlib.import_module(name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
                change(path, path.read_text(), text)
            memo.clear()
            first.say(code=int(pytest.main([*WORDS, *(f"--deselect={test}" for test in skipped), *tests], [first])))
        finally:
            os._exit(0)
