"""``ActionColumns``: the actions of all ranks as arrays, rank after rank; words for stages, messages and actions."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semu.plan.action import KINDS, ActionKind
from semu.plan.plan import ExecutionPlan
from semu.records import dataclass

I64 = NDArray[np.int64]

LAUNCHES = (ActionKind.ISEND.code, ActionKind.IRECV.code)
SENDS = (ActionKind.ISEND.code, ActionKind.WAIT_ISEND.code)
NUM_STAGE_KINDS = sum(kind.is_stage for kind in KINDS)


@dataclass(frozen=True, eq=False)
class ActionColumns:
    """Actions of all ranks; ``a`` in all.

    Attributes:
        plan: the plan. ptr: int64[num_ranks + 1], first action of each rank.
        kind, target, batch: int64[a], as ``RankActions``. rank: int64[a].
    """

    plan: ExecutionPlan
    ptr: I64
    kind: I64
    target: I64
    batch: I64
    rank: I64

    @classmethod
    def of(cls, plan: ExecutionPlan) -> ActionColumns:
        """The columns of a plan."""
        counts = [len(own.kind) for own in plan.actions]
        kind, target, batch = (
            np.concatenate([np.empty(0, np.int64), *(getattr(own, name) for own in plan.actions)]).astype(np.int64)
            for name in ("kind", "target", "batch")
        )
        ptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        return cls(plan, ptr, kind, target, batch, np.repeat(np.arange(len(counts)), counts))

    @cached_property
    def is_stage(self) -> NDArray[np.bool_]:
        """bool[a]."""
        found: NDArray[np.bool_] = self.kind < NUM_STAGE_KINDS
        return found

    @cached_property
    def is_launch(self) -> NDArray[np.bool_]:
        """bool[a], whether it is an isend or an irecv."""
        found: NDArray[np.bool_] = (self.kind == LAUNCHES[0]) | (self.kind == LAUNCHES[1])
        return found

    @cached_property
    def is_receive(self) -> NDArray[np.bool_]:
        """bool[a], whether it is an irecv or the wait for one."""
        found: NDArray[np.bool_] = (self.kind == LAUNCHES[1]) | (self.kind == ActionKind.WAIT_IRECV.code)
        return found

    @cached_property
    def is_exchange(self) -> NDArray[np.bool_]:
        """bool[a], whether the ranks of a gang meet."""
        found: NDArray[np.bool_] = self.kind >= ActionKind.EXCHANGE.code
        return found

    @cached_property
    def is_message(self) -> NDArray[np.bool_]:
        """bool[a], whether its target is a message."""
        found: NDArray[np.bool_] = ~self.is_stage & ~self.is_exchange
        return found

    @cached_property
    def stage_place(self) -> I64:
        """int64[4, n], place of each stage among all actions, by kind; -1: it does not run; of several the last."""
        return self._places(self.is_stage, 0, len(self.plan.pairs.chunk))

    @cached_property
    def message_place(self) -> I64:
        """int64[4, m], places of isend, wait_isend, irecv and wait_irecv of every message; -1: none."""
        return self._places(self.is_message, NUM_STAGE_KINDS, len(self.plan.messages.source))

    @cached_property
    def exchange_place(self) -> I64:
        """int64[2, n], places of the exchanges before the forward and the backward of every pair; -1: none."""
        return self._places(self.is_exchange, ActionKind.EXCHANGE.code, len(self.plan.pairs.chunk))[:2]

    def _places(self, chosen: NDArray[np.bool_], first: int, count: int) -> I64:
        place = np.full((4, count), -1, dtype=np.int64)
        at = np.flatnonzero(chosen)
        place[self.kind[at] - first, self.target[at]] = at
        return place

    def locate(self, action: int) -> tuple[int, int]:
        """Rank of an action, and its position in the rank's list."""
        rank = int(self.rank[action])
        return rank, action - int(self.ptr[rank])

    def words(self, action: int) -> str:
        """``forward_stage 2F0``, ``isend 1F0 -> 2F0 to rank 1``."""
        kind, target = KINDS[int(self.kind[action])], int(self.target[action])
        if kind.is_exchange:
            stage = ActionKind.FORWARD_STAGE if kind is ActionKind.EXCHANGE else ActionKind.BACKWARD_STAGE
            return f"{kind} before {stage_name(self.plan, target, stage)}"
        if kind.is_stage:
            return f"{kind} {stage_name(self.plan, target, kind)}"
        messages = self.plan.messages
        is_send = kind in (ActionKind.ISEND, ActionKind.WAIT_ISEND)
        peer = int((messages.target_rank if is_send else messages.source_rank)[target])
        return f"{kind} {message_name(self.plan, target)} {'to' if is_send else 'from'} rank {peer}"


def stage_name(plan: ExecutionPlan, pair: int, kind: ActionKind) -> str:
    """``2F0`` = chunk 2, forward, microbatch 0; ``2F0.1``: its part 1, where it has several."""
    pairs = plan.pairs
    chunk, microbatch, part = int(pairs.chunk[pair]), int(pairs.microbatch[pair]), int(pairs.part[pair])
    same = (pairs.chunk == chunk) & (pairs.microbatch == microbatch)
    return f"{chunk}{kind.phase.value}{microbatch}" + (f".{part}" if np.count_nonzero(same) > 1 or part else "")


def message_name(plan: ExecutionPlan, message: int) -> str:
    """``1F0 -> 2F0``."""
    ends = (int(plan.messages.source[message]), int(plan.messages.target[message]))
    kinds = (ActionKind.FORWARD_STAGE, ActionKind.BACKWARD_STAGE)
    return " -> ".join(stage_name(plan, stage // 2, kinds[stage % 2]) for stage in ends)
