"""Megatron's plan for semu's building blocks, and a job's own patterns over it."""

from __future__ import annotations

from semu.nn import Embedding, Linear, LMHead, Model, Sequential, TransformerLayer
from semu.nn.layers.transformer import CrossAttention
from semu.nn.trace.sharding import ShardingStyle
from semu.parallel.config import Parallel
from semu.parallel.tensor import megatron_plan

COLUMN, ROW, VOCABULARY = ShardingStyle.COLUMN, ShardingStyle.ROW, ShardingStyle.VOCABULARY


def model() -> Model:
    body = Sequential(
        {
            "embedding": Embedding(32, 8),
            "layers.0": TransformerLayer(8, 32, 4),
            "cross": CrossAttention(8, 4),
            "other": Linear(8, 8),
            "head": LMHead(8, 32),
        }
    )
    return Model.from_module(body, name="llm")


def test_known_blocks_are_split_as_megatron_does() -> None:
    plan = megatron_plan(model(), Parallel(tp=4))
    assert dict(plan.styles) == {
        "llm.embedding": VOCABULARY,
        "llm.layers.0.attention.qkv": COLUMN,
        "llm.layers.0.attention.out": ROW,
        "llm.layers.0.mlp.up": COLUMN,
        "llm.layers.0.mlp.down": ROW,
        "llm.cross.query": COLUMN,
        "llm.cross.key_value": COLUMN,
        "llm.cross.out": ROW,
        "llm.head.projection": VOCABULARY,
    }
    assert (plan.tp, plan.sequence_parallel) == (4, True)
    assert plan.style("llm.other") is ShardingStyle.REPLICATED


def test_one_rank_splits_nothing() -> None:
    plan = megatron_plan(model(), Parallel(tp=1, plan={"*": COLUMN}))
    assert not plan.styles
    assert not plan.patterns
    assert not plan.sequence_parallel


def test_sequence_parallelism_can_be_switched_off() -> None:
    assert not megatron_plan(model(), Parallel(tp=4, sequence_parallel=False)).sequence_parallel


def test_a_pattern_reaches_what_semu_does_not_know() -> None:
    plan = megatron_plan(model(), Parallel(tp=2, plan={"llm.other": COLUMN}))
    assert plan.style("llm.other") is COLUMN
    assert plan.style("llm.layers.0.mlp.up") is COLUMN


def test_a_pattern_wins_over_the_table() -> None:
    plan = megatron_plan(model(), Parallel(tp=2, plan={"*.mlp.up": ROW}))
    assert plan.style("llm.layers.0.mlp.up") is ROW
    assert plan.style("llm.layers.0.mlp.down") is ROW
    assert plan.style("llm.layers.0.attention.qkv") is COLUMN


def test_a_pattern_can_leave_a_known_block_whole() -> None:
    patterns = {"*.mlp.*": ShardingStyle.REPLICATED, "*.head.*": ShardingStyle.REPLICATED}
    plan = megatron_plan(model(), Parallel(tp=2, plan=patterns))
    assert plan.style("llm.layers.0.mlp.up") is ShardingStyle.REPLICATED
    assert plan.style("llm.layers.0.mlp.down") is ShardingStyle.REPLICATED
    assert plan.style("llm.head.projection") is ShardingStyle.REPLICATED
    assert plan.style("llm.layers.0.attention.out") is ROW
