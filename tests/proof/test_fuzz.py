"""Damaged files: those that once failed, and a slice of new ones, the same unless SEMU_FUZZ_SEED says another."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.proof.damage import damaged
from tests.proof.doors import doors
from tests.proof.fuzz import CODES, faults_of, fuzz, tried

CORPUS = Path(__file__).parents[1] / "corpus"
COUNT = 15
"""Inputs of each door."""
SLICE_S = 120.0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_once_failed(path: Path, tmp_path: Path) -> None:
    verdict = tried(doors(tmp_path / "real")[path.parent.name], path)
    assert verdict.code in CODES
    assert verdict.fault == "" or verdict.fault.endswith(" s")  # a first use compiles kernels


@pytest.mark.slow
def test_a_slice(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEMU_FUZZ_SEED", "1"))
    outcome = fuzz(seed=seed, count=COUNT, seconds=SLICE_S, state=tmp_path / "state", is_loud=False)
    assert outcome.faults == [], f"seed {seed}"
    assert sum(sum(codes.values()) for codes in outcome.codes.values()) > COUNT


def test_damage_is_the_same_for_the_same_seed() -> None:
    data = b'{"a": [1, 2, {"b": 3.5}]}\n'
    made = [[damaged(random.Random(seed), data) for seed in range(200)] for _ in range(2)]
    assert made[0] == made[1]
    assert len(set(made[0])) > 100


def test_numbers_that_cannot_be() -> None:
    answer = {"time_s": -1.0, "error_s": -1.0, "peak": [float("nan")], "bytes": 3, "x_bytes": 0}
    assert faults_of(answer) == [".time_s is -1.0", ".peak[0] is nan"]
