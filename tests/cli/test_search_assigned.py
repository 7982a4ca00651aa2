"""``semu search --samples FILE``: a schedule for assigned samples, and the words of refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from searcher.assignment.jobs import draw_text, draw_vlm, write_samples

import semu
from semu.cli import main
from semu.searcher.assignment.assigner import Assigner

ON = ("--cluster", "h800:1x4", "--parallel", "tp2-pp2", "--set", "training.global_batch=4")


@pytest.mark.parametrize(
    "model", ["vlm-s", pytest.param("llama3-8b", marks=pytest.mark.slow)], ids=["vlm", "llama3-8b"]
)
def test_it_is_the_search_of_the_assignment(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_samples(Path("samples.jsonl"), draw_vlm(60, 3) if model == "vlm-s" else draw_text(60, 3))
    words = ["search", model, *ON, "--samples", "samples.jsonl", "--assign", "coupled", "--count", "20"]
    words += ["--out", "out"] if model == "vlm-s" else []
    options = ["--iteration", "1", "--rollouts", "1", "--workers", "1", "--candidates", "2", "--json"]
    assert main([*words, *options]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    job = semu.load_run(model, [ON[-1]], cluster="h800:1x4", parallel="tp2-pp2")
    assigned = semu.assign(job, "samples.jsonl", "coupled", per_iteration=20, iteration=1)
    wanted = semu.search(job, assigned=assigned, rollouts=1, workers=1, candidates=2)
    assert document["iteration_time_s"] == wanted.report.iteration_time_s
    assert document["assigned"] == {"method": "coupled", "samples": 20, "deferred": 0}
    if model != "vlm-s":
        return
    written = [json.loads(line) for line in Path("out/assignment.jsonl").read_text().splitlines()]
    listed = [row["ids"] for row in written if "ids" in row]
    assert listed == [[assigned.ids[n] for n in assigned.members(0, k).tolist()] for k in range(4)]
    assert "assignment.jsonl has the samples of every microbatch" in err
    assert "training.schedule_file" not in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--assign", "entrain"], "--samples: no samples"),
        (["--count", "20"], "--count: --count is an option of samples"),
        (["--iteration", "0"], "--iteration: --iteration is an option of samples"),
        (["--samples", "samples.jsonl", "--assign", "coupled,even"], "several methods; expected one method"),
        (["--samples", "samples.jsonl", "--assign", "coupld"], "did you mean 'coupled'"),
        (["--samples", "samples.jsonl", "--batches", "2"], "--samples is an option of one search"),
        (["--samples", "samples.jsonl", "--count", "20", "--iteration", "3"], "expected an integer from 0 to 2"),
        (["--samples", "nosuch.jsonl"], "nosuch.jsonl: cannot read"),
        (
            ["--samples", "samples.jsonl", "--count", "20", "--set", "assignment.speeds=[0.5]"],
            "replicas that are equally fast",
        ),
    ],
)
def test_bad_input_is_named(
    words: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_samples(Path("samples.jsonl"), draw_vlm(60, 3))
    assert main(["search", "vlm-s", *ON, "--rollouts", "1", *words]) == 2
    assert said in capsys.readouterr().err


def test_samples_of_simulate_are_draws(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "vlm-s", "--samples", "samples.jsonl"]) == 2
    assert "semu assign simulates the samples of a file" in capsys.readouterr().err


@pytest.mark.slow
def test_what_entrain_defers_is_searched_without_deferral_too() -> None:
    """The faster of both searches; what a method always defers stays so."""
    job = semu.load_run("vlm-s", [ON[-1]], cluster="h800:1x4", parallel="tp2-pp2")
    literal = Assigner(job, samples=draw_vlm(500, 1))(draw_vlm(24, 1), method="entrain-literal")
    assert literal.defers
    assert literal.beside is None
    chosen = replace(literal, method="entrain")
    assert chosen.beside is not None
    assert chosen.beside.method == "coupled"
    assert not chosen.beside.defers
    options = {"rollouts": 1, "workers": 1, "candidates": 2}
    both, *apart = (semu.search(job, assigned=own, **options) for own in (chosen, literal, chosen.beside))
    times = [own.report.iteration_time_s for own in apart]
    assert times[0] != times[1]
    assert both.report.iteration_time_s == min(times)
    assert both.assigned is not None
    assert both.assigned.defers == (times[0] < times[1])
