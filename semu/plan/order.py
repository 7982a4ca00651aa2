"""The messages of a simulated schedule in the order of their launches, and which of them are launched together.

Every rank's stages and launches are a projection of one order of all stages and messages (``plan.postponed``). In it
a stage stands at its simulated end and a message at its simulated start, so a message comes behind the stage that makes
it, before the stage that takes it, and before any stage that runs on either of its ranks while it begins: a receive is
launched before the stage that would keep the rank from launching it in time. A launch takes no time, so messages begin
when the simulated timeline has them begin, whether sends wait for their receives (rendezvous) or not (eager).

Messages are launched in *batches*. Batch k of a rank meets batch k of other ranks only: a message has one number at
both its ends, a rank's numbers rise, and between two launches of one batch it does nothing else.

**Why a compiled plan never deadlocks**, with rendezvous sends, with all communication of a rank in one queue in which a
batch begins when the one before has ended, and even if all operations of a batch end together: by induction over batch
numbers. Let all batches below k have ended. On a rank with a batch k, all that stands before it are launches of lower
batches, waits for them (a wait stands behind its launch, and the batch itself has no waits in it), and stages, whose
inputs were waited for or made on the rank before. None of it can block, so the rank launches its batch k, and nothing
in its queue is before it. So do all ranks that have a batch k, and as both ends of every message of number k are in
them, all of these end. Behind the last batch there are only waits and stages, which do not block either. No time occurs
in this, so one run tells what all runs do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.plan.timeline import SimulatedStages
from semu.records import dataclass

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LaunchOrder:
    """Messages in the order in which they are launched, m of them.

    Attributes:
        transfer: int64[m], positions in ``SimulatedStages.transfers``.
        source, target: int64[m], ranks.
        source_gap, target_gap: int64[m], how many stages of the rank stand before the launch.
        freed_gap, taken_gap: int64[m], how many stages of the source stand before the wait for the send, and of the
            target before the stage that takes it.
        batch: int64[m]. time, end: float64[m] [s], when it begins, and when it has arrived.
    """

    transfer: I64
    source: I64
    target: I64
    source_gap: I64
    target_gap: I64
    freed_gap: I64
    taken_gap: I64
    batch: I64
    time: F64
    end: F64


def launch_order(stages: SimulatedStages, position: I64) -> LaunchOrder:
    """The launches of a simulated schedule.

    Args:
        stages: the schedule. position: int64[num_units], of its units in one order (``put_off``).
    """
    orders, transfers, rank = stages.orders, stages.transfers, stages.rank
    place = np.argsort(position[transfers], kind="stable")
    at, taker = position[transfers[place]], position[stages.consumer[place]]
    time, arrived = stages.start[transfers[place]], stages.end[transfers[place]]
    source, target = (rank[end[place]].astype(np.int64) for end in (stages.producer, stages.consumer))
    gaps, due = np.empty((4, len(place)), dtype=np.int64), np.empty((2, len(place)))
    for number, order in enumerate(orders):
        starts = np.append(stages.start[order], np.inf)
        sent, received = np.flatnonzero(source == number), np.flatnonzero(target == number)
        gaps[0, sent] = np.searchsorted(position[order], at[sent])
        gaps[1, received] = np.searchsorted(position[order], at[received])
        gaps[2, sent] = np.maximum(np.searchsorted(starts[:-1], arrived[sent]), gaps[0, sent])
        gaps[3, received] = np.searchsorted(position[order], taker[received])
        due[0, sent], due[1, received] = starts[gaps[2, sent]], starts[gaps[3, received]]
    batch = _batches(stages.num_ranks, source, target, gaps, due, arrived)
    return LaunchOrder(place, source, target, gaps[0], gaps[1], gaps[2], gaps[3], batch, time, arrived)


def _batches(num_ranks: int, source: I64, target: I64, gaps: I64, due: F64, end: F64) -> I64:
    """The batch of every message: int64[m].

    A message joins the batches that its ranks launched last where no stage has run since and these have one number;
    else it begins one, numbered above both. It does not join a batch for any part of which a rank waits before all of
    it has arrived: then even operations that end together, as those of one NCCL group do, keep no stage waiting.

    Args:
        gaps: int64[2 or more, m], stages before the launch on the source and on the target.
        due: float64[2, m] [s], when the source and the target wait for it. end: float64[m] [s], when it has arrived.
    """
    number, gap = [-1] * num_ranks, [-1] * num_ranks
    last, first_due = [0.0] * num_ranks, [np.inf] * num_ranks
    found = np.empty(len(source), dtype=np.int64)
    columns = (source, target, gaps[0], gaps[1], due[0], due[1], end)
    for at, (a, b, gap_a, gap_b, due_a, due_b, ends) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
        first, second = number[a], number[b]
        if gap[a] != gap_a or ends > first_due[a] or due_a < last[a]:
            first += 1
        if gap[b] != gap_b or ends > first_due[b] or due_b < last[b]:
            second += 1
        batch = first if first > second else second
        for rank, its_gap, its_due in ((a, gap_a, due_a), (b, gap_b, due_b)):
            if batch > number[rank]:
                number[rank], gap[rank], last[rank], first_due[rank] = batch, its_gap, ends, its_due
            else:
                if ends > last[rank]:
                    last[rank] = ends
                if its_due < first_due[rank]:
                    first_due[rank] = its_due
        found[at] = batch
    return found
