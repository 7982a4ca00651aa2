"""Backward by autograd: which gradients exist, what they cost, checked against a recursive count over random models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from nn.tracing_kit import (
    Apply,
    D,
    F,
    R,
    W,
    backward,
    forward,
    gradients_written,
    number,
    options,
    row,
    rows,
    run,
    run_megatron,
    saved,
    spec,
)

from semu.errors import GraphError
from semu.graph.operator import Operator, OpKind, Phase
from semu.nn import GELU, MLP, Dropout, LayerNorm, Linear, Module, RMSNorm, SelfAttention, Sequential, Tensor
from semu.nn.layers.recompute import Recompute
from semu.nn.trace.block import Input, TracedBlock, trace, trace_block

T, H = 16, 8
X = 2 * T * H


class Residual(Module):
    def __init__(self, inner: Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.inner(x)
        return out


def frozen(module: Module) -> Module:
    return module.requires_grad_(False)


def steps(block: TracedBlock) -> list[str]:
    """Products of the backward as ``1.I``: member of the Sequential, phase."""
    return [
        f"{op.path.split('.')[0]}.{op.phase.value}" for op in backward(block) if op.kind in (OpKind.MATMUL, OpKind.NORM)
    ]


# -- which gradients ---------------------------------------------------------------------------------------------
def test_gradients_exist_where_something_trainable_lies_upstream() -> None:
    """Trained, frozen, trained, frozen; nothing upstream: the first needs no input gradient, the frozen no weights'."""
    model = Sequential(Linear(H, H), frozen(Linear(H, H)), Linear(H, H), frozen(Linear(H, H)))
    assert steps(run(model, spec(T, H, grad=False))) == ["3.I", "2.I", "2.W", "1.I", "0.W"]
    assert steps(run(model, spec(T, H))) == ["3.I", "2.I", "2.W", "1.I", "0.I", "0.W"]


def test_a_frozen_beginning_has_no_backward_and_keeps_nothing() -> None:
    model = Sequential(frozen(LayerNorm(H)), frozen(Linear(H, H)), GELU(), Linear(H, H))
    block = run(model, spec(T, H, grad=False))
    assert steps(block) == ["3.W"]
    assert saved(block) == {"2.gelu": X}


def test_a_frozen_end_passes_gradients_on_and_keeps_what_they_need() -> None:
    model = Sequential(Linear(H, H), frozen(Linear(H, H)), GELU(), frozen(RMSNorm(H)))
    block = run(model, spec(T, H, grad=False))
    assert steps(block) == ["3.I", "1.I", "0.W"]
    assert saved(block) == {"2.gelu": X, "3.rms_norm.side": 4 * T, "1": X, "input0": X}


def test_everything_frozen_has_no_backward() -> None:
    block = run(frozen(Sequential(Linear(H, H), LayerNorm(H))), spec(T, H, grad=False))
    assert backward(block) == []
    assert block.output_gradients == (None,)
    assert all(use.gradient is None for use in block.parameters)


def test_a_branch_that_leads_nowhere_has_no_backward() -> None:
    class Unused(Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = Linear(H, H), Linear(H, H)

        def forward(self, x: Tensor) -> Tensor:
            self.unused(x)
            out: Tensor = self.used(x)
            return out

    block = run(Unused(), spec(T, H))
    assert len(forward(block)) == 2
    assert {op.path.split(".")[0] for op in backward(block)} == {"used"}
    assert gradients_written(block) == {"used.weight": 1, "used.bias": 1, "unused.weight": 0, "unused.bias": 0}


def test_detaching_stops_gradients() -> None:
    class Stop(Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = Linear(H, H), Linear(H, H)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.after(self.before(x).detach())
            return out

    block = run(Stop(), spec(T, H))
    assert [row(op)[:2] for op in backward(block)] == [("matmul", "W")]
    assert block.input_gradients == (None,)


def test_a_parameter_used_twice_gathers_both_gradients_in_one_buffer() -> None:
    class Twice(Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = Linear(H, H)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.linear(self.linear(x))
            return out

    block = run(Twice(), spec(T, H))
    assert len(block.parameters) == 2
    assert gradients_written(block) == {"linear.weight": 2, "linear.bias": 2}


# -- sums of gradients -------------------------------------------------------------------------------------------
def accumulations(block: TracedBlock) -> list[Operator]:
    return [op for op in backward(block) if op.kind is OpKind.ADD]


def test_a_residual_adds_its_two_gradients_once() -> None:
    block = run(Residual(Linear(H, H)), spec(T, H))
    (add,) = accumulations(block)
    assert row(add) == ("add", "I", 0, 3 * X, 0)
    assert add.path.endswith("accumulate_grad")
    assert block.input_gradients == add.outputs
    assert block.output_gradients[0] in add.inputs


def test_a_residual_around_the_first_trained_layer_adds_nothing() -> None:
    assert accumulations(run(Residual(Linear(H, H)), spec(T, H, grad=False))) == []


@pytest.mark.parametrize("uses", [1, 2, 3, 5])
def test_each_further_use_costs_one_addition(uses: int) -> None:
    class Fan(Module):
        def __init__(self) -> None:
            super().__init__()
            for i in range(uses):
                setattr(self, f"branch{i}", Linear(H, H))

        def forward(self, x: Tensor) -> Tensor:
            branches = [child(x) for _, child in self.named_children()]
            total = branches[0]
            for branch in branches[1:]:
                total = total + branch
            return total

    assert len(accumulations(run(Fan(), spec(T, H)))) == uses - 1


def test_an_output_returned_twice_gets_the_sum_of_two_gradients() -> None:
    class Double(Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = Linear(H, H)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.linear(x)
            return y, y

    block = run(Double(), spec(T, H))
    assert len(accumulations(block)) == 1
    assert set(accumulations(block)[0].inputs) == set(block.output_gradients)


def test_an_input_that_passes_through_keeps_its_gradient() -> None:
    block = run(Apply(lambda x, context: (x + x, context)), spec(T, H), spec(4, H))
    assert block.outputs[1] == block.inputs[1]
    assert block.input_gradients[1] == block.output_gradients[1]


# -- blocks ------------------------------------------------------------------------------------------------------
class Two(Module):
    """Two outputs from one input."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = Linear(H, H), Linear(H, H)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.left(x), self.right(x)


@pytest.mark.parametrize("arrives", [(True, True), (True, False), (False, True), (False, False)], ids=str)
def test_an_output_without_a_gradient_has_no_backward(arrives: tuple[bool, bool]) -> None:
    block = trace_block(Two(), [spec(T, H)], options(), gradients=arrives)
    used = [name for name, is_there in zip(("left", "right"), arrives, strict=True) if is_there]
    assert {op.path.split(".")[0] for op in backward(block) if op.flop} == set(used)
    assert [gradient is not None for gradient in block.output_gradients] == list(arrives)
    assert [gradient is not None for gradient in block.input_gradients] == [any(arrives)]


def test_a_block_must_return_tensors() -> None:
    with pytest.raises(GraphError, match="a block must return tensors; got int"):
        run(Apply(lambda x: 5), spec(T, H))  # type: ignore[arg-type, return-value]


def test_a_rule_must_return_a_gradient_for_each_input() -> None:
    def broken(x: Tensor) -> Tensor:
        y = x + x
        x.trace.tape.pop()
        x.trace.record([x, x], [y], lambda gradients: [gradients[0]])
        return y

    with pytest.raises(GraphError, match="wrong number of gradients; expected 2; got 1"):
        run(Apply(broken), spec(T, H))


def test_the_public_trace_is_the_graph_of_the_block() -> None:
    model = Sequential(Linear(H, H), GELU())
    graph = trace(model, Input((T, H), requires_grad=True))
    block = run(model, spec(T, H))
    assert graph.to_text() == block.graph.to_text()
    assert graph.outputs == [*block.outputs, *block.input_gradients]
    assert trace(model, Input((T, H))).outputs == list(block.outputs)


def test_gradients_have_the_shape_of_their_tensors() -> None:
    model = Sequential(Linear(H, 3 * H), GELU(), Linear(3 * H, H))
    block = run(model, spec(T, H))
    for gradient, tensor in zip(block.input_gradients, block.inputs, strict=True):
        assert gradient is not None
        assert block.graph.tensors[gradient].shape == block.graph.tensors[tensor].shape


# -- random models -----------------------------------------------------------------------------------------------
class Work(NamedTuple):
    """FLOP of matrix products by phase, additions of gradients, and whether the output needs a gradient."""

    forward: int
    input_gradient: int
    weight_gradient: int
    recompute: int
    additions: int
    needs: bool


def expected(module: Module, upstream: bool) -> Work:
    """Straight from the definition: a product costs its forward again for its input's gradient if something trains
    upstream, and for its weight's gradient if the weight trains."""
    if isinstance(module, Linear):
        out_features, in_features = module.weight.shape
        cost = 2 * T * out_features * in_features
        trains = module.weight.requires_grad
        bias = module.bias is not None and module.bias.requires_grad
        return Work(cost, cost * upstream, cost * trains, 0, 0, upstream or trains or bias)
    if isinstance(module, MLP):
        return chain([module.up, module.down], upstream)
    if isinstance(module, SelfAttention):
        return chain([module.qkv, module.out], upstream)
    if isinstance(module, LayerNorm | RMSNorm):
        trains = any(parameter.requires_grad for _, parameter in module.own_parameters())
        return Work(0, 0, 0, 0, 0, upstream or trains)
    if isinstance(module, Residual):
        inner = expected(module.inner, upstream)
        return inner._replace(additions=inner.additions + upstream, needs=inner.needs or upstream)
    if isinstance(module, Recompute):
        inner = expected(module.module, upstream)
        return inner._replace(recompute=inner.forward + inner.recompute) if inner.needs else inner
    if isinstance(module, Sequential):
        return chain(list(module), upstream)
    return Work(0, 0, 0, 0, 0, upstream)


def chain(modules: list[Module], upstream: bool) -> Work:
    total = Work(0, 0, 0, 0, 0, upstream)
    for module in modules:
        work = expected(module, total.needs)
        total = Work(*(a + b for a, b in zip(total[:5], work[:5], strict=True)), needs=work.needs)
    return total


LEAVES: list[Callable[[], Module]] = [
    lambda: Linear(H, H),
    lambda: Linear(H, H, bias=False),
    lambda: MLP(H, 2 * H),
    lambda: MLP(H, 2 * H, gated=True, bias=False),
    lambda: SelfAttention(H, 4),
    lambda: SelfAttention(H, 4, 2, rotary=True, causal=False),
    lambda: LayerNorm(H),
    lambda: RMSNorm(H),
    lambda: Dropout(0.1),
    GELU,
]


@dataclass(frozen=True)
class Tree:
    """How to build a module, so that every test has its own."""

    build: Callable[[], Module]


def leaf(choice: tuple[int, bool]) -> Tree:
    index, trains = choice
    return Tree(lambda: LEAVES[index]().requires_grad_(trains))


def container(kind: str, inner: list[Tree]) -> Tree:
    if kind == "sequential":
        return Tree(lambda: Sequential(*(tree.build() for tree in inner)))
    wrapper = Residual if kind == "residual" else Recompute
    return Tree(lambda: wrapper(Sequential(*(tree.build() for tree in inner))))


def trees(*, frozen_too: bool, recomputed_too: bool = True) -> st.SearchStrategy[Tree]:
    trains = st.booleans() if frozen_too else st.just(True)
    leaves = st.tuples(st.integers(0, len(LEAVES) - 1), trains).map(leaf)
    kinds = ["sequential", "residual", *(["recompute"] if recomputed_too else [])]
    return st.recursive(
        leaves,
        lambda inner: st.tuples(st.sampled_from(kinds), st.lists(inner, min_size=1, max_size=3)).map(
            lambda pair: container(*pair)
        ),
        max_leaves=6,
    )


def products(block: TracedBlock, phase: Phase, tp: int) -> int:
    """FLOP of the whole group, work that several ranks repeat counted once."""
    operators = [op for op in block.graph.operators if op.kind is OpKind.MATMUL and op.phase is phase]
    return sum(tp * number(op.flop) // op.copies for op in operators)


@settings(max_examples=150)
@given(trees(frozen_too=True), st.booleans(), st.sampled_from([(1, False), (2, False), (2, True), (4, True)]))
def test_random_models_do_the_work_that_their_gradients_need(
    tree: Tree, input_grad: bool, group: tuple[int, bool]
) -> None:
    tp, sp = group
    model = Sequential(tree.build())
    x = spec(T, H, shards=(tp if sp else 1, 1), grad=input_grad)
    heads = [m.kv_heads for _, m in model.named_modules() if isinstance(m, SelfAttention)]
    assume(all(count % tp == 0 for count in heads))
    block = run_megatron(model, x, tp=tp, sp=sp)  # lints
    work = expected(model, input_grad)
    assert [products(block, phase, tp) for phase in (F, D, W, R)] == list(work[:4])
    assert len([op for op in backward(block) if op.kind is OpKind.ADD and op.phase is D]) == work.additions
    assert block.output_specs[0].requires_grad is work.needs
    assert set(gradients_written(block).values()) <= {1}
    trained = [parameter for _, parameter in model.named_parameters() if parameter.requires_grad]
    assert len(gradients_written(block)) == len(trained)
    assert [gradient is not None for gradient in block.input_gradients] == [input_grad]


@settings(max_examples=50)
@given(trees(frozen_too=False, recomputed_too=False))
def test_where_everything_trains_backward_costs_twice_the_forward(tree: Tree) -> None:
    block = run(Sequential(tree.build()), spec(T, H))
    ahead = products(block, F, 1)
    assert products(block, D, 1) == products(block, W, 1) == ahead
    assert sum(number(op.flop) for op in backward(block) if op.kind is OpKind.MATMUL) == 2 * ahead


@settings(max_examples=50)
@given(trees(frozen_too=True, recomputed_too=False), st.booleans())
def test_recomputing_a_whole_random_model_changes_no_gradient(tree: Tree, input_grad: bool) -> None:
    model, x = Sequential(tree.build()), spec(T, H, grad=input_grad)
    kept, again = run(model, x), run(model, x, full_recompute=True)
    assert gradients_written(kept) == gradients_written(again)
    assert rows(forward(kept)) == rows(forward(again))
    assert rows(backward(kept)) == rows([op for op in backward(again) if op.phase is not R])
    repeated = rows([op for op in backward(again) if op.phase is R])
    if backward(kept) or again.output_specs[0].requires_grad:
        assert [line[2:] for line in repeated] == [line[2:] for line in rows(forward(kept))]
    else:
        assert repeated == []
