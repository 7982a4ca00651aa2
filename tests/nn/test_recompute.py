"""Activation recomputation: only inputs are kept, the whole forward runs again, the gradients are the same."""

from __future__ import annotations

import pytest
from nn.tracing_kit import (
    Apply,
    D,
    F,
    R,
    W,
    backward,
    flop,
    forward,
    gradients_written,
    options,
    row,
    rows,
    run,
    run_megatron,
    saved,
    saved_bytes,
    spec,
)

from semu.errors import GraphError
from semu.hardware.kinds import DType
from semu.hardware.network import CommGroup
from semu.nn import (
    GELU,
    Embedding,
    Linear,
    LMHead,
    Model,
    Module,
    Sequences,
    Sequential,
    Tensor,
    TransformerLayer,
    functional,
)
from semu.nn.layers.recompute import Recompute
from semu.nn.trace.block import TracedBlock, trace_block
from semu.nn.trace.options import TraceOptions
from semu.nn.trace.recompute_plan import RecomputePlan
from semu.parallel.config import Parallel
from semu.parallel.tensor import megatron_plan

T, H, HEADS = 32, 16, 4
X = 2 * T * H
GROUPS = [(1, False), (2, False), (2, True), (4, True)]
NAMES = [f"tp{tp}{'-sp' if sp else ''}" for tp, sp in GROUPS]


def layer(tp: int, sp: bool, *, recompute: bool, grad: bool = True, frozen: bool = False) -> TracedBlock:
    module = TransformerLayer(H, 4 * H, HEADS, rotary=True, dropout=0.1).requires_grad_(not frozen)
    x = spec(T, H, shards=(tp if sp else 1, 1), grad=grad)
    return run_megatron(module, x, tp=tp, sp=sp, full_recompute=recompute)


@pytest.mark.parametrize(("tp", "sp"), GROUPS, ids=NAMES)
def test_a_whole_second_forward_comes_first_in_the_backward(tp: int, sp: bool) -> None:
    kept, again = layer(tp, sp, recompute=False), layer(tp, sp, recompute=True)
    ahead = rows(forward(again))
    assert ahead == rows(forward(kept))
    second, rest = backward(again)[: len(ahead)], backward(again)[len(ahead) :]
    assert [row(op)[0] for op in second] == [line[0] for line in ahead]
    assert [row(op)[2:] for op in second] == [line[2:] for line in ahead]
    assert [op.key for op in second] == [op.key for op in forward(again)]
    assert {op.phase for op in second} == {R}
    assert rows(rest) == rows(backward(kept))


@pytest.mark.parametrize(("tp", "sp"), GROUPS, ids=NAMES)
def test_only_the_input_is_kept(tp: int, sp: bool) -> None:
    assert saved(layer(tp, sp, recompute=True)) == {"input0": X // (tp if sp else 1)}
    assert saved_bytes(layer(tp, sp, recompute=False)) > 10 * X // tp


@pytest.mark.parametrize(("tp", "sp"), GROUPS, ids=NAMES)
def test_the_forward_is_paid_twice(tp: int, sp: bool) -> None:
    kept, again = (layer(tp, sp, recompute=r).graph.operators for r in (False, True))
    assert flop(again, phase=R) == flop(again, phase=F) == flop(kept, phase=F)
    assert flop(again) == flop(kept) + flop(kept, phase=F)


@pytest.mark.parametrize("grad", [True, False])
def test_gradients_are_those_without_recomputation(grad: bool) -> None:
    kept, again = (layer(2, True, recompute=r, grad=grad) for r in (False, True))
    assert gradients_written(kept) == gradients_written(again)
    assert set(gradients_written(again).values()) == {1}
    wanted = [gradient is not None for gradient in kept.input_gradients]
    assert [gradient is not None for gradient in again.input_gradients] == wanted == [grad]
    for phase in (D, W):
        assert flop(kept.graph.operators, phase=phase) == flop(again.graph.operators, phase=phase)


def test_a_frozen_layer_is_recomputed_only_where_a_gradient_passes() -> None:
    passing = layer(1, False, recompute=True, frozen=True)
    assert flop(backward(passing), phase=R) == flop(forward(passing))
    assert flop(backward(passing), phase=W) == 0
    assert backward(layer(1, False, recompute=True, frozen=True, grad=False)) == []


def test_backward_reads_the_second_forward_not_the_first() -> None:
    block = layer(1, False, recompute=True)
    made_ahead = {tensor for op in forward(block) for tensor in op.outputs}
    assert not made_ahead & {tensor for op in backward(block) for tensor in op.inputs}


# -- where it does not apply -------------------------------------------------------------------------------------
def test_a_block_that_starts_from_ids_is_not_recomputed() -> None:
    ids = spec(T, dtype=DType.INT64, grad=False)
    kept, again = (run(Embedding(40, H), ids, full_recompute=r) for r in (False, True))
    assert rows(again.graph.operators) == rows(kept.graph.operators)


def test_a_block_that_ends_in_a_loss_is_not_recomputed() -> None:
    kept, again = (run(LMHead(H, 40), spec(T, H), full_recompute=r) for r in (False, True))
    assert rows(again.graph.operators) == rows(kept.graph.operators)


# -- parts of a model --------------------------------------------------------------------------------------------
def test_a_wrapped_member_keeps_its_input_only() -> None:
    plain = run(Sequential(Linear(H, H), Sequential(GELU(), Linear(H, H), GELU())), spec(T, H))
    part = run(Sequential(Linear(H, H), Recompute(Sequential(GELU(), Linear(H, H), GELU()))), spec(T, H))
    assert saved_bytes(plain) == 4 * X  # input of every product and activation
    assert saved_bytes(part) == 2 * X  # input of the first product, input of the wrapped part
    assert [op.phase for op in backward(part)][:3] == [R, R, R]
    assert flop(part.graph.operators, phase=R) == 2 * T * H * H


def test_recomputation_inside_recomputation_runs_a_third_time() -> None:
    """As nested checkpoints do in PyTorch: once ahead, once for the outer, once for the inner."""
    nested = run(Recompute(Sequential(Linear(H, H), Recompute(Linear(H, H)))), spec(T, H))
    product = 2 * T * H * H
    assert flop(nested.graph.operators, phase=F) == 2 * product
    assert flop(nested.graph.operators, phase=R) == 3 * product
    assert flop(nested.graph.operators, phase=D) == flop(nested.graph.operators, phase=W) == 2 * product
    assert saved_bytes(nested) == X


@pytest.mark.parametrize("trained", [0, 1], ids=("trained before", "trained inside"))
def test_a_trained_member_anywhere_makes_the_outer_part_worth_recomputing(trained: int) -> None:
    members = [Linear(H, H).requires_grad_(trained == i) for i in range(2)]
    block = run(Recompute(Sequential(members[0], Recompute(members[1]))), spec(T, H, grad=False))
    assert sum(gradients_written(block).values()) == 2
    assert block.output_specs[0].requires_grad


def test_an_input_that_passes_through_is_not_marked_as_trained() -> None:
    """A frozen context that a layer hands on unchanged needs no gradient, recomputed or not."""

    class Pair(Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = Linear(H, H)

        def forward(self, x: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
            return self.linear(x), context

    for again in (False, True):
        block = run(Pair(), spec(T, H), spec(4, H, grad=False), full_recompute=again)
        assert [out.requires_grad for out in block.output_specs] == [True, False]
        assert block.outputs[1] == block.inputs[1]
        assert block.output_gradients[1] is None


class Two(Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = Linear(H, H), Linear(H, H)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.left(x), self.right(x)


@pytest.mark.parametrize("arrives", [(True, True), (True, False), (False, True)], ids=str)
def test_an_output_without_a_gradient_is_recomputed_but_not_differentiated(arrives: tuple[bool, bool]) -> None:
    block = trace_block(Two(), [spec(T, H)], options(), full_recompute=True, gradients=arrives)
    block.graph.lint()
    product = 2 * T * H * H
    assert flop(backward(block), phase=R) == 2 * product
    assert flop(backward(block), phase=D) == flop(backward(block), phase=W) == sum(arrives) * product
    assert gradients_written(block)["left.weight"] == arrives[0]
    assert gradients_written(block)["right.weight"] == arrives[1]


def test_a_wrapped_module_may_have_an_output_that_nobody_uses() -> None:
    class First(Module):
        def __init__(self, inner: Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            left, _ = self.inner(x)
            return left

    plain, wrapped = run(First(Two()), spec(T, H)), run(First(Recompute(Two())), spec(T, H))
    assert rows([op for op in backward(wrapped) if op.phase is not R]) == rows(backward(plain))


def test_recompute_keeps_tensors_only() -> None:
    class Numbers(Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Recompute(Apply(lambda x, _: x))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x, 3)
            return out

    with pytest.raises(GraphError, match="recompute keeps tensors only; expected tensors; got int"):
        run(Numbers(), spec(T, H))


# -- kinds and paths inside a block --------------------------------------------------------------------------------
def planned(plan: RecomputePlan, tp: int, sp: bool, *, fused: bool = False, grad: bool = True) -> TracedBlock:
    module = TransformerLayer(H, 4 * H, HEADS, rotary=True, dropout=0.1)
    model = Model.from_module(module, name="block")
    chosen = TraceOptions(
        plan=megatron_plan(model, Parallel(tp=tp, sequence_parallel=sp)),
        tp_group=CommGroup("tp", tp, 1),
        fused_attention=fused,
        recompute=plan,
    )
    block = trace_block(module, [spec(T, H, shards=(tp if sp else 1, 1), grad=grad)], chosen, root="block")
    block.graph.lint()
    return block


PLANS = [
    (RecomputePlan(("core_attn",)), 5 * HEADS * T * T, "tp"),
    (RecomputePlan(("act",)), 4 * X, "tp"),
    (RecomputePlan(("layernorm",)), 2 * X, "tokens"),
    (RecomputePlan(("mlp",)), 8 * X, "tp"),
    (RecomputePlan(patterns=("block.mlp",)), 8 * X, "tp"),
    (RecomputePlan(patterns=("*.mlp_norm",)), X, "tokens"),
    (RecomputePlan(patterns=("block.mlp.up",)), 4 * X, "tp"),
]


@pytest.mark.parametrize("fused", [False, True], ids=("unfused", "fused"))
@pytest.mark.parametrize(("tp", "sp"), GROUPS, ids=NAMES)
@pytest.mark.parametrize(("plan", "less", "over"), PLANS, ids=[str(p[0].kinds or p[0].patterns) for p in PLANS])
def test_parts_that_are_recomputed(plan: RecomputePlan, less: int, over: str, tp: int, sp: bool, fused: bool) -> None:
    kept, again = planned(RecomputePlan(), tp, sp, fused=fused), planned(plan, tp, sp, fused=fused)
    shards = tp if over == "tp" or sp else 1
    if fused and plan.kinds == ("core_attn",):
        less = 4 * HEADS * T  # log-sum-exp of the kernel
    if plan.patterns == ("block.mlp.up",):
        less = 0  # its output is the input of the non-linearity: made again, and kept all the same
    assert saved_bytes(kept) - saved_bytes(again) == less // shards
    assert rows(forward(again)) == rows(forward(kept))
    assert rows([op for op in backward(again) if op.phase is not R]) == rows(backward(kept))
    assert [op for op in backward(again) if op.phase is R]
    assert gradients_written(again) == gradients_written(kept)


def test_a_dropped_output_is_made_once_for_all_its_readers() -> None:
    """Without sequence parallelism the norm's output is read by one product, dropped and made once."""
    again = planned(RecomputePlan(("act", "layernorm")), 1, False)
    made = [op.path for op in backward(again) if op.phase is R]
    assert made == ["mlp.gelu", "mlp_norm.layer_norm", "attention_norm.layer_norm"]


def test_nothing_is_made_again_for_a_frozen_product() -> None:
    module = TransformerLayer(H, 4 * H, HEADS).requires_grad_(False)
    plan = RecomputePlan(("act", "layernorm"))
    block = trace_block(module, [spec(T, H)], TraceOptions(recompute=plan))
    assert not [op for op in backward(block) if op.phase is R]


def test_a_module_called_with_numbers_is_not_recomputed() -> None:
    class Scaled(Module):
        recompute_kind = "mlp"

        def forward(self, x: Tensor, factor: int) -> Tensor:
            return functional.gelu(x) if factor else x

    class Outer(Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Scaled()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x, 2)
            return out

    with pytest.raises(GraphError, match="Scaled cannot be recomputed"):
        trace_block(Outer(), [spec(T, H)], TraceOptions(recompute=RecomputePlan(("mlp",))))


def test_symbolic_tokens() -> None:
    """The same for a template: what is kept is one symbolic tensor."""
    packing = Sequences.of_stream("text")
    module = TransformerLayer(H, 4 * H, HEADS)
    block = trace_block(module, [spec(packing.tokens, H, sequences=packing)], options(), full_recompute=True)
    graph = block.graph
    made = {graph.tensors[t].storage for op in forward(block) for t in op.outputs} | {
        graph.tensors[block.inputs[0]].storage
    }
    read = {graph.tensors[t].storage for op in backward(block) for t in op.inputs}
    (kept,) = [graph.storages[s] for s in made & read if not graph.storages[s].role.is_static]
    assert kept.size_bytes == 2 * H * packing.tokens
