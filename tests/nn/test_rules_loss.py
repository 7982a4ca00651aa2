"""Losses by hand: bytes, what is kept, and the three small all-reduces of a split vocabulary."""

from __future__ import annotations

from dataclasses import replace

import pytest
from nn.tracing_kit import Apply, backward, forward, options, rows, run, saved, spec

from semu.graph.operator import Operator, OpKind
from semu.hardware.kinds import DType
from semu.nn import functional as F
from semu.nn.trace.block import trace_block

T, V = 24, 64


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_cross_entropy(tp: int) -> None:
    v = V // tp
    block = run(Apply(F.cross_entropy), spec(T, V, shards=(1, tp)), tp=tp)
    wire = 4 * T * 2 * (tp - 1) // tp
    reductions = [("all_reduce", "F", 0, 0, wire)] * 3 if tp > 1 else []
    assert rows(forward(block)) == [
        # bf16 logits read, fp32 copy written, read, and the softmax written over it
        ("cross_entropy", "F", 0, (2 + 4 + 4 + 4) * T * v, 0),
        *reductions,
        ("cross_entropy", "F", 0, 3 * 4 * T, 0),
    ]
    assert rows(backward(block)) == [("cross_entropy", "I", 0, (4 + 2) * T * v, 0)]
    assert list(saved(block).values()) == [4 * T * v]
    (loss,) = block.output_specs
    assert (loss.shape, loss.dtype, loss.requires_grad) == ((), DType.FP32, True)
    (gradient,) = block.input_gradients
    assert gradient is not None
    assert (block.graph.tensors[gradient].shape, block.graph.tensors[gradient].dtype) == ((T, v), DType.BF16)


@pytest.mark.parametrize("tp", [1, 2])
def test_compiled_cross_entropy_changes_nothing_in_place(tp: int) -> None:
    numel = T * V // tp
    made = spec(T, V, shards=(1, tp))
    block = trace_block(Apply(F.cross_entropy), [made], replace(options(tp), cross_entropy="compiled"))
    compute = [row for row in rows(forward(block)) if row[0] == "cross_entropy"]
    assert [row[3] for row in compute] == [(2 + 4) * numel, (4 + 4) * numel, 3 * 4 * T]
    assert [row[3] for row in rows(backward(block))] == [(4 + 4) * numel, (4 + 2) * numel]
    assert list(saved(block).values()) == [4 * numel]  # the softmax, as in place


def test_mean_squared_error() -> None:
    block = run(Apply(F.mean_squared_error), spec(T, V))
    x = 2 * T * V
    assert rows(forward(block)) == [("cross_entropy", "F", 0, 2 * x, 0)]  # prediction and target
    assert rows(backward(block)) == [("cross_entropy", "I", 0, 3 * x, 0)]  # and the gradient written
    assert saved(block) == {"input0": x}
    assert block.output_specs[0].shape == ()


@pytest.mark.parametrize("loss", [F.cross_entropy, F.mean_squared_error], ids=("cross entropy", "squared error"))
def test_a_loss_of_nothing_trainable_has_no_backward(loss: object) -> None:
    block = run(Apply(loss), spec(T, V, grad=False))  # type: ignore[arg-type]
    assert backward(block) == []
    assert not block.output_specs[0].requires_grad


def waits_for(operators: list[Operator], late: int, early: int) -> bool:
    """Whether operator ``late`` starts after operator ``early`` ends: by dependencies and by order on streams."""
    reached, todo = set(), [late]
    while todo:
        index = todo.pop()
        before = list(operators[index].after)
        before += [op.index for op in operators[:index] if op.stream == operators[index].stream][-1:]
        todo += [b for b in before if b not in reached]
        reached.update(before)
    return early in reached


@pytest.mark.parametrize("overlap_tp", [False, True], ids=("in turn", "overlapped"))
def test_the_loss_waits_for_what_the_other_ranks_send(overlap_tp: bool) -> None:
    chosen = options(4, overlap_tp=overlap_tp)
    block = trace_block(Apply(F.cross_entropy), [spec(T, V, shards=(1, 4))], chosen)
    operators = block.graph.operators
    exchanges = [op.index for op in operators if op.kind is OpKind.ALL_REDUCE]
    assert len(exchanges) == 3
    mean = block.num_forward - 1
    for exchange in exchanges:
        assert waits_for(operators, mean, exchange)
        assert waits_for(operators, mean + 1, exchange)
