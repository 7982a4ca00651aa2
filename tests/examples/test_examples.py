"""The examples and the code of README.md and docs/ run as printed; examples stay short."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.readme._weave import PAGES, ROOT, WALKED

EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))
SLOW = ("08_search", "09_execute", "10_planner", "11_grid", "14_assign", "15_drill")
"""Examples that take more than a few seconds."""


def run(script: Path, folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_examples() -> None:
    numbers = sorted({path.name[:2] for path in EXAMPLES})
    assert numbers == [f"{i:02d}" for i in range(1, len(numbers) + 1)]
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow] if path.stem in SLOW else [], id=path.stem) for path in EXAMPLES],
)
def test_examples_are_short_and_run(path: Path, tmp_path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 40
    if "import torch" in path.read_text():
        pytest.importorskip("torch", reason="it runs PyTorch (pip install '.[executor]')")
    assert run(path, tmp_path).strip()


def test_figure_7_has_its_five_operators(tmp_path: Path) -> None:
    output = run(ROOT / "examples" / "01_model.py", tmp_path)
    for name in ("norm.layer_norm ", "linear ", "linear.grad_bw", "linear.weight_bw", "norm.layer_norm_bw"):
        assert re.search(rf"us +compute +{re.escape(name)}", output), name


def test_equal_stages_are_simulated_once(tmp_path: Path) -> None:
    output = run(ROOT / "examples" / "04_reuse.py", tmp_path)
    assert re.search(r"\b112 units, 5 of them simulated", output)  # 8 x (4 forward, 4 backward, 6 transfers)
    gib = {name: float(re.search(rf"{name} +step .* up to (.*) GiB", output)[1]) for name in ("gpipe", "1f1b")}
    assert gib["1f1b"] < gib["gpipe"]


@pytest.mark.slow
def test_published_figures_are_met_where_the_paper_leaves_nothing_open(tmp_path: Path) -> None:
    rows = json.loads(run(ROOT / "benchmarks" / "published.py", tmp_path, "--quick", "--json"))
    assert [row["name"] for row in rows if row["holds"] is False] == []
    assert sum(row["holds"] is True for row in rows) == 3


@pytest.mark.slow
def test_python_in_the_readme_runs(tmp_path: Path) -> None:
    text = "".join(page.read_text() for page in PAGES if page not in WALKED)
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) >= 4
    for number, block in enumerate(blocks):
        script = tmp_path / f"block{number}.py"
        script.write_text(block)
        run(script, tmp_path)


@pytest.mark.slow
def test_the_tutorial_shows_the_picture_of_its_rule(tmp_path: Path) -> None:
    """The grid that the example draws last, line by line; and the time that it says."""
    output = run(ROOT / "examples" / "12_rules.py", tmp_path)
    shown = (ROOT / "docs" / "tutorials" / "own-schedule.md").read_text()
    lines = [line for line in output.splitlines() if line.startswith("rank ")]
    assert len(lines) == 8
    assert "\n".join(lines[4:]) in shown
    assert re.search(r"^55 s.*(\n.*)*^41 s", output, flags=re.MULTILINE)
    before, after = (
        float(re.search(rf"^(\S+) s under {name}", output, flags=re.MULTILINE)[1]) for name in ("1f1b", "bi")
    )
    assert f"takes {100 * (1 - after / before):.0f} % less time than under 1F1B" in shown.replace("\n", " ")
