"""No prediction depends on a row's names: they occur nowhere in the code, and renaming a row changes nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from semu.runfile import make_job
from semu.validation import Status, parse_rows, validate
from semu.validation.rows import PUBLISHED

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".py", ".toml", ".json"}


@pytest.fixture(scope="module")
def collected(data_dir: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((data_dir / "runs" / "runs.json").read_text())
    return rows


SHIPPED = ("hub.py", "torchtitan/flags.toml")
"""Tables from names that other programs give to models to the names of those that ship, which some rows have too."""


@pytest.mark.slow
def test_no_name_of_a_row_occurs_in_the_code(collected: list[dict[str, Any]]) -> None:
    names = {name for row in collected for name in (row["id"], row["group"], row["model"]["name"])}
    pattern = re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, sorted(names)))})(?![\w.-])")
    others = {PUBLISHED, *(ROOT / "semu" / "imports" / name for name in SHIPPED)}
    files = [file for file in (ROOT / "semu").rglob("*") if file.suffix in SUFFIXES and file not in others]
    assert len(files) > 150
    found = {f"{file.relative_to(ROOT)}: {match[0]}" for file in files for match in pattern.finditer(file.read_text())}
    assert found == set()
    assert pattern.search(PUBLISHED.read_text())


@pytest.mark.slow
def test_renaming_everything_changes_no_prediction(collected: list[dict[str, Any]]) -> None:
    free = {"id", "group", "source", "system", "gpu", "intra_net", "inter_net"}
    free |= {"precision", "recompute", "sharding", "schedule"}
    renamed = []
    for number, row in enumerate(collected):
        other = {key: value for key, value in row.items() if key not in free}
        other |= {"id": f"row-{number}", "group": "all", "model": {**row["model"], "name": "anything"}}
        renamed.append(other)
    first, second = (validate(parse_rows(rows), make_job).rows for rows in (collected, renamed))
    assert sum(row.status is Status.OK for row in first) >= 9
    for one, two in zip(first, second, strict=True):
        assert (one.status, one.reason, one.compared, one.resolved) == (
            two.status,
            two.reason,
            two.compared,
            two.resolved,
        )
