"""Attention as separate kernels: every kernel's FLOP and bytes by hand, and what is saved."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nn.tracing_kit import Apply, backward, flop, forward, number, rows, saved, spec

from semu.hardware.network import CommGroup
from semu.nn import Sequences
from semu.nn import functional as F
from semu.nn.trace.block import TracedBlock, trace_block
from semu.nn.trace.options import TraceOptions
from semu.nn.trace.sharding import ShardingPlan


def traced(
    queries: Sequence[int],
    keys: Sequence[int],
    heads: int,
    kv_heads: int,
    d: int,
    d_v: int,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    tp: int = 1,
    grads: tuple[bool, bool, bool] = (True, True, True),
) -> TracedBlock:
    def packed(lengths: Sequence[int]) -> Sequences:
        return Sequences("text", sum(lengths), sum(n * n for n in lengths), len(lengths), lengths[0])

    shapes = [(queries, heads, d), (keys, kv_heads, d), (keys, kv_heads, d_v)]
    specs = [
        spec(sum(lengths), count, width, shards=(1, tp, 1), sequences=packed(lengths), grad=grad)
        for (lengths, count, width), grad in zip(shapes, grads, strict=True)
    ]
    module = Apply(lambda q, k, v: F.attention(q, k, v, causal=causal, dropout=dropout))
    options = TraceOptions(plan=ShardingPlan(tp), tp_group=CommGroup("tp", tp, 1), fused_attention=False)
    block = trace_block(module, specs, options)
    block.graph.lint()
    return block


@pytest.mark.parametrize("tp", [1, 2])
def test_kernels_by_hand(tp: int) -> None:
    s, a, d = 8, 4, 16
    block = traced([s], [s], a, a, d, d, causal=True, dropout=0.1, tp=tp)
    x, p = 2 * s * a * d // tp, 2 * s * s * a // tp  # bytes of q, k, v or context, and of the scores
    work, mask = 2 * s * s * a * d // tp, p // 2
    assert rows(forward(block)) == [
        ("matmul", "F", work, 2 * x + p, 0),
        ("softmax", "F", 0, 2 * p, 0),
        ("dropout", "F", 0, 2 * p + mask, 0),
        ("matmul", "F", work, 2 * x + p, 0),
    ]
    assert rows(backward(block)) == [
        ("matmul", "I", work, 2 * x + p, 0),
        ("matmul", "I", work, 2 * x + p, 0),
        ("dropout", "I", 0, 2 * p + mask, 0),
        ("softmax", "I", 0, 3 * p, 0),
        ("matmul", "I", work, 2 * x + p, 0),
        ("matmul", "I", work, 2 * x + p, 0),
    ]
    assert sum(saved(block).values()) == 3 * x + 2 * p + mask
    for operator in block.graph.operators:  # half of every product is hidden by the mask
        assert number(operator.recomputed_flop) == number(operator.causal_flop) == number(operator.flop) // 2


lengths = st.lists(st.integers(1, 9), min_size=1, max_size=3)


@given(lengths, st.integers(1, 3), st.integers(1, 3), st.integers(1, 5), st.integers(1, 5), st.booleans())
def test_flop_by_counting_pairs(
    queries: list[int], kv_heads: int, times: int, d: int, d_v: int, is_causal: bool
) -> None:
    block = traced(queries, queries, kv_heads * times, kv_heads, d, d_v, causal=is_causal)
    pairs = sum(1 for n in queries for _ in range(n) for _ in range(n))
    assert flop(forward(block)) == 2 * pairs * kv_heads * times * (d + d_v)
    assert flop(backward(block)) == 2 * flop(forward(block))
    model = sum(number(op.flop) - number(op.recomputed_flop) for op in block.graph.operators)
    assert model * (2 if is_causal else 1) == 3 * flop(forward(block))


def test_grouped_keys_are_copied_for_every_query_head() -> None:
    s, a, g, d = 8, 4, 2, 16
    block = traced([s], [s], a, g, d, d)
    q, k = 2 * s * a * d, 2 * s * g * d
    copies = [line for line in rows(block.graph.operators) if line[0] == "copy"]
    assert copies == [("copy", phase, 0, q + k, 0) for phase in "FFII"]
    assert sum(saved(block).values()) == 3 * q + 2 * s * s * a  # q, the copies of k and v, the probabilities


@pytest.mark.parametrize("grads", [(True, False, False), (False, True, False), (False, False, True)])
def test_only_wanted_gradients(grads: tuple[bool, bool, bool]) -> None:
    block = traced([8, 3], [8, 3], 4, 4, 16, 16, grads=grads)
    assert [gradient is not None for gradient in block.input_gradients] == list(grads)
    products = [line for line in rows(backward(block)) if line[0] == "matmul"]
    assert len(products) == (1 if grads[2] else 2)


def test_cross_attention() -> None:
    block = traced([8], [5], 4, 4, 16, 8)
    assert flop(forward(block)) == 2 * 8 * 5 * 4 * (16 + 8)
