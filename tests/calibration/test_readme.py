"""What calibration/README.md says is so: every profile is there, files and numbers of rows are right."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from calibration.attention import attention_cases
from calibration.collective_cases import collective_cases
from calibration.device.clock import clock_cases
from calibration.device.convolution import convolution_cases
from calibration.device.launches import launch_cases
from calibration.device.tile_masks import mask_cases
from calibration.gemm import gemm_cases
from calibration.memory import memory_cases
from calibration.steps import step_cases

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "calibration" / "README.md").read_text()


def first_cells(heading: str) -> list[list[str]]:
    """Cells of the rows of the tables under a heading."""
    section = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| `")]


def test_every_profile_is_named() -> None:
    shipped = {path.stem for path in (ROOT / "semu" / "hardware" / "profiles").glob("[a-z]*.toml")}
    section = TEXT.split("\n## How each shipped profile was made\n")[1].split("\n## ")[0]
    named = set(re.findall(r"[\w-]+", " ".join(re.findall(r"`([^`]*)`", section))))
    assert shipped <= named


def test_files_have_the_checksums(data_dir: Path) -> None:
    rows = [cells for cells in first_cells("How each shipped profile was made") if len(cells) == 2]
    assert len(rows) >= 5
    for name, checksum in rows:
        path = data_dir / "microbench" / name.strip("`")
        if not path.is_file():
            pytest.skip(f"no {name} in the measured data")
        assert hashlib.sha256(path.read_bytes()).hexdigest() == checksum.strip("`")


def test_numbers_of_rows() -> None:
    counts = {
        "gemm": len(gemm_cases()),
        "attention": len(attention_cases()),
        "memory": len(memory_cases()),
        "convolutions": len(convolution_cases()),
        "steps": len(step_cases()),
        "launches": len(launch_cases()),
        "masks": len(mask_cases()),
        "clocks": 2 * len(clock_cases()),
        "collectives": len(collective_cases(8, 8, "1x8", "bf16")),
    }
    said = {cells[0].strip("`"): int(cells[1].split()[0]) for cells in first_cells("Measuring a machine")}
    assert said == counts


def test_commands_are_those_of_scripts_that_exist() -> None:
    scripts = set(re.findall(r"(?<!tests/)calibration/\w+\.py", TEXT))
    names = ("compare", "make_profiles", "measure", "software_factors")
    assert scripts == {f"calibration/{name}.py" for name in names}
    assert all((ROOT / script).is_file() for script in scripts)
