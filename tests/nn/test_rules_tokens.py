"""Rules that change the tokens of a stream, by hand: s sequences of t tokens of h features in bf16."""

from __future__ import annotations

import pytest
from nn.tracing_kit import Apply, backward, forward, gradients_written, rows, run, saved, spec

from semu.errors import GraphError
from semu.nn import Module, Parameter, Sequences, Tensor
from semu.nn import functional as F
from semu.nn.layers.convolution import Conv1d
from semu.nn.streams import Change, changed

S, T, H = 3, 8, 16
PACKING = Sequences.uniform(S, T, "vision")
X = 2 * S * T * H
ROW = 2 * H


class Prepend(Module):
    def __init__(self, width: int = H) -> None:
        super().__init__()
        self.token = Parameter(1, width)

    def forward(self, x: Tensor) -> Tensor:
        return F.prepend_token(x, self.token)


class Repeat(Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = Parameter(1, H)

    def forward(self, x: Tensor) -> Tensor:
        return F.repeat_token(x, self.token)


def features(tokens: int = S * T) -> object:
    return spec(tokens, H, sequences=PACKING)


def test_a_token_before_every_sequence() -> None:
    block = run(Prepend(), features())  # type: ignore[arg-type]
    assert block.output_specs[0].shape == (S * (T + 1), H)
    packing = block.output_specs[0].sequences
    assert packing == Sequences("vision+1", S * (T + 1), S * (T + 1) ** 2, S, T + 1)
    assert rows(forward(block)) == [("copy", "F", 0, X + X + S * ROW, 0)]
    reduction = ("custom", "W", 0, S * ROW + 2 * 4 * H, 0)
    assert rows(backward(block)) == [reduction, ("copy", "I", 0, 2 * X, 0)]
    assert saved(block) == {}
    assert len(gradients_written(block)) == 1


def test_a_frozen_token_gets_no_gradient() -> None:
    module = Prepend()
    module.token.requires_grad = False
    block = run(module, features())  # type: ignore[arg-type]
    assert rows(backward(block)) == [("copy", "I", 0, 2 * X, 0)]


def test_a_token_of_another_width_is_refused() -> None:
    with pytest.raises(GraphError, match="does not fit"):
        run(Prepend(H + 1), features())  # type: ignore[arg-type]


def test_a_token_for_every_sequence() -> None:
    block = run(Repeat(), features())  # type: ignore[arg-type]
    assert block.output_specs[0].shape == (S, H)
    assert block.output_specs[0].sequences == Sequences("vision=1", S, S, S, 1)
    assert rows(forward(block)) == [("copy", "F", 0, S * ROW, 0)]
    assert rows(backward(block)) == [("custom", "W", 0, S * ROW + 2 * 4 * H, 0)]
    assert block.input_gradients == (None,)


@pytest.mark.parametrize(
    ("function", "left", "stream"),
    [
        (F.drop_tokens, T - 1, "vision-1"),
        (lambda x: F.drop_tokens(x, 3), T - 3, "vision-3"),
        (F.first_tokens, 1, "vision=1"),
        (lambda x: F.select_tokens(x, Sequences.uniform(S, 5, "chosen")), 5, "chosen"),
    ],
    ids=["drop", "drop3", "first", "select"],
)
def test_some_tokens(function: object, left: int, stream: str) -> None:
    block = run(Apply(function), features())  # type: ignore[arg-type]
    taken = S * left * ROW
    assert block.output_specs[0].sequences == Sequences(stream, S * left, S * left**2, S, left)
    assert rows(forward(block)) == [("copy", "F", 0, 2 * taken, 0)]
    assert rows(backward(block)) == [("copy", "I", 0, taken + X, 0)]
    assert saved(block) == {}


def test_what_was_added_is_dropped_without_a_trace() -> None:
    class Both(Prepend):
        def forward(self, x: Tensor) -> Tensor:
            return F.drop_tokens(super().forward(x))

    assert run(Both(), features()).output_specs[0].sequences == PACKING  # type: ignore[arg-type]


def test_means_of_two() -> None:
    block = run(Apply(lambda x: F.pool_tokens(x, changed(x, Change.shorter(2)))), features())  # type: ignore[arg-type]
    assert block.output_specs[0].shape == (S * T // 2, H)
    assert rows(forward(block)) == [("copy", "F", 0, X + X // 2, 0)]
    assert rows(backward(block)) == [("copy", "I", 0, X // 2 + X, 0)]


def test_other_names_are_free() -> None:
    other = Sequences.uniform(S, T, "vision_tokens")
    block = run(Apply(lambda x: F.rename_tokens(x, other)), features())  # type: ignore[arg-type]
    assert block.output_specs[0].sequences == other
    assert (rows(forward(block)), rows(backward(block))) == ([], [])


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("tp", [1, 2])
def test_a_convolution_over_time(stride: int, tp: int) -> None:
    """2 k c m FLOP for each of m tokens that come out; the input is read once, not once for each place of the kernel.
    Where tokens are split over ranks, so is the work."""
    kernel, out = 3, 24
    arriving = spec(S * T, H, shards=(tp, 1), sequences=PACKING)
    block = run(Conv1d(H, out, kernel, stride), arriving, tp=tp, sp=True)
    m, n, k = S * T // stride // tp, out, kernel * H
    weights, made = 2 * n * k, 2 * m * n
    assert rows(forward(block)) == [("matmul", "F", 2 * m * n * k, X // tp + weights + made, 0)]
    assert rows(backward(block)) == [
        ("matmul", "I", 2 * m * n * k, X // tp + weights + made, 0),
        ("matmul", "W", 2 * m * n * k, X // tp + made + 2 * 4 * n * k, 0),
    ]
    assert list(saved(block).values()) == [X // tp, weights] or list(saved(block).values()) == [X // tp]
    assert block.output_specs[0].shape == (S * T // stride, out)


def test_features_that_do_not_fit_a_convolution_are_refused() -> None:
    with pytest.raises(GraphError, match="does not fit the weight"):
        run(Conv1d(H + 4, 24, 3), features())  # type: ignore[arg-type]
