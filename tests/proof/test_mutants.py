"""Faults of meaning: what is made of a file, and that every fault of semu's own files is a file of Python."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from tests.proof.covered import callers
from tests.proof.mutants import mutants_of
from tests.proof.mutate import AREAS, CHOSEN, ROOT, SURVIVORS, Tree, drawn, key_of

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
    path, compiled = tmp_path / "kernels.py", tmp_path / "__pycache__" / "kernels.cpython-311.pyc"
    path.write_text(SOURCE)
    before = path.stat()
    compiled.parent.mkdir()
    tree.kernels.mkdir()
    for mutant in mutants_of(SOURCE)[:2]:
        compiled.write_text("of the file before")
        with tree.fault("kernels.py", mutant) as kernels:
            assert path.read_text() == mutant.text(SOURCE)
            assert not compiled.exists()
            assert kernels == tree.kernels
            compiled.write_text("of the fault")
        assert path.read_text() == SOURCE and not compiled.exists()
        assert path.stat().st_mtime_ns == before.st_mtime_ns
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "kernels.py").write_text(SOURCE)
    with tree.fault("a/kernels.py", mutants_of(SOURCE)[0]) as kernels:
        assert kernels != tree.kernels and kernels.is_dir()
