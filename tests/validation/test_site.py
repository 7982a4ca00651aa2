"""Site calibration of published runs: a site that is a constant factor off is found; two rows cannot ruin the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from semu.cli import main
from semu.errors import ConfigError
from semu.runfile import make_job
from semu.validation import Comparison, Quantity, RowResult, Status, parse_rows, validate
from semu.validation.site import calibrate_sites, run_times
from tests.validation.rows_kit import run, write_runs


def result(group: str, predicted: float, measured: float | None, *, communication: float = 0.0) -> RowResult:
    return RowResult(
        id=f"{group} {predicted}",
        group=group,
        trust="A",
        is_scored=True,
        status=Status.OK,
        compared={Quantity.TIME: Comparison(predicted, measured)},
        communication_s=communication,
    )


def test_a_slow_site_is_found_from_two_rows() -> None:
    rows = [result("slow", time, 1.1 * time, communication=0.1 * time) for time in (1.0, 2.0, 3.0, 4.0)]
    found = calibrate_sites(rows, 2)
    (group,) = found.groups
    assert (group.n, group.calibrated) == (2, ("slow 1.0", "slow 2.0"))
    assert group.before == pytest.approx(100 * (1 - 1 / 1.1))
    assert group.factors.compute == group.factors.communication
    assert 1.08 < group.factors.compute < 1.1  # drawn towards 1
    assert group.after == pytest.approx(100 * (1 - group.factors.compute / 1.1))
    assert found.after == group.after


def test_groups_without_other_rows_are_left_out() -> None:
    rows = [result("two", 1.0, 1.0), result("two", 2.0, 2.0), *[result("five", time, time) for time in range(1, 6)]]
    rows += [result("five", 9.0, None)]
    found = calibrate_sites(rows, 2)
    assert [(group.group, group.n) for group in found.groups] == [("five", 3)]
    assert (found.before, found.after) == (0.0, pytest.approx(0.0, abs=1e-9))
    empty = calibrate_sites(rows[:2], 2)
    assert (empty.groups, empty.before, empty.after) == ((), None, None)
    assert "site calibration on the first 2 rows" in repr(empty)


@pytest.mark.parametrize("count", [0, -1, True])
def test_not_a_number_of_rows(count: int) -> None:
    with pytest.raises(ConfigError, match="not a number of rows") as raised:
        calibrate_sites([], count)
    assert (raised.value.where, raised.value.nearest) == ("--site", 1)


def test_simulated_rows_tell_computation_from_communication() -> None:
    rows = [run({"dp": 2}, id="two"), run({"gpus": 1, "dp": 1}, id="one", sharding_kind="none")]
    times = {row.id: run_times(row) for row in validate(parse_rows(rows), make_job).rows}
    two, one = times["two"], times["one"]
    assert two is not None
    assert one is not None
    assert (one.communication_s, two.communication_s > 0) == (0.0, True)
    assert two.measured_s == one.measured_s == 0.05


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = write_runs(tmp_path / "runs.json", *[run(id=str(n), iteration_time_s=0.003 + n / 1e4) for n in range(4)])
    assert main(("validate", "--runs", runs, "--site", "2", "--json")) == 0
    site = json.loads(capsys.readouterr().out)["site"]
    assert (site["rows"], site["groups"][0]["calibrated"], site["groups"][0]["n"]) == (2, ["0", "1"], 2)
    assert main(("validate", "--runs", runs, "--site", "2")) == 0
    assert "error of the others in %" in capsys.readouterr().out
    assert main(("validate", "--runs", runs, "--site", "0")) == 2
