"""Results as JSON, CSV, text and files."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from semu.errors import ConfigError
from semu.files import write_text
from semu.runfile import make_job
from semu.validation import BadRow, ValidationResult, parse_rows, validate
from semu.validation.files import save
from semu.validation.table import cut
from tests.validation.rows_kit import row, run

ROWS = [
    run(id="first", group="one"),
    run(
        {"model.layers": 8},
        id="second",
        group="two",
        peak_mem_bytes=1e9,
        peak_mem_scope="max",
        peak_mem_measure="allocated",
    ),
    run(id="third", group="one", schedule_kind="unheard-of"),
    {"id": "fourth", "group": "two", "trust": "A"},
    run(id="fifth", group="a group whose name is so long that it would not leave room", micro_batch=None, trust="C"),
]


@pytest.fixture(scope="module")
def result() -> ValidationResult:
    return validate(parse_rows(ROWS), make_job)


def test_the_document_has_what_the_design_promises(result: ValidationResult) -> None:
    document = result.to_json()
    rows: Any = document["rows"]
    promised = {
        "id",
        "group",
        "trust",
        "status",
        "reason",
        "fits",
        "predicted_iteration_time_s",
        "measured_iteration_time_s",
        "predicted_peak_mem_bytes",
        "measured_peak_mem_bytes",
    }
    assert all(promised <= set(entry) for entry in rows)
    assert [entry["status"] for entry in rows] == ["ok", "ok", "refused", "error", "ok"]
    assert [entry["reason"] is None for entry in rows] == [True, True, False, False, True]
    for entry in rows:
        low, high = (entry[f"predicted_interval_{end}_s"] for end in ("low", "high"))
        predicted, measured = entry["predicted_iteration_time_s"], entry["measured_iteration_time_s"]
        assert (low is None) == (high is None) == (predicted is None)
        if predicted is not None:
            assert low < predicted < high and entry["inside_interval"] == (low <= measured <= high)
    assert document["counts"] == {"ok": 3, "refused": 1, "error": 1}
    groups: Any = document["groups"]
    assert [group["group"] for group in groups] == ["one", "two", ROWS[4]["group"]]
    assert groups[0]["time"]["n"] == 1
    assert {"n", "mape", "median", "bias", "worst", "null_mape"} <= set(groups[0]["time"])
    assert (groups[0]["memory"], groups[2]["time"]) == (None, None)
    assert groups[1]["memory"]["worst_id"] == "second"
    null: Any = document["null_model"]
    assert [(entry["device"], entry["precision"], entry["n"]) for entry in null] == [("a100-80g", "bf16", 2)]


def test_errors_in_percent_follow_from_the_numbers_beside_them(result: ValidationResult) -> None:
    document: Any = result.to_json()
    for entry in document["rows"]:
        for name, unit, error in (("iteration_time", "s", "time"), ("peak_mem", "bytes", "memory")):
            predicted, measured = (entry[f"{side}_{name}_{unit}"] for side in ("predicted", "measured"))
            if predicted is not None and measured is not None:
                assert entry[f"{error}_error_percent"] == pytest.approx(100 * (predicted / measured - 1))
            else:
                assert entry[f"{error}_error_percent"] is None


def test_a_row_that_was_not_run_still_tells_what_was_measured(result: ValidationResult) -> None:
    document: Any = result.to_json()
    assert document["rows"][2]["measured_iteration_time_s"] == 0.05
    assert document["rows"][2]["predicted_iteration_time_s"] is None


def test_equal_input_gives_equal_output(result: ValidationResult) -> None:
    again = validate(parse_rows(ROWS), make_job)
    assert json.dumps(again.to_json()) == json.dumps(result.to_json())
    assert (repr(again), again.to_csv()) == (repr(result), result.to_csv())


def test_the_csv_has_a_line_per_row(result: ValidationResult) -> None:
    lines = list(csv.DictReader(io.StringIO(result.to_csv())))
    document: Any = result.to_json()
    assert [line["id"] for line in lines] == [entry["id"] for entry in document["rows"]]
    assert list(lines[0]) == list(document["rows"][0])
    assert float(lines[0]["predicted_iteration_time_s"]) == document["rows"][0]["predicted_iteration_time_s"]
    assert lines[2]["predicted_iteration_time_s"] == ""
    assert lines[4]["resolved"] == f"micro_batch={document['rows'][4]['resolved']['micro_batch']}"


def test_no_rows() -> None:
    empty = validate([], make_job)
    assert empty.to_csv() == "id\n"
    assert repr(empty).startswith("0 rows: 0 ok, 0 refused, 0 error")
    assert empty.to_json()["groups"] == []


@pytest.mark.parametrize("length", range(3, 14))
def test_long_names_are_cut_to_the_width(length: int) -> None:
    found = cut("x" * length, 8)
    assert found == ("x" * length if length <= 8 else "xxxxx...")


def test_the_table(result: ValidationResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    text = repr(result)
    lines = text.split("\n")
    assert lines[0] == "5 rows: 3 ok, 1 refused, 1 error"
    assert lines[-1] != ""
    assert max(map(len, lines)) <= 110
    heads = lines[lines.index("iteration time, error in %") + 1].split()
    assert heads == ["group", "n", "MAPE", "median", "bias", "worst", "null", "MAPE", "in", "90%", "worst", "row"]
    document: Any = result.to_json()
    error = document["rows"][0]["time_error_percent"]
    cells = lines[lines.index("iteration time, error in %") + 2].split()
    assert cells[:6] == ["one", "1", *[f"{abs(error):.2f}"] * 2, *[f"{error:+.2f}"] * 2]
    assert cells[-1] == "first"
    assert any(line.startswith("   1  training.schedule: ") for line in lines)
    assert any(line.startswith("  fourth: ") and "missing field" in line for line in lines)
    assert any(line.startswith("  fifth: not published: micro_batch ") for line in lines)


def test_many_equal_notes_are_one_line() -> None:
    text = repr(validate([row(id=str(number), trust="D") for number in range(3)], make_job))
    assert "  3 of g: trust D: listed, not scored" in text.split("\n")


def test_a_row_without_a_group() -> None:
    text = repr(validate([BadRow("row 1", "", "", "not an object: int")], make_job))
    assert "-" in [line.split()[0] for line in text.split("\n") if line]


# -- files ---------------------------------------------------------------------------------------------------------
def test_saving_writes_four_files(result: ValidationResult, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    files = save(result, folder, title="runs")
    assert [file.name for file in files] == ["validation.json", "validation.csv", "validation.png", "report.html"]
    assert sorted(folder.iterdir()) == sorted(files)
    assert json.loads(files[0].read_text()) == json.loads(json.dumps(result.to_json()))
    assert files[1].read_text() == result.to_csv()
    assert files[2].read_bytes().startswith(b"\x89PNG")
    before = [file.read_bytes() for file in files]
    assert [file.read_bytes() for file in save(result, folder, title="runs")] == before


def test_places_that_cannot_be_written_to(result: ValidationResult, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write results"):
        save(result, tmp_path / "file", title="")
    with pytest.raises(ConfigError, match="cannot write results"):
        write_text(tmp_path / "absent" / "out.csv", "")
    with pytest.raises(ConfigError, match="cannot write results"):
        write_text(tmp_path, "")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
