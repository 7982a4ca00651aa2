"""Actions of a plan, each rank for itself: stages, launches, waits, batches, and their order; deadlock is elsewhere."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.errors import PlanError
from semu.plan.action import KINDS, ActionKind
from semu.plan.columns import LAUNCHES, NUM_STAGE_KINDS, SENDS, ActionColumns, message_name, stage_name
from semu.plan.flow import PlanFlow
from semu.plan.verification.fault import Fault
from semu.plan.verification.tables import refuse_actions, repeated

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
    away = pair_rank[pair] != columns.rank[at]
    first = f"rank {int(pair_rank[pair[away][0]])}" if np.any(away) else None
    refuse_actions(columns, at[away], Fault.STAGE_RANK, "a stage on a rank that does not hold its chunk", first)
    wrong = at[(kind[at] != _FORWARD) & ~trains[pair]]
    refuse_actions(columns, wrong, Fault.NO_BACKWARD, "a backward of a chunk that has none")
    again = at[repeated(kind[at] * len(trains) + pair)]
    refuse_actions(columns, again, Fault.STAGE_TWICE, "a stage that runs twice", "once")
    split = (place[_INPUT] >= 0) | (place[_WEIGHT] >= 0)
    both = at[(kind[at] == _BACKWARD) & split[pair]]
    message = "a backward that runs both whole and split"
    refuse_actions(columns, both, Fault.NO_BACKWARD, message, "one B, or one I and one W")
    whole = place[_BACKWARD] >= 0
    missing = (
        (_FORWARD, place[_FORWARD] < 0),
        (_BACKWARD, trains & ~whole & ~split),
        (_INPUT, trains & split & (place[_INPUT] < 0)),
        (_WEIGHT, trains & split & (place[_WEIGHT] < 0)),
    )
    for code, lacks in missing:
        _refuse_missing(columns, KINDS[code], lacks, pair_rank, Fault.STAGE_MISSING, "a stage is missing")
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
    message = "a stage before another on its rank whose result it needs"
    expected = f"after {columns.words(int(first[number]))}"
    refuse_actions(columns, then[[number]], Fault.STAGE_ORDER, message, expected)


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
    at = np.flatnonzero(columns.is_message)
    message, code = columns.target[at], kind[at]
    is_send = (code == SENDS[0]) | (code == SENDS[1])
    is_launch = (code == LAUNCHES[0]) | (code == LAUNCHES[1])
    rank = np.where(is_send, messages.source_rank[message], messages.target_rank[message])
    away = rank != columns.rank[at]
    first = f"rank {int(rank[away][0])}" if np.any(away) else None
    words = "communication on a rank that is not at that end of the message"
    refuse_actions(columns, at[away], Fault.LAUNCH_RANK, words, first)
    again = repeated(code * len(messages.source) + message)
    refuse_actions(columns, at[again & is_launch], Fault.LAUNCH_TWICE, "a message that is launched twice", "once")
    refuse_actions(columns, at[again & ~is_launch], Fault.WAIT_TWICE, "a wait for what has been waited for", "once")
    sent, received = messages.source_rank, messages.target_rank
    for rows, fault, words in (
        ((_ISEND, _IRECV), Fault.LAUNCH_MISSING, "a launch is missing"),
        ((_WAIT_ISEND, _WAIT_IRECV), Fault.WAIT_MISSING, "a buffer that is never freed: a wait is missing"),
    ):
        for row, ends in zip(rows, (sent, received), strict=True):
            _refuse_missing(columns, KINDS[NUM_STAGE_KINDS + row], place[row] < 0, ends, fault, words)
    if not len(message):
        return
    launched = np.where(is_send, place[_ISEND, message], place[_IRECV, message])
    refuse_actions(columns, at[~is_launch & (at < launched)], Fault.WAIT_EARLY, "a wait before its launch")
    ready = _place_of(columns, messages.source)[message]
    unmade = at[(code == SENDS[0]) & (at < ready)]
    refuse_actions(columns, unmade, Fault.SENT_EARLY, "sent before it is computed")
    used = _place_of(columns, messages.target)
    early = np.flatnonzero(used < place[_WAIT_IRECV])[:1]
    if len(early):
        words = "a stage before the wait for what it receives"
        expected = f"after {columns.words(int(place[_WAIT_IRECV, early[0]]))}"
        refuse_actions(columns, used[early], Fault.USED_EARLY, words, expected)


def check_exchanges(columns: ActionColumns, flow: PlanFlow) -> None:
    """The ranks of a gang meet once before each of its stages, each rank right before it, but weight gradients; what
    arrives at one of them was made before.

    Raises:
        PlanError: the first that do not.
    """
    plan, place = columns.plan, columns.exchange_place
    meets = np.array(plan.meeting, dtype=np.bool_)[plan.pairs.chunk]
    rank = np.array([chunk.rank for chunk in plan.chunks])[plan.pairs.chunk]
    trains = np.array([chunk.has_backward for chunk in plan.chunks])[plan.pairs.chunk]
    at = np.flatnonzero(columns.is_exchange)
    strange = at[~meets[columns.target[at]]]
    refuse_actions(columns, strange, Fault.EXCHANGE, "an exchange before a stage for which no ranks meet")
    away = at[rank[columns.target[at]] != columns.rank[at]]
    refuse_actions(columns, away, Fault.EXCHANGE, "an exchange on a rank that does not hold the chunk")
    again = at[repeated(columns.kind[at] * len(meets) + columns.target[at])]
    refuse_actions(columns, again, Fault.EXCHANGE, "an exchange that happens twice", "once")
    for row, stages, lacks, kind in (
        (0, columns.stage_place[_FORWARD], meets, ActionKind.EXCHANGE),
        (1, backward_place(columns), meets & trains, ActionKind.EXCHANGE_GRADIENT),
    ):
        missing = lacks & (place[row] < 0)
        _refuse_missing(columns, kind, missing, rank, Fault.EXCHANGE, "an exchange is missing")
        held = np.flatnonzero(lacks)
        late = stages[held[place[row, held] != stages[held] - 1]]
        refuse_actions(columns, late, Fault.EXCHANGE, "a gang's stage without its exchange right before it")


def _place_of(columns: ActionColumns, stages: NDArray[np.integer]) -> I64:
    """Where stages (2 x pair, + 1 for a backward) are among all actions."""
    back = backward_place(columns)
    found: I64 = np.where(stages % 2 == 1, back[stages // 2], columns.stage_place[_FORWARD, stages // 2])
    return found


def _refuse_missing(
    columns: ActionColumns, kind: ActionKind, lacks: Flags, ranks: NDArray[np.integer], fault: Fault, message: str
) -> None:
    """Refuse a plan that lacks an action for some pair or message. ``lacks``, ``ranks``: of pairs or messages."""
    if np.any(lacks):
        plan, number = columns.plan, int(np.argmax(lacks))
        rank = int(ranks[number])
        if kind.is_exchange:
            name = f"of pair {number}"
        else:
            name = stage_name(plan, number, kind) if kind.is_stage else message_name(plan, number)
        where = f"{plan.name}: rank {rank}"
        raise PlanError(message, fault=fault, rank=rank, where=where, expected=f"{kind} {name}")


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
    most = int(columns.batch.max(initial=0)) + 1
    again = heads[repeated(columns.rank[heads] * most + columns.batch[heads])]
    refuse_actions(columns, again, Fault.BATCH, "a batch that is torn apart", "its launches one behind the other")
    messages, place = columns.plan.messages, columns.message_place
    link = messages.source_rank.astype(np.int64) * columns.plan.num_ranks + messages.target_rank
    sent, received = (np.lexsort((place[row], link)) for row in (_ISEND, _IRECV))
    wrong = np.flatnonzero(sent != received)
    if len(wrong):
        number = int(wrong[0])
        rank = int(messages.source_rank[received[number]])
        message = f"received in another order than rank {rank} sends"
        expected = f"irecv {message_name(columns.plan, int(sent[number]))}"
        out_of_order = place[_IRECV, received[[number]]]
        refuse_actions(columns, out_of_order, Fault.COMMUNICATION_ORDER, message, expected)
