"""``time_if_it_fits``: what it says of a job is what a whole evaluation says."""

from __future__ import annotations

import pytest

import semu
from semu.job import TrainingJob
from semu.runfile import load_run
from semu.simulation.estimate import time_if_it_fits

JOBS = {
    "lm-7b": (),
    "lm-7b, too large when it runs": ("cluster.override.memory_bytes=2.4e10",),
    "lm-7b, too large at rest": ("cluster.override.memory_bytes=1.6e10",),
    "lm-7b, close": ("cluster.override.memory_bytes=2.7e10",),
    "ranks step apart": ("training.schedule=zb-h1", "training.optimizer_post_validation=true"),
    "gathers once": ("parallel.zero=3", "parallel.reshard_after_forward=false", "parallel.tp=1", "parallel.dp=2"),
}


def job_of(name: str) -> TrainingJob:
    return load_run("lm-7b", JOBS[name])


@pytest.mark.parametrize("name", JOBS)
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
