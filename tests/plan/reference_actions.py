"""Execution of a plan's actions in plain Python, slow and obvious: one rank after another goes on as far as it can."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from semu.plan.action import KINDS, ActionKind
from semu.plan.plan import ExecutionPlan

Stage = tuple[int, ActionKind]
"""A pair, and what of it."""
LAUNCHES = (ActionKind.ISEND, ActionKind.IRECV)
WAITS = (ActionKind.WAIT_ISEND, ActionKind.WAIT_IRECV)


def actions_of(plan: ExecutionPlan, rank: int) -> list[tuple[ActionKind, int, int]]:
    """Kind, target, batch."""
    own = plan.actions[rank]
    columns = zip(own.kind.tolist(), own.target.tolist(), own.batch.tolist(), strict=True)
    return [(KINDS[kind], target, batch) for kind, target, batch in columns]


@dataclass
class Execution:
    """What an execution did.

    Attributes:
        stages: begin and end of every stage [s]. messages: of every message. is_done: nothing is stuck.
        longest_wait: how many actions each rank has executed.
    """

    stages: dict[Stage, tuple[float, float]] = field(default_factory=dict)
    messages: dict[int, tuple[float, float]] = field(default_factory=dict)
    is_done: bool = False

    @property
    def makespan(self) -> float:
        return max((end for _, end in self.stages.values()), default=0.0)


def execute(
    plan: ExecutionPlan,
    stage_s: Callable[[Stage], float],
    transfer_s: Mapping[int, float],
    *,
    rendezvous: bool,
    together: bool = False,
) -> Execution:
    """Stages take their time, launches none. A message goes when it is sent (with ``rendezvous``: and its receive is
    launched), and those that its two ranks sent before in this direction have arrived. With ``together`` a wait is for
    the whole batch of its rank."""
    ranks = range(plan.num_ranks)
    programs = [actions_of(plan, rank) for rank in ranks]
    at, clock = [0] * plan.num_ranks, [0.0] * plan.num_ranks
    launched: dict[tuple[ActionKind, int], float] = {}
    queue: dict[tuple[int, int], list[int]] = {}
    free: dict[tuple[int, int], float] = {}
    found = Execution()
    batches: list[dict[int, list[int]]] = [{} for _ in ranks]
    own_batch: dict[tuple[int, int], int] = {}
    for rank in ranks:
        for kind, target, batch in programs[rank]:
            if kind in LAUNCHES:
                batches[rank].setdefault(batch, []).append(target)
                own_batch[rank, target] = batch
    ends = list(zip(plan.messages.source_rank.tolist(), plan.messages.target_rank.tolist(), strict=True))

    def move(pair: tuple[int, int]) -> None:
        """Messages of a link whose time is known by now."""
        waiting = queue.setdefault(pair, [])
        while waiting:
            message = waiting[0]
            if rendezvous and (ActionKind.IRECV, message) not in launched:
                return
            begin = max(launched[ActionKind.ISEND, message], free.get(pair, 0.0))
            if rendezvous:
                begin = max(begin, launched[ActionKind.IRECV, message])
            free[pair] = begin + transfer_s[message]
            found.messages[message] = (begin, free[pair])
            waiting.pop(0)

    moved = True
    while moved:
        moved = False
        for rank in ranks:
            while at[rank] < len(programs[rank]):
                kind, target, _ = programs[rank][at[rank]]
                if kind in LAUNCHES:
                    launched[kind, target] = clock[rank]
                    if kind is ActionKind.ISEND:
                        queue.setdefault(ends[target], []).append(target)
                    move(ends[target])
                elif kind in WAITS:
                    wanted = batches[rank][own_batch[rank, target]] if together else [target]
                    if not all(message in found.messages for message in wanted):
                        break
                    clock[rank] = max(clock[rank], *(found.messages[message][1] for message in wanted))
                else:
                    begin = clock[rank]
                    clock[rank] = begin + stage_s((target, kind))
                    found.stages[target, kind] = (begin, clock[rank])
                at[rank] += 1
                moved = True
    found.is_done = all(place == len(program) for place, program in zip(at, programs, strict=True))
    return found


def completes_in_groups(plan: ExecutionPlan) -> bool:
    """Whether all ranks end even where each has one queue of communication: a batch begins when it is launched and the
    one before it has ended, and ends, with all its operations, when all of them have met their other sides."""
    ranks = range(plan.num_ranks)
    programs = [actions_of(plan, rank) for rank in ranks]
    at = [0] * plan.num_ranks
    groups: list[list[set[tuple[ActionKind, int]]]] = [[] for _ in ranks]
    last: list[int | None] = [None] * plan.num_ranks
    ended = [0] * plan.num_ranks

    def begun() -> set[tuple[ActionKind, int]]:
        """Operations of every batch at the head of its queue that is complete (its rank has gone past it)."""
        return {
            op
            for rank in ranks
            for number, group in enumerate(groups[rank])
            if number < ended[rank] or (number == ended[rank] and is_closed(rank, number))
            for op in group
        }

    def is_closed(rank: int, number: int) -> bool:
        if number + 1 < len(groups[rank]):
            return True
        if at[rank] == len(programs[rank]):
            return True
        kind, _, batch = programs[rank][at[rank]]
        return kind not in LAUNCHES or batch != last[rank] or batch < 0

    moved = True
    while moved:
        moved = False
        for rank in ranks:
            while at[rank] < len(programs[rank]):
                kind, target, batch = programs[rank][at[rank]]
                if kind in LAUNCHES:
                    before = programs[rank][at[rank] - 1][0] if at[rank] else None
                    if not groups[rank] or before not in LAUNCHES or batch != last[rank] or batch < 0:
                        groups[rank].append(set())
                    groups[rank][-1].add((kind, target))
                    last[rank] = batch
                elif kind in WAITS:
                    sent = ActionKind.ISEND if kind is ActionKind.WAIT_ISEND else ActionKind.IRECV
                    if not any((sent, target) in group for group in groups[rank][: ended[rank]]):
                        break
                at[rank] += 1
                moved = True
        there = begun()
        for rank in ranks:
            while ended[rank] < len(groups[rank]) and is_closed(rank, ended[rank]):
                others = {
                    (ActionKind.IRECV if kind is ActionKind.ISEND else ActionKind.ISEND, message)
                    for kind, message in groups[rank][ended[rank]]
                }
                if not others <= there:
                    break
                ended[rank] += 1
                moved = True
    return all(place == len(program) for place, program in zip(at, programs, strict=True))
