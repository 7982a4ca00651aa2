"""``time_if_it_fits``: what it says of a job is what a whole evaluation says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import semu
from semu.job import TrainingJob
from semu.runfile import load_run
from semu.simulation import estimate
from semu.simulation.checkpoint import JobCheckpoint
from semu.simulation.estimate import first_replica, time_if_it_fits
from semu.simulation.memory.peaks import PipelineMemory
from semu.simulation.preparation import prepare
from semu.simulation.results.estimated import fullest_bytes

JOBS: dict[str, tuple[str, ...]] = {
    "lm-7b": (),
    "lm-7b, too large when it runs": ("cluster.override.memory_bytes=2.4e10",),
    "lm-7b, too large at rest": ("cluster.override.memory_bytes=1.6e10",),
    "lm-7b, close": ("cluster.override.memory_bytes=2.7e10",),
    "ranks step apart": ("training.schedule=zb-h1", "training.optimizer_post_validation=true"),
    "gathers once": ("parallel.zero=3", "parallel.reshard_after_forward=false", "parallel.tp=1", "parallel.dp=2"),
}

MANY: dict[str, tuple[str, ...]] = {  # different replicas: the first is asked first
    "images": ("training.recompute=full",),
    "images, another schedule": ("training.recompute=full", "training.schedule=gpipe"),
    "images, too large": ("training.recompute=none",),
    "images, close": ("training.recompute=full", "cluster.override.memory_bytes=1.9e10"),
    "images, gathered parameters": ("training.recompute=full", "overlap.param_gather=true", "parallel.zero=1"),
    "images, launches": ("training.recompute=full", "training.launch=true"),
}


def job_of(name: str) -> TrainingJob:
    if name in MANY:
        settings = [*MANY[name], "training.global_batch=64"]
        return load_run("vlm-s", settings, cluster="h800:2x8", parallel="dp8-tp1-pp2")
    return load_run("lm-7b", JOBS[name])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [*JOBS, *MANY])
@pytest.mark.parametrize("share", [0.5, 0.97, 1.0, 1.5])
def test_it_is_the_time_of_a_job_that_fits_and_is_no_slower(name: str, share: float) -> None:
    job = job_of(name)
    found = semu.evaluate(job)
    limit_s = share * found.iteration_time_s
    expected = found.iteration_time_s if found.fits and found.iteration_time_s <= limit_s else None
    assert time_if_it_fits(job, limit_s) == expected


def test_the_jobs_differ_in_what_decides() -> None:
    found = {name: semu.evaluate(job_of(name)) for name in JOBS}
    assert {name for name, one in found.items() if not one.fits} >= {
        "lm-7b, too large when it runs",
        "lm-7b, too large at rest",
    }
    assert found["lm-7b"].fits and job_of("gathers once").gathers_once
    running = found["lm-7b, too large when it runs"]
    assert max(running.static_memory_bytes) < running.room.usable_bytes < max(running.peak_memory_bytes)


@pytest.mark.parametrize("name", MANY)
def test_the_first_replica_alone_runs_as_it_does_among_the_others(name: str) -> None:
    """To the bit: when its stages run, and what is allocated; no more than the fullest replica has."""
    job = job_of(name)
    first = first_replica(job)
    assert first is not None
    alone, whole = prepare(first).timed(), prepare(job).timed()
    assert alone.run.num_replicas == 1 < whole.run.num_replicas
    place = whole.replicas.of[0]
    for column in ("start", "end", "plain"):
        np.testing.assert_array_equal(getattr(alone.run, column)[0], getattr(whole.run, column)[place])
    assert alone.run.makespan()[0] == whole.run.makespan()[place]
    one, every = PipelineMemory(alone), PipelineMemory(whole)
    for node in range(0, alone.run.problem.num_stages, 3):
        assert one.exact_summit(0, node) == every.exact_summit(place, node)
    assert fullest_bytes(alone) <= fullest_bytes(whole)


def test_where_the_first_replica_says_it_no_other_is_costed(monkeypatch: pytest.MonkeyPatch) -> None:
    job, asked = job_of("images, too large"), list[TrainingJob]()

    def _prepare(other: TrainingJob) -> JobCheckpoint:
        asked.append(other)
        return prepare(other)

    monkeypatch.setattr(estimate, "prepare", _prepare)
    assert time_if_it_fits(job, 1e9) is None
    assert [other == job for other in asked] == [False]


def test_of_what_all_replicas_decide_none_is_asked_alone() -> None:
    job = job_of("images")
    assert first_replica(job) is not None
    for parallel, training in (
        (replace(job.parallel, partition="latency"), job.training),
        (job.parallel, replace(job.training, schedule="zb-auto")),
        (replace(job.parallel, modules={"vit": {"tp": 1}}), job.training),
    ):
        assert first_replica(TrainingJob(job.model, job.cluster, parallel, training, job.batch)) is None
    assert first_replica(job_of("lm-7b")) is None
