"""Elementwise kernels: bytes and what is kept, by hand; x is [m, h] in bf16, so x costs 2 m h bytes each time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from nn.tracing_kit import Apply, backward, forward, gradients_written, options, row, rows, run, saved, spec

from semu.errors import GraphError
from semu.nn import GELU, Dropout, Module, Parameter, SiLU, Tensor
from semu.nn import functional as F
from semu.nn.trace.block import trace_block
from semu.nn.trace.recompute_plan import RecomputePlan

M, H = 24, 16
CLIPS = 3
X = 2 * M * H


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("layer", [GELU(), SiLU()], ids=("gelu", "silu"))
def test_activation_reads_its_input_again(layer: Module, tp: int) -> None:
    x = X // tp
    for shards in ((tp, 1), (1, tp)):
        block = run(layer, spec(M, H, shards=shards), tp=tp)
        assert rows(forward(block)) == [("activation", "F", 0, 2 * x, 0)]
        assert rows(backward(block)) == [("activation", "I", 0, 3 * x, 0)]
        assert saved(block) == {"input0": x}
        assert (block.output_specs[0].shape, block.output_specs[0].shards) == ((M, H), shards)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_gated_activation_halves_the_width(tp: int) -> None:
    x = X // tp
    block = run(Apply(F.swiglu), spec(M, H, shards=(1, tp)), tp=tp)
    assert rows(forward(block)) == [("activation", "F", 0, x + x // 2, 0)]
    assert rows(backward(block)) == [("activation", "I", 0, x + x // 2 + x, 0)]
    assert saved(block) == {"input0": x}
    assert (block.output_specs[0].shape, block.output_specs[0].shards) == ((M, H // 2), (1, tp))


def test_gated_activation_halves_the_last_axis_only() -> None:
    block = run(Apply(F.swiglu), spec(3, 4, 10))
    assert block.output_specs[0].shape == (3, 4, 5)
    assert rows(forward(block)) == [("activation", "F", 0, 2 * 120 + 2 * 60, 0)]


def test_gated_activation_keeps_a_copy_in_fp8() -> None:
    """Megatron-LM's ``SwiGLUFunction`` with ``fp8_input_store``: half the bytes, a cast either way; what runs its
    activations again keeps the input anyway."""
    block = trace_block(Apply(F.swiglu), [spec(M, H)], replace(options(), fp8_gates=True))
    block.graph.lint()
    cast = X + X // 2
    assert rows(forward(block)) == [("activation", "F", 0, X + X // 2, 0), ("cast", "F", 0, cast, 0)]
    assert rows(backward(block)) == [("cast", "I", 0, cast, 0), ("activation", "I", 0, 2 * X + X // 2, 0)]
    assert sum(saved(block).values()) == X // 2
    again = replace(options(), fp8_gates=True, recompute=RecomputePlan(kinds=("act",)))
    kept = trace_block(Apply(F.swiglu), [spec(M, H)], again)
    assert "cast" not in {operator.kind.value for operator in kept.graph.operators}


def test_gated_activation_needs_an_even_width() -> None:
    with pytest.raises(GraphError, match="a gated activation halves its input; expected an even width; got 7"):
        run(Apply(F.swiglu), spec(M, 7))


def test_add_keeps_nothing_and_costs_nothing_backward() -> None:
    block = run(Apply(F.add), spec(M, H), spec(M, H))
    assert rows(forward(block)) == [("add", "F", 0, 3 * X, 0)]
    assert backward(block) == []
    assert saved(block) == {}
    assert block.input_gradients == block.output_gradients * 2  # one gradient, handed to both


def test_add_is_the_plus_sign() -> None:
    plus = run(Apply(lambda a, b: a + b), spec(M, H), spec(M, H))
    assert rows(plus.graph.operators) == rows(run(Apply(F.add), spec(M, H), spec(M, H)).graph.operators)


@pytest.mark.parametrize("other", [spec(M, H + 1), spec(M, H, shards=(2, 1))], ids=("shape", "shards"))
def test_add_needs_two_tensors_alike(other: object) -> None:
    with pytest.raises(GraphError, match="an addition needs two tensors alike"):
        run(Apply(F.add), spec(M, H), other, tp=2)  # type: ignore[arg-type]


@pytest.mark.parametrize("tp", [1, 2])
def test_dropout_keeps_one_byte_an_element(tp: int) -> None:
    x, mask = X // tp, M * H // tp
    block = run(Dropout(0.1), spec(M, H, shards=(tp, 1)), tp=tp)
    assert rows(forward(block)) == [("dropout", "F", 0, 2 * x + mask, 0)]
    assert rows(backward(block)) == [("dropout", "I", 0, 2 * x + mask, 0)]
    assert list(saved(block).values()) == [mask]


def test_dropout_of_nothing_is_nothing() -> None:
    block = run(Dropout(0.0), spec(M, H))
    assert block.graph.operators == []
    assert block.outputs == block.inputs


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5])
def test_dropout_needs_a_probability(p: float) -> None:
    with pytest.raises(GraphError, match="not a dropout probability"):
        run(Dropout(p), spec(M, H))


def test_rotary_embedding_keeps_nothing() -> None:
    block = run(Apply(F.rope), spec(M, 4, 4, shards=(1, 2, 1)), tp=2)
    assert rows(forward(block)) == [("rope", "F", 0, X, 0)]  # half of x, read and written
    assert rows(backward(block)) == [("rope", "I", 0, X, 0)]
    assert saved(block) == {}


# -- modulation --------------------------------------------------------------------------------------------------
def test_modulation_keeps_x_and_its_condition() -> None:
    condition = 2 * CLIPS * 2 * H
    block = run(Apply(F.modulate), spec(M, H), spec(CLIPS, 2 * H))
    assert rows(forward(block)) == [("modulate", "F", 0, 2 * X + condition, 0)]
    assert rows(backward(block)) == [("modulate", "I", 0, 3 * X + 2 * condition, 0)]
    assert saved(block) == {"input0": X, "input1": condition}
    shapes = [block.graph.tensors[node].shape for node in block.input_gradients if node is not None]
    assert shapes == [(M, H), (CLIPS, 2 * H)]


def test_modulation_by_a_fixed_condition_makes_one_gradient() -> None:
    block = run(Apply(F.modulate), spec(M, H), spec(CLIPS, 2 * H, grad=False))
    assert [len(op.outputs) for op in backward(block)] == [1]
    assert block.input_gradients[1] is None


@pytest.mark.parametrize("gate_grad", [True, False])
def test_gated_addition_keeps_branch_and_gate(gate_grad: bool) -> None:
    gate = 2 * CLIPS * H
    block = run(Apply(F.gated_add), spec(M, H), spec(M, H), spec(CLIPS, H, grad=gate_grad))
    assert rows(forward(block)) == [("modulate", "F", 0, 3 * X + gate, 0)]
    assert rows(backward(block)) == [("modulate", "I", 0, 3 * X + 2 * gate, 0)]
    assert saved(block) == {"input1": X, "input2": gate}
    assert block.input_gradients[0] == block.output_gradients[0]
    assert [gradient is not None for gradient in block.input_gradients] == [True, True, gate_grad]


def test_gated_addition_needs_two_tensors_alike() -> None:
    with pytest.raises(GraphError, match="a gated addition needs two tensors alike"):
        run(Apply(F.gated_add), spec(M, H), spec(M + 1, H), spec(CLIPS, H))


# -- a learned table ---------------------------------------------------------------------------------------------
class Positions(Module):
    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.table = Parameter(rows, width)

    def forward(self, x: Tensor) -> Tensor:
        return F.add_parameter(x, self.table, 8)


@pytest.mark.parametrize("tp", [1, 2])
def test_learned_positions(tp: int) -> None:
    x = X // tp
    block = run(Positions(8, H), spec(M, H, shards=(tp, 1)), tp=tp, sp=True)
    assert rows(forward(block)) == [("add", "F", 0, 3 * x, 0)]
    # the gradient is read, and added to rows of the fp32 buffer: read and written
    assert rows(backward(block)) == [("embedding", "W", 0, x + 2 * (2 * x), 0)]
    assert 2 * (2 * x) == 2 * 4 * (M * H // tp)
    assert saved(block) == {}
    assert gradients_written(block) == {"table": 1}
    assert block.input_gradients == block.output_gradients


def test_frozen_positions_are_free_backward() -> None:
    layer = Positions(8, H).requires_grad_(False)
    assert backward(run(layer, spec(M, H))) == []


def test_a_table_that_does_not_fit_is_refused() -> None:
    with pytest.raises(GraphError, match="the table does not fit"):
        run(Positions(8, H + 1), spec(M, H))
    with pytest.raises(GraphError, match="the table does not fit"):
        run(Positions(9, H), spec(M, H))


def test_keys_are_elements_on_one_rank() -> None:
    block = run(GELU(), spec(M, H, shards=(1, 4)), tp=4)
    assert [op.key for op in block.graph.operators] == [(M * H // 4,)] * 2
    assert row(block.graph.operators[0])[3] == 2 * X // 4
