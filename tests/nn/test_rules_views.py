"""Views cost nothing forward, keep their whole storage alive, and a split costs one copy backward."""

from __future__ import annotations

import pytest
from nn.tracing_kit import Apply, backward, forward, rows, run, saved, spec

from semu.errors import GraphError
from semu.nn import Tensor
from semu.nn import functional as F

M, H = 24, 16
X = 2 * M * H


def shapes(block: object, nodes: tuple[int | None, ...]) -> list[tuple[object, ...]]:
    return [block.graph.tensors[node].shape for node in nodes if node is not None]  # type: ignore[attr-defined]


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_split_gives_views_and_one_copy_backward(tp: int) -> None:
    x = X // tp
    block = run(Apply(lambda x: x.split((8, 4, 4))), spec(M, H, shards=(1, tp)), tp=tp)
    assert forward(block) == []
    assert shapes(block, block.outputs) == [(M, 8 // tp), (M, 4 // tp), (M, 4 // tp)]
    assert {block.graph.tensors[node].storage for node in block.outputs} == {0}
    assert rows(backward(block)) == [("copy", "I", 0, 2 * x, 0)]
    assert len(backward(block)[0].inputs) == 3
    assert shapes(block, block.input_gradients) == [(M, H // tp)]


def test_split_with_a_part_that_nobody_differentiates() -> None:
    def first_part(x: Tensor) -> Tensor:
        return F.gelu(x.split((4, 12))[0])

    block = run(Apply(first_part), spec(M, H))
    kinds = [op.kind.value for op in backward(block)]
    assert kinds == ["activation", "copy"]
    assert shapes(block, block.input_gradients) == [(M, H)]


def test_a_view_keeps_the_whole_storage() -> None:
    def first_part(x: Tensor) -> Tensor:
        return F.gelu(x.split((4, 12))[0])

    assert saved(run(Apply(first_part), spec(M, H))) == {"input0": X}


@pytest.mark.parametrize("sizes", [(8, 4), (8, 8, 8), ()], ids=str)
def test_parts_must_make_up_the_axis(sizes: tuple[int, ...]) -> None:
    with pytest.raises(GraphError, match="the parts do not make up the axis; expected a sum of 16"):
        run(Apply(lambda x: x.split(sizes)), spec(M, H))


def test_a_part_that_the_group_does_not_divide_is_refused() -> None:
    with pytest.raises(GraphError, match="cannot be split 4 ways"):
        run(Apply(lambda x: x.split((10, 6))), spec(M, H, shards=(1, 4)), tp=4)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_unflatten_and_flatten_are_free_both_ways(tp: int) -> None:
    there = run(Apply(lambda x: x.unflatten(4, 4)), spec(M, H, shards=(1, tp)), tp=tp)
    assert there.graph.operators == []
    assert (there.output_specs[0].shape, there.output_specs[0].shards) == ((M, 4, 4), (1, tp, 1))
    assert shapes(there, there.outputs) == [(M, 4 // tp, 4)]
    assert shapes(there, there.input_gradients) == [(M, H // tp)]
    back = run(Apply(lambda x: x.flatten()), spec(M, 4, 4, shards=(1, tp, 1)), tp=tp)
    assert back.graph.operators == []
    assert (back.output_specs[0].shape, back.output_specs[0].shards) == ((M, H), (1, tp))
    assert shapes(back, back.outputs) == [(M, H // tp)]


def test_only_the_last_axes_take_part() -> None:
    x = spec(3, M, H, shards=(1, 1, 2))
    parts = run(Apply(lambda x: x.split((12, 4))), x, tp=2)
    assert [out.shape for out in parts.output_specs] == [(3, M, 12), (3, M, 4)]
    heads = run(Apply(lambda x: x.unflatten(2, 8)), x, tp=2)
    assert (heads.output_specs[0].shape, heads.output_specs[0].shards) == ((3, M, 2, 8), (1, 1, 2, 1))
    flat = run(Apply(lambda x: x.flatten()), spec(3, M, 2, 8, shards=(1, 1, 2, 1)), tp=2)
    assert (flat.output_specs[0].shape, flat.output_specs[0].shards) == ((3, M, H), (1, 1, 2))


def test_unflatten_needs_the_right_sizes() -> None:
    with pytest.raises(GraphError, match="the axis does not unfold; expected 4 x 5; got 16"):
        run(Apply(lambda x: x.unflatten(4, 5)), spec(M, H))


def test_two_axes_flatten_into_one() -> None:
    assert run(Apply(lambda x: x.flatten()), spec(M, H)).output_specs[0].shape == (M * H,)


def test_flatten_needs_two_axes_and_a_whole_last_one() -> None:
    with pytest.raises(GraphError, match="nothing to flatten"):
        run(Apply(lambda x: x.flatten()), spec(M, 4, 4, shards=(1, 1, 2)), tp=2)
    with pytest.raises(GraphError, match="nothing to flatten"):
        run(Apply(lambda x: x.flatten()), spec(M))
