"""Passes over schedules: ``split_backward`` (B becomes I W) and ``merge_backward`` (I W side by side become B)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from semu.graph.operator import Phase
from semu.schedule.schedule import Schedule
from semu.schedule.shape import StageKey


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
