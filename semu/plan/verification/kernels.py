"""Kernel of the dry run of an execution plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.compiled import empty, kernel

I64 = NDArray[np.int64]
U8 = NDArray[np.bool_]


@kernel
def run_dry(
    ptr: I64,
    awaited: I64,
    posted: I64,
    batch_rank: I64,
    batch_ptr: I64,
    lane_batch: I64,
    lane_next: I64,
    lane_ptr: I64,
    lane_message: I64,
    message_lane: I64,
    batch_left: I64,
    lane_left: I64,
    is_first: U8,
    is_posted: U8,
    is_done: U8,
    cursor: I64,
    meetings: tuple[I64, I64, I64, I64],
) -> None:
    """Run the actions of all ranks as far as they go.

    A batch is one launch, or several that are one operation. Its *lanes* are its parts on the streams of its rank: a
    stream carries out lanes in the order of their batches. A message moves once the lanes of both its ends are posted
    and each is the first that is not done of its stream.

    Args:
        ptr: int64[num_ranks + 1], first action of each rank. awaited: int64[a], batch that an action waits for, -1:
            none. posted: int64[a], batch whose last launch an action is, -1: none.
        batch_rank: int64[num_batches]. batch_ptr: int64[num_batches + 1], first lane of each batch.
        lane_batch: int64[num_lanes]. lane_next: int64[num_lanes], the next one of its stream, -1: none.
        lane_ptr, lane_message: CSR of the messages of lanes. message_lane: int64[2, m], lanes of both ends.
        batch_left, lane_left: int64, messages that have yet to move; written.
        is_first: bool[num_lanes], whether all before it in its stream are done; written.
        is_posted: bool[num_batches], false; written. is_done: bool[m], false; written, whether a message has moved.
        cursor: int64[num_ranks], 0; written: actions that each rank has done.
        meetings: int64[a], the meeting at which a rank waits for all others of it, -1: none; CSR of the ranks of
            meetings; int64[num_meetings], ranks that have yet to come, which is written.
    """
    meeting, meeting_ptr, meeting_rank, meeting_left = meetings
    num_ranks, num_lanes = len(cursor), len(lane_batch)
    ranks = empty(num_ranks, np.int64)
    for rank in range(num_ranks):
        ranks[rank] = rank
    queued = np.ones(num_ranks, dtype=np.bool_)
    num_queued = num_ranks
    has_come = np.zeros(num_ranks, dtype=np.bool_)
    lanes = empty(num_lanes, np.int64)
    num_lanes = 0
    while num_queued > 0:
        num_queued -= 1
        rank = ranks[num_queued]
        queued[rank] = False
        while ptr[rank] + cursor[rank] < ptr[rank + 1]:
            action = ptr[rank] + cursor[rank]
            if awaited[action] >= 0 and batch_left[awaited[action]] > 0:
                break
            place = meeting[action]
            if place >= 0:
                if not has_come[rank]:
                    has_come[rank] = True
                    meeting_left[place] -= 1
                if meeting_left[place] > 0:
                    break
                has_come[rank] = False
                for at in range(meeting_ptr[place], meeting_ptr[place + 1]):
                    other = meeting_rank[at]
                    if has_come[other] and not queued[other]:
                        queued[other] = True
                        ranks[num_queued] = other
                        num_queued += 1
            cursor[rank] += 1
            batch = posted[action]
            if batch < 0:
                continue
            is_posted[batch] = True
            for lane in range(batch_ptr[batch], batch_ptr[batch + 1]):
                if is_first[lane]:
                    lanes[num_lanes] = lane
                    num_lanes += 1
            while num_lanes > 0:
                num_lanes -= 1
                lane = lanes[num_lanes]
                for at in range(lane_ptr[lane], lane_ptr[lane + 1]):
                    message = lane_message[at]
                    here, there = message_lane[0, message], message_lane[1, message]
                    other = there if here == lane else here
                    if is_done[message] or not (is_first[other] and is_posted[lane_batch[other]]):
                        continue
                    is_done[message] = True
                    for end in (here, there):
                        own = lane_batch[end]
                        batch_left[own] -= 1
                        if batch_left[own] == 0 and not queued[batch_rank[own]]:
                            queued[batch_rank[own]] = True
                            ranks[num_queued] = batch_rank[own]
                            num_queued += 1
                        lane_left[end] -= 1
                        after = lane_next[end]
                        if lane_left[end] == 0 and after >= 0:
                            is_first[after] = True
                            if is_posted[lane_batch[after]]:
                                lanes[num_lanes] = after
                                num_lanes += 1
