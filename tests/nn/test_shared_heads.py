"""Tensor-parallel ranks that share key-value heads: bytes on the wire, memory and products by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from nn.tracing_kit import backward, flop, forward, number, run_megatron, saved_bytes, spec, wire

from semu.errors import ConfigError, GraphError
from semu.graph.operator import Operator, OpKind
from semu.nn import SelfAttention, Sequences, TransformerLayer
from semu.nn.rules.attention.shared_heads import ranks_share
from semu.nn.trace.block import CarrySpec

S, B, HEADS, H = 32, 3, 8, 64
TOKENS, D = S * B, H // HEADS
SHARED = [(1, 2), (1, 8), (2, 4), (2, 8), (4, 8)]
"""Key-value heads, and ranks that share them."""


def carry(tp: int, sp: bool) -> CarrySpec:
    return spec(TOKENS, H, shards=(tp if sp else 1, 1), sequences=Sequences.uniform(B, S))


@pytest.mark.parametrize("sp", [False, True])
@pytest.mark.parametrize(("kv", "tp"), SHARED)
def test_the_whole_projection_is_gathered_and_scattered(kv: int, tp: int, sp: bool) -> None:
    """Beside what a layer with heads for every rank exchanges, whose projection has another width."""
    shared = run_megatron(SelfAttention(H, HEADS, kv), carry(tp, sp), tp=tp, sp=sp)
    plain = run_megatron(SelfAttention(H, HEADS, tp), carry(tp, sp), tp=tp, sp=sp)
    whole = 2 * TOKENS * (HEADS + 2 * kv) * D * (tp - 1) // tp
    for found, usual, exchange in (
        (wire(forward(shared)), wire(forward(plain)), ("all_gather", whole)),
        (wire(backward(shared)), wire(backward(plain)), ("reduce_scatter", whole)),
    ):
        rest = list(found)
        rest.remove(exchange)
        assert rest == usual


@pytest.mark.parametrize(("kv", "tp"), SHARED)
def test_products_are_shared_out_and_no_weight_is_held_twice(kv: int, tp: int) -> None:
    one = run_megatron(SelfAttention(H, HEADS, kv), carry(1, False))
    block = run_megatron(SelfAttention(H, HEADS, kv), carry(tp, True), tp=tp, sp=True)
    for part in (forward, backward):
        assert tp * flop(part(block), kind=OpKind.MATMUL) == flop(part(one), kind=OpKind.MATMUL)
    scores = [op for op in forward(block) if op.kind is OpKind.ATTENTION_FORWARD]
    assert [tp * number(op.flop) for op in scores] == [4 * H * S * S * B // 2]


@pytest.mark.parametrize(("kv", "tp"), SHARED)
def test_what_a_layer_keeps(kv: int, tp: int) -> None:
    """Each rank keeps its query heads and one head of keys and of values, whole; what was gathered goes."""
    f = 160
    module = TransformerLayer(H, f, HEADS, kv, rotary=True, gated=True, rms_norm=True, bias=False)
    block = run_megatron(module, carry(tp, True), tp=tp, sp=True)
    norms = 2 * (2 * H + 4 + 2 * H) // tp  # input, statistic, output
    own = 2 * (HEADS // tp + 2) * D
    rotated = 2 * (HEADS // tp + 1) * D
    core = (2 * H + 4 * HEADS) // tp
    network = (2 * 2 * f + 2 * f) // tp
    assert saved_bytes(block) == TOKENS * (norms + own + rotated + core + network)


@pytest.mark.parametrize(("kv", "tp"), SHARED)
def test_copies_move_what_they_read_and_write(kv: int, tp: int) -> None:
    """In bytes of the whole projection W and of what a rank keeps w: 2 W + 2 w forward, 3 W + 2 w + 2 W / tp back."""
    block = run_megatron(SelfAttention(H, HEADS, kv), carry(tp, True), tp=tp, sp=True)
    whole, own = 2 * TOKENS * (HEADS + 2 * kv) * D, 2 * TOKENS * (HEADS // tp + 2) * D

    def moved(operators: Sequence[Operator]) -> list[int]:
        return [number(op.mem_bytes) for op in operators if op.kind is OpKind.COPY and "heads" in op.path]

    assert moved(forward(block)) == [2 * whole, 2 * own]
    assert moved(backward(block)) == [whole + 2 * own, 2 * whole, 2 * whole // tp]


def test_ranks_that_cannot_share_are_told_what_can() -> None:
    with pytest.raises((ConfigError, GraphError)) as raised:
        run_megatron(SelfAttention(H, 12, 4, head_dim=12), carry(6, False), tp=6)
    assert "4 key-value heads cannot be split over a tensor-parallel group of 6, nor shared by it" in str(raised.value)
    assert "a divisor or a multiple of 4" in str(raised.value)
    assert raised.value.nearest == 4


def test_a_head_is_shared_by_several_whole_ranks() -> None:
    """Rank r reads head r kv / tp: of every head two ranks or more, all of which read no other."""
    for kv_heads, ranks in product(range(1, 9), range(1, 33)):
        read = [{rank * kv_heads // ranks, ((rank + 1) * kv_heads - 1) // ranks} for rank in range(ranks)]
        readers = [sum(head in own for own in read) for head in range(kv_heads)]
        assert ranks_share(kv_heads, ranks) == (min(readers) > 1 and all(len(own) == 1 for own in read))
