"""``semu validate --pass-times``: rows that say what their passes took, with these times on every rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from semu.cli import main
from semu.runfile import make_job
from semu.validation import BadRow, parse_rows, validate
from tests.validation.rows_kit import row, run, write_runs

TOLD = {"profiled_ms_per_microbatch": {"T_F": 2.0, "T_B": 2.0, "T_W": 1.0, "T_comm": 0.1}}


def zero_bubble(**more: Any) -> dict[str, Any]:
    sizes = {"dp": 1, "pp": 2, "gpus": 2, "global_batch": 16, "schedule_kind": "zb-auto", "activation_limit": "2p"}
    return run(**{**sizes, "sharding_kind": "none", "measured_values": TOLD, **more})


def test_a_row_takes_what_it_says() -> None:
    """8 microbatches of 5 ms on every rank; ranks step apart, so that the bubble goes (2401.10241 §4)."""
    (read,) = parse_rows([zero_bubble(iteration_time_s=0.040, overlap={"pp_p2p": True})])
    result = validate([read], make_job, pass_times=True)
    (found,) = result.rows
    time = next(item for quantity, item in found.compared.items() if quantity.value == "time")
    assert time.predicted is not None
    assert 0.040 <= time.predicted < 0.0425
    assert "passes take what the row says" in found.notes
    plain = validate([read], make_job).rows[0].compared
    assert all(item.predicted != time.predicted for quantity, item in plain.items() if quantity.value == "time")


def test_times_are_all_there_or_none_are_told() -> None:
    assert row().pass_times is None
    assert row({"measured_values.profiled_ms_per_microbatch": {"T_F": 2.0}}).pass_times is None
    told = row({"measured_values": TOLD}).pass_times
    assert told is not None
    assert (told.forward_s, told.input_s, told.weight_s) == (0.002, 0.002, 0.001)
    (bad,) = parse_rows([run({"measured_values.profiled_ms_per_microbatch": {"T_F": -2.0, "T_B": 1.0, "T_W": 1.0}})])
    assert isinstance(bad, BadRow)
    assert bad.reason.startswith("measured_values.profiled_ms_per_microbatch.T_F")


def test_the_command_prints_n_and_mape_of_rows_with_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = write_runs(tmp_path / "runs.json", zero_bubble(id="told", iteration_time_s=0.042), run(id="untold"))
    assert main(["validate", "--runs", runs, "--pass-times"]) == 0
    out = capsys.readouterr().out
    assert "1 rows: 1 ok" in out
    assert "MAPE" in out
    assert main(["validate", "--runs", runs, "--pass-times", "--json"]) == 0
    assert [item["id"] for item in json.loads(capsys.readouterr().out)["rows"]] == ["told"]


@pytest.mark.parametrize(
    ("words", "where"),
    [((), "--pass-times"), (("--compare", "spec"), "--compare"), (("--site", "2"), "--site")],
)
def test_bad_input(words: tuple[str, ...], where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = write_runs(tmp_path / "runs.json", run(id="untold"))
    assert main(["validate", "--runs", runs, "--pass-times", "--json", *words]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["where"] == where
    assert error["expected"]
