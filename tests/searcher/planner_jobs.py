"""Small jobs and streams for the planner's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from simulation.jobs import job_of, overlap, t2v, t2v_items, vlm, vlm_items

import semu
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.workload import ListedBatch, listed_batch

MICROBATCHES = 3


def vision_job(seed: int = 100, **options: Any) -> TrainingJob:
    items = vlm_items(MICROBATCHES, seed=seed)
    return job_of(vlm(layers=4), items, Parallel(pp=2), overlap=overlap(pipeline=True), **options)


def video_job(seed: int = 100, **options: Any) -> TrainingJob:
    items = t2v_items(MICROBATCHES, seed=seed)
    return job_of(t2v(layers=4), items, Parallel(pp=2), overlap=overlap(pipeline=True), **options)


def vision_stream(count: int, *, microbatches: int = MICROBATCHES, empty: Any = ()) -> Iterator[ListedBatch]:
    for seed in range(count):
        yield listed_batch(vlm_items(microbatches, seed=seed, empty=empty), f"batch {seed}")


def video_stream(count: int, *, microbatches: int = MICROBATCHES) -> Iterator[ListedBatch]:
    for seed in range(count):
        yield listed_batch(t2v_items(microbatches, seed=seed), f"batch {seed}")


MODELS: list[tuple[Callable[..., TrainingJob], Callable[..., Iterator[ListedBatch]]]] = [
    (vision_job, vision_stream),
    (video_job, video_stream),
]


def is_legal(step: semu.searcher.planner.planned_iteration.PlannedIteration) -> float:
    """The time that ``semu.simulate`` gives; it refuses orders that are no schedule."""
    assert step.plan.orders is not None
    checkpoint = semu.prepare(step.job, plan=step.plan)
    step.plan.orders.validate(checkpoint.pipeline_shape)
    report = semu.simulate(step.job, plan=step.plan)
    assert report.iteration_time_s > 0
    return report.iteration_time_s
