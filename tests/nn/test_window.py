"""Windows of attention: pairs against masks counted one by one, and what the kernels make of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nn.tracing_kit import Apply, backward, forward, gradients_written, number, run, run_megatron, saved, spec

from semu.errors import ConfigError, GraphError
from semu.graph.dim import Poly
from semu.hardware.kinds import DType
from semu.hardware.network import CommGroup
from semu.nn import SelfAttention, Sequences, Window, WindowKind
from semu.nn import functional as F
from semu.nn.module import Module, Parameter
from semu.nn.trace.block import CarrySpec, trace_block
from semu.nn.trace.options import TraceOptions
from semu.nn.trace.tensor import Tensor
from semu.nn.window import windows_in
from semu.workload import Microbatch, shape_columns

windows = st.builds(Window, st.sampled_from(WindowKind), st.integers(1, 40))


def mask(length: int, window: Window, reach: int) -> np.ndarray:
    """Who sees whom in the past; ``reach``: a sliding window's, farthest distance [tokens]."""
    i, j = np.indices((length, length))
    inside = i - j <= reach if window.kind is WindowKind.SLIDING else i // window.size == j // window.size
    seen: np.ndarray = inside & (i >= j)
    return seen


@given(st.integers(0, 60), windows)
def test_pairs_are_those_of_the_mask(length: int, window: Window) -> None:
    """A mask with the diagonal and one without it stand for half each, as L (L + 1) / 2 and L (L - 1) / 2 make L^2 / 2
    of a causal square."""
    with_diagonal = mask(length, window, window.size - 1)
    without = mask(length, window, window.size) & ~np.eye(length, dtype=bool)
    assert window.pairs(length) == with_diagonal.sum() + without.sum()
    assert window.pairs(length) <= length**2
    if window.kind is WindowKind.CHUNKED:  # without a causal mask they are exact
        i, j = np.indices((length, length))
        assert window.pairs(length) == (i // window.size == j // window.size).sum()
    else:  # |i - j| < w and |i - j| <= w
        both = sum(int(m.sum() + m.T.sum() - np.trace(m)) for m in (with_diagonal, mask(length, window, window.size)))
        assert 2 * window.pairs(length) == both


@given(st.lists(st.integers(0, 3000), max_size=6), windows)
def test_columns_hold_the_pairs_of_every_sequence(lengths: list[int], window: Window) -> None:
    item = Microbatch({"text": lengths, "vision": lengths[:1]}, 1)
    columns = shape_columns([item, item], 4, 1, {"text": (window,)})
    assert columns[f"text.pairs@{window.label}"].tolist() == [sum(map(window.pairs, lengths))] * 2
    plain = shape_columns([item, item], 4)
    assert columns.keys() - plain.keys() == {f"text.pairs@{window.label}"}
    assert all(np.array_equal(plain[name], columns[name]) for name in plain)


@given(windows)
def test_a_label_names_its_window(window: Window) -> None:
    assert Window.from_label(window.label) == window
    found = windows_in({f"text.pairs@{window.label}", "text.pairs", f"video.dit.pairs@{window.label}"})
    assert found == {"text": (window,), "video.dit": (window,)}


@pytest.mark.parametrize("size", [0, -3, True, 2.5])
def test_a_window_has_a_size(size: int) -> None:
    with pytest.raises(ConfigError, match="not the size of a window") as caught:
        Window.sliding(size)
    assert caught.value.nearest == 1


def test_no_label() -> None:
    with pytest.raises(ConfigError, match="not a window"):
        Window.from_label("slidingx")


class Attention(Module):
    """Attention with everything on top; its inputs are queries, keys and values."""

    def __init__(self, heads: int, window: Window | None, *, causal: bool = True, sinks: bool = False) -> None:
        super().__init__()
        self.window, self.causal = window, causal
        self.sinks = Parameter(heads) if sinks else None

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.attention(q, k, v, causal=self.causal, window=self.window, sinks=self.sinks, softcap=50.0)


@pytest.mark.parametrize("causal", [False, True], ids=("full", "causal"))
def test_the_fused_kernels_count_pairs_inside(causal: bool) -> None:
    packing, heads, d = Sequences.uniform(3, 100), 4, 8
    operand = spec(300, heads, d, sequences=packing)
    block = run(Attention(heads, Window.sliding(16), causal=causal), operand, operand, operand)
    pairs = 3 * (2 * 100 * 16 - 16 * 16)
    share = 2 if causal else 1
    (ahead,), (back,) = forward(block), backward(block)
    assert number(ahead.flop) == 2 * pairs * heads * 2 * d // share
    assert number(back.flop) == 2 * pairs * heads * 5 * d // share
    plain = run(Attention(heads, None, causal=causal), operand, operand, operand)
    assert saved(block) == saved(plain)
    assert [op.mem_bytes for op in (ahead, back)] == [op.mem_bytes for op in (*forward(plain), *backward(plain))]
    assert number(forward(plain)[0].flop) == 2 * 3 * 100 * 100 * heads * 2 * d // share


@pytest.mark.parametrize("causal", [False, True], ids=("full", "causal"))
def test_separate_kernels_compute_whole_squares(causal: bool) -> None:
    """The model needs what the fused kernels compute; all else is work for nothing."""
    packing, heads, d = Sequences.uniform(2, 50), 4, 8
    operand = spec(100, heads, d, sequences=packing)
    module = Attention(heads, Window.chunked(20), causal=causal, sinks=True)
    block = trace_block(module, [operand] * 3, TraceOptions(fused_attention=False))
    block.graph.lint()
    pairs = 2 * (2 * 400 + 100)
    products = [op for op in block.graph.operators if op.flop != 0]
    assert [number(op.flop) for op in products] == [2 * 2 * 2500 * heads * d] * 6
    needed = 2 * pairs * heads * d // (2 if causal else 1)
    assert [number(op.flop) - number(op.recomputed_flop) for op in products] == [needed] * 6
    assert {number(op.causal_flop) for op in products} == {needed if causal else 0}
    names = [op.path for op in block.graph.operators]
    assert names.count("softcap") == names.count("softcap_bw") == 1  # a kernel of its own here
    assert gradients_written(block) == {"sinks": 1}


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_sinks_are_split_with_the_heads(tp: int) -> None:
    module = SelfAttention(64, 8, 4, head_dim=16, sinks=True, bias=False, window=Window.sliding(8))
    assert module.num_parameters() == 64 * 16 * 16 + 8 * 16 * 64 + 8
    block = run_megatron(module, spec(32, 64, sequences=Sequences.uniform(2, 16)), tp=tp)
    (held,) = (use for use in block.parameters if use.path.endswith("sinks"))
    assert (held.numel, held.is_sharded) == (8 // tp, tp > 1)
    assert gradients_written(block)[held.path] == 1
    (kernel,) = (op for op in backward(block) if op.kind.value == "attention_backward")
    assert held.gradient in kernel.outputs and held.tensor in kernel.inputs


def test_frozen_sinks_get_no_gradient() -> None:
    module = SelfAttention(64, 8, sinks=True, bias=False)
    assert module.sinks is not None
    module.sinks.requires_grad = False
    block = run_megatron(module, spec(32, 64, sequences=Sequences.uniform(2, 16)))
    assert not any("sinks" in path for path in gradients_written(block))


def test_streams_have_symbols_of_their_own() -> None:
    packing = Sequences.of_stream("vision", 2)
    operand = CarrySpec((packing.tokens, 4, 8), (1, 1, 1), DType.BF16, True, packing)
    block = run(Attention(4, Window.chunked(64), causal=False), operand, operand, operand)
    assert forward(block)[0].flop == 2 * 4 * 16 * Poly.symbol("vision.pairs@chunked64")
    spread = Sequences.of_stream("vision", 2, module="vit")
    assert spread.pairs_within(Window.chunked(8), "x") == Poly.symbol("vision.vit.pairs@chunked8")


def test_what_a_window_does_not_fit() -> None:
    text, video = (Sequences.of_stream(name) for name in ("text", "video"))
    attend = Apply(lambda q, k: F.attention(q, k, k, causal=False, window=Window.sliding(4)))

    def operand(packing: Sequences) -> CarrySpec:
        return CarrySpec((packing.tokens, 4, 8), (1, 1, 1), DType.BF16, True, packing)

    with pytest.raises(GraphError, match="a window is for self-attention"):
        run(attend, operand(text), operand(video))
    uneven = Sequences("text", 30, 500, 2)
    with pytest.raises(GraphError, match="sequences of unknown lengths"):
        run(attend, operand(uneven), operand(uneven))
    with pytest.raises(GraphError, match="one sink per head"):
        run(Apply(lambda q: F.attention(q, q, q, causal=True, sinks=Parameter(3))), operand(text))


@pytest.mark.parametrize(
    "options",
    [{"window": Window.sliding(4)}, {"sinks": Parameter(4)}, {"softcap": 30.0}],
    ids=["window", "sinks", "softcap"],
)
def test_context_parallelism_takes_them(options: dict[str, object]) -> None:
    """A window's tiles are counted by the batch; sinks and caps cost what attention without them does."""
    module = Apply(lambda q: F.attention(q, q, q, causal=True, **options))  # type: ignore[arg-type]
    packing = Sequences.of_stream("text", 4, 2)
    operand = CarrySpec((packing.tokens, 4, 8), (1, 1, 1), DType.BF16, True, packing)
    plain = Apply(lambda q: F.attention(q, q, q, causal=True))
    found, other = (
        trace_block(one, [operand], TraceOptions(cp_group=CommGroup("cp", 2, 1))).graph.operators
        for one in (module, plain)
    )
    counted = ["#causal+sliding4" in repr(operator.flop) for operator in found]
    if "window" in options:
        assert sum(counted) == 4  # two steps of the ring, both ways
    else:
        assert [operator.flop for operator in found] == [operator.flop for operator in other]
