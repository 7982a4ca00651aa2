"""What semu writes is what it wrote when it was frozen, byte for byte (``freeze.py``, README.md)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from frozen import freeze
from frozen.cases import Case, all_cases

PARTS = 12


def compare(cases: list[Case]) -> None:
    skipped: list[str] = []

    def tell(case: Case, text: str | None, _: float) -> None:
        if text is None:
            skipped.append(case.name)

    lines = freeze.differences(freeze.run_cases(cases, tell), freeze.read_hashes())
    if lines:
        pytest.fail(freeze.advice(lines), pytrace=False)
    if skipped:
        pytest.skip(f"no measured data for {', '.join(skipped)}; all else is as frozen; set SEMU_DATA")


def test_the_quick_subset_is_as_frozen() -> None:
    compare(freeze.chosen_cases(quick=True))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_everything_is_as_frozen(part: int) -> None:
    compare([case for case in freeze.chosen_cases() if not case.is_quick][part::PARTS])


def test_every_case_has_one_line_and_every_line_a_case() -> None:
    assert list(freeze.read_hashes()) == list(all_cases())
    lines = freeze.HASHES.read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(all_cases()) + 2


def test_what_differs_is_named_with_what_to_do() -> None:
    name, value = next(iter(freeze.read_hashes().items()))
    assert freeze.differences({name: value}, {name: value}) == []
    (line,) = freeze.differences({name: "0" * 64}, {name: value})
    said = freeze.advice([line])
    assert name in said and "--write" in said and "CHANGES.md" in said and "--dump" in said
    assert freeze.differences({"new": value}, {}) == ["new: not in hashes.json"]


@pytest.mark.slow
def test_hash_seed_and_order_of_cases_change_nothing(tmp_path: Path) -> None:
    """Two processes: other seeds of Python's hashes, and the cases from first to last and from last to first."""
    for seed, words in (("1", []), ("2", ["--reverse"])):
        command = [sys.executable, str(freeze.FOLDER / "freeze.py"), "--only", "experts/z", "--dump"]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        folder = tmp_path / seed
        subprocess.run([*command, str(folder), *words], check=True, env=environment, stdout=subprocess.DEVNULL)
    first, second = ({path.name: path.read_text() for path in (tmp_path / seed).rglob("*.json")} for seed in ("1", "2"))
    assert first == second
    assert all(json.loads(text) for text in first.values()) and len(first) >= 6
