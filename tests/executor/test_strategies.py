"""Memory strategies do what they say: what is recomputed, how often, what goes to the host, what is freed when."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is the executor extra")

import torch
from torch import nn

from semu.errors import ExecutorError
from semu.executor import LayerChunk
from semu.executor.backward import Anchor
from semu.executor.chunk import run_chunk
from semu.executor.recompute import recomputed


class Counter(nn.Linear):
    """Counts how often it runs."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


class Counted(nn.Module):
    """Two linear layers, of which the first counts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Counter(4, 4), nn.Linear(4, 4)

    @property
    def calls(self) -> int:
        return self.first.calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


@pytest.mark.parametrize(("word", "calls"), [("none", 1), ("selective", 2), ("full", 2), ("offload", 1)])
def test_how_often_a_layer_runs(word: str, calls: int) -> None:
    layer = Counted()
    chunk = LayerChunk([layer], selective=("first",))
    run_chunk(chunk, (torch.ones(2, 4, requires_grad=True),), (word,)).sum().backward()
    assert layer.calls == calls
    assert "forward" not in vars(layer.first)


def test_both_halves_of_a_split_backward_share_one_recomputation() -> None:
    layer = Counted()
    x = torch.ones(2, 4, requires_grad=True)
    anchor = Anchor([run_chunk(LayerChunk([layer]), (x,), ("full",))])
    (gradient,) = anchor.input_gradients([torch.ones(2, 4)], [x])
    assert gradient is not None and layer.calls == 2
    assert all(p.grad is None for p in layer.parameters())
    anchor.weight_gradients()
    assert layer.calls == 2
    assert all(p.grad is not None for p in layer.parameters())


def test_intermediate_results_are_gone_after_the_forward() -> None:
    made: list[weakref.ref[torch.Tensor]] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x)
        made.append(weakref.ref(y))
        return torch.exp(y * y)

    x = torch.randn(5, requires_grad=True)
    z = recomputed(function, x)
    gc.collect()
    assert made[0]() is None
    z.sum().backward()
    y = x.detach().requires_grad_()
    torch.exp(torch.tanh(y) ** 2).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_a_function_that_does_something_else_the_second_time() -> None:
    count = [0]

    def function(x: torch.Tensor) -> torch.Tensor:
        count[0] += 1
        return torch.tanh(x) if count[0] > 1 else torch.tanh(torch.exp(x) * x)

    z = recomputed(function, torch.ones(3, requires_grad=True))
    with pytest.raises(ExecutorError, match="other tensors than the forward"):
        z.sum().backward()


def test_offloaded_tensors_are_copies_and_parameters_stay() -> None:
    layer = Counted()
    seen: list[Any] = []

    class Spy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = layer(x)
            seen.append(y.grad_fn)
            return y

    spy = Spy()
    spy.layer = layer
    x = torch.randn(2, 4, requires_grad=True)
    run_chunk(LayerChunk([spy]), (x,), ("offload",))
    node = seen[0]
    kept = node._raw_saved_mat1
    assert kept is not None
    assert node._saved_mat2.data_ptr() == layer.second.weight.data_ptr()
    assert node._saved_mat1.shape == (2, 4)


def test_outputs_are_freed_once_they_are_handed_on() -> None:
    x = torch.randn(3, requires_grad=True)
    y = x * 2.0
    alive = weakref.ref(y)
    anchor = Anchor([y])
    del y
    gc.collect()
    assert alive() is None
    anchor.backward([torch.ones(3)])
    torch.testing.assert_close(x.grad, torch.full((3,), 2.0))


def test_split_backwards_of_a_shared_parameter_and_of_one_beside_the_way() -> None:
    weight = nn.Parameter(torch.randn(3, 3))
    beside = nn.Parameter(torch.randn(3))
    x = torch.randn(2, 3, requires_grad=True)

    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ weight + beside.exp()) @ weight.t() + (weight * weight).sum()

    given = torch.randn(2, 3)
    expected = torch.autograd.grad(run(x), [x, weight, beside], given)
    anchor = Anchor([run(x)])
    (gradient,) = anchor.input_gradients([given], [x])
    anchor.weight_gradients()
    for found, wanted in zip((gradient, weight.grad, beside.grad), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_one_module_cannot_run_its_layers_differently() -> None:
    with pytest.raises(ExecutorError, match="cannot run its layers differently"):
        run_chunk(nn.Linear(2, 2), (torch.ones(1, 2),), ("none", "full"))
    with pytest.raises(ExecutorError, match="another number of layers; expected 1 words; got 2"):
        run_chunk(LayerChunk([nn.Linear(2, 2)]), (torch.ones(1, 2),), ("none", "full"))
    with pytest.raises(ExecutorError, match="nobody says which"):
        run_chunk(LayerChunk([nn.Linear(2, 2)]), (torch.ones(1, 2),), ("selective",))
    for words in (("full", "full"), ("offload",)):
        x = torch.ones(1, 2, requires_grad=True)
        run_chunk(nn.Linear(2, 2), (x,), words).sum().backward()
        assert x.grad is not None
