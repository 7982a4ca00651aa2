"""The Adam step: bytes by hand, state, and what it waits for."""

from __future__ import annotations

import pytest
from nn.tracing_kit import W, number, options, spec

from semu.graph.operator import Operator, OpKind, Phase
from semu.graph.tensor import Role
from semu.hardware.kinds import DType
from semu.nn import Linear, Module, Sequential
from semu.nn.rules.optimizer import optimizer_bytes
from semu.nn.trace.block import TracedBlock, trace_block
from semu.nn.trace.sharding import ShardingStyle

T, K, N = 8, 16, 32


@pytest.mark.parametrize(
    ("tensor", "grad", "expected"),
    [
        (DType.BF16, DType.FP32, 4 + (4 + 8) + (4 + 8 + 2)),
        (DType.BF16, DType.BF16, 2 + (4 + 8) + (4 + 8 + 2)),
        (DType.FP32, DType.FP32, 4 + (4 + 8) + (4 + 8)),
    ],
    ids=("mixed", "half gradients", "single"),
)
def test_bytes_of_a_fused_step(tensor: DType, grad: DType, expected: int) -> None:
    """Read: gradient, master weight (the parameter itself in fp32), two moments; written: those three, and the bf16
    parameter."""
    assert optimizer_bytes(1000, tensor_dtype=tensor, grad_dtype=grad) == 1000 * expected


def stepped(module: Module, *, tp: int = 1) -> TracedBlock:
    chosen = options(tp, styles={"": ShardingStyle.COLUMN})
    block = trace_block(module, [spec(T, K)], chosen, optimizer=True)
    block.graph.lint()
    return block


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_the_step_covers_what_the_rank_holds(tp: int) -> None:
    block = stepped(Linear(K, N), tp=tp)
    step = block.graph.operators[-1]
    held = (N * K + N) // tp
    assert (step.kind, step.phase, step.key) == (OpKind.OPTIMIZER, Phase.OPTIMIZER, (held,))
    assert (step.flop, step.mem_bytes, step.net_bytes) == (0, 30 * held, 0)
    state = [s for s in block.graph.storages if s.role is Role.OPTIMIZER_STATE]
    assert sum(number(s.size_bytes) for s in state) == 12 * held


def waited_for(operators: list[Operator], index: int) -> set[int]:
    reached: set[int] = set()
    todo = [index]
    while todo:
        before = set(operators[todo.pop()].after) - reached
        reached |= before
        todo += before
    return reached


def test_the_step_waits_for_every_gradient() -> None:
    block = stepped(Sequential(Linear(K, K), Linear(K, K), Linear(K, K)))
    operators = block.graph.operators
    weights = {op.index for op in operators if op.phase is W}
    assert len(weights) == 3
    assert weights <= waited_for(operators, len(operators) - 1)


def test_frozen_parameters_are_not_stepped() -> None:
    model = Sequential(Linear(K, K).requires_grad_(False), Linear(K, K))
    assert stepped(model).graph.operators[-1].key == (K * K + K,)
    frozen = stepped(model.requires_grad_(False))
    assert all(op.kind is not OpKind.OPTIMIZER for op in frozen.graph.operators)
