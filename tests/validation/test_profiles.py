"""The same rows under two profiles, and the interval of each row; ``--profile spec``, ``--compare``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import semu
from semu.cli import main
from semu.hardware.data_sheets import data_sheet
from semu.runfile import make_job
from semu.validation import Quantity, parse_rows, validate
from semu.validation.jobs import Settings, run_tables
from semu.validation.profiles import ProfileComparison, on_data_sheet
from semu.validation.row import Row
from tests.validation.rows_kit import run, write_runs

RUNS = [
    run(id="a", iteration_time_s=0.004),
    run(id="b", iteration_time_s=0.02),
    run(id="h", group="h", profile="h100", iteration_time_s=0.01),
    run(id="unscored", trust="D"),
]


@pytest.fixture
def runs(tmp_path: Path) -> str:
    return write_runs(tmp_path / "runs.json", *RUNS)


def document(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    code = main(("validate", *words, "--json"))
    out = capsys.readouterr().out
    assert code == 0, out
    return json.loads(out)


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(("validate", *words, "--json")) == 2
    return json.loads(capsys.readouterr().out)["error"]


def test_spec_is_the_device_at_its_peaks(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--runs", runs, "--profile", "spec")
    (row, *_) = parse_rows(RUNS)
    assert isinstance(row, Row)
    job = make_job(run_tables(row, Settings(2, 1, "none"), "a100-80g"))
    plain = semu.Cluster(data_sheet(job.cluster.profile), job.cluster.nodes, job.cluster.gpus_per_node)
    moved = semu.TrainingJob(job.model, plain, job.parallel, job.training, job.batch)
    assert found["rows"][0]["predicted_iteration_time_s"] == semu.simulate(moved).iteration_time_s
    assert found["rows"][0]["device"] == "a100-80g"
    assert {row["device"] for row in found["rows"]} == {"a100-80g", "h100"}


def test_compare_shows_both(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--runs", runs, "--compare", "spec")
    other = document(capsys, "--runs", runs, "--profile", "spec")
    compare = found["compare"]
    assert (compare["profile"], compare["other"]) == ("their profiles", "spec")
    assert [group["group"] for group in compare["groups"]] == ["g", "h"]
    for group, own, spec in zip(compare["groups"], found["groups"], other["groups"], strict=True):
        assert all(group[name] == own["time"][name] for name in ("n", "mape", "bias"))
        assert (group["other_mape"], group["other_bias"]) == (spec["time"]["mape"], spec["time"]["bias"])
    assert compare["overall"]["n"] == 3
    assert main(("validate", "--runs", runs, "--compare", "spec")) == 0
    assert "iteration time under their profiles and under spec, error in %" in capsys.readouterr().out


def test_rows_that_one_side_does_not_predict_count_on_neither() -> None:
    first, second = (validate(parse_rows(RUNS), make) for make in (make_job, on_data_sheet(make_job)))
    only = validate(parse_rows([*RUNS[:1], "no row", *RUNS[2:]]), make_job)  # type: ignore[list-item]
    found = ProfileComparison(only, second, ("one", "other"))
    assert [(pair.group, pair.first.n) for pair in found.groups] == [("g", 1), ("h", 1), ("all", 2)]
    assert ProfileComparison(first, second, ("one", "other")).groups[-1].first.n == 3
    nothing = validate(parse_rows(RUNS[3:]), make_job)
    assert ProfileComparison(nothing, nothing, ("one", "other")).to_json()["overall"] is None


def test_the_share_of_rows_inside_their_intervals() -> None:
    (row, *_) = validate(parse_rows(RUNS[:1]), make_job).rows
    predicted = row.compared[Quantity.TIME].predicted
    assert predicted is not None
    low, high = row.interval_s or (0.0, 0.0)
    assert low < predicted < high
    times = (low, high, predicted, 0.99 * low, 1.01 * high)
    result = validate(parse_rows([run(id=str(time), iteration_time_s=time) for time in times]), make_job)
    assert [item.is_inside for item in result.rows] == [True, True, True, False, False]
    assert result.overall.scores[Quantity.TIME].inside == pytest.approx(60.0)
    assert "60.00" in repr(result)


def test_they_are_about_published_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for flag, value in (("--compare", "spec"), ("--site", "2")):
        error = refusal(capsys, "--run", "lm-7b", "--log", "no.log", flag, value)
        assert (error["kind"], error["where"]) == ("ConfigError", flag)


def test_an_unknown_profile(runs: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = refusal(capsys, "--runs", runs, "--compare", "h1000")
    assert (error["got"], error["nearest"], error["where"]) == ("h1000", "h100", "--compare")
