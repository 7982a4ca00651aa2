"""``semu search``: its table, its files and every exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cli.runs import SMALL_VLM

from semu.cli import main

ROOT = Path(__file__).parents[2]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["search", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def document(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code, out, _ = run(capsys, *words, "--json")
    return code, json.loads(out)


SMALL = (SMALL_VLM, "--set", "training.global_batch=4")


@pytest.mark.slow
def test_the_table_and_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *SMALL, "--rollouts", "30", "--out", str(tmp_path))
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split() == ["schedule", "iteration", "bubble", "MFU", "peak", "memory", "on", "rank"]
    assert [line.split()[0] for line in lines[1:5]] == ["Megatron-LM", "its", "heuristic", "search"]
    assert "reproducible with this seed" in out
    names = ["schedule.json", "result.json", "timeline.png", "memory.png", "curve.png", "report.html"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    for name in names:
        assert f"wrote {tmp_path / name}" in err
    assert "--set training.schedule_file=" in err
    # the schedule runs again, to the same time
    assert main(["simulate", *SMALL, "--set", f"training.schedule_file={tmp_path}/schedule.json", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    result = json.loads((tmp_path / "result.json").read_text())
    assert report["iteration_time_s"] == result["iteration_time_s"] == result["report"]["iteration_time_s"]
    # and not for another batch, nor another model
    for other in (["vlm-s", "--seed", "5", "--set", "training.global_batch=4"], ["vlm-s"], ["lm-7b"]):
        assert main(["simulate", *other, "--set", f"training.schedule_file={tmp_path}/schedule.json"]) == 4
        assert "another problem" in capsys.readouterr().err


def test_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*SMALL, "--rollouts", "20", "--seed", "3", "--strategy", "local", "--workers", "2")
    code, first = document(capsys, *words)
    assert code == 0
    assert (first["rollouts"], first["strategy"], first["seed"], first["workers"]) == (20, "local", 3, 2)
    assert first["lower_bound_s"] <= first["makespan_s"] <= first["iteration_time_s"]
    assert first["gap"] == first["makespan_s"] / first["lower_bound_s"] - 1
    assert first["search"]["fits"]
    _, second = document(capsys, *words)
    for name in ("makespan_s", "iteration_time_s", "partition", "search", "gap"):
        assert first[name] == second[name]


def test_choices_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--sub-batch", "encoder=4", "--segments", "encoder=1", "--strategies", "none,full", "--candidates", "4")
    code, found = document(capsys, *SMALL, "--rollouts", "0", "--memory-limit", "40GiB", *options)
    assert code == 0
    assert found["partition"]["encoder"]["sub_batch"] == 4
    assert found["partition"]["encoder"]["segments"] == 1
    assert found["limit_bytes"] == 40 << 30
    assert max(found["search"]["peak_memory_bytes"]) <= 40 << 30
    assert found["heuristic"] == found["search"]


def test_memory_that_does_not_suffice(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *SMALL, "--rollouts", "5", "--memory-limit", "2GiB")
    assert (code, out) == (3, "")
    assert "rank 0" in err
    assert "are missing" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--memory-limit", "40"), "--memory-limit"),
        (("--sub-batch", "encoder"), "--sub-batch"),
        (("--sub-batch", "encodre=3"), "encoder"),
        (("--segments", "encoder=0"), "segments.encoder"),
        (("--segments", "encoder=60"), "segments.encoder"),
        (("--strategy", "mtcs"), "mcts"),
        (("--objective", "best"), "objective"),
        (("--strategies", "none,ful"), "full"),
        (("--rollouts", "-1"), "rollouts"),
        (("--time", "-1"), "time_s"),
        (("--workers", "0"), "workers"),
        (("--workers", "100000"), "1024"),
        (("--sub-batch", f"encoder={10**23}"), "sub_batch.encoder"),
        (("--time", "nan"), "time_s"),
        (("--set", "parallel.zero=3"), "parallel.zero"),
        (("--tim", "3"), "--time"),
        (("--batches", "2", "--strict"), "--strict is an option of one search"),
    ],
)
def test_bad_input_is_named(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *SMALL, *words)
    assert (code, out) == (2, "")
    assert said in err


def test_what_cannot_be_cut(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, *SMALL, "--sub-batch", "llm=1")
    assert code == 4
    assert "llm" in err


def test_a_resolved_run(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *SMALL, "--dump-config")
    assert code == 0
    assert "global_batch = 4" in out


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="no signals")
def test_an_interrupt_writes_the_best_so_far(tmp_path: Path) -> None:
    words = ["search", *SMALL, "--time", "200", "--out", str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    code = (
        "import sys, semu.searcher.job_search as s\n"
        "from semu.cli import main\n"
        "inner = s.search_levels\n"
        "def told(*a, **k):\n"
        "    print('searching now', flush=True)\n"
        "    return inner(*a, **k)\n"
        "s.search_levels = told\n"
        f"sys.exit(main({words!r}))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline().strip() == "searching now"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130, err
    assert "ended by interrupt" in out
    assert (tmp_path / "out" / "schedule.json").exists()
    assert "best schedule so far" in err


@pytest.mark.slow
def test_a_number_of_rollouts_gives_the_same_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (*SMALL, "--rollouts", "40", "--seed", "2", "--workers", "2", "--json")
    printed = [run(capsys, *words, "--out", str(tmp_path / name))[:2] for name in ("one", "two")]
    assert printed[0] == printed[1]
    first, second = (sorted((tmp_path / name).iterdir()) for name in ("one", "two"))
    assert [path.name for path in first] == [path.name for path in second]
    assert len(first) == 6
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes(), one.name
    found = json.loads((tmp_path / "one" / "result.json").read_text())
    assert found["is_reproducible"]
    assert found["search_s"] is found["prepare_s"] is found["curve"][0]["time_s"] is None
    assert 0 < max(point["rollouts"] + point["moves"] for point in found["curve"]) <= found["rollouts"] + found["moves"]


def test_a_time_is_told_and_not_reproducible(capsys: pytest.CaptureFixture[str]) -> None:
    _, found = document(capsys, *SMALL, "--time", "0.2", "--rollouts", "5")
    assert not found["is_reproducible"]
    assert found["search_s"] > 0
    assert found["curve"][0]["time_s"] >= 0
    _, found = document(capsys, *SMALL, "--time", "0")
    assert found["is_reproducible"]
    assert found["rollouts"] == 0


@pytest.mark.slow
def test_a_batch_without_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("vlm-s", "--set", "training.global_batch=4", "--set", "batch.images_mean=0")
    code, out, _ = run(capsys, *words, "--rollouts", "5", "--out", str(tmp_path))
    assert code == 0
    assert "no items in this batch" in out
    schedule = ("--set", f"training.schedule_file={tmp_path}/schedule.json", "--json")
    assert main(["simulate", *words, *schedule]) == 0
    report = json.loads(capsys.readouterr().out)
    result = json.loads((tmp_path / "result.json").read_text())
    assert report["iteration_time_s"] == result["iteration_time_s"]
    assert report["peak_memory_bytes"] == result["search"]["peak_memory_bytes"]
