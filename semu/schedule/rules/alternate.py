"""``Alternate``: forwards to warm up, then one forward, one backward in turn; weight gradients at once or late."""

from __future__ import annotations

import numpy as np

from semu.errors import ScheduleError
from semu.parallel.pipeline import nearest_multiple
from semu.records import dataclass
from semu.schedule.phases import BACKWARD, FORWARD, INPUT, WEIGHT
from semu.schedule.rules.expressions import Number
from semu.schedule.rules.rule import Rule, one_value, ranks_values
from semu.schedule.rules.turns import I64, Turns, turn_columns
from semu.schedule.schedule import StageColumns
from semu.schedule.shape import PipelineShape


@dataclass(frozen=True)
class Alternate(Rule):
    """One forward, one backward in turn; a rank runs all chunks of a virtual stage where one forward stands.

    Attributes:
        warm_up: forwards of a rank before the first backward's turn begins.
        weight_delay: None: whole backwards; else split ones, a weight gradient in the turn of the input gradient that
            many later.
        group: microbatches that go through a virtual stage before they go through the next; backwards take the virtual
            stages in reverse.
    """

    warm_up: Number
    weight_delay: Number | None = None
    group: Number = 1

    @property
    def splits(self) -> bool:
        """See ``Rule``."""
        return self.weight_delay is not None

    def __call__(self, shape: PipelineShape) -> StageColumns:
        """See ``Rule``."""
        return turn_columns(shape, self.turns(shape)[0])

    def turns(self, shape: PipelineShape) -> tuple[Turns, I64]:
        """The turns of all ranks; and int64[num_ranks], the forwards of each before its first backward's turn.

        Raises:
            ScheduleError: microbatches that are no whole groups.
        """
        v, total = shape.num_slots, shape.num_microbatches * shape.num_slots
        size = one_value(self.group, shape, "group", 1)
        if v > 1 and shape.num_microbatches % size:
            raise ScheduleError(
                "microbatches that take turns in virtual stages come in whole groups",
                where="group",
                expected=f"a multiple of {size} microbatches",
                got=shape.num_microbatches,
                nearest=nearest_multiple(shape.num_microbatches, size),
            )
        forwards = np.minimum(ranks_values(self.warm_up, shape, "warm_up"), total)
        warm_up = forwards[:, None]
        step = np.arange(total)
        group, within = np.divmod(step, size * v)
        slot, microbatch = within // size, group * size + within % size
        turns, phases = [step + 0 * warm_up, step + warm_up], [FORWARD, BACKWARD]
        if self.weight_delay is not None:
            delay = ranks_values(self.weight_delay, shape, "weight_delay")[:, None]
            turns, phases = [*turns, step + warm_up + delay], [FORWARD, INPUT, WEIGHT]
        phase = np.repeat(phases, total)
        order = np.argsort(np.concatenate(turns, axis=1) * (WEIGHT + 1) + phase, axis=1, kind="stable")
        slots = np.concatenate([slot if code == FORWARD else v - 1 - slot for code in phases])
        return Turns(phase[order], slots[order], np.tile(microbatch, len(phases))[order]), forwards
