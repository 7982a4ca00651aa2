"""The command line of the suite, and the record of its machine; without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from calibration.machine import describe, load_record, record_run, table_name
from calibration.measure import kernel_cases, main, parse
from semu.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def test_one_process_measures_all_but_collectives() -> None:
    options = parse(["--out", "folder/name"])
    kernels, others = ("gemm", "attention", "memory", "convolutions"), ("steps", "launches", "clocks", "masks")
    assert options.only == (*kernels, *others)
    assert options.source == "name"
    assert (options.device, options.quick, options.compiled) == ("cuda", False, False)
    assert parse(["--out", "x"], num_processes=8).only == ("collectives",)


def test_only_what_was_named() -> None:
    options = parse(["--out", "x", "--only", "memory, gemm", "--device", "cpu", "--quick", "--source", "lab"])
    assert options.only == ("memory", "gemm")
    assert options.source == "lab"
    assert {case.table for case in kernel_cases(options)} == {"gemm", "memory_ops"}
    assert kernel_cases(parse(["--out", "x", "--only", "steps"])) == []


@pytest.mark.parametrize(
    ("arguments", "processes", "message", "nearest"),
    [
        (["--only", "gem"], 1, "unknown family", "gemm"),
        (["--only", "collectives"], 1, "collectives is not for 1 processes", None),
        (["--only", "gemm"], 8, "gemm is not for 8 processes", None),
        (["--settle", "-1"], 1, "out of range", 0),
        (["--budget", "0"], 1, "out of range", None),
        (["--match", "("], 1, "no regular expression", None),
        (["--device", "cpu"], 1, "the suite's sizes are a GPU's", "--device cpu --quick"),
    ],
)
def test_errors_name_the_option(arguments: list[str], processes: int, message: str, nearest: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(["--out", "x", *arguments], num_processes=processes)
    assert message in caught.value.message
    assert caught.value.where == arguments[0]
    assert caught.value.nearest == nearest


def test_bad_input_exits_with_2(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert main(["--out", "x", "--only", "gem"]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "--only" in streams.err


def test_without_torch_the_extra_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from calibration.measure import main\n"
        f"sys.exit(main(['--out', {str(tmp_path / 'new')!r}, '--device', 'cpu', '--quick']))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "WORLD_SIZE"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "pip install '.[executor]' in a checkout" in done.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("driver_name", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA H800", "H800-SXM"),
        ("NVIDIA H200", "H200-SXM"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM-40GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe"),
        ("NVIDIA A40", "A40"),
        ("NVIDIA B200", "B200-SXM"),
        ("NVIDIA GeForce RTX 4090", "GeForce-RTX-4090"),
    ],
)
def test_names_of_devices(driver_name: str, name: str) -> None:
    assert table_name(driver_name) == name


def record(**changes: Any) -> dict[str, Any]:
    return {**describe("H100-SXM", "NVIDIA H100", {"torch": "2.13.0", "cuda": "13.0"}, "2026-01-01"), **changes}


def test_runs_are_added_to_the_record(tmp_path: Path) -> None:
    record_run(tmp_path, record(options={"quick": False}))
    record_run(tmp_path, record(date="2026-01-02"))
    found = load_record(tmp_path)
    assert found["device"] == "H100-SXM"
    assert found["torch"] == "2.13.0"
    runs: Any = found["runs"]
    assert [run["date"] for run in runs] == ["2026-01-01", "2026-01-02"]
    assert runs[0]["options"] == {"quick": False}


@pytest.mark.parametrize("change", [{"device": "A40"}, {"torch": "2.5.0"}, {"cuda": "12.4"}, {"driver": "590"}])
def test_a_folder_belongs_to_one_machine(tmp_path: Path, change: dict[str, Any]) -> None:
    record_run(tmp_path, record())
    before = (tmp_path / "machine.json").read_text()
    with pytest.raises(ConfigError, match="measure into a new one"):
        record_run(tmp_path, record(**change))
    assert (tmp_path / "machine.json").read_text() == before


@pytest.mark.parametrize("text", [None, "{", "[1]"])
def test_a_record_that_is_none(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "machine.json").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_record(tmp_path)
    assert caught.value.where == str(tmp_path / "machine.json")
    assert json.dumps(caught.value.to_json())
