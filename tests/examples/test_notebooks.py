"""The notebooks of ``examples/notebooks`` run from top to bottom, and are kept without outputs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from docs.make.notebooks import executed, notebooks

FILES = list(notebooks().values())
FIGURES = {"01_first_prediction": 2, "02_choosing_a_layout": 1, "03_schedules_and_multimodal_data": 2}
TABLE = {"table", "caption", "tr", "th", "td"}


def test_they_are_kept_without_outputs() -> None:
    """A heading first, valid cells with ids of their own, nothing that could be stale."""
    assert [path.stem for path in FILES] == sorted(FIGURES)
    for path in FILES:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
        assert document["cells"][0]["source"][0].startswith("# ")
        ids = [cell["id"] for cell in document["cells"]]
        assert len(set(ids)) == len(ids)
        for cell in document["cells"]:
            assert all(line.endswith("\n") for line in cell["source"][:-1])
            assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Jupyter's own
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_they_run(path: Path) -> None:
    """Every cell, with tables that are static and the figures that its text speaks of."""
    pytest.importorskip("nbclient", reason="Jupyter's client and kernel run notebooks (pip install '.[notebooks]')")
    pytest.importorskip("ipykernel", reason="Jupyter's client and kernel run notebooks (pip install '.[notebooks]')")
    cells = [cell for cell in executed(path).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"execute_result", "stream"}
    assert not [output for output in outputs if output.get("name") == "stderr"]
    shown = [output.data for output in outputs if output.output_type == "execute_result"]
    assert sum("image/png" in forms for forms in shown) == FIGURES[path.stem]
    tables = [forms["text/html"] for forms in shown if "text/html" in forms]
    assert tables and all(set(re.findall(r"<(\w+)", table)) <= TABLE for table in tables)
    assert max(len(forms["text/plain"]) for forms in shown) < 5000, "texts are short, too"
