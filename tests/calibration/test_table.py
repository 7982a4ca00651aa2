"""Tables that grow row by row, are gone on with, and survive a crash."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibration.table import GEMM, MEMORY, SCHEMAS, STEPS, Table, cell, read_rows, with_remarks
from semu.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def gemm_row(m: int = 256, note: str = "layout=TN | load=sustained") -> dict[str, Any]:
    key = {"device": "H100-SXM", "dtype": "bf16", "m": m, "n": 512, "k": 64, "batch": 1, "note": note}
    return {**key, "time_us": 12.3456789, "time_us_min": 12.0, "time_us_max": 13.0, "n_src": 1}


def test_rows_are_written_at_once_under_a_header(tmp_path: Path) -> None:
    table = Table(tmp_path, GEMM, "here")
    assert not (tmp_path / "gemm.csv").exists()
    table.append(gemm_row())
    assert (tmp_path / "gemm.csv").read_text() == (
        "device,dtype,m,n,k,batch,time_us,time_us_min,time_us_max,n_src,source,note\n"
        "H100-SXM,bf16,256,512,64,1,12.346,12,13,1,here,layout=TN | load=sustained\n"
    )
    table.append(gemm_row(512))
    assert [row["m"] for row in read_rows(tmp_path / "gemm.csv", GEMM)] == ["256", "512"]
    assert len(table) == 2


def test_a_second_run_knows_what_the_first_has_measured(tmp_path: Path) -> None:
    Table(tmp_path, GEMM, "here").append(gemm_row())
    again = Table(tmp_path, GEMM, "here")
    assert again.has(gemm_row())
    assert again.has(gemm_row(note="layout=TN"))  # remarks do not count
    assert again.has(gemm_row(note="layout=TN | unsettled"))
    assert not again.has(gemm_row(note="layout=NT"))
    assert not again.has(gemm_row(m=257))
    with pytest.raises(ConfigError, match="measured already"):
        again.append(gemm_row())


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line_is_cut_off_and_measured_again(tmp_path: Path, cut: int) -> None:
    table = Table(tmp_path, GEMM, "here")
    table.append(gemm_row())
    table.append(gemm_row(512))
    path = tmp_path / "gemm.csv"
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    again = Table(tmp_path, GEMM, "here")
    assert again.has(gemm_row())
    assert not again.has(gemm_row(512))
    again.append(gemm_row(512))
    assert path.read_bytes() == whole


def test_a_torn_header_is_started_anew(tmp_path: Path) -> None:
    (tmp_path / "gemm.csv").write_text("device,dty")
    table = Table(tmp_path, GEMM, "here")
    table.append(gemm_row())
    assert len(list(read_rows(tmp_path / "gemm.csv", GEMM))) == 1


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "gemm.csv"
    path.write_text("device,op\nH100-SXM,add\n")
    with pytest.raises(ConfigError, match="other columns") as caught:
        Table(tmp_path, GEMM, "here")
    assert caught.value.where == f"{path}:1"
    path.write_text(",".join(GEMM.columns) + "\nH100-SXM,bf16,1\n")
    with pytest.raises(ConfigError, match="not a row") as caught:
        Table(tmp_path, GEMM, "here")
    assert caught.value.where == f"{path}:2"


def test_a_row_needs_exactly_the_files_columns(tmp_path: Path) -> None:
    table = Table(tmp_path, GEMM, "here")
    with pytest.raises(ConfigError, match="not the file's columns"):
        table.append({**gemm_row(), "shape": "1x1"})
    short = gemm_row()
    del short["time_us"]
    with pytest.raises(ConfigError, match="not the file's columns"):
        table.append(short)
    assert len(table) == 0


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(rows=st.lists(st.tuples(TEXT, TEXT), max_size=6, unique_by=lambda row: row[0]), cut=st.integers(0, 60))
def test_any_text_comes_back_and_any_cut_leaves_whole_rows(
    tmp_path: Path, rows: list[tuple[str, str]], cut: int
) -> None:
    path = tmp_path / "memory_ops.csv"
    path.unlink(missing_ok=True)
    table = Table(tmp_path, MEMORY, "here")
    written = []
    for shape, op in rows:
        # A separator in a key would make two rows one.
        shape = shape.replace(" | ", "")
        row = {"device": "cpu", "op": op, "pass": "", "dtype": "bf16", "shape": shape, "bytes": 8, "note": "torch"}
        if not table.has(row):
            table.append({**row, "time_us": 1.5, "gbps": None})
            written.append(shape)
    assert [row["shape"] for row in read_rows(path, MEMORY)] == written
    if written:
        path.write_bytes(path.read_bytes()[: len(path.read_bytes()) - cut])
        Table(tmp_path, MEMORY, "here")
        left = [row["shape"] for row in read_rows(path, MEMORY)]
        assert left == written[: len(left)]


def test_cells_and_remarks() -> None:
    assert [cell(value) for value in (None, 3, 1 / 3, 1234567.0, "bf16", 85899345920)] == [
        "",
        "3",
        "0.33333",
        "1.2346e+06",
        "bf16",
        "85899345920",
    ]
    assert with_remarks("torch", "", "") == "torch"
    assert with_remarks("torch", "a", "", "b") == "torch | a;b"


@pytest.mark.parametrize("name", ["gemm", "attention", "memory_ops", "collectives"])
def test_schemas_are_those_of_the_public_tables(data_dir: Path, name: str) -> None:
    path = data_dir / "microbench" / f"{name}.csv"
    if not path.is_file():
        pytest.skip(f"no {name}.csv in the measured data")
    with path.open(newline="") as file:
        assert tuple(next(csv.reader(file))) == SCHEMAS[name].columns


def test_every_column_is_documented() -> None:
    text = (ROOT / "calibration" / "SCHEMA.md").read_text()
    parts = dict(part.split("\n", 1) for part in text.split("\n## ")[1:])
    for schema in SCHEMAS.values():
        first_cells = [line.split("|")[1:3] for line in parts[f"{schema.name}.csv"].splitlines() if line[:1] == "|"]
        columns = [(word, key.strip()) for cell_, key in first_cells for word in cell_.split("`")[1::2]]
        assert [word for word, _ in columns] == list(schema.columns)
        assert {word for word, key in columns if key == "yes"} == set(schema.key)
    assert STEPS.key[:2] == ("device", "scope")
