"""A job whose encoders' microbatches are cut into samples that stay and samples that wait: its ``StagePlan``.

Pairs have fixed places: microbatch 0 defers to 1, 2 to 3, and so on, in every replica and iteration, so that one
structure of stages serves all of them. A part without samples runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from semu.errors import ConfigError, MemoryLimitError, ScheduleError
from semu.job import TrainingJob
from semu.nn.model import ModalityRole
from semu.schedule.passes import defer_backward
from semu.schedule.rules.alternate import Alternate
from semu.schedule.rules.earliest_start import EarliestStart
from semu.schedule.schedule import Schedule
from semu.schedule.stage_plan import StagePlan
from semu.searcher.assignment.costs import prepared_with
from semu.simulation.checkpoint import JobCheckpoint
from semu.simulation.schedules.studies_under_plans import activation_room, planned_study
from semu.workload.batch import Microbatch

EAGER_RULES = (
    Alternate(warm_up="2*(p-r-1)"),
    Alternate(warm_up="3*(p-r-1)"),
    EarliestStart(),
    EarliestStart(patient=True),
)
"""Orders with more forwards ahead than 1F1B has."""


def parts_of(count: int) -> tuple[int, ...]:
    """Sub-microbatches of every microbatch: the first of a pair has two, an unpaired last one has one."""
    return tuple(2 if number % 2 == 0 and number + 1 < count else 1 for number in range(count))


def deferring_plan(
    items: Mapping[str, Sequence[Sequence[Sequence[int]]]],
    count: int,
    sizes: Mapping[str, int | None] = MappingProxyType({}),
) -> StagePlan:
    """What the encoders of a job cut and their readers read, without an order of stages.

    Args:
        items: module -> per microbatch and replica, items that stay and, of the first of a pair, items that wait.
        count: microbatches of a replica. sizes: module -> most items of a sub-microbatch; none: what stays is one part,
            and what waits is one.
    """
    cuts = {name: [_halves(own, sizes.get(name)) for own in rows] for name, rows in items.items()}
    numbers = {name: [tuple(len(half[0]) for half in halves) for halves in own] for name, own in cuts.items()}
    return StagePlan(
        parts={name: tuple(map(sum, own)) for name, own in numbers.items()},
        items={
            name: tuple(tuple(sum(mine, ()) for mine in zip(*halves, strict=True)) for halves in own)
            for name, own in cuts.items()
        },
        reads={name: tuple(_read(own, number) for number in range(count)) for name, own in numbers.items()},
    )


def _halves(rows: Sequence[Sequence[int]], size: int | None) -> list[list[tuple[int, ...]]]:
    """Items of the parts of what stays, and of what waits where the microbatch has such a half, of every replica."""
    found: list[list[tuple[int, ...]]] = []
    for half in range(len(rows[0])):
        counts = [own[half] for own in rows]
        if size is None:
            found.append([(own,) for own in counts])
            continue
        cut = [-(-own // size) for own in counts]
        width = max(*cut, 1 - half)  # what stays has a part, if an empty one
        even = [[own // n + (part < own % n) for part in range(n)] for own, n in zip(counts, cut, strict=True)]
        found.append([(*own, *(0,) * (width - len(own))) for own in even])
    return found


def _read(numbers: Sequence[tuple[int, ...]], microbatch: int) -> tuple[tuple[int, int], ...]:
    """What a microbatch of the readers reads. ``numbers``: of every microbatch, parts that stay and that wait."""
    own = [(microbatch, part) for part in range(numbers[microbatch][0])]
    if not microbatch % 2:
        return tuple(own)
    stays, *waits = numbers[microbatch - 1]
    return (*((microbatch - 1, stays + part) for part in range(sum(waits))), *own)


def item_streams(job: TrainingJob) -> dict[str, str]:
    """Encoder -> stream of its items; none of a language model."""
    encoders = [module for module in job.model.modules if module.role is ModalityRole.ENCODER and module.inputs]
    return {module.name: module.inputs[0].stream for module in encoders}


def deferring_streams(job: TrainingJob) -> dict[str, str]:
    """``item_streams`` of a job whose samples are to be deferred.

    Raises:
        ConfigError: a model without encoders.
    """
    found = item_streams(job)
    if not found:
        raise ConfigError(
            "nothing to defer: samples wait between encoders and a backbone",
            where="assignment.method",
            expected="a model with encoders, or a method that defers nothing",
            got=job.model.name,
            nearest="coupled",
        )
    return found


def some_deferred(
    items: Sequence[Microbatch], streams: Mapping[str, str], dp: int, count: int
) -> tuple[list[Microbatch], dict[str, list[list[list[int]]]]]:
    """Microbatches of which the first of each pair defers a quarter of its items, with their places in the text.

    Args:
        items: of all replicas, whole. streams: encoder -> stream of its items. dp, count: replicas, microbatches.
    Returns:
        The microbatches, whose text is what the backbone reads; and the items of every part, as ``deferring_plan``.
    """
    parts, found = parts_of(count), list(items)
    cut: dict[str, list[list[list[int]]]] = {module: [[] for _ in range(count)] for module in streams}
    for number in range(count):
        for replica in range(dp):
            own, moved = items[number * dp + replica], 0
            for module, stream in streams.items():
                have = len(own.lengths[stream])
                late = have // 4 if parts[number] == 2 else 0
                cut[module][number].append([have - late, late][: parts[number]])
                tokens = own.lengths.get(f"{stream}_tokens")  # None: they take no places in the text
                moved += 0 if tokens is None else int(tokens[have - late :].sum())
            if moved:  # the first tokens of its text go to the end of the next one's
                here, behind = number * dp + replica, (number + 1) * dp + replica
                rest = np.diff(np.maximum(np.cumsum(own.lengths["text"]) - moved, 0), prepend=0)
                found[here] = _with_text(own, rest)
                found[behind] = _with_text(items[behind], np.append(items[behind].lengths["text"], moved))
    return found, cut


def _with_text(item: Microbatch, text: NDArray[np.int64]) -> Microbatch:
    return Microbatch.from_arrays({**item.lengths, "text": text}, item.samples)


def deferring_job(
    job: TrainingJob, items: Sequence[Microbatch], plan: StagePlan, orders: Schedule | None, count: int
) -> JobCheckpoint:
    """The job under a plan that defers, prepared.

    Args:
        items: of all replicas. plan: of ``deferring_plan``. orders: of ``deferring_orders``; None: to choose them.
        count: microbatches of a replica.
    Raises:
        ConfigError: a job whose microbatches cannot be cut, or whose schedule splits backwards.
    """
    overlap = replace(job.training.overlap, pipeline=job.overlaps_sends)
    planned = replace(job, training=replace(job.training, overlap=overlap))
    prepared = prepared_with(planned, items, count, plan)
    return prepared if orders is None else prepared.decided(replace(plan, orders=orders))


def deferring_orders(prepared: JobCheckpoint, schedule: Schedule) -> Schedule:
    """The order of stages of a job that defers, the shortest of some.

    First the schedule's, in which an encoder's backward of what waits comes after that of the microbatch that it waits
    for. As these backwards come late, orders with further forwards ahead are tried, which leave room for them (eager
    forwards, 001 §4.5.3): two and three times 1F1B's, and those of a list scheduler, each within the memory that its
    rank has. As many as memory allows is not shortest (``docs/explanation/assignment.md``).

    Args:
        prepared: of ``deferring_job``, without orders. schedule: of the job without deferral, with whole backwards.
    """
    shape, plan = prepared.pipeline_shape, prepared.layout.recipe.plan
    assert plan is not None

    def _under(orders: Schedule) -> JobCheckpoint:
        return prepared.decided(replace(plan, orders=orders))

    best = defer_backward(schedule, shape, f"{schedule.name}, deferring")
    told = _under(best).estimate()
    study = planned_study(_under(best))
    limit_bytes = activation_room(_under(best), study)
    whole = replace(shape, chunk_split=(), part_counts=(), reads=(), joins=False)
    for ahead in EAGER_RULES:
        try:
            if isinstance(ahead, EarliestStart):
                orders = Schedule(f"{best.name}, eager", ahead.on(study, limit_bytes))
            else:
                orders = defer_backward(Schedule("", ahead(whole)), shape, f"{schedule.name}, deferring, eager")
            study.evaluate(orders).check_memory(limit_bytes)
        except (MemoryLimitError, ScheduleError):  # too much memory; virtual stages that are no whole groups
            continue
        estimate = _under(orders).estimate()
        if estimate.makespan_s < told.makespan_s and (estimate.fits or not told.fits):
            best, told = orders, estimate
    return best
