"""``semu grid``: its table, its files and every exit code."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from simulation.rooms import MIB, capacity_for

from semu.cli import main
from semu.parallel.config import Parallel

ROOT = Path(__file__).parents[2]
RUN = """
[model.transformer]
layers = 4
hidden = 256
ffn = 1024
heads = 8
vocab = 1024
[cluster]
device = "h800"
nodes = 1
gpus_per_node = 8
[parallel]
dp = 8
[training]
global_batch = 16
seq_len = 512
"""
AXES = ("--vary", "tp,pp,micro_batch=1:2")


@pytest.fixture
def run_file(tmp_path: Path) -> str:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["grid", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def document(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code, out, _ = run(capsys, *words, "--json")
    return code, json.loads(out)


def test_the_table_and_the_report_of_the_best(
    run_file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    code, out, err = run(capsys, run_file, *AXES, "--top", "3", "--price", "2")
    assert code == 0
    head = "dp tp pp mb time s MFU % peak GiB left USD/Mtoken bubble % tok/s/GPU"
    assert out.splitlines()[0].split() == head.split()
    assert "legal configurations of" in out and "cannot be among the best 3" in out
    best = out.splitlines()[1].split()
    assert f"dp{best[1]}-tp{best[2]}-pp{best[3]}" in out  # the report's title
    assert "configurations decided in" in err


@pytest.mark.slow
def test_the_document_and_the_files(run_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    table, store = str(tmp_path / "grid.csv"), str(tmp_path / "grid.sqlite")
    words = (run_file, *AXES, "--csv", table, "--results", store, "--out", str(folder), "--axes", "micro_batch,pp")
    code, found = document(capsys, *words)
    assert code == 0
    assert found["legal"] == len(found["rows"]) + found["cut_by_memory"] + found["cut_by_bound"]
    assert found["report"]["iteration_time_s"] == found["rows"][0]["iteration_time_s"]
    written = json.loads((folder / "grid.json").read_text())
    assert written["rows"] == found["rows"]
    names = {"grid.csv", "grid.json", "pareto.png", "heatmap.png", "report.html", "best"}
    assert {path.name for path in folder.iterdir()} == names
    assert {path.name for path in (folder / "best").iterdir()} == {
        "result.json",
        "trace.json.gz",
        "timeline.png",
        "memory.png",
        "report.html",
    }
    rows = [*csv.DictReader(Path(table).read_text().splitlines())]
    assert [float(row["iteration_time_s"]) for row in rows] == [row["iteration_time_s"] for row in found["rows"]]
    code, _, err = run(capsys, run_file, *AXES, "--results", store)  # all of it is there
    assert code == 0 and "0 simulated" in err
    # every point is what semu simulate says
    row = found["rows"][1]
    sizes = f"dp{row['dp']}-tp{row['tp']}-pp{row['pp']}"
    setting = f"training.micro_batch={row['micro_batch']}"
    assert main(["simulate", run_file, "--parallel", sizes, "--set", setting, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["iteration_time_s"] == row["iteration_time_s"]
    assert max(report["peak_memory_bytes"]) == row["peak_memory_bytes"]


def test_another_cluster_needs_no_legal_start(run_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = document(capsys, run_file, *AXES, "--cluster", "a100-80g:2x2")
    assert code == 0 and found["cluster"] == "a100-80g:2x2"
    assert all(row["dp"] * row["tp"] * row["pp"] == 4 for row in found["rows"])
    code, found = document(capsys, run_file, *AXES, "--gpus", "4")
    assert code == 0 and found["cluster"] == "h800:1x4"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--vary", "tp,speed"), "unknown axis 'speed'"),
        (("--vary", "tp,pp", "--fix", "tp=2"), "'tp' is fixed and varied"),
        (("--vary", "tp=,pp"), "not axes"),
        (("--fix", "tp"), "not a fixed axis"),
        (("--fix", "tp=two"), "not a value of tp"),
        (("--fix", "tp=16"), "no legal configuration"),
        (("--fix", "micro_batch=3"), "no legal configuration"),
        (("--rank-by", "beauty"), "unknown order"),
        (("--rank-by", "cost"), "without a price"),
        (("--gpus", "12"), "whole number of nodes"),
        (("--axes", "tp,colour", "--vary", "tp,pp"), "not two axes that vary"),
        (("--engine", "abacus", "--vary", "tp"), "abacus"),
    ],
)
def test_bad_input(run_file: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str) -> None:
    code, out, err = run(capsys, run_file, *words)
    assert code == 2 and said in err and not out
    code, error = document(capsys, run_file, *words)
    assert code == 2 and said in json.dumps(error["error"])


def test_results_of_another_job(run_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ("--results", str(tmp_path / "grid.sqlite"))
    assert run(capsys, run_file, *AXES, *store)[0] == 0
    code, _, err = run(capsys, run_file, *AXES, *store, "--set", "training.global_batch=32")
    assert code == 2 and "results of another job" in err and "global batch 16" in err


@pytest.mark.slow
def test_nothing_fits(run_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--set", "cluster.override.memory_bytes=2000000")
    code, out, err = run(capsys, run_file, *AXES, *small, "--top", "2")
    assert code == 3
    assert "does not fit" in out and "GiB more than the device's" in err and "the smallest, " in err
    assert "no change that was tried" in out
    code, found = document(capsys, run_file, *AXES, *small, "--top", "2")
    assert code == 3 and not any(row["fits"] for row in found["rows"]) and len(found["rows"]) >= 2
    assert found["nearest_fit"] == found["report"]["nearest_fit"] == []


def test_nothing_fits_but_for_a_change_beyond_the_axes(run_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    smallest = ("--vary", "tp=1", "--rank-by", "headroom")
    _, roomy = document(capsys, run_file, *smallest)
    row, held = roomy["rows"][0], max(roomy["report"]["reserved_memory_bytes"])
    limit = capacity_for(held - 8 * MIB, Parallel(dp=row["dp"], tp=row["tp"], pp=row["pp"]))
    code, found = document(capsys, run_file, *smallest, "--set", f"cluster.override.memory_bytes={limit}")
    assert code == 3 and found["nearest_fit"][0]["peak_memory_bytes"] < held - 8 * MIB
    code, out, _ = run(capsys, run_file, *smallest, "--set", f"cluster.override.memory_bytes={limit}")
    (key, value), *_ = found["nearest_fit"][0]["settings"].items()
    assert code == 3 and f"--set {key}={value}" in out


@pytest.mark.slow
@pytest.mark.multiprocess
def test_an_interrupt_keeps_what_was_done(run_file: str, tmp_path: Path) -> None:
    store = tmp_path / "grid.sqlite"
    words = [sys.executable, "-m", "semu", "grid", "gpt3-175b", "--gpus", "64", "--exhaustive", "--results", str(store)]
    words += ["--fix", "tp=8", "--rank-by", "headroom"]
    process = subprocess.Popen(
        words, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 240
    while not (store.exists() and _results(store) >= 32) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "interrupted" in err and "legal configurations" in out
    assert _results(store) >= 32


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_processes_share_a_file(run_file: str, tmp_path: Path) -> None:
    store = tmp_path / "grid.sqlite"
    words = [sys.executable, "-m", "semu", "grid", run_file, "--exhaustive", "--results", str(store), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    both = [subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    found = [json.loads(process.communicate(timeout=240)[0]) for process in both]
    assert found[0] == found[1]
    assert _results(store) == len(found[0]["rows"])


def _results(path: Path) -> int:
    import sqlite3

    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as file:
            return int(file.execute("SELECT count(*) FROM results").fetchone()[0])
    except sqlite3.Error:
        return 0
