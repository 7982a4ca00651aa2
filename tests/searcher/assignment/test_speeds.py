"""Replicas of unequal speed: a slow one gets less, against all assignments listed and the exact solver."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from searcher.assignment.jobs import draw_text, draw_vlm, text_assigner, vlm_assigner, write_samples
from searcher.assignment.test_exact import small_assigner

import semu
from semu.cli.command import main
from semu.searcher.assignment.assigner import Assigner
from semu.searcher.assignment.methods.table import METHODS
from semu.searcher.assignment.problem import Dealt
from semu.simulation import prepare

SLOW = (1.0, 0.6)


def slow_assigner(assigner: Assigner, speeds: tuple[float, ...] | None = SLOW) -> Assigner:
    costs = assigner.costs(draw_vlm(500, 1))
    return Assigner(assigner.job, "entrain", costs=costs, speeds=speeds)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_optimum_is_that_of_all_assignments_listed(seed: int) -> None:
    assigner = slow_assigner(small_assigner(2, 2))
    found, exact = assigner.exact(draw_vlm(4, seed), seconds=20.0)
    choices = [(0, 0, 0), (0, 0, 1), (0, 1, 1), (1, 0, 0), (1, 0, 1), (1, 1, 1)]
    best = np.inf
    for own in product(choices, repeat=4):
        dealt = Dealt(*np.array(own, np.int64).T, 2)
        if len(set(dealt.bins.tolist())) == 4 and len(set(dealt.reader_bins.tolist())) == 4:
            best = min(best, found.problem.worst_s(dealt))
    assert exact.is_optimal
    assert exact.bound_s <= best * (1 + 1e-9)
    assert exact.time_s == pytest.approx(best, rel=1e-3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("speeds", [(1.0, 0.6), (0.8, 1.0)])
def test_entrain_is_close_to_the_optimum(speeds: tuple[float, ...]) -> None:
    plain = small_assigner(4, 2)
    assigner = slow_assigner(plain, speeds)
    for seed in range(2):
        samples = draw_vlm(14, 30 + seed)
        _, exact = assigner.exact(samples, seconds=5.0)
        found = assigner(samples)
        assert 1 <= found.fitted_s.max() / exact.time_s <= 1.15
        assert found.bound_s <= exact.time_s * (1 + 1e-9)


@pytest.mark.parametrize("kind", ["vlm", "text"])
def test_a_straggler_gets_less(kind: str) -> None:
    usual, draw = (vlm_assigner(4, 8), draw_vlm) if kind == "vlm" else (text_assigner(4, 8), draw_text)
    samples = draw(400, 3) if kind == "vlm" else draw(300, 3)
    costs, speeds = usual.costs(samples), (1.0, 1.0, 0.7, 1.0)
    blind = Assigner(usual.job, "coupled", costs=costs)(samples)
    aware = Assigner(usual.job, "coupled", costs=costs, speeds=speeds)(samples)
    rank = int(aware.problem.load.sum(axis=0).argmax())
    work = np.bincount(aware.dealt.replica, weights=aware.problem.load[:, rank]) + 8 * aware.problem.fixed[rank]
    assert work[2] / np.delete(work, 2).mean() == pytest.approx(0.7, abs=0.05)
    assert aware.problem.worst_s(blind.dealt) > 1.15 * aware.problem.worst_s(aware.dealt)
    assert aware.replica_balance < 1.05
    # simulated in full, with the stages of the straggler as slow
    slow_s = blind.checkpoint.slowed(1.0 / np.array(speeds))
    assert slow_s > 1.15 * aware.iteration_s
    assert aware.fitted_s.max() == pytest.approx(aware.iteration_s, rel=0.12)


def test_equal_speeds_change_nothing_but_time() -> None:
    usual, samples = vlm_assigner(2, 8), draw_vlm(200, 4)
    for method in METHODS:
        plain = Assigner(usual.job, method, costs=usual.costs(samples))(samples)
        half = Assigner(usual.job, method, costs=usual.costs(samples), speeds=(0.5, 0.5))(samples)
        if method not in ("entrain",):  # which weighs transfers, that are as fast as ever
            assert plain.dealt.bins.tolist() == half.dealt.bins.tolist() or method in ("coupled", "even")
        assert 1.8 * plain.iteration_s < half.iteration_s < 2 * plain.iteration_s


def test_slow_replicas_are_simulated_as_stragglers_are() -> None:
    job = text_assigner(2, 8).job
    checkpoint = prepare(job)
    alone = checkpoint.estimate().iteration_time_s
    assert checkpoint.slowed(np.ones(2)) == pytest.approx(alone, rel=1e-12)
    training = replace(job.training, straggler_share=1.0, straggler_slowdown=1.5)
    drawn = prepare(replace(job, training=training)).report(samples=1).samples
    assert drawn is not None
    assert checkpoint.slowed(np.array([1.5, 1.5])) == drawn.p50_s
    assert checkpoint.slowed(np.array([1.0, 1.5])) == checkpoint.slowed(np.array([1.5, 1.0])) == drawn.p50_s
    assert alone < drawn.p50_s < 1.5 * alone


RUN = ["vlm-s", "--cluster", "h800:2x8", "--parallel", "dp2-tp2-pp4", "--set", "training.global_batch=16"]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["assign", *RUN, *words, "--json", "--quiet"])
    return code, json.loads(capsys.readouterr().out)


def test_speeds_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_samples(tmp_path / "samples.jsonl", draw_vlm(300, 1))
    given = ("--samples", str(path), "--count", "100", "--method", "coupled,order")
    code, found = run(capsys, *given, "--speeds", "1,0.5")
    rows = {row["method"]: row for row in found["methods"]}
    assert code == 0
    assert found["best"] == "coupled"
    assert rows["coupled"]["speeds"] == [1.0, 0.5]
    assert rows["coupled"]["iteration_time_s"] < 0.9 * rows["order"]["iteration_time_s"]
    code, by_key = run(capsys, *given, "--set", "assignment.speeds=[1, 0.5]")
    assert by_key["methods"][0]["iteration_time_s"] == rows["coupled"]["iteration_time_s"]
    for word in ("1,0.5,1", "1,0", "1,x", "1,nan"):
        code, refused = run(capsys, *given, "--speeds", word)
        assert (code, "speeds" in refused["error"]["where"]) == (2, True)


def test_plans_are_of_equal_replicas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_samples(tmp_path / "samples.jsonl", draw_vlm(100, 1))
    words = ["plan", *RUN, "--set", "assignment.speeds=[1, 0.5]", "--stream", str(path), "--assign", "coupled"]
    assert main([*words, "--iterations", "1", "--json", "--quiet"]) == 2
    assert "assignment.speeds" in json.loads(capsys.readouterr().out)["error"]["where"]


def test_speeds_of_a_call() -> None:
    usual = vlm_assigner(2, 8)
    with pytest.raises(semu.ConfigError, match="2 speeds"):
        Assigner(usual.job, "coupled", speeds=(1.0,))
