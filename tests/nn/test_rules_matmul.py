"""Linear layers against formulas written out by hand: y [m, n] = x [m, k] W^T, bf16 (2 bytes), fp32 gradients."""

from __future__ import annotations

import pytest
from nn.tracing_kit import (
    Apply,
    D,
    F,
    Row,
    W,
    backward,
    flop,
    forward,
    gradients_written,
    options,
    row,
    rows,
    run,
    saved,
    spec,
)

from semu.errors import GraphError
from semu.graph.dim import Poly
from semu.graph.operator import OpKind
from semu.graph.tensor import Role
from semu.hardware.kinds import DType
from semu.nn import Linear, Sequences
from semu.nn.functional import matmul
from semu.nn.trace.block import CarrySpec, TracedBlock, trace_block
from semu.nn.trace.sharding import ShardingStyle

M, K, N = 48, 32, 64
GROUPS = [(1, False), (2, False), (2, True), (4, False), (4, True)]
NAMES = [f"tp{tp}{'-sp' if sp else ''}" for tp, sp in GROUPS]
STYLES = [ShardingStyle.REPLICATED, ShardingStyle.COLUMN, ShardingStyle.ROW]


def product(phase: str, m: int, n: int, k: int) -> Row:
    """Result [m, n] of a sum over k; all three operands are bf16 arrays of device memory."""
    return ("matmul", phase, 2 * m * n * k, 2 * (m * k + k * n + m * n), 0)


def weight_product(m: int, n: int, k: int) -> Row:
    """dW [n, k] = dY^T [n, m] X [m, k]: both operands read once, the fp32 gradient read and written."""
    return ("matmul", "W", 2 * m * n * k, 2 * m * n + 2 * m * k + 8 * n * k, 0)


def collective(kind: str, phase: str, wire_bytes: int) -> Row:
    return (kind, phase, 0, 0, wire_bytes)


def linear(style: ShardingStyle, tp: int, sp: bool, *, bias: bool = True) -> TracedBlock:
    layer = Linear(K, N, bias=bias)
    if style is ShardingStyle.ROW and tp > 1:
        return run(layer, spec(M, K, shards=(1, tp)), tp=tp, sp=sp, style=style)
    shards = (tp, 1) if sp and style is ShardingStyle.COLUMN else (1, 1)
    return run(layer, spec(M, K, shards=shards), tp=tp, sp=sp, style=style)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_whole_weight(tp: int) -> None:
    block = linear(ShardingStyle.REPLICATED, tp, False)
    assert rows(forward(block)) == [product("F", M, N, K)]
    assert rows(backward(block)) == [product("I", M, K, N), weight_product(M, N, K)]
    assert saved(block) == {"input0": 2 * M * K}
    assert [op.key for op in block.graph.operators] == [(M, N, K), (M, K, N), (N, K, M)]


@pytest.mark.parametrize(("tp", "sp"), GROUPS, ids=NAMES)
def test_column_split(tp: int, sp: bool) -> None:
    block = linear(ShardingStyle.COLUMN, tp, sp)
    n = N // tp
    x_bytes = 2 * M * K
    one_way = x_bytes * (tp - 1) // tp
    if tp == 1:
        gather_f, gather_b, reduce_b = [], [], []
    elif sp:
        gather_f = [collective("all_gather", "F", one_way)]
        gather_b = [collective("all_gather", "I", one_way)]
        reduce_b = [collective("reduce_scatter", "I", one_way)]
    else:
        gather_f, gather_b, reduce_b = [], [], [collective("all_reduce", "I", 2 * one_way)]
    assert rows(forward(block)) == [*gather_f, product("F", M, n, K)]
    assert rows(backward(block)) == [*gather_b, product("I", M, K, n), *reduce_b, weight_product(M, n, K)]
    assert saved(block) == {"input0": x_bytes // (tp if sp else 1)}
    (out,) = block.output_specs
    assert (out.shape, out.shards) == ((M, N), (1, tp))
    assert local(block, block.outputs[0]) == (M, n)


@pytest.mark.parametrize(("tp", "sp"), GROUPS, ids=NAMES)
def test_row_split(tp: int, sp: bool) -> None:
    block = linear(ShardingStyle.ROW, tp, sp)
    k = K // tp
    one_way = 2 * M * N * (tp - 1) // tp
    if tp == 1:
        gather_b, reduce_f = [], []
    elif sp:
        gather_b = [collective("all_gather", "I", one_way)]
        reduce_f = [collective("reduce_scatter", "F", one_way)]
    else:
        gather_b, reduce_f = [], [collective("all_reduce", "F", 2 * one_way)]
    assert rows(forward(block)) == [product("F", M, N, k), *reduce_f]
    assert rows(backward(block)) == [*gather_b, product("I", M, k, N), weight_product(M, N, k)]
    assert saved(block) == {"input0": 2 * M * k}
    (out,) = block.output_specs
    assert (out.shape, out.shards) == ((M, N), (tp if sp else 1, 1))
    assert local(block, block.outputs[0]) == (M // (tp if sp else 1), N)


def local(block: TracedBlock, tensor: int) -> tuple[object, ...]:
    return block.graph.tensors[tensor].shape


@pytest.mark.parametrize(("tp", "sp"), GROUPS, ids=NAMES)
@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.value)
def test_parameters_and_their_gradients_have_local_shapes(style: ShardingStyle, tp: int, sp: bool) -> None:
    block = linear(style, tp, sp)
    weight, bias = block.parameters
    shapes = {
        ShardingStyle.REPLICATED: ((N, K), (N,), False, False),
        ShardingStyle.COLUMN: ((N // tp, K), (N // tp,), tp > 1, tp > 1),
        ShardingStyle.ROW: ((N, K // tp), (N,), tp > 1, False),
    }[style]
    assert (local(block, weight.tensor), local(block, bias.tensor), weight.is_sharded, bias.is_sharded) == shapes
    for use, shape in ((weight, shapes[0]), (bias, shapes[1])):
        assert use.gradient is not None
        node = block.graph.tensors[use.gradient]
        assert (node.shape, node.dtype) == (shape, DType.FP32)
        assert block.graph.storages[node.storage].role is Role.GRADIENT
    assert gradients_written(block) == {"weight": 1, "bias": 1}


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("style", [ShardingStyle.COLUMN, ShardingStyle.ROW], ids=lambda style: style.value)
def test_the_group_shares_the_work_of_one_rank(style: ShardingStyle, tp: int) -> None:
    for sp in (False, True):
        for phase in (F, D, W):
            alone = flop(linear(style, 1, False).graph.operators, phase=phase)
            assert tp * flop(linear(style, tp, sp).graph.operators, phase=phase) == alone == 2 * M * N * K


@pytest.mark.parametrize(("tp", "sp"), GROUPS, ids=NAMES)
@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.value)
def test_operators_say_how_many_ranks_do_the_same(style: ShardingStyle, tp: int, sp: bool) -> None:
    block = linear(style, tp, sp)
    copies = {op.copies for op in block.graph.operators if op.kind is OpKind.MATMUL}
    assert copies == {tp if style is ShardingStyle.REPLICATED else 1}


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("style", [ShardingStyle.COLUMN, ShardingStyle.ROW], ids=lambda style: style.value)
def test_collectives_carry_the_group_in_their_key_and_run_on_its_stream(style: ShardingStyle, tp: int) -> None:
    block = linear(style, tp, True)
    links = [op for op in block.graph.operators if op.kind.is_communication]
    assert links
    assert {op.key for op in links} == {(tp, 1)}
    assert {(op.stream.device.name, op.stream.name) for op in links} == {("gpu0.nvlink.out", "tp")}
    assert [group.num_ranks for group in block.groups.values()] == [tp]
    assert all(op.stream.name == "compute" for op in block.graph.operators if not op.kind.is_communication)


def test_vocabulary_split_of_a_projection_is_a_column_split() -> None:
    x = spec(M, K, shards=(4, 1))
    column, vocabulary = (
        run(Linear(K, N), x, tp=4, sp=True, style=style) for style in (ShardingStyle.COLUMN, ShardingStyle.VOCABULARY)
    )
    assert rows(column.graph.operators) == rows(vocabulary.graph.operators)


def test_all_leading_axes_are_rows() -> None:
    block = run(Linear(K, N), spec(6, 8, K))
    assert rows(forward(block)) == [product("F", 48, N, K)]
    assert block.output_specs[0].shape == (6, 8, N)


def test_all_leading_axes_are_rows_of_a_split_weight_too() -> None:
    column = run(Linear(K, N), spec(6, 8, K), tp=2, style=ShardingStyle.COLUMN)
    assert rows(forward(column)) == [product("F", 48, N // 2, K)]
    assert (column.output_specs[0].shape, column.output_specs[0].shards) == ((6, 8, N), (1, 1, 2))
    row_split = run(Linear(K, N), spec(6, 8, K, shards=(1, 1, 2)), tp=2, style=ShardingStyle.ROW)
    assert rows(forward(row_split))[0] == product("F", 48, N, K // 2)
    assert (row_split.output_specs[0].shape, row_split.output_specs[0].shards) == ((6, 8, N), (1, 1, 1))


def test_tokens_of_a_batch_stay_symbols() -> None:
    packing = Sequences.of_stream("text", 2)
    layer = Linear(K, N, bias=False)
    chosen = options(2, sp=True, styles={"": ShardingStyle.COLUMN})
    block = trace_block(layer, [spec(packing.tokens, K, shards=(2, 1), sequences=packing)], chosen)
    gather, matmul = forward(block)
    shard = Poly.symbol("text.shard")
    assert gather.net_bytes == 2 * K * shard  # (n - 1) / n of 2 shards
    assert matmul.flop == 2 * (2 * shard) * (N // 2) * K
    assert matmul.key == (2 * shard, N // 2, K)


def test_element_sizes_follow_the_precision() -> None:
    chosen = options(tensor_dtype=DType.FP32, grad_dtype=DType.BF16)
    block = trace_block(Linear(K, N), [spec(M, K, dtype=DType.FP32)], chosen)
    (y,) = forward(block)
    grad_x, grad_w = backward(block)
    assert y.mem_bytes == grad_x.mem_bytes == 4 * (M * K + K * N + M * N)
    assert grad_w.mem_bytes == 4 * (M * N + M * K) + 2 * 2 * N * K
    assert saved(block) == {"input0": 4 * M * K}


# -- frozen parts ------------------------------------------------------------------------------------------------
def frozen_weight(style: ShardingStyle, *, bias_trains: bool, input_grad: bool) -> TracedBlock:
    layer = Linear(K, N)
    layer.weight.requires_grad = False
    assert layer.bias is not None
    layer.bias.requires_grad = bias_trains
    shards = (1, 2) if style is ShardingStyle.ROW else (1, 1)
    return run(layer, spec(M, K, shards=shards, grad=input_grad), tp=2, style=style)


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.value)
def test_a_frozen_linear_passes_gradients_on_and_keeps_nothing(style: ShardingStyle) -> None:
    block = frozen_weight(style, bias_trains=False, input_grad=True)
    assert [op.kind for op in backward(block) if op.flop] == [OpKind.MATMUL]
    assert flop(backward(block), phase=D) == flop(forward(block))
    assert saved(block) == {}
    assert gradients_written(block) == {}
    assert backward(frozen_weight(style, bias_trains=False, input_grad=False)) == []


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.value)
@pytest.mark.parametrize("input_grad", [True, False], ids=("input trains", "nothing upstream"))
def test_the_bias_of_a_frozen_weight_trains_alone(style: ShardingStyle, input_grad: bool) -> None:
    block = frozen_weight(style, bias_trains=True, input_grad=input_grad)
    width = N // 2 if style is ShardingStyle.COLUMN else N
    assert [row(op) for op in backward(block) if op.phase is W] == [("custom", "W", 0, 2 * M * width, 0)]
    assert gradients_written(block) == {"bias": 1}
    assert block.output_specs[0].requires_grad
    assert saved(block) == {}


def test_a_sequence_parallel_column_gathers_again_only_for_a_weight_gradient() -> None:
    layer = Linear(K, N, bias=False)
    layer.weight.requires_grad = False
    x = spec(M, K, shards=(2, 1))
    frozen = run(layer, x, tp=2, sp=True, style=ShardingStyle.COLUMN)
    assert [op.kind for op in backward(frozen)] == [OpKind.MATMUL, OpKind.REDUCE_SCATTER]


# -- refusals ----------------------------------------------------------------------------------------------------
def test_an_input_of_the_wrong_width() -> None:
    with pytest.raises(GraphError, match=rf"does not fit the weight.*\[\.\.\., {K}\]"):
        run(Linear(K, N), spec(M, K + 1))


# -- products of two activations ---------------------------------------------------------------------------------
BATCH, P, Q, S = 3, 8, 4, 5


@pytest.mark.parametrize(("left", "right"), [(True, True), (True, False), (False, True), (False, False)], ids=str)
def test_batched_product(left: bool, right: bool) -> None:
    """C [b, p, s] = A [b, p, q] B [b, q, s]; dA = dC B^T, dB = A^T dC, each as much work as the product."""
    block = run(Apply(matmul), spec(BATCH, P, Q, grad=left), spec(BATCH, Q, S, grad=right))
    work = (2 * BATCH * P * Q * S, 2 * BATCH * (P * Q + Q * S + P * S), 0)
    assert rows(forward(block)) == [("matmul", "F", *work)]
    assert rows(backward(block)) == [("matmul", "I", *work)] * (left + right)
    a, b = 2 * BATCH * P * Q, 2 * BATCH * Q * S
    assert saved(block) == ({"input1": b} if left else {}) | ({"input0": a} if right else {})
    assert block.output_specs[0].shape == (BATCH, P, S)
    keys = [(BATCH * P, Q, S)] * left + [(BATCH * Q, S, P)] * right  # result's rows and columns, inner length
    assert [op.key for op in block.graph.operators] == [(BATCH * P, S, Q), *keys]
    shapes = [block.graph.tensors[node].shape if node is not None else None for node in block.input_gradients]
    assert shapes == [(BATCH, P, Q) if left else None, (BATCH, Q, S) if right else None]


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (spec(P, Q), spec(Q + 1, S), "operands do not fit"),
        (spec(2, P, Q), spec(3, Q, S), "operands do not fit"),
        (spec(2, P, Q), spec(Q, S), "operands do not fit"),
        (spec(Q), spec(Q), "operands do not fit"),
        (spec(P, Q, shards=(1, 2)), spec(Q, S), "operands must be whole"),
    ],
    ids=("inner axis", "batch", "axes", "vectors", "split"),
)
def test_operands_that_do_not_fit(a: CarrySpec, b: CarrySpec, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        trace_block(Apply(matmul), [a, b], options(2))
