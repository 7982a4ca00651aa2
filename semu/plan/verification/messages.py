"""Messages of a plan: each between stages that read each other, and every result that crosses ranks in one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from semu.distinct import sorted_distinct
from semu.errors import PlanError
from semu.plan.action import ActionKind
from semu.plan.columns import message_name, stage_name
from semu.plan.flow import PlanFlow
from semu.plan.plan import ExecutionPlan
from semu.plan.verification.fault import Fault
from semu.plan.verification.tables import repeated

I64 = NDArray[np.int64]
Flags = NDArray[np.bool_]


def check_messages(plan: ExecutionPlan, flow: PlanFlow) -> None:
    """Peers, tags, sizes and items of messages; none is missing, none too many.

    Raises:
        PlanError: the first that is wrong.
    """
    messages, n = plan.messages, len(plan.pairs.chunk)
    source, target = messages.source.astype(np.int64), messages.target.astype(np.int64)
    rank = np.array([chunk.rank for chunk in plan.chunks])[plan.pairs.chunk]
    own = (rank[source // 2], rank[target // 2])
    said = (messages.source_rank, messages.target_rank)
    for word, is_so, says in zip(("source", "target"), own, said, strict=True):
        message = f"another {word} rank than that of its {word} stage"
        _require(plan, says != is_so, Fault.PEER, message, expected=is_so, got=says)
    link = messages.source_rank.astype(np.int64) * plan.num_ranks + messages.target_rank
    tags = link * (int(messages.tag.max(initial=0)) + 1) + messages.tag
    _require(plan, repeated(tags), Fault.TAG, "a tag that two messages between these ranks have", got=messages.tag)
    edges = _edges_of(plan, flow, source, target, n)
    _check_complete(plan, flow, source % 2 == 1, edges)
    _check_items(plan, flow, edges)
    _check_gradients(plan, source % 2 == 1, edges)


def _edges_of(plan: ExecutionPlan, flow: PlanFlow, source: I64, target: I64, n: int) -> I64:
    """The dependency of the flow that each message is: int64[m]; a gradient's is that of the result."""
    is_gradient = source % 2 == 1
    giver = np.where(is_gradient, target, source) // 2
    taker = np.where(is_gradient, source, target) // 2
    key, wanted = np.append(flow.source * n + flow.reader, -1), giver * n + taker  # the last one: no dependency
    order = np.argsort(key, kind="stable")
    edge: I64 = order[np.minimum(np.searchsorted(key[order], wanted), len(order) - 1)]
    wrong = (key[edge] != wanted) | (source % 2 != target % 2)
    wrong |= is_gradient & ~np.append(flow.has_backward, False)[edge]
    _require(plan, wrong, Fault.MESSAGE, "a message between stages that do not read each other")
    _require(plan, repeated(source * 2 * n + target), Fault.MESSAGE, "a result that is sent twice")
    return edge


def _check_complete(plan: ExecutionPlan, flow: PlanFlow, is_gradient: Flags, edges: I64) -> None:
    """Where both of two modules cut a microbatch, every part of each is sent or received, with whom is open; every
    other result is sent, and its gradient sent back."""
    sent, back = (np.zeros(len(flow.source), dtype=np.bool_) for _ in range(2))
    sent[edges[~is_gradient]] = True
    back[edges[is_gradient]] = True
    n = len(plan.pairs.chunk)
    is_open = flow.is_seam & (flow.parts[flow.source] > 1) & (flow.parts[flow.reader] > 1)
    for end in (flow.source, flow.reader):
        cell = flow.edge * n + end
        is_open &= np.isin(cell, sorted_distinct(cell[sent]))
    missing = flow.crosses & ~sent & (~is_open | back)
    unanswered = flow.crosses & sent & flow.has_backward & ~back
    for lacking, phase in ((missing, 0), (unanswered, 1)):
        if np.any(lacking):
            at = int(np.flatnonzero(lacking)[0])
            kind = (ActionKind.FORWARD_STAGE, ActionKind.BACKWARD_STAGE)[phase]
            ends = [stage_name(plan, int(end[at]), kind) for end in (flow.source, flow.reader)]
            first, second = ends if phase == 0 else ends[::-1]
            raise PlanError(
                "a result that is not sent" if phase == 0 else "a gradient that is not sent",
                fault=Fault.MESSAGE,
                where=f"{plan.name}: messages",
                expected=f"{first} -> {second}",
            )


def _check_items(plan: ExecutionPlan, flow: PlanFlow, edges: I64) -> None:
    """A message within a module carries the items of the stages that it joins. A message between two modules carries
    the items of the module that cuts microbatches; where both modules do, the items that both stages have."""
    items, own = plan.messages.items, plan.pairs.items
    giver, taker = flow.source[edges], flow.reader[edges]
    given, taken = own[:, giver], own[:, taker]
    low, high = np.maximum(given[..., 0], taken[..., 0]), np.minimum(given[..., 1], taken[..., 1])
    common = np.where((low < high)[..., None], np.stack((low, high), axis=2), 0)
    is_given, is_taken, is_common = (np.all(items == side, axis=2) for side in (given, taken, common))
    is_seam, given_cut, taken_cut = flow.is_seam[edges], flow.is_cut[giver], flow.is_cut[taker]
    fits = np.where(is_seam, is_common, is_given)
    fits |= is_seam & ~taken_cut & is_given
    fits |= is_seam & ~given_cut & is_taken
    wrong = ~np.all(fits, axis=0)
    if np.any(wrong):
        at = int(np.flatnonzero(wrong)[0])
        replica = int(np.flatnonzero(~fits[:, at])[0])
        side = given if not is_seam[at] or not taken_cut[at] else common if given_cut[at] else taken
        message = f"a message with other items than its stage, replica {replica}"
        expected, got = tuple(side[replica, at].tolist()), tuple(items[replica, at].tolist())
        raise _error(plan, at, Fault.ITEMS, message, expected, got)


def _check_gradients(plan: ExecutionPlan, is_gradient: Flags, edges: I64) -> None:
    """A gradient is of the results that were sent: it carries their items, and no more bytes."""
    sent = np.full(int(edges.max(initial=0)) + 1, -1, dtype=np.int64)
    sent[edges[~is_gradient]] = np.flatnonzero(~is_gradient)
    answer = np.flatnonzero(is_gradient)
    result = sent[edges[answer]]
    size = plan.messages.num_bytes
    is_larger = size[:, answer] > size[:, result]
    if np.any(is_larger):
        number = int(np.argmax(np.any(is_larger, axis=0)))
        replica, at = int(np.argmax(is_larger[:, number])), int(answer[number])
        message = f"a gradient larger than what it is of, replica {replica}"
        raise _error(plan, at, Fault.BYTES, message, size[replica, result[number]], int(size[replica, at]))


def _require(
    plan: ExecutionPlan,
    bad: Flags,
    fault: Fault,
    message: str,
    *,
    expected: NDArray[np.integer] | None = None,
    got: NDArray[np.integer] | None = None,
) -> None:
    if np.any(bad):
        at = int(np.argmax(bad))
        raise _error(
            plan, at, fault, message, None if expected is None else expected[at], None if got is None else int(got[at])
        )


def _error(plan: ExecutionPlan, at: int, fault: Fault, message: str, expected: object, got: object) -> PlanError:
    """What is wrong with message ``at``."""
    where = f"{plan.name}: messages[{at}], {message_name(plan, at)}"
    return PlanError(message, fault=fault, where=where, expected=None if expected is None else str(expected), got=got)
