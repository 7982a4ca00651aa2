"""``ShardedCommunicator``: pipeline ranks that are several processes each, which hold shards of their stage's layers.

Stages may have different numbers of shards, within a pipeline and among pipelines that share a batch. What stages hand
on is whole on every shard, as it is behind a row-parallel product (1909.08053 §3): shard i of a stage sends to those of
the next stage whose number leaves i. A layer that stages hold in 2 and in 3 shards is reduced in 6: each is summed
among the processes that hold it (Oobleck §2.6.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch

from semu.errors import ConfigError, ExecutorError
from semu.executor.communicator import Communicator, Handle, Operation
from semu.executor.gang import RankGroup
from semu.records import dataclass


@dataclass(frozen=True)
class Cut:
    """How a parameter is cut into shards.

    Attributes:
        axis: that is cut, into equal parts in the order of the shards. blocks: equal blocks of the axis that are cut
            each, such as 3 of queries, keys and values in one parameter.
    """

    axis: int
    blocks: int = 1

    def part(self, tensor: torch.Tensor, number: int, count: int) -> torch.Tensor:
        """Part ``number`` of ``count`` as a view, [..., blocks, part of a block, ...].

        Raises:
            ExecutorError: the axis does not divide so.
        """
        size = tensor.shape[self.axis]
        if size % (self.blocks * count):
            raise ExecutorError(
                "a parameter that cannot be cut into so many shards",
                where=f"Cut(axis={self.axis}, blocks={self.blocks})",
                expected=f"a multiple of {self.blocks * count}",
                got=size,
            )
        length = size // self.blocks // count
        blocks = tensor.unflatten(self.axis, (self.blocks, size // self.blocks))
        return blocks.narrow(self.axis + 1, number * length, length)


class ShardedCommunicator:
    """One shard of one pipeline rank.

    Layers exchange over ``group``, and say in an attribute ``cuts`` (parameter's name -> ``Cut``) what of them is cut,
    those of stages of one shard too; of other parameters every shard holds the whole, and computes the whole gradient.

    Args:
        inner: of this process, among as many ranks as there are shards in all, those of a stage one after another.
        shards: of each pipeline rank (``shards_of_ranks``).
    Raises:
        ConfigError: another number of ranks; no shards.
    """

    def __init__(self, inner: Communicator, shards: Sequence[int]) -> None:
        if min(shards, default=0) < 1 or sum(shards) != inner.num_ranks:
            raise ConfigError(
                "a world of another number of ranks",
                where="ShardedCommunicator",
                expected=f"{sum(shards)}, the shards of all stages {list(shards)}, at least 1 each",
                got=inner.num_ranks,
                nearest=sum(shards),
            )
        self.inner, self.shards = inner, tuple(shards)
        self.num_ranks, self.num_replicas, self.replica = len(self.shards), inner.num_replicas, inner.replica
        self.device = inner.device
        self._first = (0, *accumulate(self.shards))
        self.rank = next(rank for rank, end in enumerate(self._first[1:]) if inner.rank < end)
        self.shard = inner.rank - self._first[self.rank]

    @property
    def group(self) -> RankGroup:
        """The shards of this stage, for its layers."""
        first = self._first[self.rank]
        return RankGroup(self.inner, range(first, first + self.shards[self.rank]))

    def launch(self, operations: Sequence[Operation]) -> Sequence[Handle]:
        """As ``Communicator``; a send goes to several shards, or to none."""
        mine, parts, counts = self.shards[self.rank], list[Operation](), list[int]()
        for one in operations:
            theirs, first = self.shards[one.peer], self._first[one.peer]
            peers = range(self.shard, theirs, mine) if one.is_send else (self.shard % theirs,)
            parts += [Operation(one.is_send, first + peer, one.tag, one.tensors) for peer in peers]
            counts.append(len(peers))
        handles = self.inner.launch(parts)
        ends = [0, *accumulate(counts)]
        return [_Handles(handles[a:b]) for a, b in pairwise(ends)]

    def sum_over_replicas(self, tensors: Sequence[torch.Tensor], timeout_s: float) -> None:
        """As ``Communicator``, of this shard."""
        self.inner.sum_over_replicas(tensors, timeout_s)

    def connect(self, groups: Sequence[Sequence[int]]) -> None:
        """Groups of shards: those of each stage, and those that hold the same part of what some ranks hold."""
        stages = [range(a, b) for a, b in pairwise(self._first) if b - a > 1]
        lanes = [self._lane(ranks, lane) for ranks in groups for lane in range(self._lanes(ranks))]
        self.inner.connect([*stages, *(lane for lane in dict.fromkeys(map(tuple, lanes)) if len(lane) > 1)])

    def sum_over_ranks(self, tensors: Sequence[torch.Tensor], ranks: Sequence[int], timeout_s: float) -> None:
        """As ``Communicator``, of tensors that every shard of the ranks holds whole."""
        self.sum_shards(tensors, [None] * len(tensors), ranks, timeout_s)

    def sum_shards(
        self, tensors: Sequence[torch.Tensor], cuts: Sequence[Cut | None], ranks: Sequence[int], timeout_s: float
    ) -> None:
        """Replace shards by sums over the ranks that hold other shards of the same whole.

        Args:
            tensors: of this process, in the same order on all. cuts: how each is cut; None: every shard is the whole.
            ranks: pipeline ranks, this one among them. timeout_s: for every exchange [s].
        Raises:
            ExecutorError: a tensor that does not divide. TimeoutError, ConnectionError: as ``Handle.wait``.
        """
        count = self._lanes(ranks)
        mine = count // self.shards[self.rank]
        wholes = [tensor for tensor, cut in zip(tensors, cuts, strict=True) if cut is None]
        totals: list[torch.Tensor] = []
        for number in range(mine):
            lane = self.shard * mine + number
            parts = [cut.part(one, number, mine) for one, cut in zip(tensors, cuts, strict=True) if cut is not None]
            is_first = any(lane % (count // self.shards[rank]) == 0 for rank in ranks)  # of some process's lanes
            given = parts + wholes if is_first else parts
            sums = [one.clone(memory_format=torch.contiguous_format) for one in given]
            self.inner.sum_over_ranks(sums, self._lane(ranks, lane), timeout_s)
            for part, total in zip(parts, sums, strict=False):
                part.copy_(total)
            totals = totals or sums[len(parts) :]
        for whole, total in zip(wholes, totals, strict=True):
            whole.copy_(total)

    def _lanes(self, ranks: Sequence[int]) -> int:
        """Shards in which some ranks exchange."""
        return math.lcm(*(self.shards[rank] for rank in ranks))

    def _lane(self, ranks: Sequence[int], lane: int) -> tuple[int, ...]:
        """Who holds one of them, of every rank."""
        count = self._lanes(ranks)
        return tuple(self._first[rank] + lane * self.shards[rank] // count for rank in sorted(ranks))

    def broadcast(self, tensors: Sequence[torch.Tensor], root: int, ranks: Sequence[int], timeout_s: float) -> None:
        """As ``Communicator``, of tensors that every shard of the ranks holds whole; ranks of as many shards each.

        Raises:
            ExecutorError: they have different numbers.
        """
        if len({self.shards[rank] for rank in ranks}) > 1:
            raise ExecutorError(
                "a broadcast among stages of different numbers of shards",
                where="ShardedCommunicator.broadcast",
                expected="gangs of equal stages",
                got=[self.shards[rank] for rank in ranks],
            )
        self.inner.broadcast(tensors, self._first[root] + self.shard, self._lane(ranks, self.shard), timeout_s)

    def gather(self, value: object, timeout_s: float) -> list[Any]:
        """As ``Communicator``, of all shards of all ranks."""
        return self.inner.gather(value, timeout_s)

    def abort(self, reason: str) -> None:
        """As ``Communicator``."""
        self.inner.abort(reason)

    def reason(self) -> str | None:
        """As ``Communicator``."""
        return self.inner.reason()


class _Handles:
    """Those of one operation's parts."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Handle]) -> None:
        self.parts = parts

    def wait(self, timeout_s: float) -> None:
        """Until all are done."""
        for one in self.parts:
            one.wait(timeout_s)
