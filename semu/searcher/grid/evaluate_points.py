"""``evaluate_chunk``: what some configurations of a job are: the figures of ``semu.evaluate``, or why one cannot be.

It depends on its arguments alone and can be pickled, so that any engine can run it (``semu.searcher.engines``). What
configurations share is remembered by ``semu.evaluate``: blocks by (tp, cp, ep, recompute), chunks by (pp, vpp), stage
costs by the size of a microbatch, orders by the shape of the pipeline. Neighbours in ``in_order`` share most.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from semu import memo
from semu.collector import without_collector
from semu.errors import SemuError
from semu.job import TrainingJob
from semu.searcher.grid.space import Point, job_at
from semu.simulation.estimate import evaluate_metrics
from semu.simulation.results.estimated import Metrics

ROOM_BYTES = 1 << 28
"""What large tables may hold together while configurations are evaluated: neighbours share most of it."""


class Outcome(NamedTuple):
    """A configuration and its figures.

    Attributes:
        point, figures: which, and what it comes to. refusal: why there are no figures. held_bytes: what the allocator
            holds of the fullest device; None: what is allocated decides whether it fits (``judged_bytes``).
    """

    point: Point
    figures: Metrics | None
    refusal: str = ""
    held_bytes: int | None = None


ONE_ORDER = ("1f1b", "interleaved")
"""Schedules that order every pipeline alike: interleaved 1F1B with one virtual stage per rank is 1F1B, and 1F1B with
several of them is interleaved."""


def alike(point: Point) -> tuple[Point, ...]:
    """The configurations whose figures are the same to the bit, itself among them; the first stands for all."""
    names = ONE_ORDER if point.schedule in ONE_ORDER else (point.schedule,)
    return tuple(point._replace(schedule=name) for name in names)


def evaluate_chunk(job: TrainingJob, chunk: Sequence[Point]) -> list[Outcome]:
    """Evaluate some configurations.

    Args:
        job: the base. chunk: configurations, neighbours together.
    """
    with without_collector(), memo.room(ROOM_BYTES):
        return [evaluate_point(job, point) for point in chunk]


def evaluate_point(job: TrainingJob, point: Point) -> Outcome:
    """Evaluate one."""
    try:
        figures, held_bytes = evaluate_metrics(job_at(job, point))
        return Outcome(point, figures, held_bytes=held_bytes)
    except SemuError as error:
        return Outcome(point, None, str(error))


def in_order(job: TrainingJob, points: Iterable[Point]) -> list[Point]:
    """The points, those next to one another that share most: the pipeline's shape first, then its blocks."""

    def _key(point: Point) -> tuple[object, ...]:
        step = point.dp * point.micro_batch
        return (*_pipeline(point), step, point.tp, point.recompute, point)

    return sorted(points, key=_key)


def in_chunks(job: TrainingJob, points: Iterable[Point], size: int, most: int) -> list[list[Point]]:
    """Tasks of neighbours: those with one pipeline, whose orders and chunks are shared, stay together.

    Args:
        job, points: as ``in_order``. size: number of points after which a task ends, with the pipeline at hand.
        most: no task has more.
    """
    chunks: list[list[Point]] = []
    for _, same in groupby(in_order(job, points), _pipeline):
        own = list(same)
        pieces = -(-len(own) // most)
        bounds = [len(own) * number // pieces for number in range(pieces + 1)]
        for first, last in pairwise(bounds):
            if chunks and len(chunks[-1]) < size and len(chunks[-1]) + last - first <= most:
                chunks[-1] += own[first:last]
            else:
                chunks.append(own[first:last])
    return chunks


def _pipeline(point: Point) -> tuple[object, ...]:
    return (point.pp, point.vpp, point.schedule, point.placement, point.segments, point.partition)
