"""What the families ask of a layer: placement of norms, activations, biases, scales; parameters and kernels by hand."""

from __future__ import annotations

import pytest
from nn.tracing_kit import backward, forward, gradients_written, number, row, rows, run, run_megatron, saved, spec

from semu.hardware.kinds import DType
from semu.nn import (
    MLP,
    Activation,
    CrossAttention,
    Embedding,
    LayerScale,
    LMHead,
    MixtureOfExperts,
    NormPlacement,
    SelfAttention,
    Sequences,
    TransformerLayer,
)
from semu.nn.module import Module
from semu.nn.trace.block import TracedBlock, trace_block
from semu.nn.trace.options import TraceOptions
from semu.nn.trace.recompute_plan import RecomputePlan

H, F, HEADS, TOKENS = 64, 160, 4, 32
PACKING = Sequences.uniform(2, TOKENS // 2)


def traced(module: Module, tp: int = 1) -> TracedBlock:
    return run_megatron(module, spec(TOKENS, H, shards=(tp, 1), sequences=PACKING), tp=tp, sp=tp > 1)


def test_norms_stand_where_they_are_asked_to() -> None:
    pre, post, sandwich, behind = (
        TransformerLayer(H, F, HEADS, bias=False, rms_norm=True, placement=placement) for placement in NormPlacement
    )
    assert sandwich.num_parameters() - pre.num_parameters() == 2 * H
    assert post.num_parameters() == pre.num_parameters() == behind.num_parameters()
    order = [op.path for op in forward(traced(pre))]
    assert order[0] == "attention_norm.rms_norm" and order[-1] == "add"
    order = [op.path for op in forward(traced(post))]
    assert order[0] == "attention.qkv" and order[-2:] == ["add", "mlp_norm.rms_norm"]
    order = [op.path for op in forward(traced(sandwich))]
    norms = [path.split(".")[0] for path in order if path.endswith("rms_norm")]
    assert norms == ["attention_norm", "attention_out_norm", "mlp_norm", "mlp_out_norm"]
    assert order[order.index("attention_out_norm.rms_norm") + 1] == "add"
    order = [op.path for op in forward(traced(behind))]
    norms = [path.split(".")[0] for path in order if path.endswith("rms_norm")]
    assert norms == ["attention_out_norm", "mlp_out_norm"] and order[-1] == "add"


@pytest.mark.parametrize("gated", [False, True], ids=("plain", "gated"))
@pytest.mark.parametrize("activation", Activation)
def test_activations_differ_in_name_only(activation: Activation, gated: bool) -> None:
    default = traced(MLP(H, F, gated=gated))
    block = traced(MLP(H, F, gated=gated, activation=activation))
    assert rows([*forward(block), *backward(block)]) == rows([*forward(default), *backward(default)])
    (kernel,) = (op.path for op in forward(block) if op.kind.value == "activation")
    assert kernel == (activation.gated_name if gated else activation.value)


def test_the_defaults_are_what_they_were() -> None:
    assert [op.path for op in forward(traced(MLP(H, F)))][1] == "gelu"
    assert [op.path for op in forward(traced(MLP(H, F, gated=True)))][1] == "swiglu"


@pytest.mark.parametrize("tp", [1, 2])
def test_biases_one_by_one(tp: int) -> None:
    base = TransformerLayer(H, F, HEADS, 2, gated=True, bias=False, rms_norm=True).num_parameters()
    kv = 2 * (H // HEADS)

    def more(**options: bool) -> int:
        layer = TransformerLayer(H, F, HEADS, 2, gated=True, rms_norm=True, **{"bias": False, **options})  # type: ignore[arg-type]
        traced(layer, tp)
        return layer.num_parameters() - base

    assert more(qkv_bias=True) == H + 2 * kv
    assert more(attention_bias=True) == 2 * H + 2 * kv
    assert more(attention_bias=True, key_bias=False) == 2 * H + kv
    assert more(mlp_bias=True) == 2 * F + H
    assert more(bias=True) == 2 * H + 2 * kv + 2 * F + H
    assert more(bias=True, mlp_bias=False) == 2 * H + 2 * kv


def test_keys_without_a_bias_in_cross_attention() -> None:
    assert CrossAttention(H, HEADS).num_parameters() - CrossAttention(H, HEADS, key_bias=False).num_parameters() == H


def test_layer_scale_is_a_kernel_each_way() -> None:
    plain = TransformerLayer(H, F, HEADS)
    layer = TransformerLayer(H, F, HEADS, layer_scale=True)
    assert layer.num_parameters() - plain.num_parameters() == 2 * H
    block = traced(layer, 2)
    assert gradients_written(block)["attention_scale.weight"] == gradients_written(block)["mlp_scale.weight"] == 1
    alone = run(LayerScale(H), spec(TOKENS, H))
    size = 2 * TOKENS * H
    assert rows(forward(alone)) == [("add", "F", 0, 2 * size, 0)]
    assert rows(backward(alone)) == [("add", "I", 0, 3 * size, 0)]
    assert saved(alone) == {"input0": size}
    frozen = LayerScale(H)
    frozen.requires_grad_(False)
    alone = run(frozen, spec(TOKENS, H))
    assert rows(backward(alone)) == [("add", "I", 0, 2 * size, 0)]
    assert saved(alone) == {}
    alone = run(LayerScale(H), spec(TOKENS, H, grad=False))
    assert rows(backward(alone)) == [("add", "W", 0, 2 * size, 0)]


def test_embeddings_times_a_constant() -> None:
    ids = spec(TOKENS, dtype=DType.INT64, grad=False, sequences=PACKING)
    plain, scaled = run(Embedding(100, H), ids), run(Embedding(100, H, scaled=True), ids)
    size = 2 * TOKENS * H
    assert rows(forward(scaled)) == [*rows(forward(plain)), ("add", "F", 0, 2 * size, 0)]
    assert rows(backward(scaled)) == [("add", "I", 0, 2 * size, 0), *rows(backward(plain))]
    assert Embedding(100, H, scaled=True).num_parameters() == 100 * H


def test_capped_logits_cost_a_kernel_and_stay() -> None:
    plain, capped = (run(LMHead(H, 96, softcap=cap), spec(TOKENS, H, sequences=PACKING)) for cap in (None, 30.0))
    size = 2 * TOKENS * 96
    extra = set(rows(forward(capped))) - set(rows(forward(plain)))
    assert extra == {("activation", "F", 0, 2 * size, 0)}
    assert sum(saved(capped).values()) - sum(saved(plain).values()) == size


@pytest.mark.parametrize("gated", [False, True], ids=("plain", "gated"))
def test_experts_with_biases(gated: bool) -> None:
    experts, top_k = 4, 2
    plain = MixtureOfExperts(H, F, experts, top_k, gated=gated)
    biased = MixtureOfExperts(H, F, experts, top_k, gated=gated, bias=True, activation=Activation.CLAMPED_SILU)
    inner = 2 * F if gated else F
    assert biased.num_parameters() - plain.num_parameters() == experts * (inner + H) + experts
    assert biased.idle_parameters - plain.idle_parameters == (experts - top_k) * (inner + H)
    one, other = traced(plain), traced(biased)
    assert [row(op)[1:] for op in forward(one)] == [row(op)[1:] for op in forward(other)]
    assert [row(op)[1:] for op in backward(one)] == [row(op)[1:] for op in backward(other)]
    assert gradients_written(other) == dict.fromkeys(gradients_written(other), 1)
    assert {"experts.up_bias", "experts.down_bias", "router.gate.bias"} <= gradients_written(other).keys()


def test_only_the_biases_of_experts_train() -> None:
    module = MixtureOfExperts(H, F, 4, 2, bias=True)
    module.experts.up.requires_grad = module.experts.down.requires_grad = False
    written = gradients_written(traced(module))
    assert written["experts.up_bias"] == written["experts.down_bias"] == 1
    assert "experts.up" not in written


def test_separate_attention_kernels_under_recompute_with_sinks() -> None:
    module = SelfAttention(H, HEADS, sinks=True, softcap=50.0)
    options = TraceOptions(fused_attention=False, recompute=RecomputePlan.of(("core_attn",)))
    block = trace_block(module, [spec(TOKENS, H, sequences=PACKING)], options)
    block.graph.lint()
    assert gradients_written(block)["sinks"] == 1
    assert sum(number(op.flop) > 0 for op in forward(block)) == 4
