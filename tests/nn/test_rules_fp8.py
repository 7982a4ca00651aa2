"""Linears in fp8 against bytes written out by hand: x [m, k] in bf16, copies of one byte, fp32 gradients."""

from __future__ import annotations

import pytest
from nn.tracing_kit import Row, backward, flop, forward, rows, saved, spec

from semu.errors import GraphError
from semu.hardware.kinds import DType
from semu.hardware.network import CommGroup
from semu.nn import MLP, Linear, Model, Module, Recompute, Sequential, TransformerLayer
from semu.nn.trace.block import TracedBlock, trace_block
from semu.nn.trace.options import TraceOptions
from semu.parallel.config import Parallel
from semu.parallel.tensor import megatron_plan

M, H, HEADS, FFN, KV = 96, 64, 4, 160, 2
D = H // HEADS


def run(
    module: Module,
    tp: int = 1,
    *,
    sp: bool = False,
    compute: DType = DType.FP8,
    weights: bool = False,
    full_recompute: bool = False,
    grad: bool = True,
) -> TracedBlock:
    model = Model.from_module(module, name="block")
    options = TraceOptions(
        plan=megatron_plan(model, Parallel(tp=tp, sequence_parallel=sp)),
        tp_group=CommGroup("tp", tp, 1),
        compute_dtype=compute,
        cast_weights=weights,
    )
    arriving = spec(M, H, shards=(tp if sp else 1, 1), grad=grad)
    block = trace_block(module, [arriving], options, root="block", full_recompute=full_recompute)
    block.graph.lint()
    return block


def gpt() -> TransformerLayer:
    return TransformerLayer(H, 4 * H, HEADS)


def llama() -> TransformerLayer:
    return TransformerLayer(H, FFN, HEADS, KV, rotary=True, gated=True, rms_norm=True, bias=False)


WIDTHS = {  # inputs and outputs of qkv, output, up, down
    "gpt": ((H, 3 * H), (H, H), (H, 4 * H), (4 * H, H)),
    "llama": ((H, (HEADS + 2 * KV) * D), (H, H), (H, 2 * FFN), (FFN, H)),
}
LAYERS = {"gpt": gpt, "llama": llama}


def product(phase: str, m: int, n: int, k: int) -> Row:
    """Operands of one byte, the result of two."""
    return ("matmul", phase, 2 * m * n * k, m * k + k * n + 2 * m * n, 0)


def weight_product(m: int, n: int, k: int) -> Row:
    return ("matmul", "W", 2 * m * n * k, m * n + m * k + 8 * n * k, 0)


def cast(phase: str, elements: int, copies: int) -> Row:
    """Two bytes read, one written per copy."""
    return ("cast", phase, 0, (2 + copies) * elements, 0)


def of_linears(items: list[Row]) -> list[Row]:
    return [item for item in items if item[0] in ("cast", "matmul")]


@pytest.mark.parametrize("name", LAYERS)
def test_casts_and_products_of_a_layer(name: str) -> None:
    block = run(LAYERS[name]())
    written = [row for k, n in WIDTHS[name] for row in (cast("F", M * k, 2), product("F", M, n, k))]
    assert of_linears(rows(forward(block))) == written
    expected = [
        row
        for k, n in reversed(WIDTHS[name])
        for row in (cast("I", M * n, 2), product("I", M, k, n), weight_product(M, n, k))
    ]
    assert of_linears(rows(backward(block))) == expected


def test_saved_by_a_gpt_layer() -> None:
    """bf16: 32 bytes per token and unit of width (two norm inputs, two norm outputs, q, k, v, attention output, MLP
    inner twice); fp8: norm outputs and the input of the second MLP product as one byte, the attention output as two
    for the attention and one for the projection."""
    statistics = 2 * M * 2 * 4 + M * HEADS * 4  # of two layer norms; log-sum-exp
    half, eight = (sum(saved(run(gpt(), compute=compute)).values()) for compute in (DType.BF16, DType.FP8))
    assert half == M * H * (2 + 2 + 3 * 2 + 2 + 2 + 2 + 4 * 2 + 4 * 2) + statistics
    assert eight == M * H * (2 + 1 + 3 * 2 + 2 + 1 + 2 + 1 + 4 * 2 + 4 * 1) + statistics


def test_saved_by_a_llama_layer() -> None:
    """q and k are kept as rotated: the projection's storage (values in it) and rotated q and k."""
    statistics = 2 * M * 1 * 4 + M * HEADS * 4
    heads = 2 * M * D * ((HEADS + 2 * KV) + HEADS + KV)
    half, eight = (sum(saved(run(llama(), compute=compute)).values()) for compute in (DType.BF16, DType.FP8))
    assert half == M * H * (2 + 2 + 2 + 2 + 2) + heads + M * FFN * (4 + 2) + statistics
    assert eight == M * H * (2 + 1 + 2 + 1 + 2 + 1) + heads + M * FFN * (4 + 1) + statistics


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(("tp", "sp"), [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize("full_recompute", [False, True])
def test_work_is_that_of_bf16(name: str, tp: int, sp: bool, full_recompute: bool) -> None:
    half, eight = (
        run(LAYERS[name](), tp, sp=sp, compute=compute, full_recompute=full_recompute)
        for compute in (DType.BF16, DType.FP8)
    )
    assert flop(eight.graph.operators) == flop(half.graph.operators)
    assert [use.numel for use in eight.parameters] == [use.numel for use in half.parameters]
    assert eight.output_specs == half.output_specs


def test_sequence_parallel_tokens_are_gathered_in_fp8() -> None:
    """An MLP on two ranks: the input is cast where it is (plain only), gathered with one byte, and transposed only
    for the weight gradient, after it was gathered again; so is the gradient of the row-split product."""
    mlp = MLP(H, FFN)
    layer = Region(mlp)
    block = run(layer, 2, sp=True)
    half, f = M // 2, FFN // 2
    gather = ("all_gather", 0, half * H)
    assert [row for row in rows(forward(block)) if row[0] != "activation"] == [
        cast("F", half * H, 1),
        (gather[0], "F", 0, 0, gather[2]),
        product("F", M, f, H),
        cast("F", M * f, 2),
        product("F", M, H, f),
        ("reduce_scatter", "F", 0, 0, 2 * half * H),
    ]
    transposed = ("cast", "W", 0, 2 * M * H, 0)
    assert [row for row in rows(backward(block)) if row[0] != "activation"] == [
        cast("I", half * H, 1),
        ("all_gather", "I", 0, 0, half * H),
        transposed,
        product("I", M, f, H),
        weight_product(M, H, f),
        cast("I", M * f, 2),
        ("all_gather", "I", 0, 0, half * H),
        transposed,
        product("I", M, H, f),
        ("reduce_scatter", "I", 0, 0, 2 * half * H),
        weight_product(M, f, H),
    ]
    assert sum(saved(block).values()) == half * H + 2 * M * f + M * f  # x, inner in bf16 (GELU), its activation


class Region(Sequential):
    """Runs in fp8 what is inside."""

    fp8_region = True


def test_weights_cast_by_every_microbatch() -> None:
    block = run(Region(Linear(H, 2 * H, bias=False)), weights=True)
    kinds = rows(forward(block))
    assert kinds == [cast("F", M * H, 2), cast("F", 2 * H * H, 2), product("F", M, 2 * H, H)]
    assert sum(saved(block).values()) == M * H + 2 * H * H  # the input's and the weight's transposed copies


def test_nothing_is_transposed_for_nobody() -> None:
    frozen = Linear(H, H, bias=False)
    frozen.weight.requires_grad = False
    block = run(Region(frozen), weights=True)
    assert rows(forward(block)) == [cast("F", M * H, 1), cast("F", H * H, 2), product("F", M, H, H)]
    assert rows(backward(block)) == [cast("I", M * H, 1), product("I", M, H, H)]
    data = run(Region(Linear(H, H, bias=False)), weights=True, grad=False)
    assert rows(forward(data)) == [cast("F", M * H, 2), cast("F", H * H, 1), product("F", M, H, H)]
    assert rows(backward(data)) == [cast("W", M * H, 1), weight_product(M, H, H)]


def test_recomputation_casts_again_and_transposes_then() -> None:
    block = run(Region(Recompute(Linear(H, H, bias=False))))
    assert rows(forward(block)) == [cast("F", M * H, 1), product("F", M, H, H)]
    assert rows(backward(block))[:2] == [cast("R", M * H, 2), product("R", M, H, H)]
    assert saved(block) == {"input0": 2 * M * H}


def test_linears_outside_transformer_layers_stay_in_bf16() -> None:
    for module in (Linear(H, H), MLP(H, FFN)):
        plain, eight = (run(module, compute=compute) for compute in (DType.BF16, DType.FP8))
        assert rows(eight.graph.operators) == rows(plain.graph.operators)
        assert {op.dtype for op in eight.graph.operators} == {DType.BF16}
    kinds = {op.kind.value: op.dtype for op in run(gpt()).graph.operators}
    assert kinds.pop("matmul") is DType.FP8
    assert set(kinds.values()) == {DType.BF16}


def test_a_closed_region_inside_an_open_one() -> None:
    inner = Linear(H, H)
    inner.fp8_region = False
    block = run(Region(inner, Linear(H, H)))
    assert [op.dtype for op in forward(block) if op.kind.value == "matmul"] == [DType.BF16, DType.FP8]


@pytest.mark.parametrize(("tp", "ffn", "legal"), [(1, 160, True), (1, 168, False), (2, 160, True), (4, 160, False)])
def test_widths_that_fp8_products_take(tp: int, ffn: int, legal: bool) -> None:
    if legal:
        run(Region(MLP(H, ffn)), tp)
        return
    with pytest.raises(GraphError, match="fp8 products") as caught:
        run(Region(MLP(H, ffn)), tp)
    assert caught.value.where is not None and "up" in caught.value.where
