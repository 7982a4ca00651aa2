"""``semu validate``: what it prints where, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from semu.cli import console, main
from semu.runfile import make_job
from semu.validation import published_rows, read_rows, validate
from tests.validation.rows_kit import run, write_runs

FILES = ("validation.json", "validation.csv", "validation.png", "report.html")


def run_command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(("validate", *words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def runs(tmp_path: Path) -> str:
    """Four rows whose times are predicted too short, one of another group."""
    rows = [run(id=f"r{number}", iteration_time_s=1.0 + number) for number in range(4)]
    return write_runs(tmp_path / "runs.json", *rows, run(id="other", group="h", profile="h100", precision_kind="fp16"))


def test_it_prints_the_table(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_command(capsys, "--runs", runs)
    assert (code, out) == (0, repr(validate(read_rows(runs), make_job)) + "\n")


def test_json_is_one_document(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_command(capsys, "--runs", runs, "--json")
    expected = {"runs": runs, "tolerance_percent": None, **validate(read_rows(runs), make_job).to_json()}
    assert (code, json.loads(out)) == (0, json.loads(json.dumps(expected)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("profile", [(), ("--profile", "spec"), ("--profile", "h100", "--compare", "spec")])
def test_with_several_workers_it_is_the_same(
    profile: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [run({"model.layers": 2 + number % 3}, id=f"r{number}", group="gh"[number % 2]) for number in range(21)]
    runs = write_runs(tmp_path / "many.json", *rows, "no row")
    alone, several = (run_command(capsys, "--runs", runs, *profile, "--json", "--workers", n) for n in "12")
    assert alone[0] == several[0] == 2 and alone[1] == several[1]
    assert json.loads(alone[1])["counts"] == {"ok": 21, "refused": 0, "error": 1}


def test_no_number_of_workers(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_command(capsys, "--runs", runs, "--workers", "0")
    assert (code, out) == (2, "") and "--workers" in err


def test_without_a_file_it_runs_what_ships(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_command(capsys, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["runs"] is None
    assert [row["id"] for row in document["rows"]] == [row.id for row in published_rows()]
    assert document["counts"]["error"] == 0
    assert document["counts"]["ok"] >= 4


def test_a_tolerance_decides_the_exit_code(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_command(capsys, "--runs", runs, "--tolerance", "10")
    assert code == 7
    assert "iteration time, error in %" in out  # the result is printed all the same
    (line,) = [line for line in err.split("\n") if "tolerance" in line]
    assert line.startswith("semu: out of tolerance (10 %): g: time MAPE ")
    assert run_command(capsys, "--runs", runs, "--tolerance", "100")[0] == 0
    code, out, _ = run_command(capsys, "--runs", runs, "--tolerance", "10", "--json")
    document = json.loads(out)
    assert (code, document["tolerance_percent"], "error" in document) == (7, 10.0, False)


def test_a_group_can_be_chosen(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words, names in ((["h"], ["other"]), (["h", "g"], ["r0", "r1", "r2", "r3", "other"])):
        flags = [word for group in words for word in ("--group", group)]
        assert [
            row["id"] for row in json.loads(run_command(capsys, "--runs", runs, "--json", *flags)[1])["rows"]
        ] == names


def devices(capsys: pytest.CaptureFixture[str], runs: str, profile: str) -> list[str]:
    code, out, _ = run_command(capsys, "--runs", runs, "--json", "--profile", profile)
    assert code == 0
    return [row["device"] for row in json.loads(out)["rows"]]


def test_a_profile_replaces_the_device_of_its_name_or_all(
    runs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert devices(capsys, runs, "h200") == ["h200"] * 5
    assert devices(capsys, runs, "h100") == ["a100-80g"] * 4 + ["h100"]
    mine = tmp_path / "mine.toml"
    mine.write_text('name = "h100"\nbase = "h100"\nmem_bytes_per_s = 1e11\n')
    slow, fast = (
        json.loads(run_command(capsys, "--runs", runs, "--json", *words)[1])["rows"]
        for words in (["--profile", str(mine)], [])
    )
    assert [row["predicted_iteration_time_s"] for row in slow[:4]] == [
        row["predicted_iteration_time_s"] for row in fast[:4]
    ]
    assert slow[4]["predicted_iteration_time_s"] > 2 * fast[4]["predicted_iteration_time_s"]


def test_files_are_written_and_named(runs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, folder = tmp_path / "rows.csv", tmp_path / "out"
    code, out, err = run_command(capsys, "--runs", runs, "--json", "--csv", str(table), "--out", str(folder))
    names = [table, *(folder / name for name in FILES)]
    assert code == 0
    assert err.split("\n")[:-1] == [f"semu: wrote {name}" for name in names]
    assert table.read_text() == (folder / "validation.csv").read_text()
    saved = json.loads((folder / "validation.json").read_text())
    assert saved.items() <= json.loads(out).items()


# -- bad input -----------------------------------------------------------------------------------------------------
def error_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code, out, err = run_command(capsys, *words, "--json")
    assert code == 2
    document = json.loads(out)
    assert list(document) == ["error"]
    assert "error: " in err
    error: dict[str, Any] = document["error"]
    return error


def test_bad_input_exits_2(runs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = str(tmp_path / "absent.json")
    assert error_of(capsys, "--runs", absent)["where"] == absent
    (tmp_path / "bad.json").write_text("[\n{]")
    assert error_of(capsys, "--runs", str(tmp_path / "bad.json"))["where"] == f"{tmp_path / 'bad.json'}:2"
    error = error_of(capsys, "--runs", runs, "--group", "gg")
    assert (error["where"], error["nearest"]) == ("--group", "g")
    assert error_of(capsys, "--runs", runs, "--profile", "h10")["nearest"] == "h100"
    assert "absent.toml" in error_of(capsys, "--runs", runs, "--profile", "absent.toml")["where"]
    for tolerance in ("-1", "nan", "inf"):
        assert error_of(capsys, "--runs", runs, "--tolerance", tolerance)["where"] == "--tolerance"
    assert error_of(capsys, "--runs", runs, "--tolerance", "ten")["where"] == "semu validate"
    assert error_of(capsys, "--run", runs)["nearest"] == "--runs"
    assert error_of(capsys, "--runs", runs, "--out", runs)["where"] == runs
    assert error_of(capsys, "--runs", runs, "--csv", str(tmp_path))["where"] == f"--csv {tmp_path}"


def test_a_bad_row_is_named_and_the_others_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = run(id="broken")
    del broken["model"]["hidden"]
    path = write_runs(tmp_path / "runs.json", run(id="a"), broken, run(id="b"))
    code, out, err = run_command(capsys, "--runs", path, "--json")
    document = json.loads(out)
    assert code == 2
    assert [row["status"] for row in document["rows"]] == ["ok", "error", "ok"]
    assert document["rows"][1]["reason"].startswith("model.hidden: missing field")
    said = f"semu: row broken: {document['rows'][1]['reason']}\n"
    assert err == f"{said}semu: error: 1 of 3 rows cannot be read or simulated\n"


# -- progress ------------------------------------------------------------------------------------------------------
def test_a_long_validation_says_how_far_it_is(
    runs: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_command(capsys, "--runs", runs)[2] == ""
    monkeypatch.setattr(console, "PATIENCE_S", 0.0)
    lines = [line for line in run_command(capsys, "--runs", runs)[2].split("\n") if "rows done" in line]
    assert lines == [f"semu: {number} of 5 rows done" for number in range(1, 5)]


@pytest.mark.parametrize("flag", ["--csv", "--picture"])
def test_a_file_in_no_folder_is_refused_before_anything_runs(
    flag: str, runs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "missing" / "file")
    code, out, err = run_command(capsys, "--runs", runs, flag, path)
    assert (code, out) == (2, "")
    assert "no such folder" in err
    assert "simulating" not in err
