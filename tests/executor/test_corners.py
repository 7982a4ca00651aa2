"""Corners: parameters that chunks share, layers that do otherwise on the meta device, messages that do not fit."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is the executor extra")

import torch
from executor.plan_kit import make_plan, modular_shape, random_schedule
from executor.proof import compare, run_fake
from executor.small_models import SmallModel
from torch import nn

from semu.errors import ExecutorError
from semu.executor import FakeWorld, ModuleStages, Operation, Runner, run_threads, shapes, split_model
from semu.executor.demo import run as demo_run
from semu.executor.recompute import recomputed
from semu.executor.torch_communicator import _Works
from semu.plan.plan import ExecutionPlan

WIDTH, TOKENS, COUNT = 4, 7, 2


class Embed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(TOKENS, WIDTH, dtype=torch.float64))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.weight[ids]


class Unembed(nn.Module):
    """With the embedding's weight."""

    def __init__(self, embed: Embed) -> None:
        super().__init__()
        self.weight = embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.t()


def tied(layers: list[nn.Module]) -> dict[str, ModuleStages]:
    embed = Embed()
    load = lambda microbatch, first, last: (torch.arange(5) * (microbatch + 2)) % TOKENS  # noqa: E731
    loss = lambda output, *_: output.square().mean()  # noqa: E731
    return {"lm": ModuleStages(load=load, loss=loss, layers=layers, stem=embed, head=Unembed(embed))}


def plan_on(num_ranks: int, *, split: bool = False) -> ExecutionPlan:
    """Two chunks of one layer."""
    shape = modular_shape(num_ranks, {"lm": (2 // num_ranks, (1,) * COUNT)}, {"lm": ()})
    return make_plan(shape, random_schedule(shape, 1, split=split), [1, 1], {"lm": [[1] * COUNT]}, {"lm": ()})


def linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH, dtype=torch.float64)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("has_layers", [True, False])
def test_chunks_of_one_rank_may_share_a_parameter(split: bool, has_layers: bool) -> None:
    """And chunks may have none of their own."""
    modules = tied([linear(), linear()] if has_layers else [nn.Identity(), nn.Tanh()])
    own = modules["lm"]
    assert own.stem is not None and own.head is not None and own.load is not None and own.loss is not None
    whole = nn.Sequential(own.stem, *own.layers, own.head)
    total = sum(own.loss(whole(own.load(n, 0, 1)), n, 0, 1) for n in range(COUNT))
    expected = torch.autograd.grad(total, list(whole.parameters()))
    plan = plan_on(1, split=split)
    run_threads(FakeWorld(1), lambda mine: Runner(split_model(plan, modules, 0), mine).run(plan))
    for parameter, gradient in zip(whole.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_two_losses_of_one_rank_and_microbatch_are_both_there() -> None:
    names = {"one": 1.0, "two": 10.0}
    shape = modular_shape(1, dict.fromkeys(names, (1, (1,) * COUNT)), dict.fromkeys(names, ()))
    orders = random_schedule(shape, 1, split=False)
    plan = make_plan(shape, orders, [1, 1], {name: [[1] * COUNT] for name in names}, dict.fromkeys(names, ()))

    def stages(factor: float) -> ModuleStages:
        return ModuleStages(load=lambda *_: torch.ones(1), loss=lambda x, *_: factor * x.sum(), layers=[nn.Identity()])

    modules = {name: stages(factor) for name, factor in names.items()}
    [result] = run_threads(FakeWorld(1), lambda mine: Runner(split_model(plan, modules, 0), mine).run(plan))
    assert {key: loss.item() for key, loss in result.losses.items()} == {
        (name, microbatch, 0): factor for name, factor in names.items() for microbatch in range(COUNT)
    }
    assert result.loss() == COUNT * sum(names.values())


def test_chunks_of_two_ranks_may_not() -> None:
    modules = tied([linear(), linear()])
    with pytest.raises(ExecutorError, match=r"chunks 0 and 1 share a parameter.*got ranks 0 and 1") as caught:
        split_model(plan_on(2), modules, 0)
    assert "head.weight" in str(caught.value.where)
    assert modules["lm"].stem is not None
    modules["lm"].stem.requires_grad_(False)
    split_model(plan_on(2), modules, 0)


class Elsewhere(nn.Module):
    """What autocast does: types that the meta device does not foretell."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.device.type == "meta" else x.float()


def test_a_sender_sees_that_its_outputs_were_not_foretold() -> None:
    plan = plan_on(2)
    load = lambda *_: torch.ones(3, WIDTH, dtype=torch.float64)  # noqa: E731
    loss = lambda output, *_: output.sum()  # noqa: E731
    modules = {"lm": ModuleStages(load=load, loss=loss, layers=[Elsewhere(), Elsewhere()])}

    def work(mine: Any) -> None:
        Runner(split_model(plan, modules, mine.rank), mine, timeout_s=180).run(plan)

    with pytest.raises(ExecutorError, match=r"torch.float32.* are not what its layers make on torch's meta device"):
        run_threads(FakeWorld(2), work)


def test_threads_take_no_message_of_another_shape_or_type() -> None:
    """Both ends hear of it at once; nothing is broadcast or cast."""

    def work(mine: Any) -> None:
        size, dtype = ((1,), torch.float32) if mine.rank == 0 else ((3,), torch.float64)
        (handle,) = mine.launch([Operation(mine.rank == 0, 1 - mine.rank, 3, (torch.zeros(size, dtype=dtype),))])
        handle.wait(180.0)

    with pytest.raises(ConnectionError, match=r"message 3 was sent as .*float32.* and is received as .*float64"):
        run_threads(FakeWorld(2), work)


@pytest.mark.slow
def test_shapes_that_were_found_are_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes.KNOWN, "bound", 1)
    items, parts = {"vit": [[5, 2, 3]], "llm": [[1, 1, 1]]}, {"vit": (3, 2, 1), "llm": (1, 1, 1)}
    model = SmallModel("vlm", items, {"vit": 2, "llm": 2})
    shape = modular_shape(2, {name: (1, parts[name]) for name in parts}, model.sources)
    plan = make_plan(shape, random_schedule(shape, 1, split=False), [1] * 4, items, model.sources)
    compare(plan, model, run_fake(plan, model), parts)
    part = split_model(plan, model.modules(0), 0)
    found = Runner(part, FakeWorld(2).communicator(0)).prepare(plan)
    for stage in found.stages:
        found.shapes.of_stage(stage)
        assert len(shapes.KNOWN.of(part)) == 1


@pytest.mark.parametrize("has_limit", [False, True])
def test_works_of_nccl_are_given_no_limit(has_limit: bool) -> None:
    """With one, NCCL's work waits on the processor, and the next kernels are launched late."""
    seen = []

    class Work:
        def wait(self, *limit: object) -> None:
            seen.append(len(limit))

    _Works([Work(), Work()], has_limit).wait(5.0)
    assert seen == [int(has_limit)] * 2


def test_a_recomputation_casts_as_the_forward_did() -> None:
    layer, x = nn.Linear(8, 8), torch.randn(3, 8)
    found = []
    for run in (layer, lambda value: recomputed(layer, value)):
        own = x.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            made = run(own)
        assert made.dtype is torch.bfloat16
        found += torch.autograd.grad(made.float().square().sum(), [own, layer.weight])
    torch.testing.assert_close(found[:2], found[2:], rtol=0.0, atol=0.0)


@pytest.mark.slow
def test_a_demo_of_threads_that_fails_leaves_no_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(mine: Any, plans: Any, *_: object) -> None:
        next(plans)
        raise ExecutorError("not today")

    monkeypatch.setattr(demo_run, "_work", work)
    before = set(threading.enumerate())
    with pytest.raises(ExecutorError, match="not today"):
        demo_run.run_demo(plan_on(2), backend="fake", timeout_s=180.0)
    planners = [thread for thread in set(threading.enumerate()) - before if "publish" in thread.name]
    assert planners == []


def test_parts_are_joined_along_their_first_dimension() -> None:
    one, two = ((3, 4), torch.float32), ((5, 4), torch.float32)
    scalar = ((), torch.float64)
    assert shapes.joined_shapes([[one, scalar]]) == [one, scalar]  # one part is what it is
    assert shapes.joined_shapes([[one], [two]]) == [((8, 4), torch.float32)]
    assert shapes.joined_shapes([[one, two]] * 3) == [((9, 4), torch.float32), ((15, 4), torch.float32)]
