"""A slow obvious runtime of execution plans: random turns, one action or one move at a time, rendezvous sends.

It knows nothing of marked graphs: it tries what may happen next in random order until nothing may.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from plan.legal_plans import IRECV, ISEND, WAIT_IRECV, WAIT_ISEND, Act, B, F, I, W, listed

from semu.plan.action import ActionKind
from semu.plan.plan import ExecutionPlan
from semu.plan.verification.dry_runs import Streams


class IllegalPlan(Exception):
    """A rank does what it may not."""


@dataclass
class Outcome:
    """How a run ended: actions that each rank has done, messages that have moved, times of both by the run's clock."""

    cursor: list[int]
    moved: set[int]
    max_bytes: list[int] = field(default_factory=list)

    def is_complete(self, plan: ExecutionPlan) -> bool:
        return self.cursor == [len(own) for own in listed(plan)]


@dataclass
class _Launch:
    """A batched operation on a rank: (message, is it received) of each part."""

    parts: list[tuple[int, bool]]


class Runtime:
    """Ranks that do their actions as they come, with transport between them."""

    def __init__(self, plan: ExecutionPlan, streams: Streams, seed: int) -> None:
        self.plan, self.streams, self.random = plan, streams, Random(seed)
        self.actions = listed(plan)
        self.cursor = [0] * plan.num_ranks
        self.launches: list[list[_Launch]] = [[] for _ in range(plan.num_ranks)]
        self.moved: set[int] = set()

    def run(self) -> Outcome:
        while True:
            turns = [("rank", r) for r in range(self.plan.num_ranks) if self._can_act(r)]
            turns += [("message", m) for m in self._movable()]
            if not turns:
                return Outcome(self.cursor, self.moved)
            kind, number = self.random.choice(turns)
            if kind == "message":
                self.moved.add(number)
            else:
                self._act(number)

    def _can_act(self, rank: int) -> bool:
        own, at = self.actions[rank], self.cursor[rank]
        if at == len(own):
            return False
        kind, target, _ = own[at]
        if kind in (WAIT_ISEND, WAIT_IRECV):
            part = (target, kind is WAIT_IRECV)
            return all(
                m in self.moved for launch in self.launches[rank] if part in launch.parts for m, _ in launch.parts
            )
        return True

    def _act(self, rank: int) -> None:
        kind, target, batch = self.actions[rank][self.cursor[rank]]
        self.cursor[rank] += 1
        if kind not in (ISEND, IRECV):
            return
        part, before = (
            (target, kind is IRECV),
            self.actions[rank][self.cursor[rank] - 2] if self.cursor[rank] > 1 else None,
        )
        if batch >= 0 and before is not None and before[2] == batch:
            self.launches[rank][-1].parts.append(part)
        else:
            self.launches[rank].append(_Launch([part]))

    def _movable(self) -> list[int]:
        """Messages launched at both ends, the batches complete, everything before them on their streams moved."""
        found = []
        for m in range(len(self.plan.messages.source)):
            ends = ((int(self.plan.messages.source_rank[m]), False), (int(self.plan.messages.target_rank[m]), True))
            if m not in self.moved and all(self._is_free(rank, (m, received)) for rank, received in ends):
                found.append(m)
        return found

    def _is_free(self, rank: int, part: tuple[int, bool]) -> bool:
        for launch in self.launches[rank]:
            if part in launch.parts:
                own, at = self.actions[rank], self.cursor[rank]
                is_last = launch is self.launches[rank][-1]
                batch = own[at - 1][2] if at else -1
                return not (is_last and batch >= 0 and at < len(own) and own[at][2] == batch)
            if any(other not in self.moved for other, got in launch.parts if self._is_shared(part, (other, got), rank)):
                return False
        return False

    def _is_shared(self, one: tuple[int, bool], other: tuple[int, bool], rank: int) -> bool:
        """Whether two parts of operations of a rank are on one stream."""

        def peer(part: tuple[int, bool]) -> int:
            messages = self.plan.messages
            return int((messages.source_rank if part[1] else messages.target_rank)[part[0]])

        if self.streams is Streams.RANK:
            return True
        return peer(one) == peer(other) and (self.streams is Streams.PAIR or one[1] == other[1])


def check_each_rank(plan: ExecutionPlan) -> None:
    """What must hold of every rank's actions whoever runs when, one action after another.

    Raises:
        IllegalPlan: it does not.
    """
    messages, pairs, actions = plan.messages, plan.pairs, listed(plan)
    every: list[Act] = [act for own in actions for act in own]
    needed = _Needed(plan)
    whole = {t for kind, t, _ in every if kind is B}
    for i in range(len(pairs.chunk)):
        trains = plan.chunks[pairs.chunk[i]].has_backward
        wanted = [F, *((B,) if trains and i in whole else (I, W) if trains else ())]
        got = [kind for kind, t, _ in every if t == i and kind in (F, B, I, W)]
        _need(sorted(got) == sorted(wanted), f"stages of pair {i}: {got}")
    for rank, own in enumerate(actions):
        seen: set[tuple[ActionKind, int]] = set()
        closed: set[int] = set()
        for place, (kind, target, batch) in enumerate(own):
            if kind in (F, B, I, W):
                _need(plan.chunks[pairs.chunk[target]].rank == rank, "stage on another rank")
                _need(batch == -1, "stage in a batch")
                for before in needed.of(kind, target):
                    _need(before in seen, f"{kind} {target} before {before}")
            else:
                end = messages.target_rank if kind in (IRECV, WAIT_IRECV) else messages.source_rank
                _need(end[target] == rank, "communication on another rank")
                _need((kind, target) not in seen, "twice")
                if kind is ISEND:
                    _need(_made(int(messages.source[target]), seen), "sent before it is made")
                if kind in (WAIT_ISEND, WAIT_IRECV):
                    _need((ISEND if kind is WAIT_ISEND else IRECV, target) in seen, "wait before launch")
                    _need(batch == -1, "wait in a batch")
                elif batch >= 0:
                    begins = place == 0 or own[place - 1][2] != batch
                    _need(not (begins and batch in closed), "torn batch")
                    closed.add(batch)
            seen.add((kind, target))
        for m in range(len(messages.source)):
            if messages.source_rank[m] == rank:
                _need({(ISEND, m), (WAIT_ISEND, m)} <= seen, "not sent, or never freed")
            if messages.target_rank[m] == rank:
                _need({(IRECV, m), (WAIT_IRECV, m)} <= seen, "not received, or never freed")
    for a in range(plan.num_ranks):
        for b in range(plan.num_ranks):
            sent = [t for kind, t, _ in actions[a] if kind is ISEND and messages.target_rank[t] == b]
            got = [t for kind, t, _ in actions[b] if kind is IRECV and messages.source_rank[t] == a]
            _need(sent == got, "another order")


class _Needed:
    """What stages need to have been done on their ranks: stages there, waits for what comes from elsewhere."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self.plan = plan
        self.whole = {t for own in listed(plan) for k, t, _ in own if k is B}
        self.rows = list(
            zip(*(c.tolist() for c in (plan.pairs.chunk, plan.pairs.microbatch, plan.pairs.part)), strict=True)
        )
        self.targets = plan.messages.target.tolist()

    def of(self, kind: ActionKind, pair: int) -> list[tuple[ActionKind, int]]:
        if kind is W:
            return [(I, pair)]
        found: list[tuple[ActionKind, int]] = [] if kind is F else [(F, pair)]
        stage = 2 * pair + (kind is not F)
        found += [(WAIT_IRECV, m) for m, target in enumerate(self.targets) if target == stage]
        d, microbatch, part = self.rows[pair]
        for other, (c, its_microbatch, its_part) in enumerate(self.rows):
            mine, its = self.plan.chunks[d], self.plan.chunks[c]
            giver, taker = (c, d) if kind is F else (d, c)
            if giver not in (self.plan.chunks[taker].sources or ()) or its_microbatch != microbatch:
                continue
            if its.rank != mine.rank or (its.module == mine.module and its_part != part):
                continue
            if kind is F:
                found.append((F, other))
            elif its.has_backward:
                found.append((B if other in self.whole else I, other))
        return found


def _made(stage: int, seen: set[tuple[ActionKind, int]]) -> bool:
    kinds = (B, I) if stage % 2 else (F,)
    return any((kind, stage // 2) in seen for kind in kinds)


def _need(holds: bool, words: str) -> None:
    if not holds:
        raise IllegalPlan(words)


def peaks(plan: ExecutionPlan) -> tuple[list[int], list[int]]:
    """The most bytes in buffers, and in all, of every rank, one action after another."""
    assert plan.estimates is not None and plan.estimates.memory is not None
    memory, messages = plan.estimates.memory, plan.messages
    size = [int(column.max()) for column in messages.num_bytes.T]
    split = {t for own in listed(plan) for k, t, _ in own if k is W}
    buffers, peak = [], []
    for rank, own in enumerate(listed(plan)):
        buffer, held, most_buffer, most = 0, 0, 0, int(memory.static_bytes[rank])
        for kind, t, _ in own:
            stage = {F: 2 * t, B: 2 * t + 1, I: 2 * t + 1}.get(kind)
            above = 0
            if stage is not None:
                buffer -= sum(size[m] for m in range(len(size)) if messages.target[m] == stage)
            if kind is IRECV:
                buffer += size[t]
            if kind in (F, B, I, W):
                above = int((memory.forward_peak_bytes if kind is F else memory.backward_peak_bytes)[t])
            most_buffer = max(most_buffer, buffer)
            most = max(most, int(memory.static_bytes[rank]) + buffer + held + above)
            if stage is not None:
                buffer += sum(size[m] for m in range(len(size)) if messages.source[m] == stage)
            if kind is WAIT_ISEND:
                buffer -= size[t]
            if kind is F:
                held += int(memory.held_bytes[t])
            if kind is W or (kind is B and t not in split):
                held -= int(memory.held_bytes[t])
        buffers.append(most_buffer)
        peak.append(most)
    return buffers, peak
