"""Passes over schedules: ``split_backward`` (B becomes I W), ``merge_backward`` (I W side by side become B) and
``defer_backward`` (stages of sub-microbatches, the backward of one after those that its readers run later)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from semu.graph.operator import Phase
from semu.schedule.schedule import Schedule
from semu.schedule.shape import PipelineShape, StageKey


def split_backward(schedule: Schedule, where: Callable[[StageKey], bool] = lambda stage: True) -> Schedule:
    """Every whole backward as input gradient, then weight gradient, in its place.

    Args:
        schedule: legal. where: which backwards.
    """

    def _split(order: Sequence[StageKey]) -> Iterator[StageKey]:
        for stage in order:
            if stage.phase is Phase.BACKWARD and where(stage):
                yield StageKey(stage.chunk, Phase.INPUT_GRADIENT, stage.microbatch)
                yield StageKey(stage.chunk, Phase.WEIGHT_GRADIENT, stage.microbatch)
            else:
                yield stage

    return Schedule.build(schedule.name, map(_split, schedule.orders))


def merge_backward(schedule: Schedule) -> Schedule:
    """Every input gradient that its weight gradient follows at once becomes a whole backward: one kernel launch and one
    read of the saved activations where nothing runs between them.

    Args:
        schedule: legal.
    """

    def _merged(order: Sequence[StageKey]) -> Iterator[StageKey]:
        at = 0
        while at < len(order):
            stage = order[at]
            partner = StageKey(stage.chunk, Phase.WEIGHT_GRADIENT, stage.microbatch)
            if stage.phase is Phase.INPUT_GRADIENT and at + 1 < len(order) and order[at + 1] == partner:
                yield StageKey(stage.chunk, Phase.BACKWARD, stage.microbatch)
                at += 2
            else:
                yield stage
                at += 1

    return Schedule.build(schedule.name, map(_merged, schedule.orders))


def defer_backward(schedule: Schedule, shape: PipelineShape, name: str) -> Schedule:
    """A schedule of whole microbatches, for modules that cut them and whose readers read parts of several.

    Every stage of a chunk that cuts microbatches becomes the stages of its parts, one after another. A backward of a
    part that a later microbatch of the readers has waits until the rank has run the backward of that microbatch
    (split-backward processing, 001 §4.5.3).

    Args:
        schedule: legal where no microbatch is cut. shape: with ``reads``. name: of the new schedule.
    """
    waits: dict[tuple[str, int], int] = {}  # module, part -> microbatch of its readers
    for module, reads in shape.reads:
        waits |= {(module, part): microbatch for microbatch, parts in enumerate(reads) for part in parts}

    def _deferred(order: Sequence[StageKey]) -> Iterator[StageKey]:
        held: dict[tuple[int, int], list[StageKey]] = {}  # chunk, microbatch -> backwards that wait for it
        for stage in order:
            module = shape.chunk_module[stage.chunk]
            for part in shape.parts(stage.chunk, stage.microbatch):
                later = waits.get((module, part), stage.microbatch)
                new = StageKey(stage.chunk, stage.phase, part)
                if stage.phase is Phase.BACKWARD and later > stage.microbatch:
                    held.setdefault((stage.chunk, later), []).append(new)
                else:
                    yield new
            if stage.phase is Phase.BACKWARD:
                yield from held.pop((stage.chunk, stage.microbatch), ())
        for own in held.values():  # a schedule that runs the later backward first
            yield from own

    return Schedule.build(name, map(_deferred, schedule.orders))
