"""``RankGroup``: what layers that several pipeline ranks run together, each with its part, need of one another.

The two halves of a split product (1909.08053 §3, Megatron-LM's *f* and *g*) over the ranks of a gang: ``enter`` before
a product that every rank has columns of, ``sum`` behind one that every rank has rows of. Plans have the ranks meet
before each of a gang's stages, so collectives inside a stage find all ranks there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from semu.executor.communicator import Communicator


class RankGroup:
    """Some pipeline ranks of one replica.

    Args:
        communicator: this rank's. ranks: the members; None: all pipeline ranks. timeout_s: for every exchange [s].
    """

    def __init__(
        self, communicator: Communicator, ranks: Sequence[int] | None = None, timeout_s: float = 300.0
    ) -> None:
        self.communicator, self.timeout_s = communicator, timeout_s
        self.ranks = tuple(ranks) if ranks is not None else tuple(range(communicator.num_ranks))

    @property
    def place(self) -> int:
        """Which member this rank is."""
        return self.ranks.index(self.communicator.rank)

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over all members; backward: every member's part has the gradient of the sum."""
        found: torch.Tensor = _Sum.apply(x, self)
        return found

    def enter(self, x: torch.Tensor) -> torch.Tensor:
        """The same tensor; backward: the sum of the members' gradients."""
        found: torch.Tensor = _Enter.apply(x, self)
        return found

    def summed(self, x: torch.Tensor) -> torch.Tensor:
        """A new tensor, the sum over all members; on torch's meta device, where nothing is exchanged, the same."""
        if x.is_meta:
            return x.clone()
        total = x.detach().clone(memory_format=torch.contiguous_format)
        self.communicator.sum_over_ranks((total,), self.ranks, self.timeout_s)
        return total

    def __deepcopy__(self, memo: dict[int, Any]) -> RankGroup:
        return self


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: RankGroup) -> torch.Tensor:
        """All-reduce."""
        return group.summed(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Nothing to do."""
        return gradients[0], None


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: RankGroup) -> torch.Tensor:
        """Nothing to do."""
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        """All-reduce."""
        return ctx.group.summed(gradients[0]), None
