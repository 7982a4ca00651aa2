"""``semu calibrate RUNS.json``: a site that is slow throughout is found, and its profile simulates as it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from semu.cli import main
from semu.hardware.profile import load_profile
from semu.runfile import make_job
from semu.validation import parse_rows, validate
from semu.validation.own_site import calibrate_runs, is_runs_file
from tests.validation.rows_kit import run, write_runs

SIZES = (512, 1024, 2048)


def rows_of(factor: float) -> list[dict[str, object]]:
    """Runs on one GPU that take ``factor`` times what is simulated."""
    told = [run({"model.seq_len": s, "gpus": 1, "dp": 1}, id=str(s), sharding_kind="none") for s in SIZES]
    times = [row.compared for row in validate(parse_rows(told), make_job).rows]
    return [
        {**row, "iteration_time_s": factor * next(iter(own.values())).predicted}
        for row, own in zip(told, times, strict=True)
    ]


@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_a_profile_of_a_site_simulates_its_runs(
    factor: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = write_runs(tmp_path / "runs.json", *rows_of(factor))
    assert is_runs_file(runs)
    mine = tmp_path / "mine.toml"
    command = ("calibrate", runs, "--device", "a100-80g", "-o", str(mine), "--date", "2026-11-21", "--json")
    assert main(command) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["compute"] == pytest.approx(factor, rel=0.02)
    assert said["runs"] == [str(size) for size in SIZES]
    assert said["mape_after"] < 2.0
    assert said["mape_left_out"] < 3.0
    base, own = load_profile("a100-80g"), load_profile(str(mine))
    for kind, section in base.efficiencies.items():
        assert own.efficiencies[kind].mem == pytest.approx(min(1, section.mem / said["compute"]), rel=1e-3)
        assert own.efficiencies[kind].t0_s == pytest.approx(section.t0_s * said["compute"], rel=1e-3)
    assert main(("validate", "--runs", runs, "--profile", str(mine), "--json")) == 0
    (group,) = json.loads(capsys.readouterr().out)["groups"]
    assert group["time"]["mape"] < 2.5


def test_what_the_text_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = [*rows_of(1.2)[:1], run({"model.heads": 0}, id="bad")]
    runs = write_runs(tmp_path / "runs.json", *told)
    assert main(("calibrate", runs, "--device", "a100-80g")) == 0
    out = capsys.readouterr().out
    assert "site factors on top of a100-80g, from 1 runs" in out
    assert "left out: bad: model.heads" in out
    site = calibrate_runs(validate(parse_rows(told[:1]), make_job).rows, "a100-80g")
    assert site.left_out == {}
    assert site.after < site.before


@pytest.mark.parametrize("more", [("--without", "aic"), ("--update", "x.toml"), ("--picture", "x")])
def test_what_is_of_kernels_only(more: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = write_runs(tmp_path / "runs.json", run())
    assert main(("calibrate", runs, "--device", "a100-80g", *more)) == 2
    assert more[0] in capsys.readouterr().err


def test_no_run_that_can_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = write_runs(tmp_path / "runs.json", run(iteration_time_s=None, id="no time"))
    assert main(("calibrate", runs, "--device", "a100-80g")) == 2
    assert "no time: no iteration time" in capsys.readouterr().err
    both = ("calibrate", runs, runs, "--device", "a100-80g")
    assert main(both) == 2
    assert "training runs and other files together" in capsys.readouterr().err
    assert not is_runs_file(str(tmp_path / "none.json"))
    (tmp_path / "nccl.json").write_text('{"iteration_time_s": 1}')
    assert not is_runs_file(str(tmp_path / "nccl.json"))
    for name in ("runs.csv", "runs.sqlite", "runs.json.gz"):  # of another kind: may be gigabytes, and is not read
        copy = tmp_path / name
        copy.write_bytes(Path(runs).read_bytes())
        assert is_runs_file(runs) and not is_runs_file(str(copy))
