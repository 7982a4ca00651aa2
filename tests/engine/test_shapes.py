"""A sweep over many shapes equals one simulation per shape."""

from __future__ import annotations

import numpy as np
import pytest

import semu
from semu import nn
from semu.graph.dim import Poly
from semu.graph.subgraph import Level

PROFILE = semu.Cluster("h800", 1, 8).profile


class Mlp(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.down(self.up(self.norm(x)))


@pytest.mark.parametrize("module", [Mlp(512), nn.Linear(256, 1024)], ids=["mlp", "linear"])
def test_a_sweep_equals_single_runs(module: nn.Module) -> None:
    hidden = 512 if isinstance(module, Mlp) else 256
    graph = semu.trace(module, semu.Input((Poly.symbol("tokens"), hidden), requires_grad=True))
    tokens = np.array([1, 17, 4096, 100_000, 17])
    swept = semu.sweep(graph, PROFILE, {"tokens": tokens})
    for position, count in enumerate(tokens.tolist()):
        alone = semu.run(graph, PROFILE, shapes={"tokens": count})
        assert swept.latency_s[position] == alone.makespan_s
        assert swept.peak_bytes[position] == alone.peak.size_bytes
        assert swept.flop[position] == alone.totals().flop


def test_what_a_sweep_refuses() -> None:
    graph = semu.trace(nn.Linear(8, 8), semu.Input((Poly.symbol("a") + Poly.symbol("b"), 8)))
    with pytest.raises(semu.ConfigError, match="different numbers"):
        semu.sweep(graph, PROFILE, {"a": [1, 2], "b": [1]})
    staged = semu.Graph()
    with staged.subgraph("stage", level=Level.STAGE):
        pass
    with pytest.raises(semu.GraphError, match="one unit"):
        semu.sweep(staged, PROFILE, {})
