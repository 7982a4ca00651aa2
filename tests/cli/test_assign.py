"""``semu assign``: the table, the files, and bad input."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from searcher.assignment.jobs import draw_text, draw_vlm, write_samples

import semu
from semu.cli.command import main
from semu.searcher.assignment.assigner import Assigner, SampleSource
from semu.searcher.assignment.reordering import assigned_iterations

VLM = ["vlm-s", "--cluster", "h800:2x8", "--parallel", "dp2-tp2-pp4", "--set", "training.global_batch=16"]
TEXT = ["llama3-8b", "--cluster", "h100:2x8", "--parallel", "dp2-tp2-pp4", "--set", "training.global_batch=16"]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["assign", *words, "--json", "--quiet"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_all_methods_of_a_vision_language_model(tmp_path, capsys):
    path = write_samples(tmp_path / "samples.jsonl", draw_vlm(600, 1))
    out = tmp_path / "out"
    code, found = run(capsys, *VLM, "--samples", str(path), "--method", "all", "--out", str(out))
    assert code == 0
    rows = {row["method"]: row for row in found["methods"]}
    assert rows.keys() >= {"random", "order", "disttrain", "stratified", "coupled"}
    assert found["best"] == found["methods"][0]["method"]
    assert all(row["pipeline_s"] >= 0.99 * row["bound_s"] for row in found["methods"])
    assert {own["module"] for own in found["costs"]["residuals"]} == {"vit", "llm"}
    assert (out / "assignment.png").read_bytes()[:4] == b"\x89PNG"
    lines = [json.loads(line) for line in (out / "assignment.jsonl").read_text().splitlines()]
    ids = [name for line in lines for name in line["ids"]]
    assert len(lines) == 16
    assert len(set(ids)) == len(ids) == found["methods"][0]["samples"]
    assert all(len(line["cu_seqlens"]) == len(line["ids"]) + 1 for line in lines)
    assert np.isclose(sum(line["loss_weight"] for line in lines), 2)  # 1 in the mean of two replicas
    table = list(csv.DictReader((out / "assignment.csv").read_text().splitlines()))
    assert {row["id"] for row in table} == set(ids)
    whole = json.loads((out / "assignment.json").read_text())
    assert whole["microbatches"] == lines


def test_the_order_of_the_file_is_the_batch_of_the_run(tmp_path, capsys):
    """The same microbatches, hence the same iteration, as ``batch.kind = file`` gives."""
    path = write_samples(tmp_path / "samples.jsonl", draw_vlm(600, 2))
    _, found = run(capsys, *VLM, "--samples", str(path), "--method", "order")
    job = semu.load_run(
        VLM[0],
        ["training.global_batch=16", "batch.kind=file", f"batch.path={path}"],
        cluster="h800:2x8",
        parallel="dp2-tp2-pp4",
    )
    assert found["methods"][0]["iteration_time_s"] == semu.simulate(job).iteration_time_s


def test_methods_that_need_an_encoder_are_refused_for_text(tmp_path, capsys):
    path = write_samples(tmp_path / "documents.jsonl", draw_text(3000, 1))
    code, found = run(capsys, *TEXT, "--samples", str(path), "--method", "all")
    assert code == 0
    assert "stratified" in found["refused"]
    code, found = run(capsys, *TEXT, "--samples", str(path), "--method", "stratified")
    assert code == 2
    assert found["error"]["where"].endswith("assignment.method")


def test_a_later_iteration_has_other_samples(tmp_path, capsys):
    path = write_samples(tmp_path / "documents.jsonl", draw_text(3000, 1))
    ids = []
    for number in ("0", "1"):
        out = tmp_path / number
        words = [*TEXT, "--samples", str(path), "--count", "200", "--iteration", number, "--out", str(out)]
        assert run(capsys, *words)[0] == 0
        lines = (out / "assignment.jsonl").read_text().splitlines()
        ids.append({name for line in lines for name in json.loads(line)["ids"]})
    assert [len(own) for own in ids] == [200, 200]
    assert not ids[0] & ids[1]


BAD = {
    "duplicate": ('{"id": "a", "text_tokens": 5}\n{"id": "a", "text_tokens": 6}\n', "two samples with one id", ":2"),
    "none": ('{"id": "a", "text_tokens": 5}\n{"text_tokens": 0}\n', "nothing in the sample", ":2"),
    "id": ('{"id": 1.5, "text_tokens": 5}\n', "not an id", ":1"),
    "long": ('{"text_tokens": 5}\n{"text_tokens": 90000}\n', "larger than seq_len allows", ":2"),
    "few": ('{"text_tokens": 5}\n' * 3, "fewer samples than an iteration needs", "samples.jsonl"),
    "nan": ('{"text_tokens": NaN}\n', "text_tokens", ":1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_lines_are_named(name, tmp_path, capsys):
    text, message, where = BAD[name]
    path: Path = tmp_path / "samples.jsonl"
    path.write_text(text)
    code, found = run(capsys, *TEXT, "--samples", str(path))
    assert code == 2
    assert message in found["error"]["message"]
    assert found["error"]["where"].endswith(where)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "cupled"], "method of assignment"),
        ([], None),
        (["--iteration", "9999"], "iteration"),
        (["--count", "3"], "assignment.count"),
        (["--set", "training.global_batch=15"], "global batch"),
    ],
)
def test_bad_options(words, message, tmp_path, capsys):
    path = write_samples(tmp_path / "documents.jsonl", draw_text(3000, 1))
    given = [*TEXT, *([] if message is None else ["--samples", str(path)]), *words]
    code, found = run(capsys, *given)
    assert code == 2
    assert message is None or message in json.dumps(found["error"])


def test_video_models_and_attention_across_samples_are_refused(tmp_path, capsys):
    path = write_samples(tmp_path / "samples.jsonl", draw_vlm(600, 1))
    assert run(capsys, "t2v-s", "--samples", str(path))[0] == 2
    code, found = run(capsys, *VLM, "--set", "batch.attend_across_samples=true", "--samples", str(path))
    assert code == 2
    assert found["error"]["where"].endswith("batch.attend_across_samples")


def test_a_run_file_says_what_to_assign(tmp_path, capsys):
    write_samples(tmp_path / "samples.jsonl", draw_vlm(600, 1))
    run_file = tmp_path / "run.toml"
    main(["simulate", *VLM, "--dump-config", "--quiet"])
    text = capsys.readouterr().out
    run_file.write_text(text + '\n[assignment]\nsamples = "samples.jsonl"\nmethod = "order,coupled"\ncount = 64\n')
    code, found = run(capsys, str(run_file))
    assert code == 0
    assert {row["method"] for row in found["methods"]} == {"order", "coupled"}
    assert {row["samples"] for row in found["methods"]} == {64}
    run_file.write_text(text + '\n[assignment]\nmethod = "cupled"\n')
    code, found = run(capsys, str(run_file))
    assert code == 2
    assert found["error"]["where"].endswith("assignment.method")
    run_file.write_text(text + '\n[assignment]\nmethods = "coupled"\n')
    assert run(capsys, str(run_file))[0] == 2


def test_what_samples_ask_of_modules(tmp_path, capsys):
    path = write_samples(tmp_path / "samples.jsonl", draw_vlm(600, 1))
    out = tmp_path / "out"
    assert main(["workload", *VLM, "--samples", str(path), "--out", str(out), "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    shares = {row["module"]: row["share"] for row in found["modules"]}
    assert sum(shares.values()) == pytest.approx(1)
    assert sum(row["wanted_gpus"] for row in found["modules"]) == found["gpus_per_replica"] == 8
    assert sum(row["gpus"] for row in found["modules"]) == pytest.approx(8)
    assert found["converged"]
    assert (out / "workload.png").read_bytes()[:4] == b"\x89PNG"
    assert main(["workload", *VLM, "--samples", str(path), "--alpha", "0", "--json", "--quiet"]) == 2
    capsys.readouterr()


@pytest.mark.slow
def test_the_optimum_stands_beside_the_methods(tmp_path, capsys):
    path = write_samples(tmp_path / "samples.jsonl", draw_vlm(100, 1))
    words = [*VLM[:-1], "training.global_batch=4", "--samples", str(path), "--count", "8", "--method", "coupled,order"]
    code, found = run(capsys, *words, "--exact", "60")
    assert code == 0
    rows = {row["method"]: row["fitted_pipeline_s"] for row in found["methods"]}
    assert rows.keys() == {"coupled", "order", "exact"}
    assert rows["exact"] == found["exact"]["fitted_pipeline_s"] <= min(rows.values())
    assert found["exact"]["is_optimal"]
    assert found["exact"]["bound_s"] <= rows["exact"] <= 1.001 * found["exact"]["bound_s"]
    code, found = run(capsys, *VLM, "--samples", str(path), "--count", "100", "--exact", "0")
    assert code == 2


@pytest.mark.slow
def test_iterations_of_a_window_are_those_of_a_loader(tmp_path, capsys):
    path = write_samples(tmp_path / "samples.jsonl", draw_vlm(300, 2))
    ids = []
    for number in ("0", "1"):
        out = tmp_path / number
        words = [*VLM, "--samples", str(path), "--count", "100", "--iteration", number, "--window", "2"]
        assert run(capsys, *words, "--method", "coupled", "--out", str(out))[0] == 0
        lines = (out / "assignment.jsonl").read_text().splitlines()
        ids.append({name for line in lines for name in json.loads(line)["ids"]})
    job = semu.load_run(VLM[0], VLM[6:], cluster=VLM[2], parallel=VLM[4])
    source = SampleSource.read(job, path, 100)
    dealt = assigned_iterations(Assigner(job, "coupled", samples=source.samples), source, 2)
    assert ids == [set(found.ids) for (_, found), _ in zip(dealt, ids, strict=False)]
    code, found = run(capsys, *VLM, "--samples", str(path), "--count", "100", "--window", "2", "--exact", "1")
    assert (code, found["error"]["where"].endswith("assignment.window"), found["error"]["nearest"]) == (2, True, 1)


def test_methods_are_not_compared_within_a_window(tmp_path, capsys):
    """Each would deal other samples to the iteration."""
    path = write_samples(tmp_path / "s.jsonl", draw_vlm(300, 1))
    words = [*VLM, "--samples", str(path), "--count", "100", "--window", "2"]
    code, found = run(capsys, *words, "--method", "order,coupled")
    assert (code, found["error"]["where"].endswith("assignment.window")) == (2, True)
    code, found = run(capsys, *words, "--method", "coupled")
    assert code in (0, 3)


def test_speeds_stand_in_the_heading(tmp_path, capsys):
    path = write_samples(tmp_path / "s.jsonl", draw_vlm(100, 1))
    main(["assign", *VLM, "--samples", str(path), "--count", "50", "--speeds", "1,0.8", "--method", "coupled"])
    text = " ".join(capsys.readouterr().out.split())
    assert "speeds of replicas 1, 0.8" in text
    assert "nor, by fitted costs, below" in text
