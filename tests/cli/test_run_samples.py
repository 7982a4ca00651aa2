"""``[assignment] samples`` of a run file: what ``semu simulate``, ``search`` and ``plan`` train, from Python too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from searcher.assignment.jobs import draw_text, draw_vlm, write_samples

import semu
from semu.cli import main

OPTIONS = ["--rollouts", "1", "--workers", "1"]
SHORT: dict[str, Any] = {"rollouts": 1, "workers": 1}


def write_run(folder: Path, model: str, **assignment: object) -> semu.TrainingJob:
    """``run.toml`` and ``samples.jsonl`` in a folder; the job without the samples."""
    write_samples(folder / "samples.jsonl", draw_vlm(60, 3) if model == "vlm-s" else draw_text(60, 3))
    text = (
        f'[model]\nname = "{model}"\n[cluster]\ndevice = "h800"\nnodes = 1\ngpus_per_node = 4\n'
        "[parallel]\ntp = 2\npp = 2\n[training]\nseq_len = 8192\nglobal_batch = 4\n"
    )
    (folder / "bare.toml").write_text(text)
    rows = {"samples": "samples.jsonl", **assignment}
    (folder / "run.toml").write_text(
        text + "[assignment]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in rows.items())
    )
    return semu.load_run(folder / "bare.toml")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], str]:
    assert main([*words, "--json"]) in (0, 3)
    out, err = capsys.readouterr()
    return json.loads(out), err


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("model", "method"), [("vlm-s", "coupled"), ("vlm-s", "entrain-literal"), ("llama3-8b", "entrain")]
)
def test_they_are_simulated_and_planned(
    model: str, method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = write_run(tmp_path, model, method=method, count=20, iteration=1)
    wanted = semu.assign(job, "samples.jsonl", method, per_iteration=20, iteration=1)
    assert wanted.defers == (method == "entrain-literal")
    found, err = run(capsys, "simulate", "run.toml")
    assert found["iteration_time_s"] == wanted.iteration_s
    assert f"assignment.samples: 20 samples of samples.jsonl, assigned by {method}, in place of [batch]" in err
    assert semu.simulate("run.toml").iteration_time_s == wanted.iteration_s
    assert semu.simulate("bare.toml").iteration_time_s != wanted.iteration_s
    planned, _ = run(capsys, "plan", "run.toml", "--output", "plan.json")
    assert planned["iteration_time_s"] == wanted.iteration_s
    reads = json.loads(Path("plan.json").read_text()).get("reads")
    assert bool(reads) == wanted.defers


@pytest.mark.slow
def test_they_are_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = write_run(tmp_path, "llama-3.2-1b", method="coupled", count=20)
    assigned = semu.assign(job, "samples.jsonl", "coupled", per_iteration=20)
    wanted = semu.search(job, assigned=assigned, candidates=2, **SHORT).report.iteration_time_s
    found, _ = run(capsys, "search", "run.toml", "--candidates", "2", *OPTIONS)
    assert found["iteration_time_s"] == wanted
    assert semu.search("run.toml", candidates=2, **SHORT).report.iteration_time_s == wanted


@pytest.mark.slow
def test_plans_are_searched_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path, "llama-3.2-1b", method="coupled", count=20)
    wanted = semu.search("run.toml", **SHORT).report.iteration_time_s
    assert run(capsys, "plan", "run.toml", *OPTIONS)[0]["iteration_time_s"] == wanted


@pytest.mark.parametrize(
    ("words", "assignment", "said"),
    [
        (["simulate"], {"method": "all"}, "several methods; expected one method"),
        (["simulate"], {"count": 20, "iteration": 3}, "expected an integer from 0 to 2"),
        (["simulate"], {"iteration": -1}, "run.toml:15 assignment.iteration: not a valid number"),
        (["simulate"], {"count": 20, "speeds": [0.5]}, "semu assign simulates slow replicas"),
        (["simulate"], {"samples": "nosuch.jsonl"}, "nosuch.jsonl: cannot read"),
        (["simulate", "--baseline", "nnscaler"], {}, "a baseline of assigned samples"),
        (["simulate", "--set", "training.schedule_file=a.json"], {}, "a schedule from a file beside samples"),
        (["plan", "--schedule", "gpipe"], {"count": 20}, "a schedule of assigned samples"),
        (["search", "--batches", "2"], {}, "many batches of assigned samples"),
    ],
)
def test_bad_input_is_named(
    words: list[str],
    assignment: dict[str, object],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path, "vlm-s", **assignment)
    assert main([words[0], "run.toml", *words[1:]]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", ["grid", "schedules"])
def test_commands_that_train_the_batch_say_so(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path, "llama3-8b", count=20)
    for file, is_said in (("run.toml", True), ("bare.toml", False)):
        assert main([command, file, "--dump-config"]) == 0
        assert ("assignment.samples: not used here" in capsys.readouterr().err) == is_said
