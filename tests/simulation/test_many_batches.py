"""Evaluations in a loop of batches that are all different hold a bounded amount of memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import semu
import semu_models
from semu import memo
from semu.job import TrainingJob
from semu.simulation import simulate

ROOT = Path(__file__).resolve().parents[2]
LIMIT_MB = 500
WORK = """
import sys
import semu, semu_models

kind, count = sys.argv[1], int(sys.argv[2])
cluster = semu.Cluster("h800", nodes=1, gpus_per_node=8)
parallel = semu.Parallel(tp=2, pp=4)
for number in range(count):
    if kind == "text":
        training = semu.Training(global_batch=4 + number, seq_len=4096)
        semu.evaluate(semu.TrainingJob(semu_models.lm_7b(), cluster, parallel, training))
    else:
        training = semu.Training(global_batch=16)
        batch = semu.workload.vlm_batch(seed=number)
        semu.evaluate(semu.TrainingJob(semu_models.vlm_s(), cluster, parallel, training, batch=batch))
with open("/proc/self/status") as status:
    print(next(line.split()[1] for line in status if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize(
    ("kind", "count"),
    [("text", 200), ("vlm", 60), pytest.param("text", 1000, marks=pytest.mark.slow)],
)
@pytest.mark.sampled(2)
def test_a_loop_of_different_batches_stays_small(kind: str, count: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORK, kind, str(count)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) / 1024 < LIMIT_MB


@pytest.mark.parametrize("model", ["lm_7b", "llama3_8b"])
def test_forgetting_at_every_value_changes_nothing(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects that tables tell apart may be made twice within one simulation."""
    job = TrainingJob(
        getattr(semu_models, model)(),
        semu.Cluster("h800", nodes=2, gpus_per_node=8),
        semu.Parallel(tp=2, pp=4, vpp=2),
        semu.Training(global_batch=16, seq_len=2048, recompute="full", schedule="interleaved"),
    )
    expected = simulate(job).to_json()
    memo.clear()
    monkeypatch.setattr(memo, "LARGE_BYTES", 1)
    assert simulate(job).to_json() == expected
    assert semu.evaluate(job).iteration_time_s == expected["iteration_time_s"]
