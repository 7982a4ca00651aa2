"""What the suite writes is what ``semu calibrate`` reads: every case of its grids; without torch."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from calibration.attention import attention_flop
from calibration.case import Case
from calibration.collective_cases import collective_cases
from calibration.measure import kernel_cases, parse
from calibration.table import SCHEMAS, Table, Value, with_remarks
from semu.cli import main
from semu.fitting.readers import Measurements, read_measurements


def _results(case: Case) -> dict[str, Value]:
    """Columns of results, as of a device at constant rates."""
    row = case.row
    if case.table == "gemm":
        m, n, k, batch = (int(str(row[name])) for name in ("m", "n", "k", "batch"))
        time = 5.0 + 2e6 * m * n * k * batch / 5e14
        return {"time_us": time, "time_us_min": time, "time_us_max": time, "n_src": 1}
    if case.table == "attention":
        flop = attention_flop(dict(row))
        time = 20.0 + 1e6 * flop / 4e14
        return {"time_us": time, "tflops": flop / time / 1e6}
    moved = float(str(row["bytes"]))
    if case.table == "collectives":
        time = 10.0 + 1e6 * moved / 1e11
        return {"time_us": time, "time_us_min": time, "algbw_gbps": moved / time / 1e3, "busbw_gbps": None}
    time = 3.0 + 1e6 * moved / (4e10 if str(row["op"]).startswith("memcpy") else 2e12)
    return {"time_us": time, "gbps": moved / time / 1e3}


def _measure(folder: Path, *, remark: str = "load=sustained") -> list[str]:
    """The files of a whole run on eight GPUs."""
    tables = {name: Table(folder, schema, "lab") for name, schema in SCHEMAS.items()}
    options = parse(["--out", str(folder), "--compiled", "--only", "gemm,attention,memory"])
    for case in kernel_cases(options) + collective_cases(8, 8, "1x8", "bf16"):
        note = with_remarks(str(case.row["note"]), remark)
        tables[case.table].append({"device": "H100-SXM", **case.row, **_results(case), "note": note})
    return [str(table.path) for table in tables.values() if len(table)]


@pytest.fixture(autouse=True)
def _without_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite's rows are minutes apart, these are not."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def _read(folder: Path, remark: str) -> tuple[Measurements, int]:
    files = _measure(folder, remark=remark)
    return read_measurements(files, "h100"), sum(len(Path(file).read_text().splitlines()) - 1 for file in files)


def test_every_row_is_taken(tmp_path: Path) -> None:
    found, rows = _read(tmp_path, "load=sustained")
    assert {item.reason for item in found.refusals} == {"no section describes group_norm"} and found.others == {}
    assert len(found.samples) + len(found.refusals) == rows > 1500
    sources = Counter(item.source for item in found.samples if "attention" in item.section)
    assert sorted(sources) == [
        "lab/cudnn",
        "lab/flash",
        "lab/torch",
    ]  # kernels that differ
    optimizer = {item.source for item in found.samples if item.section == "efficiency.optimizer"}
    assert optimizer == {"lab", "lab/foreach"}
    assert {item.source for item in found.samples if item.section == "efficiency.rope"} == {"lab", "lab/eager"}


def test_a_dry_run_is_not_fitted(tmp_path: Path) -> None:
    found, rows = _read(tmp_path, "dry run")
    assert found.samples == () and len(found.refusals) == rows
    assert {item.reason for item in found.refusals} == {"a dry run, whose figures mean nothing"}


@pytest.mark.slow
def test_a_whole_run_makes_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("scipy")
    files = _measure(tmp_path)
    assert main(["calibrate", *files, "--device", "h100", "-o", str(tmp_path / "lab.toml")]) == 0
    captured = capsys.readouterr()
    kept = captured.out[captured.out.index("not measured") :]
    for section in ("efficiency.matmul", "efficiency.attention_backward", "efficiency.optimizer", "link.nvlink.p2p"):
        assert f"{section}," not in kept and section in captured.out
    assert main(["calibrate", "--score", *files, "--profile", str(tmp_path / "lab.toml"), "--held-out", "--json"]) == 0
    kinds = {item["kind"]: item["mape"] for item in json.loads(capsys.readouterr().out)["kinds"]}
    for kind in ("gemm", "gemm_fp8", "gemm_grouped", "attention_forward", "norm", "optimizer", "all_gather"):
        assert kinds[kind] < 7.0, kind
