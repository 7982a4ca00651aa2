"""Golden test of the whole chain: PipeWeaver's Figure 7, a Norm and a Linear, with every number derived by hand."""

from __future__ import annotations

import math

import pytest

import semu
from semu import nn
from semu.graph.operator import OpKind, Phase

TOKENS, HIDDEN = 512, 1024
FLOP_PER_S, BYTES_PER_S = 1e14, 1e12

DEVICE = f"""
name = "plain"
memory_bytes = 80e9
mem_bytes_per_s = {BYTES_PER_S}
nvlink_bytes_per_s = 1e11
nic_bytes_per_s = 1e10
pcie_bytes_per_s = 1e10
[flop_per_s]
bf16 = {FLOP_PER_S}
"""


class NormLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.linear = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        y: nn.Tensor = self.linear(self.norm(x))
        return y


@pytest.fixture
def timeline(tmp_path: object) -> semu.GraphTimeline:
    from pathlib import Path

    path = Path(str(tmp_path)) / "plain.toml"
    path.write_text(DEVICE)
    graph = semu.trace(NormLinear(), semu.Input((TOKENS, HIDDEN), requires_grad=True))
    return semu.run(graph, semu.Cluster(str(path), 1, 1).profile)


ACTIVATION = 2 * TOKENS * HIDDEN
STATISTICS = 2 * 4 * TOKENS
WEIGHT = HIDDEN * HIDDEN
PRODUCT_FLOP = 2 * TOKENS * HIDDEN * HIDDEN

GRAPH = [
    ("norm.layer_norm", OpKind.NORM, Phase.FORWARD, 0, 2 * ACTIVATION + STATISTICS, ()),
    ("linear", OpKind.MATMUL, Phase.FORWARD, PRODUCT_FLOP, 2 * ACTIVATION + 2 * WEIGHT, (0,)),
    ("linear.grad_bw", OpKind.MATMUL, Phase.INPUT_GRADIENT, PRODUCT_FLOP, 2 * ACTIVATION + 2 * WEIGHT, ()),
    ("linear.weight_bw", OpKind.MATMUL, Phase.WEIGHT_GRADIENT, PRODUCT_FLOP, 2 * ACTIVATION + 8 * WEIGHT, (0,)),
    ("norm.layer_norm_bw", OpKind.NORM, Phase.INPUT_GRADIENT, 0, 3 * ACTIVATION + STATISTICS, (0, 2)),
]
"""Path, kind, phase, FLOP, bytes, predecessors; the weight gradient accumulates in an fp32 buffer (8 bytes each)."""


def test_the_graph(timeline: semu.GraphTimeline) -> None:
    found = [(o.path, o.kind, o.phase, o.flop, o.mem_bytes, o.after) for o in timeline.graph.operators]
    assert found == GRAPH
    assert {o.stream.name for o in timeline.graph.operators} == {"compute"}


def test_the_timeline(timeline: semu.GraphTimeline) -> None:
    now = 0.0
    for number, (_, _, _, flop, mem_bytes, _) in enumerate(GRAPH):
        assert timeline.start[number] == now
        now += round(max(flop / FLOP_PER_S, mem_bytes / BYTES_PER_S) * 2**40) / 2**40
        assert timeline.end[number] == now
    assert timeline.makespan_s == now
    assert timeline.busy_s("compute") == now


def test_the_memory_curve(timeline: semu.GraphTimeline) -> None:
    parameters = 2 * (WEIGHT + HIDDEN) + 2 * 2 * HIDDEN
    gradients = 2 * parameters
    given = 2 * ACTIVATION  # the input and the gradient of the output
    norm_out, statistics, out, grad_norm_out, grad_x = ACTIVATION, STATISTICS, ACTIVATION, ACTIVATION, ACTIVATION
    static = parameters + gradients
    expected = [
        (0.0, static + given + norm_out + statistics),
        (timeline.start[1], static + given + norm_out + statistics + out),
        (timeline.start[2], static + given + norm_out + statistics + out + grad_norm_out),
        # after the weight gradient: the output's gradient and the norm's output go, the input's gradient comes
        (timeline.start[4], static + ACTIVATION + statistics + out + grad_norm_out + grad_x),
        # at the end: the function's result and the gradient of its input stay
        (timeline.end[4], static + out + grad_x),
    ]
    curve = timeline.memory
    assert list(zip(curve.times_s.tolist(), curve.total.tolist(), strict=True)) == expected
    assert timeline.peak.size_bytes == max(size for _, size in expected)
    assert timeline.peak.operator == "linear.grad_bw"


def test_a_custom_rule_replaces_the_roofline(timeline: semu.GraphTimeline) -> None:
    rules = {OpKind.NORM: lambda seen: 1e-3 if seen.operator.phase is Phase.FORWARD else None}
    changed = semu.run(timeline.graph, semu.Cluster("h800", 1, 1).profile, latency_rules=rules)
    plain = semu.run(timeline.graph, semu.Cluster("h800", 1, 1).profile)
    assert math.isclose(changed.end[0], 1e-3, rel_tol=1e-9)
    assert changed.end[4] - changed.start[4] == plain.end[4] - plain.start[4]


def test_the_adam_step_ends_the_graph() -> None:
    graph = semu.trace(NormLinear(), semu.Input((TOKENS, HIDDEN), requires_grad=True), optimizer=True)
    step = graph.operators[-1]
    elements = WEIGHT + HIDDEN + 2 * HIDDEN
    # fp32 gradient, master weight and two moments read; master weight, moments and the bf16 weight written
    assert (step.kind, step.phase, step.mem_bytes) == (OpKind.OPTIMIZER, Phase.OPTIMIZER, elements * (4 + 12 + 12 + 2))
    graph.lint()
