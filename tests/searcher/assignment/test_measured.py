"""Costs of samples refitted to measured stages: coefficients that made a trace come back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from searcher.assignment.jobs import draw_text, draw_vlm, text_assigner, vlm_assigner, write_samples

import semu
from semu.cli.command import main
from semu.searcher.assignment.assigner import Assigner, SampleSource
from semu.searcher.assignment.assignment import Assignment
from semu.searcher.assignment.costs import SampleCosts, StageKind, weighted
from semu.searcher.assignment.measured import (
    FITTED,
    MEASURED,
    SCALED,
    MeasuredStage,
    read_costs,
    refitted,
    write_costs,
)
from semu.validation.traces.stages import read_stages

KINDS = {"vlm": (vlm_assigner, draw_vlm), "text": (text_assigner, draw_text)}


def truth_of(costs: SampleCosts, seed: int) -> SampleCosts:
    """Other coefficients for every stage."""
    generator = np.random.default_rng(seed)
    slope = costs.slope_s * generator.uniform(0.7, 1.5, costs.slope_s.shape)
    return replace(costs, fixed_s=costs.fixed_s * generator.uniform(0.8, 1.6, len(costs.keys)), slope_s=slope)


def assigned(kind: str, microbatches: int) -> Assignment:
    make, draw = KINDS[kind]
    assigner = make(1, microbatches)
    return Assigner(assigner.job, "order", costs=assigner.costs(draw(100, 1)))(draw(9 * microbatches, 3))


def stages_of(found: Assignment, truth: SampleCosts, noise: float, ranks: tuple[int, ...]) -> list[MeasuredStage]:
    """How long the stages of some pipeline ranks take, from coefficients alone, written out."""
    generator = np.random.default_rng(0)
    features = truth.features(found.samples).astype(float)
    stages = []
    for row, key in enumerate(truth.keys):
        if isinstance(key, StageKind) and truth.checkpoint.layout.chunks[key.kind].chunk.rank in ranks:
            for microbatch in range(found.num_microbatches):
                own = features[found.members(0, microbatch)]
                seconds = truth.fixed_s[row] + sum(float(line @ truth.slope_s[row]) for line in own)
                stages.append(MeasuredStage(key.kind, key.code, microbatch, seconds * generator.normal(1, noise)))
    return stages


def off(found: SampleCosts, truth: SampleCosts, samples: Any) -> np.ndarray:  # type: ignore[type-arg]
    """Relative errors on other microbatches of nine samples: [microbatches, rows]."""
    sums = found.features(samples).reshape(-1, 9, len(found.names)).sum(axis=1).astype(float)
    said, real = (own.fixed_s + weighted(sums, own.slope_s) for own in (found, truth))
    errors: np.ndarray = said / np.where(real > 0, real, 1) - (real > 0)  # type: ignore[type-arg]
    return errors


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("noise", "within"), [(0.0, 1e-6), (0.005, 0.012)])
def test_the_coefficients_of_a_trace_come_back(kind: str, noise: float, within: float) -> None:
    found = assigned(kind, 64)
    truth = truth_of(found.costs, 7)
    members = [found.members(0, number) for number in range(64)]
    stages = stages_of(found, truth, noise, (0, 1, 2, 3))
    again = refitted(found.costs, found.costs.features(found.samples), members, stages, "a trace")
    rows = [row for row, key in enumerate(truth.keys) if isinstance(key, StageKind)]
    errors = off(again, truth, KINDS[kind][1](180, 11))[:, rows]
    assert np.sqrt((errors**2).mean()) < within
    assert np.abs(off(found.costs, truth, KINDS[kind][1](180, 11))[:, rows]).max() > 0.05
    assert {again.provenance[row] for row in rows} == {MEASURED}
    assert all(own.rms <= max(1.5 * noise, 1e-6) and own.packs >= 64 for own in again.residuals)
    if not noise and kind == "text":  # tokens of images in the text are a multiple of their patches
        assert again.slope_s[rows] == pytest.approx(truth.slope_s[rows], rel=1e-4, abs=1e-15)
    transfers = [row for row in range(len(truth.keys)) if row not in rows]
    assert {again.provenance[row] for row in transfers} <= {FITTED}
    assert (again.slope_s[transfers] == found.costs.slope_s[transfers]).all()


def test_ranks_without_a_trace_are_scaled_as_their_module() -> None:
    found = assigned("vlm", 16)
    truth = replace(found.costs, fixed_s=1.3 * found.costs.fixed_s, slope_s=1.3 * found.costs.slope_s)
    members = [found.members(0, number) for number in range(16)]
    again = refitted(found.costs, found.costs.features(found.samples), members, stages_of(found, truth, 0, (3,)), "")
    kinds = truth.checkpoint.layout.kinds
    for row, key in enumerate(truth.keys):
        if isinstance(key, StageKind):
            chunk = truth.checkpoint.layout.chunks[key.kind]
            word = MEASURED if chunk.chunk.rank == 3 else SCALED if kinds[key.kind].module == "llm" else FITTED
            assert again.provenance[row] == word
            factor = 1.0 if word == FITTED else 1.3
            assert again.slope_s[row] == pytest.approx(factor * found.costs.slope_s[row], rel=1e-6)


def test_a_few_stages_scale_the_engines_costs() -> None:
    """Five noisy microbatches do not tell five coefficients."""
    found = assigned("vlm", 8)
    truth = replace(found.costs, fixed_s=1.3 * found.costs.fixed_s, slope_s=1.3 * found.costs.slope_s)
    members = [found.members(0, number) for number in range(8)]
    stages = [own for own in stages_of(found, truth, 0.01, (0, 1, 2, 3)) if own.microbatch < 5]
    again = refitted(found.costs, found.costs.features(found.samples), members, stages, "")
    rows = [row for row, key in enumerate(truth.keys) if isinstance(key, StageKind)]
    assert np.abs(off(again, truth, draw_vlm(180, 11))[:, rows]).max() < 0.05
    with pytest.raises(semu.ConfigError, match="too few"):
        few = [own for own in stages if own.microbatch < 3]
        refitted(found.costs, found.costs.features(found.samples), members, few, "")
    with pytest.raises(semu.ConfigError, match="another run"):
        refitted(found.costs, found.costs.features(found.samples), members, [MeasuredStage(99, 0, 0, 1.0)], "")


RUN = ["--cluster", "h800:2x8", "--parallel", "dp2-tp2-pp4", "--set", "training.global_batch=32"]


def trace_of(path: Path, stages: list[MeasuredStage]) -> Path:
    events = [
        {"ph": "X", "cat": "gpu_user_annotation", "name": f"{s.chunk}{'FB'[s.code]}{s.microbatch} x", "ts": 0.0}
        | {"dur": 1e6 * s.seconds, "pid": 0, "tid": 7}
        for s in stages
    ]
    events.append({"ph": "X", "cat": "kernel", "name": "gemm", "ts": 0, "dur": 3, "pid": 0, "tid": 7})
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main([*words, "--json", "--quiet"])
    return code, json.loads(capsys.readouterr().out)


def test_from_a_trace_to_an_assignment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = draw_vlm(300, 5)
    path = write_samples(tmp_path / "samples.jsonl", samples)
    asked = ["--samples", str(path), "--count", "200", "--method", "coupled"]
    code, before = run(capsys, "assign", "vlm-s", *RUN, *asked, "--out", str(tmp_path / "out"))
    assert code == 0
    job = semu.load_run("vlm-s", RUN[5:], cluster=RUN[1], parallel=RUN[3])
    costs = Assigner(job, "order").costs(samples)
    lines = [json.loads(line) for line in (tmp_path / "out" / "assignment.jsonl").read_text().splitlines()]
    own = {line["microbatch"]: line["ids"] for line in lines if line["replica"] == 1}
    source = SampleSource.read(job, path, 200)
    own = {k: [source.ids.index(name) for name in ids] for k, ids in own.items()}
    features = costs.features(samples).astype(float)
    stages = [
        MeasuredStage(
            key.kind, key.code, k, 1.5 * (costs.fixed_s[row] + features[ids].sum(axis=0) @ costs.slope_s[row])
        )
        for row, key in enumerate(costs.keys)
        for k, ids in own.items()
        if isinstance(key, StageKind)
    ]
    trace = trace_of(tmp_path / "trace.json", stages)
    words = ["validate", "--run", "vlm-s", *RUN, "--trace", str(trace), "--samples", str(path)]
    words += ["--assignment", str(tmp_path / "out" / "assignment.jsonl"), "--costs", str(tmp_path / "costs.json")]
    code, told = run(capsys, *words, "--replica", "1")
    assert code == 0
    assert told["measured"] == sum(isinstance(key, StageKind) for key in costs.keys)
    assert all(row["rms"] < 1e-6 for row in told["residuals"])
    code, after = run(capsys, "assign", "vlm-s", *RUN, *asked, "--costs", str(tmp_path / "costs.json"))
    assert code == 0
    assert after["costs"]["provenance"] == {"fitted": told["fitted"], "measured": told["measured"]}
    slower = after["methods"][0]["fitted_pipeline_s"] / before["methods"][0]["fitted_pipeline_s"]
    assert slower == pytest.approx(1.5, rel=0.01)
    code, refused = run(capsys, *words, "--replica", "2")
    assert (code, "replica 2" in refused["error"]["expected"]) == (2, True)
    other = ["llama3-8b", "--cluster", "h100:1x8", "--parallel", "tp2-pp4", "--samples", str(path)]
    code, refused = run(capsys, "assign", *other, "--costs", str(tmp_path / "costs.json"), "--count", "100")
    assert code == 2


@pytest.mark.slow
def test_stages_of_semus_own_trace(tmp_path: Path) -> None:
    """Refitted to the engine's own stages, costs say what the engine says."""
    found = assigned("vlm", 16)
    found.checkpoint.report().save(tmp_path)
    stages = read_stages(tmp_path / "trace.json.gz")
    assert len(stages) == 16 * sum(isinstance(key, StageKind) for key in found.costs.keys)
    members = [found.members(0, number) for number in range(16)]
    again = refitted(found.costs, found.costs.features(found.samples), members, stages, "trace")
    assert max(own.rms for own in again.residuals) < 0.02
    written = write_costs(again, tmp_path / "costs.json")
    back = read_costs(written, found.costs)
    assert (back.slope_s == again.slope_s).all() and back.provenance == again.provenance
    assert back.residuals == again.residuals


@pytest.mark.parametrize(
    ("names", "match"),
    [([], "no stages"), (["0F1 vit", "0F1 vit"], "twice"), (["0I1 vit"], "two parts"), (["forward"], "no stages")],
)
def test_traces_that_are_none(names: list[str], match: str, tmp_path: Path) -> None:
    events = [{"ph": "X", "cat": "user_annotation", "name": name, "ts": 0, "dur": 1} for name in names]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": events}))
    with pytest.raises(semu.ConfigError, match=match):
        read_stages(tmp_path / "t.json")


def test_options_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    for words, where in ((["--samples", "x"], "--samples"), (["--costs", "c.json"], "--costs")):
        code, found = run(capsys, "validate", "--run", "vlm-s", "--trace", "t.json", *words)
        assert (code, found["error"]["where"]) == (2, where)
