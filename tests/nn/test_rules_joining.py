"""Tensors side by side, and losses summed: kernels and gradients by hand."""

from __future__ import annotations

import pytest
from nn.tracing_kit import Apply, backward, forward, rows, run, saved, spec

from semu.errors import GraphError
from semu.hardware.kinds import DType
from semu.nn import LMHead, Module, Sequences, Tensor
from semu.nn import functional as F

TOKENS, H, V = 24, 32, 64


def test_concatenation_is_one_copy_and_its_gradients_are_views() -> None:
    block = run(Apply(F.concatenate), spec(TOKENS, H), spec(TOKENS, 3 * H))
    assert rows(forward(block)) == [("copy", "F", 0, 2 * 2 * TOKENS * 4 * H, 0)]
    assert backward(block) == [] and saved(block) == {}
    assert block.output_specs[0].shape == (TOKENS, 4 * H)
    storages = {block.graph.tensors[tensor].storage for tensor in block.input_gradients if tensor is not None}
    assert len(storages) == 1


@pytest.mark.parametrize("other", [spec(TOKENS + 1, H), spec(TOKENS, H, shards=(2, 1)), spec(TOKENS, H, shards=(1, 2))])
def test_what_does_not_lie_side_by_side(other: object) -> None:
    with pytest.raises(GraphError, match="do not lie side by side"):
        run(Apply(F.concatenate), spec(TOKENS, H), other, tp=2)  # type: ignore[arg-type]


class Losses(Module):
    """Several losses of one tensor."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.head, self.count = LMHead(H, V), count

    def forward(self, x: Tensor) -> Tensor:
        return F.add_losses([self.head(x) for _ in range(self.count)])


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_sum_of_losses(count: int) -> None:
    block = run(Losses(count), spec(TOKENS, H, dtype=DType.BF16, sequences=Sequences.uniform(2, TOKENS // 2)))
    (add,) = (op for op in forward(block) if op.path.endswith("add_losses"))
    (back,) = (op for op in backward(block) if op.path.endswith("add_losses_bw"))
    assert (add.mem_bytes, back.mem_bytes) == (4 * (count + 1), 4 * count)
    assert block.output_specs[0].shape == ()
    assert sum(op.path.endswith("softmax_bw") for op in backward(block)) == count
    products = [op for op in backward(block) if op.flop != 0]
    assert len(products) == 2 * count
