"""Layer norm and RMS norm: bytes, statistics and gradients, by hand; x is [rows, h] in bf16."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from nn.tracing_kit import D, W, backward, forward, gradients_written, rows, run, saved, spec

from semu.errors import GraphError
from semu.hardware.kinds import DType
from semu.nn import LayerNorm, Module, RMSNorm
from semu.nn.trace.sharding import ShardingStyle

M, H = 24, 16
X = 2 * M * H

NORMS: dict[str, tuple[Callable[[], Module], int]] = {
    "layer norm": (lambda: LayerNorm(H), 2),  # mean and 1 / deviation of every row
    "layer norm without parameters": (lambda: LayerNorm(H, affine=False), 2),
    "RMS norm": (lambda: RMSNorm(H), 1),  # 1 / root mean square of every row
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_one_kernel_each_way(name: str, tp: int) -> None:
    make, statistics = NORMS[name]
    block = run(make(), spec(M, H, shards=(tp, 1)), tp=tp, sp=True)
    x, kept = X // tp, 4 * statistics * M // tp
    assert rows(forward(block)) == [("norm", "F", 0, 2 * x + kept, 0)]
    assert rows(backward(block)) == [("norm", "I", 0, 3 * x + kept, 0)]
    assert sorted(saved(block).values()) == sorted([x, kept])
    assert saved(block)["input0"] == x
    assert {op.key for op in block.graph.operators} == {(M // tp, H)}
    assert set(gradients_written(block).values()) <= {1}
    assert all(not use.is_sharded and use.numel == H for use in block.parameters)
    (out,) = block.output_specs
    assert (out.shape, out.shards) == ((M, H), (tp, 1))


def test_all_leading_axes_are_rows() -> None:
    block = run(LayerNorm(H), spec(4, 6, H))
    assert rows(forward(block)) == [("norm", "F", 0, 2 * X + 8 * M, 0)]


@pytest.mark.parametrize("name", ["layer norm", "RMS norm"])
def test_nothing_upstream_leaves_the_weight_gradients_only(name: str) -> None:
    make, statistics = NORMS[name]
    block = run(make(), spec(M, H, grad=False))
    (back,) = backward(block)
    assert back.phase is W
    assert back.mem_bytes == 2 * X + 4 * statistics * M  # x and the gradient are read, nothing is written
    assert set(back.outputs) == {use.gradient for use in block.parameters}
    assert block.input_gradients == (None,)


@pytest.mark.parametrize("name", NORMS)
def test_a_frozen_norm_passes_the_gradient_on(name: str) -> None:
    make, _ = NORMS[name]
    layer = make().requires_grad_(False)
    (back,) = backward(run(layer, spec(M, H)))
    assert back.phase is D
    assert len(back.outputs) == 1
    assert backward(run(layer, spec(M, H, grad=False))) == []


def test_frozen_weight_and_training_bias() -> None:
    layer = LayerNorm(H)
    assert layer.weight is not None
    layer.weight.requires_grad = False
    assert gradients_written(run(layer, spec(M, H, grad=False))) == {"bias": 1}


def test_statistics_stay_in_single_precision() -> None:
    block = run(RMSNorm(H), spec(M, H, dtype=DType.FP16))
    assert sorted(saved(block).values()) == [4 * M, X]


def test_rows_must_be_whole() -> None:
    with pytest.raises(GraphError, match="a norm needs whole rows; expected an unsplit last axis"):
        run(LayerNorm(H), spec(M, H, shards=(1, 2)), tp=2, style=ShardingStyle.COLUMN)
