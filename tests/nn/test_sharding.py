"""Sharding plans: which style a path gets, what that does to shapes, and what cannot be split is refused in words."""

from __future__ import annotations

import pytest
from nn.tracing_kit import options, run, run_megatron, spec

from semu.errors import GraphError
from semu.graph.operator import OpKind
from semu.nn import GELU, LayerNorm, Linear, Module, SelfAttention, Sequential, TransformerLayer
from semu.nn.trace.block import trace_block
from semu.nn.trace.options import TraceOptions
from semu.nn.trace.sharding import ShardingPlan, ShardingStyle

T = 32
COLUMN, ROW, REPLICATED = ShardingStyle.COLUMN, ShardingStyle.ROW, ShardingStyle.REPLICATED


# -- the plan ----------------------------------------------------------------------------------------------------
def test_an_exact_path_wins_over_patterns_and_the_first_pattern_over_later_ones() -> None:
    plan = ShardingPlan(
        tp=2,
        styles={"llm.layers.0.mlp.up": REPLICATED},
        patterns={"llm.*.up": COLUMN, "llm.*": ROW, "*": ShardingStyle.SEQUENCE},
    )
    assert plan.style("llm.layers.0.mlp.up") is REPLICATED
    assert plan.style("llm.layers.1.mlp.up") is COLUMN
    assert plan.style("llm.layers.1.mlp.down") is ROW
    assert plan.style("vit.embedding") is ShardingStyle.SEQUENCE


def test_where_the_plan_is_silent_everything_is_replicated() -> None:
    assert ShardingPlan().style("anything.at.all") is REPLICATED
    assert ShardingPlan(patterns={"llm.*": COLUMN}).style("LLM.up") is REPLICATED


def test_by_default_there_is_one_rank() -> None:
    assert (ShardingPlan().tp, ShardingPlan().sequence_parallel, ShardingPlan().token_shards) == (1, False, 1)
    assert TraceOptions().tp_group.num_ranks == 1
    assert not TraceOptions().overlap_tp


@pytest.mark.parametrize(("tp", "sp", "shards"), [(1, True, 1), (4, False, 1), (4, True, 4)])
def test_tokens_are_cut_under_sequence_parallelism(tp: int, sp: bool, shards: int) -> None:
    assert ShardingPlan(tp, sp).token_shards == shards


def test_paths_are_those_of_the_model_not_of_the_block() -> None:
    """A plan speaks of ``llm.layers.3.up``; the block that is traced is ``llm.layers.3``."""
    module = Sequential({"up": Linear(8, 16), "down": Linear(16, 8)})
    styles = {"llm.layers.3.up": COLUMN, "llm.layers.3.down": ROW}
    block = trace_block(module, [spec(T, 8)], options(2, styles=styles), root="llm.layers.3")
    assert [use.is_sharded for use in block.parameters] == [True, True, True, False]
    elsewhere = trace_block(module, [spec(T, 8)], options(2, styles=styles), root="llm.layers.4")
    assert not any(use.is_sharded for use in elsewhere.parameters)


def test_one_rank_ignores_styles() -> None:
    block = run(Linear(8, 16), spec(T, 8), tp=1, style=COLUMN)
    assert not any(use.is_sharded for use in block.parameters)
    assert block.groups == {}


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("sp", [False, True])
def test_the_model_does_not_know_its_parallelism(tp: int, sp: bool) -> None:
    """Global shapes of outputs are the same under every plan; local ones multiply up to them."""
    block = run_megatron(TransformerLayer(16, 64, 4), spec(T, 16, shards=(tp if sp else 1, 1)), tp=tp, sp=sp)
    (out,) = block.output_specs
    assert out.shape == (T, 16)
    assert out.shards == (tp if sp and tp > 1 else 1, 1)
    for use in block.parameters:
        assert use.numel * (tp if use.is_sharded and tp > 1 else 1) == use.parameter.numel


# -- refusals ----------------------------------------------------------------------------------------------------
def attention_under(heads: int, tp: int, *, kv_heads: int | None = None, root: str = "") -> None:
    module = SelfAttention(64 * heads, heads, kv_heads, head_dim=64)
    prefix = f"{root}." if root else ""
    chosen = options(tp, styles={f"{prefix}qkv": COLUMN, f"{prefix}out": ROW})
    trace_block(module, [spec(tp * 4, 64 * heads)], chosen, root=root)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tp", "nearest"),
    [
        (28, None, 8, 7),
        (6, None, 4, 3),
        (16, None, 32, 16),
        (24, 6, 8, 6),
        (24, 12, 8, 6),
        (16, None, 3, 2),
        (28, None, 6, 4),
    ],
)
def test_heads_that_the_group_does_not_divide(heads: int, kv_heads: int | None, tp: int, nearest: int) -> None:
    with pytest.raises(GraphError, match="heads cannot be split over a tensor-parallel group") as caught:
        attention_under(heads, tp, kv_heads=kv_heads)
    error = caught.value
    count = heads if heads % tp else kv_heads
    assert f"{count} {'heads' if heads % tp else 'key-value heads'} cannot" in error.message
    assert error.got == f"tp = {tp}"
    assert error.nearest == nearest
    attention_under(heads, nearest, kv_heads=kv_heads)  # which is legal


def test_an_error_names_the_place_in_the_model() -> None:
    with pytest.raises(GraphError) as caught:
        attention_under(28, 8, root="llm.layers.3.attention")
    assert caught.value.where is not None
    assert caught.value.where.startswith("llm.layers.3.attention")


def test_a_row_needs_a_column_before_it() -> None:
    with pytest.raises(GraphError, match="a row-split weight needs an input split over features") as caught:
        run(Linear(16, 8), spec(T, 16), tp=2, style=ROW)
    assert caught.value.expected == "an input split 2 ways, from a column-split layer"
    assert caught.value.got == "1"


def test_a_row_of_another_group_size_does_not_fit() -> None:
    with pytest.raises(GraphError, match="an input split 4 ways"):
        run(Linear(16, 8), spec(T, 16, shards=(1, 2)), tp=4, style=ROW)


@pytest.mark.parametrize("follower", [Linear(16, 8), LayerNorm(16)], ids=("linear", "norm"))
def test_after_a_column_only_a_row_may_mix_features(follower: Module) -> None:
    module = Sequential(Linear(8, 16), GELU(), follower)
    with pytest.raises(GraphError, match=r"a split activation meets a whole weight|a norm needs whole rows") as caught:
        trace_block(module, [spec(T, 8)], options(2, styles={"0": COLUMN}))
    assert caught.value.where == "2"


def test_features_that_do_not_divide() -> None:
    with pytest.raises(GraphError, match="cannot be split over a tensor-parallel group of 4") as caught:
        run(Linear(8, 10), spec(T, 8), tp=4, style=COLUMN)
    assert caught.value.expected == "a divisor of 10"
    assert caught.value.nearest == 2


def test_tokens_that_do_not_divide() -> None:
    with pytest.raises(GraphError, match="an axis of 30 cannot be split 4 ways"):
        run(Linear(8, 16), spec(30, 8, shards=(4, 1)), tp=4, sp=True, style=COLUMN)


def test_column_then_row_is_one_pair_of_collectives_in_each_direction() -> None:
    module = Sequential(Linear(8, 16), GELU(), Linear(16, 8))
    block = trace_block(module, [spec(T, 8)], options(2, styles={"0": COLUMN, "2": ROW}))
    reductions = [op.index < block.num_forward for op in block.graph.operators if op.kind is OpKind.ALL_REDUCE]
    assert reductions == [True, False]
