"""The options of ``conftest.py``, by runs of pytest on a folder of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import os
import pytest

HAS_MORE = bool(os.environ.get("HAS_MORE"))

def test_that_passes():
    pass

@pytest.mark.parametrize("text", ["a b", "é", "::"])
def test_of_a_text(text):
    pass

@pytest.mark.extras
def test_that_the_extras_may_change():
    pass

@pytest.mark.slow
def test_that_is_slow():
    pass

@pytest.mark.by_hand
def test_that_needs_what_nothing_installs():
    pytest.skip("it is not there")

def test_that_needs_more():
    if not HAS_MORE:
        pytest.skip("there is not more")

@pytest.fixture
def breaks_afterwards():
    yield
    assert HAS_MORE

def test_with_an_end_that_fails(breaks_afterwards):
    pass

@pytest.mark.xfail
def test_that_is_known_to_fail():
    assert False
"""
WHOLE_MODULE = (
    "import os, pytest\nif not os.environ.get('HAS_MORE'):\n    pytest.skip('none', allow_module_level=True)\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path / "conftest.py")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n    extras\n    sampled\n    by_hand\n")
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_whole.py").write_text(f"{WHOLE_MODULE}\ndef test_it():\n    pass\n")
    return tmp_path


def run(folder: Path, *arguments: str, more: str = "", path: str = "") -> tuple[int, set[str]]:
    """Exit code of pytest in a folder, and the tests that it ran to their end."""
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *arguments]
    environment = {"PATH": path, "HAS_MORE": more}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    lines = [line.split(" PASSED")[0] for line in done.stdout.splitlines() if " PASSED" in line]
    return done.returncode, {line.split("test_")[-1] for line in lines}


def test_a_second_run_takes_what_the_first_did_not_pass(folder: Path) -> None:
    code, _ = run(folder, "-m", "not slow", "--passed-to", "made/passed", "-n", "2")
    assert code == 1  # one test's end fails
    passed = (folder / "made/passed").read_text().split("\n")
    assert passed == [
        "test_some.py::test_of_a_text[::]",
        "test_some.py::test_of_a_text[\\xe9]",
        "test_some.py::test_of_a_text[a b]",
        "test_some.py::test_that_passes",
        "",
    ]
    code, taken = run(folder, "--not-in", "made/passed", "--no-skips", more="yes")
    others = {"that_the_extras_may_change", "that_is_slow", "that_needs_more", "with_an_end_that_fails", "it"}
    assert (code, taken) == (0, others)


def test_a_test_skipped_in_the_second_run_fails_under_no_skips(folder: Path) -> None:
    run(folder, "-m", "not slow", "--passed-to", "passed")
    code, taken = run(folder, "--not-in", "passed", "--no-skips")
    assert code != 0
    assert "that_needs_more" not in taken


def test_without_the_file_of_a_first_run_all_tests_run(folder: Path) -> None:
    code, taken = run(folder, "--not-in", "nothing", more="yes")
    assert code == 0
    assert len(taken) == 9


def test_of_many_cases_the_default_run_takes_some_and_the_slow_one_the_others(folder: Path) -> None:
    (folder / "test_whole.py").unlink()
    (folder / "test_some.py").write_text(
        "import pytest\n\n@pytest.mark.sampled(3)\n"
        "@pytest.mark.parametrize('b', 'xyz')\n@pytest.mark.parametrize('a', range(7))\n"
        "def test_case(a, b):\n    pass\n"
    )
    every = {f"case[{a}-{b}]" for a in range(7) for b in "xyz"}
    some, others = run(folder, "-m", "not slow")[1], run(folder, "-m", "slow")[1]
    assert some | others == every and not some & others
    assert len(some) == 7
    assert {case[5] for case in some} == {*"0123456"} and {case[-2] for case in some} == {*"xyz"}
    assert run(folder, "-m", "not slow")[1] == some


def test_cases_that_are_slow_anyway_are_not_counted(folder: Path) -> None:
    (folder / "test_whole.py").unlink()
    (folder / "test_some.py").write_text(
        "import pytest\n\nmarks = {a: pytest.mark.slow if a < 8 else () for a in range(10)}\n"
        "@pytest.mark.sampled(2)\n"
        "@pytest.mark.parametrize('a', [pytest.param(a, marks=mark) for a, mark in marks.items()])\n"
        "def test_case(a):\n    pass\n"
    )
    some, others = run(folder, "-m", "not slow")[1], run(folder, "-m", "slow")[1]
    assert len(some) == 1 and some <= {"case[8]", "case[9]"}
    assert len(others) == 9


def test_commits_take_parts_of_the_slow_cases_and_together_all(folder: Path) -> None:
    (folder / "test_whole.py").unlink()
    (folder / "test_some.py").write_text(
        "import pytest\n\ndef test_plain():\n    pass\n\n@pytest.mark.slow\n@pytest.mark.parametrize('a', range(8))\n"
        "def test_many(a):\n    pass\n\n@pytest.mark.slow\n@pytest.mark.parametrize('a', range(2))\n"
        "def test_few(a):\n    pass\n"
    )
    always = {"plain", "few[0]", "few[1]"}
    git = folder / "bin" / "git"
    git.parent.mkdir()
    parts = []
    for commit in ("0000000f", "00000010", "ffffffff00"):  # eight digits count
        git.write_text(f"#!/bin/sh\necho {commit}\n")
        git.chmod(0o755)
        code, taken = run(folder, "--one-in", "3", path=str(git.parent))
        assert (code, taken & always) == (0, always)
        parts.append(taken - always)
    git.write_text("#!/bin/sh\necho 00000011\n")
    parts.append(run(folder, "--one-in", "3", path=str(git.parent))[1] - always)
    assert parts[0] == parts[2] == run(folder, "--one-in", "3")[1] - always  # no repository: the first
    assert sorted([*parts[0], *parts[1], *parts[3]]) == [f"many[{a}]" for a in range(8)]
    assert {len(parts[0]), len(parts[1]), len(parts[3])} == {2, 3}
    assert len(run(folder, "--one-in", "1")[1]) == 11
