"""Actions of a plan, each rank for itself: stages, launches, waits, batches, and their order; deadlock is elsewhere."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.errors import PlanError
from semu.plan.action import KINDS
from semu.plan.columns import LAUNCHES, NUM_STAGE_KINDS, SENDS, ActionColumns, message_name, stage_name
from semu.plan.flow import PlanFlow
from semu.plan.verification.fault import Fault
from semu.plan.verification.tables import repeated, require

I64 = NDArray[np.int64]
Flags = NDArray[np.bool_]
_FORWARD, _BACKWARD, _INPUT, _WEIGHT = range(NUM_STAGE_KINDS)
_ISEND, _WAIT_ISEND, _IRECV, _WAIT_IRECV = range(4)
"""Rows of ``ActionColumns.message_place``."""


def check_stages(columns: ActionColumns, flow: PlanFlow) -> None:
    """Every stage runs once, on its rank, after those on its rank whose results it needs.

    Raises:
        PlanError: the first that does not.
    """
    plan, kind, place = columns.plan, columns.kind, columns.stage_place
    pair_rank = np.array([chunk.rank for chunk in plan.chunks])[plan.pairs.chunk]
    trains = np.array([chunk.has_backward for chunk in plan.chunks])[plan.pairs.chunk]
    at = np.flatnonzero(columns.is_stage)
    pair = columns.target[at]

    def refuse(bad: Flags, fault: Fault, message: str, expected: str | None = None) -> None:
        found = np.zeros(len(kind), dtype=np.bool_)
        found[at[bad]] = True
        require(columns, found, fault, message, expected)

    away = pair_rank[pair] != columns.rank[at]
    first = f"rank {int(pair_rank[pair[away][0]])}" if np.any(away) else None
    refuse(away, Fault.STAGE_RANK, "a stage on a rank that does not hold its chunk", first)
    backward = kind[at] != _FORWARD
    refuse(backward & ~trains[pair], Fault.NO_BACKWARD, "a backward of a chunk that has none")
    refuse(repeated(kind[at] * len(trains) + pair), Fault.STAGE_TWICE, "a stage that runs twice", "once")
    split = (place[_INPUT] >= 0) | (place[_WEIGHT] >= 0)
    both = (kind[at] == _BACKWARD) & split[pair]
    refuse(both, Fault.NO_BACKWARD, "a backward that runs both whole and split", "one B, or one I and one W")
    whole = place[_BACKWARD] >= 0
    missing = (
        (_FORWARD, place[_FORWARD] < 0),
        (_BACKWARD, trains & ~whole & ~split),
        (_INPUT, trains & split & (place[_INPUT] < 0)),
        (_WEIGHT, trains & split & (place[_WEIGHT] < 0)),
    )
    for code, lacks in missing:
        if np.any(lacks):
            number = int(np.flatnonzero(lacks)[0])
            rank = int(pair_rank[number])
            raise PlanError(
                "a stage is missing",
                fault=Fault.STAGE_MISSING,
                rank=rank,
                where=f"{plan.name}: rank {rank}",
                expected=f"{KINDS[code]} {stage_name(plan, number, KINDS[code])}",
            )
    _check_order(columns, flow, split, trains)


def _check_order(columns: ActionColumns, flow: PlanFlow, split: Flags, trains: Flags) -> None:
    place = columns.stage_place
    back = backward_place(columns)
    own = np.flatnonzero(trains)
    parted = np.flatnonzero(split)
    local = ~flow.crosses
    returns = local & flow.has_backward
    forward = place[_FORWARD]
    before = (forward[own], place[_INPUT, parted], forward[flow.source[local]], back[flow.reader[returns]])
    after = (back[own], place[_WEIGHT, parted], forward[flow.reader[local]], back[flow.source[returns]])
    first, then = np.concatenate(before), np.concatenate(after)
    late = first > then
    if not np.any(late):
        return
    number = int(np.flatnonzero(late)[np.argmin(then[late])])
    bad = np.zeros(len(columns.kind), dtype=np.bool_)
    bad[then[number]] = True
    message = "a stage before another on its rank whose result it needs"
    require(columns, bad, Fault.STAGE_ORDER, message, f"after {columns.words(int(first[number]))}")


def backward_place(columns: ActionColumns) -> I64:
    """int64[n], where the backward of each pair is whose end others wait for: the whole one, else the input's."""
    place = columns.stage_place
    found: I64 = np.maximum(place[_BACKWARD], place[_INPUT])
    return found


def check_communication(columns: ActionColumns) -> None:
    """Every message is launched and waited for once at both ends, in order: computed, sent; come, used.

    Raises:
        PlanError: the first that is not.
    """
    kind, messages = columns.kind, columns.plan.messages
    place = columns.message_place
    at = np.flatnonzero(~columns.is_stage)
    message, code = columns.target[at], kind[at]

    def refuse(bad: Flags, fault: Fault, words: str, expected: str | None = None) -> None:
        found = np.zeros(len(kind), dtype=np.bool_)
        found[at[bad]] = True
        require(columns, found, fault, words, expected)

    is_send = (code == SENDS[0]) | (code == SENDS[1])
    is_launch = (code == LAUNCHES[0]) | (code == LAUNCHES[1])
    rank = np.where(is_send, messages.source_rank[message], messages.target_rank[message])
    away = rank != columns.rank[at]
    first = f"rank {int(rank[away][0])}" if np.any(away) else None
    refuse(away, Fault.LAUNCH_RANK, "communication on a rank that is not at that end of the message", first)
    again = repeated(code * len(messages.source) + message)
    refuse(again & is_launch, Fault.LAUNCH_TWICE, "a message that is launched twice", "once")
    refuse(again & ~is_launch, Fault.WAIT_TWICE, "a wait for what has been waited for", "once")
    sides = ((_ISEND, _WAIT_ISEND, messages.source_rank), (_IRECV, _WAIT_IRECV, messages.target_rank))
    for launch, _, ends in sides:
        _missing(columns, launch, ends, Fault.LAUNCH_MISSING, "a launch is missing")
    for _, wait, ends in sides:
        _missing(columns, wait, ends, Fault.WAIT_MISSING, "a buffer that is never freed: a wait is missing")
    if not len(message):
        return
    ordinal = np.arange(len(kind))[at]
    launched = np.where(is_send, place[_ISEND, message], place[_IRECV, message])
    refuse(~is_launch & (ordinal < launched), Fault.WAIT_EARLY, "a wait before its launch")
    ready = _place_of(columns, messages.source)[message]
    refuse((code == SENDS[0]) & (ordinal < ready), Fault.SENT_EARLY, "sent before it is computed")
    used = _place_of(columns, messages.target)
    early = used < place[_WAIT_IRECV]
    if np.any(early):
        number = int(np.flatnonzero(early)[0])
        bad = np.zeros(len(kind), dtype=np.bool_)
        bad[used[number]] = True
        words = "a stage before the wait for what it receives"
        require(columns, bad, Fault.USED_EARLY, words, f"after {columns.words(int(place[_WAIT_IRECV, number]))}")


def _place_of(columns: ActionColumns, stages: NDArray[np.integer]) -> I64:
    """Where stages (2 x pair, + 1 for a backward) are among all actions."""
    back = backward_place(columns)
    found: I64 = np.where(stages % 2 == 1, back[stages // 2], columns.stage_place[_FORWARD, stages // 2])
    return found


def _missing(columns: ActionColumns, row: int, ranks: NDArray[np.integer], fault: Fault, message: str) -> None:
    lacks = columns.message_place[row] < 0
    if np.any(lacks):
        number = int(np.flatnonzero(lacks)[0])
        rank = int(ranks[number])
        raise PlanError(
            message,
            fault=fault,
            rank=rank,
            where=f"{columns.plan.name}: rank {rank}",
            expected=f"{KINDS[NUM_STAGE_KINDS + row]} {message_name(columns.plan, number)}",
        )


def check_batches(columns: ActionColumns) -> None:
    """Batches are of consecutive launches; sends of each directed pair of ranks are in the order of their receives.

    NCCL pairs the operations of two ranks by their order alone, whatever their tags are.

    Raises:
        PlanError: the first that is not.
    """
    batched = columns.batch >= 0
    begins = batched.copy()
    begins[1:] &= (columns.batch[1:] != columns.batch[:-1]) | (columns.rank[1:] != columns.rank[:-1])
    heads = np.flatnonzero(begins)
    again = np.zeros(len(batched), dtype=np.bool_)
    most = int(columns.batch.max(initial=0)) + 1
    again[heads] = repeated(columns.rank[heads] * most + columns.batch[heads])
    require(columns, again, Fault.BATCH, "a batch that is torn apart", "its launches one behind the other")
    messages, place = columns.plan.messages, columns.message_place
    link = messages.source_rank.astype(np.int64) * columns.plan.num_ranks + messages.target_rank
    sent, received = (np.lexsort((place[row], link)) for row in (_ISEND, _IRECV))
    wrong = np.flatnonzero(sent != received)
    if len(wrong):
        number = int(wrong[0])
        bad = np.zeros(len(batched), dtype=np.bool_)
        bad[place[_IRECV, received[number]]] = True
        rank = int(messages.source_rank[received[number]])
        message = f"received in another order than rank {rank} sends"
        expected = f"irecv {message_name(columns.plan, int(sent[number]))}"
        require(columns, bad, Fault.COMMUNICATION_ORDER, message, expected)
