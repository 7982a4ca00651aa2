"""``semu run`` where torch is not needed or not there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from semu.cli import main

ROOT = Path(__file__).resolve().parents[2]


def test_a_file_that_is_no_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(tmp_path / "none.json"), "--demo"]) == 2
    (tmp_path / "later.json").write_text('{"format": "semu plan 99"}')
    assert main(["run", str(tmp_path / "later.json"), "--demo", "--json"]) == 4
    streams = capsys.readouterr()
    assert "later version" in json.loads(streams.out)["error"]["message"]


def test_without_torch_the_extra_is_named() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from semu.errors import ExecutorError\n"
        "try:\n    from semu.executor import run_plan\n"
        "except ExecutorError as error:\n    print(error.exit_code, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.startswith("6 ") and "pip install '.[executor]' in a checkout" in done.stdout, done.stderr
