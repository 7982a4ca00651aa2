"""Traffic of eager PyTorch, counted by PyTorch: every operator that its dispatcher runs reads and writes tensors.

What is one operator to the dispatcher and several kernels on a GPU is listed below, from PyTorch's sources. CUDA's
autocast is spelt out (there is no CUDA here): norms between copies to fp32 and back, as in PyTorch's list of operators
that autocast to float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from nn.tracing_kit import Apply, number, options, spec

from semu.graph.operator import OpKind, Phase
from semu.hardware.kinds import DType
from semu.nn import GELU, Activation, LayerNorm, Linear, Module, Sequences, SiLU
from semu.nn import functional as F
from semu.nn.rules.optimizer import average_bytes, foreach_bytes
from semu.nn.trace.block import trace_block
from semu.nn.trace.eager import Autocast, EagerKernels
from semu_models.generation.unet_layers import ResBlock

torch = pytest.importorskip("torch")
if True:  # behind the skip
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

IMAGES, SIDE, WIDTH, TIME = 2, 32, 96, 128
TOKENS = SIDE * SIDE
PRODUCTS = ("mm", "addmm", "bmm", "convolution", "convolution_backward")
LEAVES = ("clone", "copy_")
"""What a gradient that arrives at a leaf does, where somebody else holds it too; no module here copies."""
TWICE_READ = {"native_group_norm": 1, "native_group_norm_backward": 2, "native_layer_norm_backward": 2}
"""Inputs that a second kernel reads again: group_norm_kernel.cu computes moments apart, and in its backward the sums
that the gradients need; layer_norm_kernel.cu the gradients of weight and bias."""


SLOW = {"native_group_norm": (29, 24), "native_group_norm_backward": (5, 0)}
"""What kernels over groups lose beside the traffic, of 16 bits and of fp32 [bytes an element]; 24: a copy from channels
last to channels first, which the CPU's kernels do without (``semu.nn.trace.eager``)."""


class Traffic(TorchDispatchMode):
    """Bytes that operators read and write; products apart, and ``LEAVES`` unless they are asked for."""

    def __init__(self, *, with_copies: bool = False) -> None:
        super().__init__()
        self.moved = 0
        self.apart = PRODUCTS if with_copies else (*PRODUCTS, *LEAVES)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        reads = {id(x): x for x in tree_leaves((args, kwargs or {})) if isinstance(x, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        writes = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        name = func._overloadpacket.__name__
        memory = {x.untyped_storage().data_ptr() for x in reads.values()}
        is_view = (
            bool(writes)
            and not func._schema.is_mutable
            and all(x.untyped_storage().data_ptr() in memory for x in writes)
        )
        if not is_view and name not in self.apart and not name.startswith(("empty", "detach", "new_")):
            many = [_size(x) for x in reads.values()]
            written = [_size(x) for x in reads.values() if name.endswith("_")] if not writes else map(_size, writes)
            if name.startswith("_foreach") and name.endswith("_"):  # the first list is changed
                written = [_size(x) for x in args[0]]
            again = sum(sorted(many, reverse=True)[: TWICE_READ.get(name, 0)])
            lost = SLOW.get(name, (0, 0))[args[0].dtype.itemsize == 4] * args[0].numel() if name in SLOW else 0
            self.moved += sum(many) + sum(written) + again + lost
        return result


def _size(x: Any) -> int:
    return int(min(x.numel(), x.untyped_storage().nbytes() // x.element_size()) * x.element_size())


def counted(function: Callable[..., Any], *inputs: Any) -> int:
    """Bytes of a function and its gradients, but for products, whose gradient arrives."""
    with Traffic() as forward:
        y = function(*inputs)
    grad = torch.ones_like(y)
    with Traffic() as backward:
        y.backward(grad)
    return forward.moved + backward.moved


def traced(module: Module, *inputs: Any, autocast: Autocast | None = None) -> int:
    """What semu's operators move, but for products."""
    chosen = dataclasses.replace(
        options(), eager_modules=True, autocast=autocast, casts_parameters=autocast is not None
    )
    block = trace_block(module, inputs, chosen)
    return sum(number(op.mem_bytes) for op in block.graph.operators if op.kind is not OpKind.MATMUL)


def leaf(*shape: int, dtype: Any = None) -> Any:
    return torch.randn(*shape, dtype=dtype or torch.bfloat16, requires_grad=True)


PIXELS = Sequences.uniform(IMAGES, TOKENS)
ONE = Sequences.uniform(IMAGES, 1)
X = spec(IMAGES * TOKENS, WIDTH, sequences=PIXELS)


@pytest.mark.parametrize(
    "name", ["modulate", "gated_add", "layer_norm", "bias", "silu", "gelu", "quick", "squared", "add", "gate"]
)
def test_a_module_s_traffic(name: str) -> None:
    x, y = leaf(IMAGES, TOKENS, WIDTH), leaf(IMAGES, TOKENS, WIDTH)
    row, other = leaf(IMAGES, 1, WIDTH), leaf(IMAGES, 1, WIDTH)
    weight, bias = leaf(WIDTH), leaf(WIDTH)
    matrix = leaf(WIDTH, WIDTH)
    rows = spec(IMAGES, 2 * WIDTH, sequences=ONE)
    torchs, module, inputs = {
        "modulate": (lambda: counted(lambda: x * (1 + row) + other), Apply(F.modulate), (X, rows)),
        "gated_add": (
            lambda: counted(lambda: x + row * y),
            Apply(F.gated_add),
            (X, X, spec(IMAGES, WIDTH, sequences=ONE)),
        ),
        "layer_norm": (
            lambda: counted(lambda: torch.nn.functional.layer_norm(x, (WIDTH,), weight, bias)),
            LayerNorm(WIDTH),
            (X,),
        ),
        "bias": (lambda: counted(lambda: torch.nn.functional.linear(x, matrix, bias)), Linear(WIDTH, WIDTH), (X,)),
        "silu": (lambda: counted(lambda: torch.nn.functional.silu(x)), SiLU(), (X,)),
        "gelu": (lambda: counted(lambda: torch.nn.functional.gelu(x)), GELU(), (X,)),
        "quick": (
            lambda: counted(lambda: x * torch.sigmoid(1.702 * x)),
            Apply(lambda y: Activation.QUICK_GELU.apply(y, gated=False)),
            (X,),
        ),
        "squared": (
            lambda: counted(lambda: torch.relu(x).pow(2)),
            Apply(lambda y: Activation.SQUARED_RELU.apply(y, gated=False)),
            (X,),
        ),
        "add": (lambda: counted(lambda: x + y), Apply(lambda a, b: a + b), (X, X)),
        "gate": (
            lambda: counted(lambda: torch.nn.functional.silu(x) * y),
            Apply(F.swiglu),
            (spec(IMAGES * TOKENS, 2 * WIDTH, sequences=PIXELS),),
        ),
    }[name]
    assert traced(module, *inputs) == pytest.approx(torchs(), rel=0.05)


class Rotation(torch.autograd.Function):  # type: ignore[misc]
    """Stands for flash-attn's rotary kernel of packed keys and values, which works in place."""

    @staticmethod
    def forward(context: Any, kv: Any) -> Any:
        context.mark_dirty(kv)
        return kv

    @staticmethod
    def backward(context: Any, dkv: Any) -> Any:
        return dkv


def test_copies_around_flash_attn_s_rotation() -> None:
    """nanotron's ``CausalSelfAttention.forward``: [length, sequences, 3 heads x dim] to what its kernels take."""
    length, sequences, heads, dim = 64, 3, 4, 32

    def _laid_out(states: Any) -> Any:
        q, k, v = torch.split(states, heads * dim, dim=-1)
        q, k, v = (x.transpose(0, 1).contiguous().view(sequences, length, heads, dim) for x in (q, k, v))
        kv = torch.cat([k.unsqueeze(0), v.unsqueeze(0)], dim=0).permute(1, 2, 0, 3, 4).contiguous()
        k, v = torch.split(Rotation.apply(kv), 1, dim=2)
        return q, k.squeeze(2), v.squeeze(2)

    states = leaf(length, sequences, 3 * heads * dim)
    with Traffic(with_copies=True) as forward:
        parts = _laid_out(states)
    gradients = [torch.ones_like(part) for part in parts]
    with Traffic(with_copies=True) as backward:
        torch.autograd.backward(parts, gradients)
    chosen = dataclasses.replace(options(), eager_modules=True, eager_kernels=EagerKernels.FLASH_ATTN)
    tokens = spec(length * sequences, heads, dim, sequences=Sequences.uniform(sequences, length))
    found = {}
    for keys in (False, True):
        block = trace_block(Apply(lambda x: F.rope(x, with_values=keys)), [tokens], chosen)  # noqa: B023
        for op in block.graph.operators:
            if op.kind is OpKind.ADD:
                is_back = op.phase is Phase.INPUT_GRADIENT
                found[is_back] = found.get(is_back, 0) + number(op.mem_bytes)
    assert forward.moved == found[False]
    assert backward.moved == found[True]


def residual_block(half: Any, norms: Any, time_width: int) -> Callable[[Any, Any], Any]:
    """A residual block of channels-first images; ``norms``: the type in which norms compute, other than the input's
    under autocast, where products read fp32 parameters in ``half``."""
    is_cast = norms is not None
    kind = torch.float32 if is_cast else half

    def _parameter(*shape: int) -> Any:
        made = leaf(*shape, dtype=kind)
        made.grad = torch.zeros_like(made) if is_cast else None
        return made

    scales = [_parameter(WIDTH) for _ in range(4)]
    kernels, biases = [_parameter(WIDTH, WIDTH, 3, 3) for _ in range(2)], [_parameter(WIDTH) for _ in range(3)]
    map_time = _parameter(WIDTH, time_width)

    def _norm(x: Any, scale: Any, shift: Any) -> Any:
        y = torch.nn.functional.group_norm(x.to(norms) if is_cast else x, 8, scale, shift)
        return torch.nn.functional.silu(y).to(half)

    def _convolve(x: Any, number: int) -> Any:
        y = torch.nn.functional.conv2d(x, kernels[number].to(half), padding=1)
        return y + biases[number].to(half)[:, None, None]

    def _block(x: Any, time: Any) -> Any:
        y = _convolve(_norm(x, scales[0], scales[1]), 0)
        row = torch.nn.functional.linear(torch.nn.functional.silu(time), map_time.to(half), biases[2].to(half))
        y = _convolve(_norm(y + row[:, :, None, None], scales[2], scales[3]), 1)
        return x + y

    return _block


@pytest.mark.parametrize("autocast", [None, Autocast.LOW_PRECISION_NORMS, Autocast.FP32_NORMS])
def test_a_residual_block_s_traffic(autocast: Autocast | None) -> None:
    """Group norms, SiLU, convolutions with biases, a row per image, under autocast with its casts of activations and
    weights and their gradients, of a second microbatch."""
    half = torch.bfloat16
    norms = {None: None, Autocast.LOW_PRECISION_NORMS: half, Autocast.FP32_NORMS: torch.float32}[autocast]
    block = residual_block(half, norms, TIME)
    x, time = leaf(IMAGES, WIDTH, SIDE, SIDE), leaf(IMAGES, TIME)
    expected = counted(lambda: block(x, time))
    found = traced(ResBlock(WIDTH, WIDTH, TIME), X, spec(IMAGES, TIME, sequences=ONE), autocast=autocast)
    assert found == pytest.approx(expected, rel=0.03)


def test_a_separate_softmax_s_traffic() -> None:
    """Megatron-LM's ``forward_torch_softmax``: a copy in fp32, PyTorch's softmax, a copy back."""
    heads, length = 4, 257
    scores = leaf(heads, length, length)
    moved = counted(lambda: torch.softmax(scores.float(), -1).to(torch.bfloat16))
    q = spec(length, heads, 64, sequences=Sequences.uniform(1, length))
    unfused = dataclasses.replace(options(), fused_attention=False)
    block = trace_block(Apply(lambda q, k, v: F.attention(q, k, v, causal=False)), [q, q, q], unfused)
    passes = [operator.key for operator in block.graph.operators if operator.kind is OpKind.SOFTMAX]
    assert sum(number(separate) for _, _, separate, _ in passes) * heads * length**2 == moved


def test_a_step_s_traffic() -> None:
    """AdamW over lists of tensors, and diffusers' moving average."""
    sizes = [(300, 40), (7, 1000)]
    weights = [leaf(*shape, dtype=torch.float32) for shape in sizes]
    elements = sum(a * b for a, b in sizes)
    optimizer = torch.optim.AdamW(weights, foreach=True)
    for _ in range(2):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        with Traffic() as step:
            optimizer.step()
    fp32 = {"tensor_dtype": DType.FP32, "grad_dtype": DType.FP32}
    assert step.moved == pytest.approx(foreach_bytes(elements, **fp32), rel=0.01)
    plain = torch.optim.SGD(weights, momentum=0.9, foreach=True)
    for _ in range(2):
        with Traffic() as step:
            plain.step()
    assert step.moved == pytest.approx(foreach_bytes(elements, 1, **fp32), rel=0.01)
    averages = [torch.zeros_like(weight) for weight in weights]
    with torch.no_grad(), Traffic() as average:
        for own, weight in zip(averages, weights, strict=True):
            own.sub_(0.001 * (own - weight))
    assert average.moved == average_bytes(elements)
