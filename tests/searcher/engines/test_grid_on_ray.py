"""``semu grid --engine ray``: the grid of one process and of a Ray cluster are the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli.test_grid import RUN

pytest.importorskip("ray", reason="needs Ray: pip install '.[ray]'")
pytestmark = [pytest.mark.slow, pytest.mark.multiprocess]

ROOT = Path(__file__).parents[3]


def grid_json(run: Path, *words: str) -> bytes:
    """What ``semu grid --json`` prints, in a process of its own."""
    command = [sys.executable, "-m", "semu", "grid", str(run), "--vary", "tp,pp,vpp,micro_batch,recompute", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    done = subprocess.run([*command, "--json"], capture_output=True, env=environment, cwd=run.parent, timeout=600)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.parametrize("options", [(), ("--exhaustive",)])
def test_a_grid_on_ray_is_the_one_of_this_process(tmp_path: Path, options: tuple[str, ...]) -> None:
    run = tmp_path / "run.toml"
    run.write_text(RUN)
    here = grid_json(run, *options)
    assert json.loads(here)["legal"] > 50
    kept = ("--results", str(tmp_path / "kept.sqlite"))
    assert grid_json(run, *options, "--engine", "ray", "--workers", "2", *kept) == here
    assert grid_json(run, *options, *kept) == here
