"""``SimulatedStages``: what the compiler takes of a simulated schedule, arrays over units (``semu.schedule.units``)."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.records import dataclass
from semu.schedule.graph import graph_of
from semu.schedule.phases import NOTHING
from semu.schedule.schedule import Schedule
from semu.schedule.units import PipelineUnits, merged_backwards
from semu.simulation import JobCheckpoint

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SimulatedStages:
    """A schedule of a job, and when it runs on the slowest replica.

    Attributes:
        checkpoint: the job, with the backwards split that the schedule splits. schedule: the order.
        unit_orders: per rank, units of its stages in that order.
        start, end: float64[num_units] [s].
        replica: which of the distinct replicas the times are of.
    """

    checkpoint: JobCheckpoint
    schedule: Schedule
    unit_orders: tuple[I32, ...]
    start: F64
    end: F64
    replica: int

    @property
    def units(self) -> PipelineUnits:
        """Stages and transfers."""
        return self.checkpoint.units

    @property
    def num_ranks(self) -> int:
        """Pipeline ranks."""
        return self.units.shape.num_ranks

    @cached_property
    def code(self) -> I64:
        """int64[num_units], what kind of stage each unit is (``semu.schedule.units``); -1: a transfer."""
        return self._table(self.units.codes)

    @cached_property
    def pair(self) -> I64:
        """int64[num_units], the pair of every stage, numbered as in ``PairCosts``; -1: a transfer."""
        graph = graph_of(self.units.shape)
        return self._table(graph.pair_number[self.units.stage_numbers // 4])

    @cached_property
    def in_gang(self) -> NDArray[np.bool_]:
        """bool[num_units], whether each unit is a stage of a gang whose ranks meet."""
        gang = np.array(self.units.shape.meeting, dtype=np.int64)
        return self._table(gang[self.units.chunk[self.units.copy]]) >= 0

    @cached_property
    def barriers(self) -> tuple[I64, I64]:
        """Stage units, (before, after): what the stages of gangs wait for on other ranks; int64[k] each."""
        found = self.units.barriers(self.orders)
        return found[:, 0], found[:, 1]

    @cached_property
    def fellows(self) -> tuple[I64, I64]:
        """Stage units of which each two begin together, every pair both ways; int64[k] each."""
        found = self.units.fellows(self.orders)
        return found[:, 0], found[:, 1]

    def _table(self, of_stages: NDArray[np.integer]) -> I64:
        """A column of all units. ``of_stages``: int[repeats, num_stages]."""
        units = self.units
        found = np.full((units.repeats, units.size), -1, dtype=np.int64)
        found[:, : units.num_stages] = of_stages
        return found.ravel()

    @cached_property
    def orders(self) -> list[I32]:
        """Per rank, units of the stages in which something happens, in order."""
        return [order[self.code[order] != NOTHING] for order in self.unit_orders]

    @cached_property
    def transfers(self) -> I64:
        """int64[num_messages], units of the transfers."""
        return self.units.repeated(self.units.transfers)

    @cached_property
    def producer(self) -> I64:
        """int64[num_messages], the stage unit that makes what each transfer moves."""
        return self.units.repeated(self.units.producer)

    @cached_property
    def consumer(self) -> I64:
        """int64[num_messages], the stage unit that takes it."""
        return self.units.repeated(self.units.consumer)

    @cached_property
    def rank(self) -> I32:
        """int32[num_units], the rank of every stage; of transfers the number of their stream."""
        return self.units.stream


def simulated_stages(
    checkpoint: JobCheckpoint, schedule: Schedule | str | None = None, *, has_hosts: bool = True
) -> SimulatedStages:
    """Run a schedule.

    Args:
        checkpoint: the job. schedule: as ``JobCheckpoint.schedule``. has_hosts: false: without launches.
    Raises:
        ConfigError: an unknown name. ScheduleError: it does not order this pipeline.
    """
    found = checkpoint.schedule(schedule)
    own = checkpoint.split(merged_backwards(found))
    orders = own.units.orders(found)
    if own.gathers or (has_hosts and own.job.launches):
        start, end = own.unit_times(found)
    else:
        times = own.restore(own.units.order_edges(orders, overlapped_sends=own.job.overlaps_sends))
        start, end = times.start, times.end
    is_stage = own.units.stream < own.units.shape.num_ranks
    slowest = int(np.argmax(end[:, is_stage].max(axis=1, initial=0.0)))
    return SimulatedStages(own, found, tuple(orders), start[slowest], end[slowest], slowest)
