"""A job whose encoders' microbatches are cut into samples that stay and samples that wait: its ``StagePlan``.

Pairs have fixed places: microbatch 0 defers to 1, 2 to 3, and so on, in every replica and iteration, so that one
structure of stages serves all of them. A part without samples runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.nn.model import ModalityRole
from semu.schedule.passes import defer_backward
from semu.schedule.stage_plan import StagePlan
from semu.searcher.assignment.costs import prepared_with
from semu.simulation.checkpoint import JobCheckpoint
from semu.workload.batch import Microbatch


def parts_of(count: int) -> tuple[int, ...]:
    """Sub-microbatches of every microbatch: the first of a pair has two, an unpaired last one has one."""
    return tuple(2 if number % 2 == 0 and number + 1 < count else 1 for number in range(count))


def deferring_plan(items: Mapping[str, Sequence[Sequence[Sequence[int]]]], count: int) -> StagePlan:
    """What the encoders of a job cut and their readers read, without an order of stages.

    Args:
        items: module -> per microbatch and replica, items of every part. count: microbatches of a replica.
    """
    parts = parts_of(count)
    reads = tuple(
        ((number - 1, 1), (number, 0)) if number % 2 and parts[number - 1] == 2 else ((number, 0),)
        for number in range(count)
    )
    return StagePlan(
        parts=dict.fromkeys(items, parts),
        items={name: tuple(tuple(map(tuple, own)) for own in rows) for name, rows in items.items()},
        reads=dict.fromkeys(items, reads),
    )


def item_streams(job: TrainingJob) -> dict[str, str]:
    """Encoder -> stream of its items.

    Raises:
        ConfigError: a model without encoders, or a job in which they cannot defer.
    """
    found = {
        module.name: module.inputs[0].stream
        for module in job.model.modules
        if module.role is ModalityRole.ENCODER and module.inputs
    }
    if not found:
        raise ConfigError(
            "nothing to defer: samples wait between encoders and a backbone",
            where="assignment.method",
            expected="a model with encoders, or a method that defers nothing",
            got=job.model.name,
            nearest="coupled",
        )
    return found


def deferring_job(
    job: TrainingJob, items: Sequence[Microbatch], plan: StagePlan, base: JobCheckpoint, count: int
) -> JobCheckpoint:
    """The job under a plan that defers, prepared.

    The order of stages is that of the job's schedule, in which an encoder's backward of what waits comes after that of
    the microbatch that it waits for.

    Args:
        items: of all replicas. plan: of ``deferring_plan``. base: the job without deferral, with as many microbatches.
        count: microbatches of a replica.
    Raises:
        ConfigError: a job whose microbatches cannot be cut. ScheduleError: a schedule that splits backwards.
    """
    overlap = replace(job.training.overlap, pipeline=job.overlaps_sends)
    planned = replace(job, training=replace(job.training, overlap=overlap))
    schedule = base.schedule()
    if schedule.splits_backward:
        raise ConfigError(
            "deferral under a schedule that splits backwards is not modelled by this version",
            where="training.schedule",
            expected="a schedule with whole backwards",
            got=schedule.name,
            nearest="1f1b",
        )
    prepared = prepared_with(planned, items, count, plan)
    orders = defer_backward(schedule, prepared.shape, f"{schedule.name}, deferring")
    return prepared.decided(replace(plan, orders=orders))
