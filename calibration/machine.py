"""What a measurement folder says about its machine: ``machine.json``."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path

from semu.errors import ConfigError
from semu.files import write_text

NAMES = (
    ("GH200", "GH200"),
    ("H100 NVL", "H100-NVL"),
    ("H100 PCIe", "H100-PCIe"),
    ("H100", "H100-SXM"),
    ("H800 PCIe", "H800-PCIe"),
    ("H800", "H800-SXM"),
    ("H200 NVL", "H200-NVL"),
    ("H200", "H200-SXM"),
    ("H20", "H20"),
    ("GB200", "GB200"),
    ("GB300", "GB300"),
    ("B200", "B200-SXM"),
    ("A100-SXM4-40GB", "A100-SXM-40GB"),
    ("A100-SXM-40GB", "A100-SXM-40GB"),
    ("A100-SXM", "A100-SXM"),
    ("A100-PCIE-40GB", "A100-PCIe-40GB"),
    ("A100-PCI", "A100-PCIe"),
    ("A100 80GB PCIe", "A100-PCIe"),
    ("A40", "A40"),
)
"""Part of the driver's name -> the tables' name; the first that fits counts."""
QUERIES = (
    "name,driver_version,vbios_version,power.limit,power.draw,temperature.gpu,clocks.sm,clocks.mem,clocks.max.sm,"
    "pcie.link.gen.current,pcie.link.width.current"
)
SAME = ("device", "driver_name", "driver", "torch", "cuda")
"""Keys whose values all runs in a folder share."""


def table_name(driver_name: str) -> str:
    """The tables' name of a GPU, e.g. ``H100-SXM`` for ``NVIDIA H100 80GB HBM3``; otherwise the driver's."""
    words = driver_name.removeprefix("NVIDIA ").strip()
    return next((name for part, name in NAMES if words.startswith(part)), words.replace(" ", "-"))


def _ask(*command: str) -> str | None:
    """What a command prints, None where it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def describe(device: str, driver_name: str, versions: Mapping[str, object], date: str) -> dict[str, object]:
    """The record of a run.

    Args:
        device: the tables' name. driver_name: as the driver has it. versions: of torch and its libraries.
        date: ISO 8601.
    """
    record: dict[str, object] = {
        "schema_version": 1,
        "device": device,
        "driver_name": driver_name,
        "date": date,
        "cpu": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        **versions,
    }
    state = _ask("nvidia-smi", f"--query-gpu={QUERIES}", "--format=csv,noheader")
    if state is not None:
        names = QUERIES.split(",")
        record["gpus"] = [
            dict(zip(names, (value.strip() for value in line.split(",")), strict=False)) for line in state.splitlines()
        ]
        record["driver"] = state.splitlines()[0].split(",")[1].strip() if state else None
    topology = _ask("nvidia-smi", "topo", "-m") if state is not None and len(state.splitlines()) > 1 else None
    if topology is not None:
        record["topology"] = topology.splitlines()
    return record


def record_run(folder: Path, record: Mapping[str, object]) -> None:
    """Write ``machine.json``, or add a run to the one that is there.

    Raises:
        ConfigError: the folder belongs to another device or another software, or its file cannot be read.
    """
    path = folder / "machine.json"
    runs: list[object] = []
    if path.exists():
        recorded = load_record(folder)
        for name in SAME:
            if recorded.get(name) != record.get(name):
                raise ConfigError(
                    f"this folder is another {name}'s; measure into a new one",
                    where=str(path),
                    expected=f"{name} = {recorded.get(name)}",
                    got=record.get(name),
                )
        earlier = recorded.get("runs")
        runs = list(earlier) if isinstance(earlier, list) else []
        first = {key: value for key, value in recorded.items() if key != "runs"}
    else:
        first = {key: value for key, value in record.items() if key not in ("date", "gpus", "options")}
    runs.append({"date": record["date"], "gpus": record.get("gpus"), "options": record.get("options")})
    write_text(path, json.dumps({**first, "runs": runs}, indent=1) + "\n")


def load_record(folder: Path) -> dict[str, object]:
    """Read ``machine.json``.

    Raises:
        ConfigError: it is not there, or is no JSON table.
    """
    path = folder / "machine.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read the machine's record: {error}",
            where=str(path),
            expected="a folder that calibration/measure.py wrote",
        ) from error
    if not isinstance(record, dict):
        raise ConfigError("not a JSON table", where=str(path), expected="a JSON object", got=type(record).__name__)
    return record
