"""``dry_run``: whether the actions of all ranks come to their ends, whatever time they take.

Sends are rendezvous: a message moves only after both its launches; a wait blocks its rank until all of its batch has
moved, an exchange until all ranks of its gang have come; nothing else blocks. What is launched together is one
operation, as with ncclGroupEnd, and a wait for a part of it waits for it all, as with the one handle that
torch.distributed gives for a batch on NCCL.

One run is enough. Every action comes after the one before it on its rank. A wait comes after the moves of its batch;
a move after the two launches of its message and after the moves before it on the streams of its two ends. Which launch
belongs to which message, and what is before what on a stream, is written in the plan: no event ever chooses between
two others, and none that could happen is taken back by another's. So the events are a marked graph (one token on each
start, every place with one producer and one consumer): an event happens, sooner or later, exactly if none of those
that it comes after, directly or through others, lies on a cycle. That does not depend on how long anything takes, nor
on who goes first: all runs of the same plan end with the same actions done (it is confluent, like the processes of
Kahn, IFIP 1974, with single tokens; Commoner, Holt, Even and Pnueli, J. Computer and System Sciences 5, 1971, for
marked graphs). If the run that is tried gets through, all do; if it gets stuck, all get stuck at the same actions.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from semu.plan.columns import ActionColumns
from semu.records import dataclass

I64 = NDArray[np.int64]
Flags = NDArray[np.bool_]
_ISEND, _IRECV = 0, 2


class Streams(StrEnum):
    """What a rank's operations wait for one another in: each stream carries out one after the other, as launched."""

    RANK = "rank"
    """One stream for each rank, as NCCL has for the batched operations of one communicator."""
    PAIR = "pair"
    """One for each peer of a rank, as torch.distributed's communicators of two ranks (lone isend and irecv)."""
    DIRECTION = "direction"
    """One for each peer and direction: two communicators for every two ranks, or any transport that matches tags."""


@dataclass(frozen=True, eq=False)
class DryRun:
    """How far a plan runs.

    Attributes:
        columns: its actions. streams: under which.
        cursor: int64[num_ranks], actions that each rank has done.
        batch_of: int64[2, m], batch of each message at its sender and its receiver. lane_of: the same of lanes.
        lane_stream: int64[num_lanes]. is_first, is_posted, is_done: as ``semu.plan.verification.kernels.run_dry``.
    """

    columns: ActionColumns
    streams: Streams
    cursor: I64
    batch_of: I64
    lane_of: I64
    lane_stream: I64
    is_first: Flags
    is_posted: Flags
    is_done: Flags

    @property
    def num_batches(self) -> int:
        """Launches; a batch is one."""
        return len(self.is_posted)

    @property
    def is_stuck(self) -> bool:
        """Whether some rank does not come to its end."""
        return bool(np.any(self.cursor < np.diff(self.columns.ptr)))


def dry_run(columns: ActionColumns, streams: Streams) -> DryRun:
    """Run a plan's actions as far as they go.

    Args:
        columns: of a plan whose actions are in order each rank for itself (``verify_actions``).
        streams: what waits for what on the way.
    """
    from semu.plan.verification.kernels import run_dry

    messages, place = columns.plan.messages, columns.message_place
    num_messages, num_ranks = len(messages.source), columns.plan.num_ranks
    launch = place[[_ISEND, _IRECV]].reshape(-1)
    rank = np.concatenate((messages.source_rank, messages.target_rank)).astype(np.int64)
    peer = np.concatenate((messages.target_rank, messages.source_rank)).astype(np.int64)
    is_receive = np.repeat((0, 1), num_messages)
    batch_of_action, last_of_batch = _batches(columns)
    batch = batch_of_action[launch]
    within = {Streams.RANK: rank * 0, Streams.PAIR: peer, Streams.DIRECTION: 2 * peer + is_receive}[streams]
    stream = rank * 2 * num_ranks + within
    order = np.lexsort((launch, stream, batch))
    begins = np.ones(len(order), dtype=np.bool_)
    begins[1:] = (batch[order][1:] != batch[order][:-1]) | (stream[order][1:] != stream[order][:-1])
    heads = np.flatnonzero(begins)
    lane = np.empty(len(order), dtype=np.int64)
    lane[order] = np.cumsum(begins) - 1
    lane_batch, lane_stream = batch[order][heads], stream[order][heads]
    by_stream = np.lexsort((lane_batch, lane_stream))
    follows = lane_stream[by_stream][1:] == lane_stream[by_stream][:-1]
    lane_next = np.full(len(heads), -1, dtype=np.int64)
    lane_next[by_stream[:-1][follows]] = by_stream[1:][follows]
    is_first = np.ones(len(heads), dtype=np.bool_)
    is_first[by_stream[1:][follows]] = False
    posted = np.full(len(columns.kind), -1, dtype=np.int64)
    posted[last_of_batch] = np.arange(len(last_of_batch))
    awaited = np.full(len(columns.kind), -1, dtype=np.int64)
    waits = np.flatnonzero(columns.is_message & ~columns.is_launch)
    awaited[waits] = batch[columns.target[waits] + num_messages * columns.is_receive[waits]]
    num_batches = len(last_of_batch)
    meeting, meeting_ptr, meeting_rank = _meetings(columns)
    cursor, is_posted = np.zeros(num_ranks, dtype=np.int64), np.zeros(num_batches, dtype=np.bool_)
    is_done = np.zeros(num_messages, dtype=np.bool_)
    run_dry(
        columns.ptr,
        awaited,
        posted,
        columns.rank[last_of_batch],
        np.searchsorted(lane_batch, np.arange(num_batches + 1)),
        lane_batch,
        lane_next,
        np.append(heads, len(order)),
        order % max(num_messages, 1),
        lane.reshape(2, -1),
        np.bincount(batch, minlength=num_batches),
        np.bincount(lane, minlength=len(heads)),
        is_first,
        is_posted,
        is_done,
        cursor,
        (meeting, meeting_ptr, meeting_rank, np.diff(meeting_ptr)),
    )
    return DryRun(
        columns, streams, cursor, batch.reshape(2, -1), lane.reshape(2, -1), lane_stream, is_first, is_posted, is_done
    )


def _meetings(columns: ActionColumns) -> tuple[I64, I64, I64]:
    """Meeting of every action, -1 for none: int64[a]; CSR of the ranks of each meeting."""
    plan, pairs = columns.plan, columns.plan.pairs
    at = np.flatnonzero(columns.is_exchange)
    pair = columns.target[at]
    gang = np.array([chunk.gang for chunk in plan.chunks], dtype=np.int64)[pairs.chunk[pair]]
    keys = np.stack((columns.kind[at], gang, pairs.microbatch[pair], pairs.part[pair]))
    number = np.unique(keys, axis=1, return_inverse=True)[1].ravel()
    found = np.full(len(columns.kind), -1, dtype=np.int64)
    found[at] = number
    order = np.argsort(number, kind="stable")
    ptr = np.concatenate(([0], np.cumsum(np.bincount(number)))).astype(np.int64)
    return found, ptr, columns.rank[at[order]]


def _batches(columns: ActionColumns) -> tuple[I64, I64]:
    """Batch of every launch among all ranks, in order: int64[a], -1 for other actions; the last launch of each."""
    at = np.flatnonzero(columns.is_launch)
    own, rank = columns.batch[at], columns.rank[at]
    begins = np.ones(len(at), dtype=np.bool_)
    begins[1:] = (own[1:] < 0) | (own[1:] != own[:-1]) | (rank[1:] != rank[:-1])
    number = np.cumsum(begins) - 1
    found = np.full(len(columns.kind), -1, dtype=np.int64)
    found[at] = number
    return found, at[np.append(begins[1:], True)] if len(at) else at
