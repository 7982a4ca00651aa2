"""Faults of meaning: what is made of a file, and that every fault of semu's own files is a file of Python."""

from __future__ import annotations

import ast
import gc
import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.proof import judges
from tests.proof.covered import callers
from tests.proof.forked import change
from tests.proof.judges import AREAS, CHOSEN, ROOT, Endless, Judge, Tree
from tests.proof.mutants import Mutant, mutants_of
from tests.proof.mutate import SURVIVORS, drawn, key_of

SOURCE = '''\
"""A text."""
LIMIT = 3


def of(a: int = 1) -> int:
    """Another, 5 < 6."""
    if a < LIMIT and a != 2:
        return max(a, -1) + 2
    raise ValueError("a" + "b")
'''


def test_faults_of_a_file() -> None:
    found = [one.what for one in mutants_of(SOURCE)]
    assert found == [
        "a < LIMIT -> (a <= LIMIT)",
        "a < LIMIT and a != 2 -> (a < LIMIT or a != 2)",
        "a < LIMIT and a != 2 -> False",
        "a != 2 -> (a == 2)",
        "2 -> 3",
        "max -> min",
        "max(a, -1) + 2 -> (max(a, -1) - 2)",
        "-1 -> (1)",
        "1 -> 2",
        "2 -> 3",
    ]
    assert len(found) == len({(one.begin, one.end, one.new) for one in mutants_of(SOURCE)})


@pytest.mark.slow
def test_every_fault_can_be_read() -> None:
    largest = set()
    for area, (patterns, rooms) in AREAS.items():
        paths = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
        assert paths, area
        assert any((ROOT / "tests" / room).exists() for room in rooms), area
        largest.add(max(paths, key=lambda one: one.stat().st_size))
    for path in sorted(largest):
        source = path.read_text()
        for mutant in mutants_of(source)[::60]:
            changed = mutant.text(source)
            assert changed != source
            ast.parse(changed)


def test_faults_are_drawn_alike_and_survivors_exist() -> None:
    first, second = drawn(["plan", "masks"], 3), drawn(["plan", "masks"], 3)
    assert first == second
    assert {one[0] for one in first[:2]} == {"plan", "masks"}
    known = json.loads(SURVIVORS.read_text())
    keys = set()
    for name in sorted({one["path"] for one in known.values()}):
        source = (ROOT / name).read_text()
        keys |= {key_of(name, source, mutant) for mutant in mutants_of(source)}
    assert set(known) <= keys, "a proof of equivalence stands for code that has changed: prove it again"


def test_chosen_tests_exist_and_the_longest_path_counts(tmp_path: Path) -> None:
    chosen = json.loads(CHOSEN.read_text())
    assert all((ROOT / path).exists() for path in chosen)
    assert all((ROOT / test.split("::")[0]).is_file() for tests in chosen.values() for test in tests)
    tree = object.__new__(Tree)
    tree.covered = None
    tree.chosen = {"semu/a/": ["tests/test_b.py", "tests/test_x.py"], "semu/a/c.py": ["tests/test_c.py"]}
    asked = [next(tree._steps("plan", f"semu/a/{name}.py", mutants_of(SOURCE)[0], False))[1] for name in ("x", "c")]
    assert asked == [["tests/test_x.py", "tests/test_b.py"], ["tests/test_c.py"]]


def test_lines_that_call_a_kernel_stand_for_it() -> None:
    sources = {
        "semu/a/kernels.py": "def outer(x):\n    return _inner(x)\n\n\ndef _inner(x):\n    return x + 1\n",
        "semu/a/used.py": "from semu.a.kernels import outer\n\n\ndef use():\n    return outer(1)\n",
        "semu/a/other.py": "def outermost():\n    return 1\n",
    }
    assert callers("semu/a/kernels.py", 6, sources) == [("semu/a/used.py", 5)]


def test_a_file_is_as_it_was_after_a_fault(tmp_path: Path) -> None:
    tree = object.__new__(Tree)
    tree.folder, tree.kernels = tmp_path, tmp_path / "kernels"
    tree._own = tree.kernels
    path, compiled = tmp_path / "kernels.py", tmp_path / "__pycache__" / "kernels.cpython-311.pyc"
    path.write_text(SOURCE)
    before = path.stat()
    compiled.parent.mkdir()
    tree.kernels.mkdir()
    for mutant in mutants_of(SOURCE)[:2]:
        compiled.write_text("of the file before")
        with tree.fault("kernels.py", mutant):
            assert path.read_text() == mutant.text(SOURCE)
            assert not compiled.exists()
            assert tree.kernels == tmp_path / "kernels"
            compiled.write_text("of the fault")
        assert path.read_text() == SOURCE and not compiled.exists()
        assert path.stat().st_mtime_ns == before.st_mtime_ns
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "kernels.py").write_text(SOURCE)
    with tree.fault("a/kernels.py", mutants_of(SOURCE)[0]):
        assert tree.kernels != tmp_path / "kernels" and tree.kernels.is_dir()
    assert tree.kernels == tmp_path / "kernels"


class Asked(Judge):
    """A judge with a clock: tests take ``clean_s``, or for ever with a fault."""

    def __init__(self, clean_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(ROOT)
        self.clean_s, self.now, self.is_faulty = clean_s, 0.0, False
        monkeypatch.setattr(judges.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(self, "_steps", lambda *_: iter([("near", ["a", "b"], 50.0)]))

    @contextmanager
    def fault(self, name: str, mutant: Mutant) -> Iterator[None]:
        self.is_faulty = True
        try:
            yield
        finally:
            self.is_faulty = False

    def failed(self, tests: list[str], limit_s: float, skipped: list[str]) -> str | None:
        takes_s = math.inf if self.is_faulty else self.clean_s * len(tests)
        self.now += min(takes_s, limit_s)
        if takes_s > limit_s:
            raise Endless("b" if self.is_faulty else "")
        return None


@pytest.mark.parametrize(("clean_s", "outcome"), [(5.0, "near"), (5.5, "endless"), (60.0, "endless")])
def test_tests_without_an_end_notice_a_fault_that_gives_them_none(
    clean_s: float, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where the test that was running ends in a tenth of the time without the fault."""
    judge = Asked(clean_s, monkeypatch)
    found = judge.outcome("plan", "semu/a.py", mutants_of(SOURCE)[0], False)
    assert found == (outcome, "b has no end: 5.0 s become 50.0 s" if outcome == "near" else "near")


def test_functions_become_those_of_another_text(tmp_path: Path) -> None:
    """Wherever they are held: as methods, properties, behind decorators, as closures that exist."""
    text = """
from functools import cache, cached_property

@cache
def one():
    return 1 + 1

def adding(number):
    def add(other):
        return other + number
    return add

class Two:
    @cached_property
    def three(self):
        return 1 + 2
    def _get(self):
        return self.value + 3
    four = property(_get)
"""
    path = tmp_path / "module_with_a_fault.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("module_with_a_fault", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    one, add, two = module.one, module.adding(5), module.Two()
    two.value = 10
    assert change(path, text, text) == 0
    gc.freeze()  # as tests/conftest.py does
    assert change(path, text, text.replace(" + ", " - ")) == 5
    assert (one(), add(7), module.adding(4)(7), two.three, two.four) == (0, 2, 3, -1, 7)


CHILDREN = """
import sys
from pathlib import Path

from tests.proof import forked
from tests.proof.judges import AREAS, CHOSEN, ROOT, Endless, Judge, Tree
from tests.proof.mutants import Mutant, mutants_of

tests, name = sys.argv[1], "semu/units.py"
forked.MOST_S = 5.0
judge = forked.Forked()
fault = next(one for one in mutants_of((forked.ROOT / name).read_text()) if one.what.startswith("latency_s * "))
for test in ("alike", "rounded", "dies", "waits", "alike"):
    with judge.fault(name, fault):
        try:
            found = judge.failed([f"{tests}::test_{test}"], 60.0, [])
        except Endless as stopped:
            found = f"endless {stopped.test}"
    print(test, (found or "none").rpartition("::")[2], judge.failed([f"{tests}::test_{test}"], 60.0, []))
judge.near_s = 0.0  # one test has begun by then
with judge.fault(name, fault):
    print("few", judge.failed([f"{tests}::test_{test}" for test in ("alike", "rounded")], 60.0, []))
print(judge.can_judge(name), judge.can_judge("semu/costs/kernels.py"))
"""
"""One second comes to 0 s with the fault."""


@pytest.mark.slow
def test_children_of_one_process_see_a_fault(tmp_path: Path) -> None:
    """Of tests that are asked: one that passes with it, one that fails, one that dies, one that has no end."""
    path = tmp_path / "test_asked.py"
    path.write_text(
        "import os\nimport time\n\nfrom semu.units import quantize_time\n\n\n"
        "def test_alike():\n    assert quantize_time(0.0) == 0.0\n\n\n"
        "def test_rounded():\n    assert quantize_time(1.0) == 1.0\n\n\n"
        "def test_dies():\n    quantize_time(1.0) or os.abort()\n\n\n"
        "def test_waits():\n    time.sleep(0 if quantize_time(1.0) else 60)\n"
    )
    ran = subprocess.run([sys.executable, "-c", CHILDREN, path], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.stdout.splitlines() == [
        "alike none None",
        "rounded test_rounded None",
        "dies test_dies None",
        "waits test_waits None",
        "alike none None",
        "few None",
        "True False",
    ], ran.stderr
