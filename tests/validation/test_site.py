"""Site calibration of published runs: a site that is a constant factor off is found; two rows cannot ruin the rest."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from semu.cli import main
from semu.errors import ConfigError
from semu.fitting.site_runs import site_factors
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
    rows = [result("slow", time, 1.25 * time, communication=0.1 * time) for time in (1.0, 2.0, 3.0, 4.0)]
    found = calibrate_sites(rows, 2)
    (group,) = found.groups
    assert (group.n, group.calibrated) == (2, ("slow 1.0", "slow 2.0"))
    assert group.before == pytest.approx(100 * (1 - 1 / 1.25))
    made = 0.9 * group.factors.compute + 0.1 * group.factors.communication
    assert 1.2 < made < 1.25  # drawn towards 1
    assert group.after == pytest.approx(100 * (1 - made / 1.25))
    assert found.after == group.after
    assert group.over_choices.choices == 6
    assert group.over_choices.before == pytest.approx(group.before)
    assert group.over_choices.after == pytest.approx(group.after)  # the rows are all alike


def test_groups_count_as_their_rows_in_the_mean() -> None:
    """One of six rows, one of three; the null model is known of the first alone."""
    rows = [
        replace(result(group, 1.0 + n, (1.0 + n) * factor), id=f"{group}{n}", measured_mfu=mfu)
        for group, count, factor, mfu in (("a", 6, 1.3, 0.4), ("b", 3, 0.8, None))
        for n in range(count)
    ]
    found = calibrate_sites(rows, 2)
    first, second = (group.over_choices for group in found.groups)
    assert (first.choices, second.choices) == (15, 3)
    overall = found.to_json()["overall"]
    assert overall["n"] == 4 + 1
    assert overall["over_choices"]["choices"] == 18
    assert overall["over_choices"]["mape_before"] == pytest.approx((6 * first.before + 3 * second.before) / 9)
    assert overall["over_choices"]["mape_after"] == pytest.approx((6 * first.after + 3 * second.after) / 9)
    assert first.null is not None and second.null is None
    assert overall["over_choices"]["null_mape"] == pytest.approx(first.null)


def test_every_choice_of_rows_counts() -> None:
    """Three rows, one known: the means over the three choices, by hand; the null model has the known row's MFU."""
    rows = [
        replace(result("g", 1.0, measured), id=str(n), measured_mfu=mfu)
        for n, (measured, mfu) in enumerate([(1.0, 0.4), (1.1, 0.5), (1.2, 0.4)])
    ]
    (group,) = calibrate_sites(rows, 1).groups
    errors = [0.0, 100 * (1 - 1 / 1.1), 100 * (1 - 1 / 1.2)]
    assert group.over_choices.before == pytest.approx(sum(errors) / 3)
    assert group.over_choices.null == pytest.approx((25 + 0 + 20 + 20 + 0 + 25) / 6)
    factors = [site_factors([run]) for row in rows if (run := run_times(row)) is not None]
    after = [
        100 * abs(factors[known].compute / measured - 1)
        for known in range(3)
        for other, measured in enumerate((1.0, 1.1, 1.2))
        if other != known
    ]
    assert group.over_choices.after == pytest.approx(sum(after) / 6)
    many = [replace(result("g", 1.0, 1.0), id=str(n)) for n in range(40)]
    (group,) = calibrate_sites(many, 2).groups
    assert (group.over_choices.choices, group.over_choices.null) == (500, None)


def test_groups_without_other_rows_are_left_out() -> None:
    rows = [result("two", 1.0, 1.0), result("two", 2.0, 2.0), *[result("five", time, time) for time in range(1, 6)]]
    rows += [result("five", 9.0, None)]
    found = calibrate_sites(rows, 2)
    assert [(group.group, group.n) for group in found.groups] == [("five", 3)]
    assert (found.before, found.after) == (0.0, pytest.approx(0.0, abs=1e-9))
    empty = calibrate_sites(rows[:2], 2)
    assert (empty.groups, empty.before, empty.after) == ((), None, None)
    assert "site calibration on 2 rows" in repr(empty)


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
