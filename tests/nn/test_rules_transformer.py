"""A whole transformer layer against the papers: activation memory (2205.05198), collectives, FLOP (2104.04473).

s tokens of one sequence, b sequences, h hidden, a heads, t ranks; bf16. The layer has a fused attention, no dropout, a
GELU network of width 4 h, biases and layer norms.
"""

from __future__ import annotations

import pytest
from nn.tracing_kit import (
    D,
    F,
    R,
    W,
    backward,
    flop,
    forward,
    gradients_written,
    number,
    run_megatron,
    saved,
    saved_bytes,
    spec,
    wire,
)

from semu.graph.operator import Operator, OpKind
from semu.hardware.kinds import DType
from semu.nn import Embedding, LMHead, SelfAttention, Sequences, TransformerLayer
from semu.nn.trace.block import CarrySpec, TracedBlock

S, B, HEADS, H = 32, 3, 8, 64
SBH = S * B * H
GROUPS = [(1, False), (2, False), (4, False), (8, False), (2, True), (4, True), (8, True)]
NAMES = [f"tp{tp}{'-sp' if sp else ''}" for tp, sp in GROUPS]
PACKING = Sequences.uniform(B, S)


def carry(tp: int, sp: bool, *, grad: bool = True) -> CarrySpec:
    return spec(S * B, H, shards=(tp if sp else 1, 1), sequences=PACKING, grad=grad)


def layer(tp: int = 1, sp: bool = False, *, dropout: float = 0.0, full_recompute: bool = False) -> TracedBlock:
    module = TransformerLayer(H, 4 * H, HEADS, dropout=dropout)
    return run_megatron(module, carry(tp, sp), tp=tp, sp=sp, full_recompute=full_recompute)


# -- activation memory -------------------------------------------------------------------------------------------
def paper_bytes(tp: int, sp: bool, *, dropout: bool) -> int:
    """2205.05198, term by term, without the attention core's scores (their 5 a s / h), which are never stored.

    Table 2: with tensor parallelism alone s b h (10 + 24 / t), with sequence parallelism too s b h (34 / t). The masks
    of the two dropouts are 2 of the 10. A fused attention keeps one fp32 log-sum-exp per token and head instead of the
    scores, and each of the two norms two fp32 statistics per token.
    """
    whole_each_rank = 10 if dropout else 8
    activations = SBH * whole_each_rank // (tp if sp else 1) + SBH * 24 // tp
    log_sum_exp = 4 * S * B * HEADS // tp
    statistics = 2 * 2 * 4 * S * B // (tp if sp else 1)
    return activations + log_sum_exp + statistics


@pytest.mark.paper
@pytest.mark.parametrize("dropout", [False, True], ids=("", "dropout"))
@pytest.mark.parametrize(("tp", "sp"), GROUPS, ids=NAMES)
def test_activation_memory_of_a_layer(tp: int, sp: bool, dropout: bool) -> None:
    block = layer(tp, sp, dropout=0.1 if dropout else 0.0)
    assert saved_bytes(block) == paper_bytes(tp, sp, dropout=dropout)


@pytest.mark.paper
def test_activation_memory_piece_by_piece() -> None:
    """§4.1: norms 4, QKV input 2, q k v 6, attention output 2, network 2 + 8 + 8; here under the names of the layer."""
    unit = SBH
    assert saved(layer()) == {
        "mlp.gelu": 8 * unit,  # input of the second product
        "mlp.up": 8 * unit,  # input of GELU
        "mlp_norm.layer_norm": 2 * unit,
        "add": 2 * unit,  # input of the second norm
        "mlp_norm.layer_norm.side": 8 * S * B,
        "attention.attention": 2 * unit,
        "attention.qkv": 6 * unit,
        "attention.attention.side": 4 * S * B * HEADS,
        "attention_norm.layer_norm": 2 * unit,
        "input0": 2 * unit,
        "attention_norm.layer_norm.side": 8 * S * B,
    }


@pytest.mark.paper
@pytest.mark.parametrize(("tp", "sp"), GROUPS, ids=NAMES)
def test_full_recomputation_keeps_the_input_only(tp: int, sp: bool) -> None:
    """2205.05198 §5: 2 s b h a layer; divided by t where the tokens are."""
    assert saved_bytes(layer(tp, sp, full_recompute=True)) == 2 * SBH // (tp if sp else 1)


def test_rotary_embeddings_keep_rotated_copies() -> None:
    """q and k are kept rotated, and v as a view of the QKV product, which so stays whole."""
    module = TransformerLayer(H, 4 * H, HEADS, rotary=True)
    kept = saved(run_megatron(module, carry(1, False)))
    assert sum(kept.values()) == paper_bytes(1, False, dropout=False) + 4 * SBH
    assert kept["attention.rope"] == kept["attention.rope'"] == 2 * SBH


def test_attention_does_no_more_than_it_is_asked_to() -> None:
    block = run_megatron(SelfAttention(H, HEADS), carry(1, False))
    assert [op.kind.value for op in forward(block)] == ["matmul", "attention_forward", "matmul"]
    assert forward(block)[1].causal_flop == forward(block)[1].flop


def test_llama_layer() -> None:
    """Grouped queries (2 of 8 heads), gated network of width f, RMS norms, no biases."""
    f, kv = 160, 2
    width = H // HEADS
    module = TransformerLayer(H, f, HEADS, kv, rotary=True, gated=True, rms_norm=True, bias=False)
    tokens = S * B
    norms = 2 * (2 * H + 4 + 2 * H)  # input, statistic, output
    qkv = 2 * (HEADS + 2 * kv) * width
    rotated = 2 * (HEADS + kv) * width
    core = 2 * H + 4 * HEADS  # output and log-sum-exp
    network = 2 * 2 * f + 2 * f  # gate and up together, and their product
    for tp in (1, 2):
        block = run_megatron(module, carry(tp, True), tp=tp, sp=True)
        assert saved_bytes(block) == tokens * (norms + qkv + rotated + core + network) // tp
    forward_products = 2 * tokens * (H * (HEADS + 2 * kv) * width + H * H + 3 * H * f)
    assert flop(forward(block), kind=OpKind.MATMUL) * 2 == forward_products


# -- collectives -------------------------------------------------------------------------------------------------
@pytest.mark.paper
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_megatron_layer_does_two_all_reduces_each_way(tp: int) -> None:
    """1909.08053 §3: two in the forward, two in the backward pass, each of b s h elements."""
    block = layer(tp)
    one = ("all_reduce", 2 * (tp - 1) * 2 * SBH // tp)
    assert wire(forward(block)) == [one] * 2
    assert wire(backward(block)) == [one] * 2


@pytest.mark.paper
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_sequence_parallel_layer_gathers_and_scatters(tp: int) -> None:
    """2205.05198 §4.2.2: two all-gathers and two reduce-scatters each way, and two more gathers in the backward: the
    inputs of the column-split products, of which only the shard was kept."""
    block = layer(tp, True)
    size = (tp - 1) * 2 * SBH // tp
    gather, scatter = ("all_gather", size), ("reduce_scatter", size)
    assert wire(forward(block)) == [gather, scatter, gather, scatter]
    # network: gradient of the down product, input of the up product again, gradient of the input; attention likewise
    assert wire(backward(block)) == [gather, gather, scatter] * 2


@pytest.mark.paper
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_both_ways_send_the_same_bytes_but_for_the_gathered_inputs(tp: int) -> None:
    """2205.05198 §4.2.2: a ring all-reduce is a reduce-scatter and an all-gather."""

    def sent(operators: list[Operator]) -> int:
        return sum(size for _, size in wire(operators))

    plain, sequence = layer(tp), layer(tp, True)
    assert sent(forward(plain)) == sent(forward(sequence))
    again = 2 * (tp - 1) * 2 * SBH // tp
    assert sent(backward(plain)) + again == sent(backward(sequence))


def test_recomputation_repeats_the_forward_collectives() -> None:
    block = layer(4, True, full_recompute=True)
    first, again = wire(forward(block)), wire([op for op in backward(block) if op.phase is R])
    assert first == again
    assert wire(backward(block))[len(again) :] == wire(backward(layer(4, True)))


def test_one_rank_does_not_communicate() -> None:
    assert wire(layer(1, True).graph.operators) == []


# -- FLOP --------------------------------------------------------------------------------------------------------
def model_flop(operators: list[Operator]) -> int:
    """As papers count: attention in full though it is causal, without what a kernel does twice for itself."""
    return sum(number(op.flop) - number(op.recomputed_flop) + number(op.causal_flop) for op in operators)


@pytest.mark.paper
@pytest.mark.parametrize(("tp", "sp"), GROUPS, ids=NAMES)
@pytest.mark.parametrize("full_recompute", [False, True], ids=("kept", "recomputed"))
def test_flop_of_a_layer(tp: int, sp: bool, full_recompute: bool) -> None:
    """2104.04473 appendix: 24 B s h^2 + 4 B s^2 h forward, twice that backward; recomputation adds one more forward."""
    passes = 4 if full_recompute else 3
    block = layer(tp, sp, full_recompute=full_recompute)
    assert tp * model_flop(block.graph.operators) == passes * (24 * B * S * H**2 + 4 * B * S**2 * H)
    assert tp * model_flop(forward(block)) == 24 * B * S * H**2 + 4 * B * S**2 * H


@pytest.mark.paper
@pytest.mark.parametrize("full_recompute", [False, True], ids=("72", "96"))
@pytest.mark.parametrize("tp", [1, 4])
def test_flop_of_a_gpt(tp: int, full_recompute: bool) -> None:
    """2104.04473 eq. 3: 96 B s l h^2 (1 + s / 6 h + V / 16 l h); 72 (...+ V / 12 l h) where nothing is recomputed."""
    layers, vocab = 5, 160
    head = run_megatron(LMHead(H, vocab), carry(tp, True), tp=tp, sp=True, full_recompute=full_recompute)
    body = layer(tp, True, full_recompute=full_recompute)
    counted = tp * (layers * model_flop(body.graph.operators) + model_flop(head.graph.operators))
    factor, logits = (96, 16) if full_recompute else (72, 12)
    formula = factor * B * S * layers * H**2 * (1 + S / (6 * H) + vocab / (logits * layers * H))
    assert counted == pytest.approx(formula, rel=1e-12)


@pytest.mark.parametrize(("tp", "sp"), GROUPS, ids=NAMES)
def test_each_gradient_costs_as_much_as_the_forward_product(tp: int, sp: bool) -> None:
    operators = layer(tp, sp).graph.operators
    ahead, input_gradient, weight_gradient = (flop(operators, phase=p, kind=OpKind.MATMUL) for p in (F, D, W))
    assert ahead == input_gradient == weight_gradient


# -- the ends of a model -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("tp", [2, 4])
def test_embedding_and_head_of_a_sequence_parallel_model(tp: int) -> None:
    vocab, tokens = 160, S * B
    size = (tp - 1) * 2 * SBH // tp
    ids = spec(tokens, dtype=DType.INT64, grad=False, sequences=PACKING)
    embedding = run_megatron(Embedding(vocab, H), ids, tp=tp, sp=True)
    assert wire(forward(embedding)) == [("reduce_scatter", size)]
    assert wire(backward(embedding)) == [("all_gather", size)]
    head = run_megatron(LMHead(H, vocab), carry(tp, True), tp=tp, sp=True)
    number_a_token = ("all_reduce", 2 * (tp - 1) * 4 * tokens // tp)
    assert wire(forward(head)) == [("all_gather", size), *[number_a_token] * 3]
    assert wire(backward(head)) == [("all_gather", size), ("reduce_scatter", size)]
    softmax, norm = 4 * tokens * vocab // tp, 2 * (2 * SBH // tp) + 8 * tokens // tp
    assert saved_bytes(head) == softmax + norm
    assert gradients_written(head) == {"norm.weight": 1, "norm.bias": 1, "projection.weight": 1}


def test_parameters_of_a_layer_on_one_rank() -> None:
    """12 h^2 / t in matrices; biases of the column-split products are split, those of the row-split ones are not."""
    for tp in (1, 2, 4, 8):
        held = sum(use.numel for use in layer(tp).parameters)
        assert held == 12 * H**2 // tp + (3 * H + 4 * H) // tp + (H + H) + 4 * H
