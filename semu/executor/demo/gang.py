"""Parts of the demo's stem and head, for plans whose pipeline ranks run them together.

The stem is split over the features that it reads, as a table of embeddings is over its rows: every rank's part of the
product is summed. The head is split over the features that it makes, as logits are over the vocabulary; the loss is
summed over the parts.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from semu.executor.gang import RankGroup


class StemPart(nn.Module):
    """This rank's part of a stem with the weight ``linear``."""

    def __init__(self, stem: nn.Module, group: RankGroup) -> None:
        super().__init__()
        whole = stem.get_submodule("linear")
        weight, bias = whole.get_parameter("weight"), whole.get_parameter("bias")
        self.group, (self.first, self.last) = group, bounds_of(weight.shape[1], group)
        self.linear = _Weights(weight[:, self.first : self.last], bias)
        self.bounds: Mapping[str, tuple[int, int, int]] = {"linear.weight": (1, self.first, self.last)}

    def forward(self, own: torch.Tensor) -> torch.Tensor:
        """[items, rows, width] -> the same, on every rank."""
        return self.group.sum(own[..., self.first : self.last] @ self.linear.weight.T) + self.linear.bias


class HeadPart(nn.Module):
    """This rank's part of a head: a norm, which all ranks have, and a part of the weight ``linear``."""

    def __init__(self, head: nn.Module, group: RankGroup) -> None:
        super().__init__()
        whole = head.get_submodule("linear")
        weight, bias = whole.get_parameter("weight"), whole.get_parameter("bias")
        self.norm = head.get_submodule("norm")
        self.group, (first, last) = group, bounds_of(weight.shape[0], group)
        self.linear = _Weights(weight[first:last], bias[first:last])
        self.bounds: Mapping[str, tuple[int, int, int]] = dict.fromkeys(
            ("linear.weight", "linear.bias"), (0, first, last)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[items, rows, width] -> [items, rows, part of the width]."""
        return self.group.enter(self.norm(x)) @ self.linear.weight.T + self.linear.bias


class _Weights(nn.Module):
    """Copies of parts of a weight and a bias."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().clone())
        self.bias = nn.Parameter(bias.detach().clone())


class PartialLoss:
    """The demo's loss of an output of which every rank has a part; the same number on all ranks.

    Args:
        group: the ranks. width: of the whole output.
    """

    def __init__(self, group: RankGroup, width: int) -> None:
        self.group, self.width = group, width

    def __call__(self, output: torch.Tensor, microbatch: int, first: int, _last: int) -> torch.Tensor:
        """As ``semu.executor.model.Loss``."""
        items, rows, _ = output.shape
        goal = pattern_of(items, rows, self.width, microbatch, first, output)
        begin, end = bounds_of(self.width, self.group)
        return self.group.sum(((output - goal[..., begin:end]) ** 2).sum() / (rows * self.width))


def bounds_of(width: int, group: RankGroup) -> tuple[int, int]:
    """First and one past the last of the features that belong to this rank."""
    return width * group.place // len(group.ranks), width * (group.place + 1) // len(group.ranks)


def pattern_of(items: int, rows: int, width: int, microbatch: int, first: int, like: torch.Tensor) -> torch.Tensor:
    """What the demo's outputs should be: [items, rows, width], of the type of ``like``."""
    numbers = torch.arange(rows * width, dtype=like.dtype, device=like.device)
    shift = torch.arange(first, first + items, dtype=like.dtype, device=like.device)[:, None, None]
    return torch.sin(numbers + microbatch).reshape(rows, width) + 0.1 * shift
