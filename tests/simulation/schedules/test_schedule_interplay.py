"""Schedules with everything that they meet: segments, placements, ZeRO, offloading, recomputation, clipping, frozen
modules, replicas; random jobs against the slow reference, bit for bit."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.comparison import assert_equal
from simulation.jobs import gpt, job_of, overlap, t2v, t2v_items, text_items, vlm, vlm_items
from simulation.reference.expansion import expand
from simulation.reference.split import orders_of
from simulation.reference.tail import gather_times, tail_of

from semu.errors import SemuError
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.schedule.registry import ALL_SCHEDULES
from semu.simulation import prepare
from semu.simulation.schedules.cuts import job_for

BROKEN = (
    "wrong number of ranks",
    "no such stage",
    "the chunk has no backward stage",
    "a stage on the wrong rank",
    "a stage runs twice",
    "a backward runs both whole and split",
    "a stage is missing",
)
"""What a schedule that was made for a pipeline never does."""


def random_job(random: Random) -> TrainingJob:
    """A small job of three kinds of models.

    Raises:
        SemuError: options that do not go together.
    """
    kind = random.choice(["gpt", "vlm", "vlm", "t2v", "t2v"])
    dp, tp, pp = random.choice([(1, 1, 2), (1, 2, 2), (2, 1, 2), (1, 1, 3), (1, 1, 4), (2, 2, 2), (2, 1, 4)])
    segments = random.choice(["mixed", "mixed", "separated", "apart"])
    m = random.choice([pp, 2 * pp, 2 * pp + 1, 6, 1])
    if kind == "gpt":
        model, items = gpt(random.randint(3, 8)), text_items(m * dp, seed=random.randint(0, 99))
    elif kind == "vlm":
        frozen = random.choice([(), (), ("vit",)])
        empty = [i for i in range(m * dp) if random.random() < 0.15]
        items = vlm_items(m * dp, seed=random.randint(0, 99), empty=empty)
        model = vlm(layers=random.randint(3, 6), frozen=frozen)
    else:
        model = t2v(layers=random.randint(3, 6), frozen=random.choice([(), (), ("llm",)]))
        items = t2v_items(m * dp, seed=random.randint(0, 99))
    return job_of(
        model,
        items,
        Parallel(
            dp=dp,
            tp=tp,
            pp=pp,
            vpp=random.choice([1, 1, 2, 3]) if segments != "apart" else 1,
            placement=random.choice(["circular", "circular", "v-shape", "bidirectional"]),
            segments=segments,
            zero=random.choice([0, 0, 1]),
            sequence_parallel=tp > 1 and random.random() < 0.5,
        ),
        schedule="greedy",
        recompute=random.choice(["none", "none", "full", "selective"]),
        offload=random.choice(["none", "none", "activations", "weights", "optimizer"]),
        gradient_clipping=random.random() < 0.3,
        overlap=overlap(
            pipeline=random.random() < 0.5,
            gradients=random.random() < 0.5,
            parameters=random.random() < 0.3,
            tensor=random.random() < 0.3,
        ),
    )


def compare(seed: int) -> str | None:
    """The schedule that ran; None: the job cannot run."""
    random = Random(seed)
    name = random.choice([*ALL_SCHEDULES])
    try:
        job = random_job(random)
        if random.random() < 0.7:
            job = job_for(job, name)
        if job.parallel.segments == "apart" and job.parallel.vpp > 1:
            return None  # the slow reference has one chunk of a module on a rank of its own
        checkpoint = prepare(job)
        schedule = checkpoint.schedule()
    except SemuError as error:
        assert error.where, error
        assert error.message not in BROKEN, error
        assert "deadlocks" not in error.message, error
        return None
    schedule.validate(checkpoint.pipeline_shape)
    orders = orders_of(schedule)
    report, expected = checkpoint.report(schedule), expand(job, orders=orders)
    if job.parallel.zero == 1 and job.training.overlap.param_gather:
        expected = expand(job, gather_times(expected), orders)
    assert_equal(report, expected)
    assert report.iteration_time_s == tail_of(expected).iteration_s
    return job.training.schedule


def test_gradients_of_several_virtual_stages_that_are_complete_at_once() -> None:
    compare(143468)


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10**9))
def test_any_job_equals_the_slow_reference(seed: int) -> None:
    compare(seed)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**9))
def test_many_jobs_equal_the_slow_reference(seed: int) -> None:
    compare(seed)
