"""Faults of meaning: what is made of a file, and that every fault of semu's own files is a file of Python."""

from __future__ import annotations

import ast
import json

from tests.proof.mutants import mutants_of
from tests.proof.mutate import AREAS, ROOT, SURVIVORS, drawn, key_of

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
    for area, (patterns, rooms) in AREAS.items():
        paths = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
        assert paths, area
        assert any((ROOT / "tests" / room).exists() for room in rooms), area
        path = max(paths, key=lambda one: one.stat().st_size)
        source = path.read_text()
        for mutant in mutants_of(source)[::7]:
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
