"""Fused attention: FLOP by counting every query-key pair, bytes and saved tensors by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nn.tracing_kit import Apply, backward, forward, number, options, row, run, saved, spec

from semu.errors import GraphError
from semu.graph.dim import Dim, DimTable, Poly
from semu.graph.operator import OpKind
from semu.hardware.kinds import DType
from semu.nn import Sequences
from semu.nn import functional as F
from semu.nn.trace.block import CarrySpec, TracedBlock, trace_block


class Attention(Apply):
    def __init__(self, causal: bool) -> None:
        super().__init__(lambda q, k, v: F.attention(q, k, v, causal=causal))


def packed(lengths: Sequence[int], stream: str = "text") -> Sequences:
    return Sequences(stream, sum(lengths), sum(n * n for n in lengths), len(lengths))


def heads_of(
    packing: Sequences | None, heads: int, d: int, *, tokens: int | None = None, tp: int = 1, grad: bool = True
) -> CarrySpec:
    rows = packing.tokens if packing is not None else tokens
    assert rows is not None
    return spec(rows, heads, d, shards=(1, tp, 1), sequences=packing, grad=grad)


def counted_flop(queries: Sequence[int], keys: Sequence[int], heads: int, products: Sequence[int]) -> int:
    """Multiply and add of every product, for every pair of every sequence and head."""
    total = 0
    for own, other in zip(queries, keys, strict=True):
        for _ in range(own):
            for _ in range(other):
                for inner in products:
                    total += 2 * inner
    return heads * total


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("causal", [False, True], ids=("full", "causal"))
def test_self_attention_over_packed_sequences(causal: bool, tp: int) -> None:
    lengths, heads, kv_heads, d, d_v = [5, 9, 2], 8, 4, 6, 10
    packing, tokens = packed(lengths), sum(lengths)
    block = run(
        Attention(causal),
        heads_of(packing, heads, d, tp=tp),
        heads_of(packing, kv_heads, d, tp=tp),
        heads_of(packing, kv_heads, d_v, tp=tp),
        tp=tp,
    )
    share = 2 if causal else 1
    local, local_kv = heads // tp, kv_heads // tp
    # forward: scores, values; backward: scores again, dP, dV, dQ, dK
    forward_flop = counted_flop(lengths, lengths, local, [d, d_v]) // share
    backward_flop = counted_flop(lengths, lengths, local, [d, d_v, d_v, d, d]) // share
    q, k = 2 * tokens * local * d, 2 * tokens * local_kv * d
    v, out = 2 * tokens * local_kv * d_v, 2 * tokens * local * d_v
    log_sum_exp = 4 * tokens * local
    (ahead,), (back,) = forward(block), backward(block)
    assert row(ahead) == ("attention_forward", "F", forward_flop, q + k + v + out + log_sum_exp, 0)
    gradients = q + k + v + out
    assert row(back) == ("attention_backward", "I", backward_flop, q + k + v + out + log_sum_exp + gradients, 0)
    assert ahead.causal_flop == (forward_flop if causal else 0)
    # the scores made again are work of the kernel, not of the model
    assert back.recomputed_flop == counted_flop(lengths, lengths, local, [d]) // share
    needed = counted_flop(lengths, lengths, local, [d_v, d_v, d, d]) // share
    assert back.causal_flop == (needed if causal else 0)
    assert saved(block) == {"input0": q, "input1": k, "input2": v, "attention": out, "attention.side": log_sum_exp}
    pairs = sum(n * n for n in lengths)
    assert ahead.key == back.key == (tokens, tokens, pairs, local, local_kv, d, d_v, share)


def test_output_and_gradients_look_like_their_tensors() -> None:
    packing = packed([4, 4])
    block = run(
        Attention(True),
        heads_of(packing, 8, 6, tp=2),
        heads_of(packing, 2, 6, tp=2),
        heads_of(packing, 2, 10, tp=2),
        tp=2,
    )
    (out,) = block.output_specs
    assert (out.shape, out.shards, out.sequences) == ((8, 8, 10), (1, 2, 1), packing)
    shapes = [block.graph.tensors[node].shape for node in block.input_gradients if node is not None]
    assert shapes == [(8, 4, 6), (8, 1, 6), (8, 1, 10)]


def test_an_axis_without_packing_is_one_sequence() -> None:
    x = heads_of(None, 2, 4, tokens=12)
    block = run(Attention(False), x, x, x)
    assert number(forward(block)[0].flop) == counted_flop([12], [12], 2, [4, 4])


def test_packing_costs_less_than_one_long_sequence() -> None:
    def work(lengths: list[int]) -> int:
        x = heads_of(packed(lengths), 2, 4)
        return number(forward(run(Attention(True), x, x, x))[0].flop)

    parts = [[12], [6, 6], [4, 4, 4]]
    assert all(work(longer) > work(shorter) for longer, shorter in pairwise(parts))
    assert work([12]) == 3 * work([4, 4, 4])


@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.booleans())
def test_symbols_stand_for_every_packing(lengths: list[int], causal: bool) -> None:
    packing = Sequences.of_stream("text", 2)
    x = heads_of(packing, 4, 6, tp=2)
    block = trace_block(Attention(causal), [x, x, x], options(2))
    exact = heads_of(packed(lengths), 4, 6)
    alone = run(Attention(causal), exact, exact, exact)
    at = {"text.pairs": sum(n * n for n in lengths)}
    for symbolic, concrete in zip(block.graph.operators, alone.graph.operators, strict=True):
        assert 2 * evaluate(symbolic.flop, at) == concrete.flop
        assert 2 * evaluate(symbolic.causal_flop, at) == concrete.causal_flop


def evaluate(dim: Dim, at: dict[str, int]) -> int:
    return int(DimTable.build([dim]).evaluate({name: np.array([value]) for name, value in at.items()})[0, 0])


# -- two streams -------------------------------------------------------------------------------------------------
def test_cross_attention_pairs_sequence_with_sequence() -> None:
    video, text = Sequences.uniform(3, 16, "video"), Sequences.uniform(3, 7, "text")
    x, context = heads_of(video, 4, 8), heads_of(text, 4, 8)
    (ahead,) = forward(run(Attention(False), x, context, context))
    assert ahead.flop == counted_flop([16] * 3, [7] * 3, 4, [8, 8])
    assert ahead.key[:3] == (48, 21, 3 * 16 * 7)


def test_cross_attention_of_symbolic_streams_has_a_symbol_of_its_own() -> None:
    video, text = Sequences.of_stream("video"), Sequences.of_stream("text")
    x, context = heads_of(video, 4, 8), heads_of(text, 4, 8)
    block = trace_block(Attention(False), [x, context, context], options())
    assert forward(block)[0].flop == 2 * 4 * (8 + 8) * Poly.symbol("video*text.pairs")


def test_uneven_packings_of_two_streams_cannot_be_paired() -> None:
    x, context = heads_of(packed([5, 9], "video"), 4, 8), heads_of(packed([3, 4], "text"), 4, 8)
    with pytest.raises(GraphError, match="cannot pair these two packings"):
        run(Attention(False), x, context, context)


def test_different_numbers_of_sequences_cannot_be_paired() -> None:
    video, text = Sequences.uniform(3, 16, "video"), Sequences.uniform(2, 7, "text")
    x, context = heads_of(video, 4, 8), heads_of(text, 4, 8)
    with pytest.raises(GraphError, match="as many 'text' sequences as 'video' sequences; got 2 and 3"):
        run(Attention(False), x, context, context)


def test_uniform_packing_is_what_it_says() -> None:
    packing = Sequences.uniform(3, 16)
    assert (packing.tokens, packing.pairs, packing.count, packing.length) == (48, 3 * 256, 3, 16)


# -- gradients ---------------------------------------------------------------------------------------------------
def test_only_gradients_that_are_wanted_leave() -> None:
    packing = packed([4])
    block = run(Attention(False), heads_of(packing, 2, 4), heads_of(packing, 2, 4, grad=False), heads_of(packing, 2, 4))
    assert [gradient is not None for gradient in block.input_gradients] == [True, False, True]
    nothing = [heads_of(packing, 2, 4, grad=False)] * 3
    assert backward(run(Attention(False), *nothing)) == []


# -- refusals ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("q", "k", "v", "message"),
    [
        (spec(8, 6, 4), spec(8, 4, 4), spec(8, 4, 4), "query heads per key head must be whole; expected a multiple"),
        (spec(8, 4, 4), spec(8, 4, 6), spec(8, 4, 6), "q, k and v do not fit together"),
        (spec(8, 4, 4), spec(8, 4, 4), spec(9, 4, 4), "q, k and v do not fit together"),
        (spec(8, 16), spec(8, 16), spec(8, 16), r"attention needs \[tokens, heads, dim\]"),
        (
            spec(8, 4, 4, shards=(2, 1, 1)),
            spec(8, 4, 4, shards=(2, 1, 1)),
            spec(8, 4, 4, shards=(2, 1, 1)),
            "split over heads alike, tokens whole",
        ),
        (spec(8, 4, 4, shards=(1, 2, 1)), spec(8, 4, 4), spec(8, 4, 4), "split over heads alike, tokens whole"),
    ],
    ids=("groups", "head size", "key tokens", "axes", "tokens split", "split unlike"),
)
def test_shapes_that_do_not_fit_are_refused(q: CarrySpec, k: CarrySpec, v: CarrySpec, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        trace_block(Attention(False), [q, k, v], options(2))


def test_statistics_are_single_precision_whatever_the_tensors_are() -> None:
    x = spec(8, 4, 16, dtype=DType.FP16)
    block: TracedBlock = run(Attention(True), x, x, x)
    ahead = forward(block)[0]
    assert ahead.kind is OpKind.ATTENTION_FORWARD
    assert block.graph.tensors[ahead.outputs[-1]].dtype is DType.FP32
    assert saved(block)["attention.side"] == 4 * 8 * 4
