"""``LayerShard``: a GPU's part of the demo's layer, for plans whose stages have several GPUs.

Heads and hidden features are split over the stage's shards, norms and the biases behind sums are whole on each
(1909.08053 §3). Stems and heads run whole on every shard.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import nn

from semu.executor.gang import RankGroup
from semu.executor.sharded import Cut

CUTS: Mapping[str, Cut] = {
    "qkv.weight": Cut(0, blocks=3),
    "qkv.bias": Cut(0, blocks=3),
    "out.weight": Cut(1),
    "mlp.0.weight": Cut(0),
    "mlp.0.bias": Cut(0),
    "mlp.2.weight": Cut(1),
}
"""Of the demo's layer, whole or a shard."""


class LayerShard(nn.Module):
    """This process's part of a layer of ``semu.executor.demo.model``.

    Args:
        layer: the whole one, which is copied. group: the stage's shards.
    Raises:
        ExecutorError: heads or features that do not divide.
    """

    cuts = CUTS

    def __init__(self, layer: nn.Module, group: RankGroup) -> None:
        super().__init__()
        self.group = group
        own = copy.deepcopy(layer)
        for name, cut in self.cuts.items():
            home, _, last = name.rpartition(".")
            whole = own.get_parameter(name)
            part = cut.part(whole.detach(), group.place, len(group.ranks)).flatten(cut.axis, cut.axis + 1).clone()
            setattr(own.get_submodule(home), last, nn.Parameter(part, whole.requires_grad))
        self.norm, self.qkv, self.attention = own.norm, own.qkv, own.attention
        self.out, self.norm2, self.mlp = own.out, own.norm2, own.mlp
        self.attention.heads = layer.get_submodule("attention").heads // len(group.ranks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[items, rows, width] -> the same, on every shard."""
        group = self.group
        y = self.attention(self.qkv(group.enter(self.norm(x))))
        x = x + group.sum(y @ self.out.weight.T) + self.out.bias
        first, activation, second = self.mlp
        y = activation(first(group.enter(self.norm2(x))))
        return x + group.sum(y @ second.weight.T) + second.bias


def part_suffix(module: nn.Module | None, name: str) -> str:
    """What is behind the name of a parameter of a shard: ``|axis:blocks:shard:shards``; empty: it is whole."""
    if not isinstance(module, LayerShard) or name not in module.cuts:
        return ""
    cut = module.cuts[name]
    return f"|{cut.axis}:{cut.blocks}:{module.group.place}:{len(module.group.ranks)}"
