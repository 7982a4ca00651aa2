"""Embeddings, position tables, and rules that move tokens, by hand; t ids, table [v, h] in bf16."""

from __future__ import annotations

import pytest
from nn.tracing_kit import Apply, W, backward, forward, gradients_written, rows, run, saved, spec

from semu.errors import GraphError
from semu.hardware.kinds import DType
from semu.nn import Embedding, Linear, Module, Sequences, Tensor
from semu.nn import functional as F
from semu.nn.trace.block import TracedBlock
from semu.nn.trace.sharding import ShardingStyle

T, V, H = 24, 40, 16
X = 2 * T * H
IDS = 8 * T
LOOKUP = ("embedding", "F", 0, IDS + 2 * X, 0)
"""Ids read, as many rows of the table read, as many written."""
SCATTER_ADD = ("embedding", "W", 0, X + 2 * (4 * T * H), 0)
"""The gradient read; rows of the fp32 buffer read and written."""


def embed(
    tp: int = 1, *, sp: bool = False, style: ShardingStyle | None = None, positions: int | None = None
) -> TracedBlock:
    return run(Embedding(V, H, positions), spec(T, dtype=DType.INT64, grad=False), tp=tp, sp=sp, style=style)


def test_whole_table() -> None:
    block = embed()
    assert rows(forward(block)) == [LOOKUP]
    assert rows(backward(block)) == [SCATTER_ADD]
    assert saved(block) == {"input0": IDS}
    assert block.output_specs[0].shape == (T, H)
    assert block.input_gradients == (None,)


@pytest.mark.parametrize("tp", [2, 4])
def test_vocabulary_split(tp: int) -> None:
    block = embed(tp, style=ShardingStyle.VOCABULARY)
    assert rows(forward(block)) == [LOOKUP, ("all_reduce", "F", 0, 0, 2 * X * (tp - 1) // tp)]
    assert rows(backward(block)) == [SCATTER_ADD]
    assert block.output_specs[0].shards == (1, 1)
    (table,) = block.parameters
    assert block.graph.tensors[table.tensor].shape == (V // tp, H)
    assert table.is_sharded


@pytest.mark.parametrize("tp", [2, 4])
def test_vocabulary_split_with_sequence_parallelism(tp: int) -> None:
    block = embed(tp, sp=True, style=ShardingStyle.VOCABULARY)
    one_way = X * (tp - 1) // tp
    assert rows(forward(block)) == [LOOKUP, ("reduce_scatter", "F", 0, 0, one_way)]
    assert [row[:2] for row in rows(backward(block))] == [("all_gather", "I"), ("embedding", "W")]
    assert rows(backward(block))[0][4] == one_way
    assert rows(backward(block))[1] == SCATTER_ADD
    assert block.output_specs[0].shards == (tp, 1)
    assert saved(block) == {"input0": IDS}


@pytest.mark.parametrize("tp", [2, 4])
def test_whole_table_with_sequence_parallelism_keeps_a_shard_of_the_rows(tp: int) -> None:
    block = embed(tp, sp=True)
    assert rows(forward(block)) == [LOOKUP]  # taking a shard is a view
    assert rows(backward(block)) == [("all_gather", "I", 0, 0, X * (tp - 1) // tp), SCATTER_ADD]
    assert block.output_specs[0].shards == (tp, 1)
    assert block.graph.tensors[block.outputs[0]].shape == (T // tp, H)


@pytest.mark.parametrize("sp", [False, True])
def test_positions_are_added_to_the_local_tokens(sp: bool) -> None:
    block = embed(2, sp=sp, style=ShardingStyle.VOCABULARY, positions=T)
    x = X // 2 if sp else X
    assert rows(forward(block))[-1] == ("add", "F", 0, 3 * x, 0)
    assert rows(backward(block))[0] == ("embedding", "W", 0, x + 2 * (2 * x), 0)
    assert gradients_written(block) == {"weight": 1, "positions": 1}


def test_a_frozen_table_starts_no_gradient() -> None:
    layer = Embedding(V, H).requires_grad_(False)
    for style in (None, ShardingStyle.VOCABULARY):
        block = run(layer, spec(T, dtype=DType.INT64, grad=False), tp=2, sp=True, style=style)
        assert backward(block) == []
        assert not block.output_specs[0].requires_grad
        assert saved(block) == {}


def test_frozen_table_and_training_positions() -> None:
    layer = Embedding(V, H, T)
    layer.weight.requires_grad = False
    block = run(layer, spec(T, dtype=DType.INT64, grad=False))
    assert gradients_written(block) == {"positions": 1}
    assert [op.phase for op in backward(block)] == [W]


def test_ids_are_a_vector() -> None:
    with pytest.raises(GraphError, match=r"looks up one id a token; expected \[tokens\]"):
        run(Embedding(V, H), spec(T, 1, dtype=DType.INT64, grad=False))


def test_a_vocabulary_that_does_not_divide_is_refused() -> None:
    with pytest.raises(GraphError, match="cannot be split over a tensor-parallel group of 3") as caught:
        embed(3, style=ShardingStyle.VOCABULARY)
    assert caught.value.got == "tp = 3"
    assert caught.value.nearest == 2


# -- moving tokens -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("tp", [1, 2])
def test_merging_is_a_copy_each_way(tp: int) -> None:
    merged = Sequences.uniform(1, T // 4, "vision")
    block = run(Apply(lambda x: F.merge_tokens(x, 4, merged)), spec(T, H, shards=(tp, 1)), tp=tp, sp=True)
    assert rows(forward(block)) == [("copy", "F", 0, 2 * X // tp, 0)]
    assert rows(backward(block)) == [("copy", "I", 0, 2 * X // tp, 0)]
    assert saved(block) == {}
    (out,) = block.output_specs
    assert (out.shape, out.shards, out.sequences) == ((T // 4, 4 * H), (tp, 1), merged)
    gradient = block.input_gradients[0]
    assert gradient is not None
    assert block.graph.tensors[gradient].shape == (T // tp, H)


IMAGES = 6


@pytest.mark.parametrize(("rows_grad", "into_grad"), [(True, True), (True, False), (False, True), (False, False)])
def test_image_tokens_are_written_over_text_tokens(rows_grad: bool, into_grad: bool) -> None:
    image = 2 * IMAGES * H
    block = run(Apply(F.scatter_tokens), spec(IMAGES, H, grad=rows_grad), spec(T, H, grad=into_grad))
    assert rows(forward(block)) == [("copy", "F", 0, 2 * X + image, 0)]
    gathered = [("copy", "I", 0, 2 * image, 0)] if rows_grad else []
    masked = [("copy", "I", 0, 2 * X, 0)] if into_grad else []
    assert rows(backward(block)) == gathered + masked
    assert saved(block) == {}
    assert [gradient is not None for gradient in block.input_gradients] == [rows_grad, into_grad]
    assert block.output_specs[0].requires_grad is (rows_grad or into_grad)
    assert block.output_specs[0].shape == (T, H)


def test_image_tokens_need_the_width_of_the_text() -> None:
    with pytest.raises(GraphError, match="widths differ; expected 16; got 17"):
        run(Apply(F.scatter_tokens), spec(IMAGES, H + 1), spec(T, H))


def test_a_shard_is_taken_once() -> None:
    class Twice(Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = Linear(H, H)

        def forward(self, x: Tensor) -> Tensor:
            return F.shard_tokens(self.linear(F.shard_tokens(x)))

    block = run(Twice(), spec(T, H), tp=2, sp=True)
    assert [row[0] for row in rows(backward(block))] == ["matmul", "matmul", "all_gather"]
    assert block.output_specs[0].shards == (2, 1)
