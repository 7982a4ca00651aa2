"""The same job gives the same report, to the last bit, in this process and in others."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from simulation.jobs import job_of, vlm, vlm_items

from semu.parallel.config import Overlap, Parallel
from semu.present.traces import write_trace
from semu.simulation import simulate

ROOT = Path(__file__).resolve().parents[2]


def digest(folder: Path) -> str:
    """Of ``result.json`` and ``trace.json`` of a job that uses everything."""
    job = job_of(vlm(frozen=["vit.layers.0"]), vlm_items(6), Parallel(dp=2, tp=2, pp=2), overlap=Overlap())
    report = simulate(job)
    path = folder / "trace.json"
    write_trace(path, report.timeline, title=report.title, metadata={"semu": report.job})
    return hashlib.sha256(json.dumps(report.to_json()).encode() + path.read_bytes()).hexdigest()


def test_two_runs_are_identical(tmp_path: Path) -> None:
    assert digest(tmp_path) == digest(tmp_path)


@pytest.mark.slow
def test_processes_with_other_hash_seeds_are_identical(tmp_path: Path) -> None:
    code = "import sys, pathlib, simulation.test_determinism as t; print(t.digest(pathlib.Path(sys.argv[1])))"
    paths = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        command = [sys.executable, "-c", code, str(tmp_path)]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
        assert result.stdout.strip() == digest(tmp_path)
