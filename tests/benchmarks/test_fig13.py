"""The script behind DIP Fig. 13: its grid, its choices, and that it runs."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from examples.test_examples import run

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "paper" / "fig13.py"


@pytest.fixture(scope="module")
def fig13() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fig13", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fig13"] = module
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def test_the_grid_is_all_powers_of_two(fig13: ModuleType) -> None:
    sizes = fig13.grid(quick=False)
    assert len(sizes) == len(set(sizes)) == 7 + 6 + 5 + 4
    assert all(dp * tp * pp == 64 and tp <= 8 for dp, tp, pp in sizes)
    assert set(fig13.grid(quick=True)) < set(sizes)
    assert [sum(fig13.even(63, parts)) for parts in (1, 2, 64)] == [63] * 3
    assert fig13.even(63, 2) == (32, 31)


@pytest.mark.slow
def test_it_runs_and_says_where_the_optimum_comes_out(tmp_path: Path) -> None:
    picture = tmp_path / "fig13.png"
    printed = run(SCRIPT, tmp_path, "--quick", "--json", "--picture", str(picture))
    rows = {row["name"]: row for row in json.loads(printed)}
    best = rows["MFU, DP8 TP2 PP4"]
    spec = float(best["reference"].split()[2])
    assert 0 < best["value"] < spec < 100
    place = rows["place of DP8 TP2 PP4, calibrated"]
    assert place["holds"] is (place["value"] == 1)
    assert rows["MFU of DP8 TP2 PP4 over DIP's, calibrated"]["value"] == pytest.approx(best["value"] / 29.7)
    assert picture.read_bytes().startswith(b"\x89PNG")
