"""``semu validate --run``: logs and traces from the command line, the files it writes, its exit codes."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from semu.cli import main
from semu.present.traces import write_trace as write_simulated
from tests.validation.own_runs import OwnRun, kernel, megatron_line, memory_line, text_run, vlm_run, write_trace
from tests.validation.rows_kit import run as published_run
from tests.validation.rows_kit import write_runs

FILES = ("validation.json", "validation.csv", "validation.png", "report.html")


def run_command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(("validate", *words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def run(tmp_path: Path) -> OwnRun:
    return text_run(tmp_path)


@pytest.fixture
def log(tmp_path: Path, run: OwnRun) -> str:
    """Iterations that took 10 % longer than simulated."""
    path = tmp_path / "train.log"
    time_ms = run.report.iteration_time_s * 1e3 / 0.9
    path.write_text("\n".join(megatron_line(n, time_ms).replace(f"{time_ms:.1f}", f"{time_ms}") for n in range(1, 9)))
    return str(path)


@pytest.fixture
def trace(tmp_path: Path, run: OwnRun) -> str:
    path = tmp_path / "trace.json.gz"
    plain = tmp_path / "plain.json"
    write_simulated(plain, run.report.timeline, title="", metadata={})
    path.write_bytes(gzip.compress(plain.read_bytes()))
    return str(path)


def test_a_log_prints_a_table(run: OwnRun, log: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_command(capsys, *run.words, "--log", log)
    assert (code, err) == (0, "")
    row = next(line for line in out.split("\n") if line.startswith("iteration time"))
    assert row.split()[-1] == "0.900"


def test_a_tolerance_decides_the_exit_code(
    run: OwnRun, log: str, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(capsys, *run.words, "--log", log, "--tolerance", "10.1")[0] == 0
    code, out, err = run_command(capsys, *run.words, "--log", log, "--tolerance", "9.9", "--json")
    assert (code, json.loads(out)["tolerance_percent"]) == (7, 9.9)
    assert err == "semu: out of tolerance (9.9 %): iteration time: simulated / measured 0.900\n"
    assert run_command(capsys, *run.words, "--trace", trace, "--rank", "1", "--tolerance", "0.1")[0] == 0
    faster = ("--set", "training.global_batch=16")
    code, _, err = run_command(capsys, *run.words, *faster, "--trace", trace, "--rank", "1", "--tolerance", "10")
    assert code == 7
    assert "out of tolerance (10 %): matmul, busy time: simulated / measured 2.0" in err


def test_memory_is_compared_on_a_vlm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = vlm_run()
    log = tmp_path / "log"
    log.write_text("\n".join((megatron_line(1, 1000.0, batch=4), memory_line(0, 1, 1024, 9))))
    code, out, _ = run_command(capsys, *run.words, "--log", str(log), "--json")
    document = json.loads(out)
    assert (code, document["run"], document["log"], document["trace"]) == (0, "vlm-s", str(log), None)
    peak = next(row for row in document["quantities"] if row["name"].startswith("max allocated"))
    assert (peak["measured"], peak["simulated"]) == (2**30, run.report.peak_memory_bytes[0])
    assert document["warnings"] == []


def test_files_are_written_and_named(run: OwnRun, log: str, trace: str, tmp_path: Path, capsys: Any) -> None:
    for number, (words, first) in enumerate(((("--log", log), "name"), (("--trace", trace, "--rank", "0"), "kind"))):
        folder = tmp_path / f"out{number}"
        table, picture = tmp_path / f"{number}.csv", tmp_path / f"{number}.png"
        flags = ("--csv", str(table), "--picture", str(picture), "--out", str(folder), "--json")
        code, out, err = run_command(capsys, *run.words, *words, *flags)
        names = [table, picture, *(folder / name for name in FILES)]
        assert code == 0
        told = [line for line in err.splitlines() if not line.startswith("semu: [")]  # progress of a slow machine
        assert told == [f"semu: wrote {name}" for name in names]
        assert json.loads((folder / "validation.json").read_text()) == json.loads(out)
        rows = list(csv.DictReader(table.read_text().splitlines()))
        assert table.read_text() == (folder / "validation.csv").read_text()
        document = json.loads(out)
        found = [row[first] for row in document["kinds" if number else "quantities"]]
        assert [row[first] for row in rows][: len(found)] == found
        assert picture.read_bytes() == (folder / "validation.png").read_bytes()
        assert imread(picture).shape[1] == 1620


def test_pictures_of_published_runs_are_written_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, folder = tmp_path / "p.png", tmp_path / "out"
    runs = write_runs(tmp_path / "runs.json", published_run())
    code, _, err = run_command(capsys, "--runs", runs, "--picture", str(picture), "--out", str(folder), "--json")
    assert (code, err.split("\n")[0]) == (0, f"semu: wrote {picture}")
    assert picture.read_bytes() == (folder / "validation.png").read_bytes()


def test_a_link_is_written_through_never_replaced(run: OwnRun, log: str, tmp_path: Path, capsys: Any) -> None:
    """As ``--csv /dev/stdout`` is: a link to something that must stay."""
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    target.write_text("before")
    link.symlink_to(target)
    assert run_command(capsys, *run.words, "--log", log, "--csv", str(link))[0] == 0
    assert link.is_symlink()
    assert target.read_text().startswith("name,unit,n,")


def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code, out, err = run_command(capsys, *words, "--json")
    assert code == 2
    assert "error: " in err
    error: dict[str, Any] = json.loads(out)["error"]
    return error


def test_options_that_do_not_go_together(run: OwnRun, log: str, trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(capsys, "--log", log)["where"] == "--log"
    assert error_of(capsys, "--trace", trace)["where"] == "--trace"
    assert error_of(capsys, "--set", "a=b")["where"] == "--set"
    assert error_of(capsys, "--warm-up", "0")["where"] == "--warm-up"
    assert error_of(capsys, *run.words)["nearest"] == "--runs"
    assert error_of(capsys, *run.words, "--log", log, "--trace", trace)["message"] == "a log and a trace together"
    assert error_of(capsys, *run.words, "--log", log, "--group", "g")["where"] == "--group"
    assert error_of(capsys, *run.words, "--log", log, "--runs", "x")["where"] == "--runs"
    assert error_of(capsys, *run.words, "--log", log, "--rank", "0")["where"] == "--rank"
    assert error_of(capsys, *run.words, "--log", log, "--step", "0")["where"] == "--step"
    assert error_of(capsys, *run.words, "--trace", trace, "--warm-up", "0")["where"] == "--warm-up"


def test_bad_files_and_numbers(run: OwnRun, log: str, trace: str, tmp_path: Path, capsys: Any) -> None:
    assert error_of(capsys, "--run", "vlm-mm", "--log", log)["nearest"] == "vlm-m"
    assert error_of(capsys, *run.words, "--log", trace)["where"] == trace
    assert error_of(capsys, *run.words, "--trace", log)["where"] == f"{log}:1"
    assert error_of(capsys, *run.words, "--log", log, "--warm-up", "8")["nearest"] == 7
    assert error_of(capsys, *run.words, "--trace", trace)["expected"].startswith("a trace of one GPU, or --rank")
    assert error_of(capsys, *run.words, "--trace", trace, "--rank", "2")["nearest"] == 1
    assert error_of(capsys, *run.words, "--log", log, "--picture", str(tmp_path))["where"] == f"--picture {tmp_path}"
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(Path(trace).read_bytes()[:-50])
    assert error_of(capsys, *run.words, "--trace", str(cut))["message"] == "the gzip file is truncated"
    one = write_trace(tmp_path / "one.json", kernel("nvjet", 1, 1))
    assert error_of(capsys, *run.words, "--trace", str(one), "--step", "1")["message"] == "the trace has no steps"
