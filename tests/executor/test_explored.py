"""Explored schedules of shipped multimodal setups, through plan and verifier to processes: gradients are equal."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="torch is the executor extra")

import semu
from semu.errors import MemoryLimitError
from semu.executor.demo import run_demo
from semu.job import TrainingJob
from semu.plan.compile import compile_plan
from semu.plan.verification.rules import verify
from semu.runfile import load_run
from semu.schedule.registry import REGISTRY
from semu.simulation.schedules.cuts import job_for
from semu.simulation.schedules.exploring import explore_schedules

NAMES = ("vlm-s", "vlm-m", "vlm-7b", "t2v-s", "vlm-xl-8k")
MOST_RANKS = 8
"""Processes on one machine; setups of more pipeline ranks run on as many."""


def small(name: str) -> TrainingJob:
    """A setup with one replica, 2 to ``MOST_RANKS`` pipeline ranks, and two microbatches for each of them."""
    job = load_run(name)
    parallel = replace(job.parallel, dp=1, pp=min(max(job.parallel.pp, 2), MOST_RANKS))
    cluster = semu.Cluster(job.cluster.profile, -(-parallel.num_gpus // 8), min(parallel.num_gpus, 8))
    training = replace(job.training, global_batch=2 * parallel.pp * job.training.micro_batch)
    return TrainingJob(job.model, cluster, parallel, training, job.batch)


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_explored_schedules(name: str) -> None:
    job = small(name)
    found = explore_schedules(job, top=2)
    rule = next(row for row in found.rows if row.name not in REGISTRY)
    plan = compile_plan(job_for(job, rule.name))
    assert plan.name == rule.name
    try:
        verify(plan)
    except MemoryLimitError:
        assert not rule.estimate.fits
    report = run_demo(plan, backend="gloo", iterations=1, fewer_layers=8, timeout_s=180.0)
    assert report.worst_gradient < 1e-9
    assert report.gradients > 20
