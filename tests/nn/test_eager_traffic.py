"""Traffic of eager PyTorch, counted by PyTorch itself: every operator that its dispatcher runs reads and writes tensors.

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

from semu.graph.operator import OpKind
from semu.hardware.kinds import DType
from semu.nn import GELU, MLP, Activation, LayerNorm, Linear, Module, Sequences, SiLU, Tensor
from semu.nn import functional as F
from semu.nn.rules.optimizer import average_bytes, foreach_bytes
from semu.nn.trace.block import trace_block
from semu.nn.trace.eager import Autocast
from semu_models.generation.unet_layers import ResBlock

torch = pytest.importorskip("torch")
if True:  # behind the skip
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

IMAGES, SIDE, WIDTH, TIME = 2, 8, 96, 128
TOKENS = SIDE * SIDE
PRODUCTS = ("mm", "addmm", "bmm", "convolution", "convolution_backward")
TWICE_READ = {"native_group_norm": 1, "native_group_norm_backward": 2, "native_layer_norm_backward": 2}
"""Inputs that a second kernel reads again: group_norm_kernel.cu computes moments apart, and in its backward the sums
that the gradients need; layer_norm_kernel.cu the gradients of weight and bias."""


class Traffic(TorchDispatchMode):
    """Bytes that operators read and write; products apart."""

    def __init__(self) -> None:
        super().__init__()
        self.moved, self.cast = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        reads = {id(x): x for x in tree_leaves((args, kwargs or {})) if isinstance(x, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        writes = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        name = func._overloadpacket.__name__
        memory = {x.untyped_storage().data_ptr() for x in reads.values()}
        is_view = bool(writes) and not func._schema.is_mutable and all(x.untyped_storage().data_ptr() in memory for x in writes)
        if not is_view and name not in PRODUCTS and not name.startswith(("empty", "detach", "new_")):
            many = [_size(x) for x in reads.values()]
            written = [_size(x) for x in reads.values() if name.endswith("_")] if not writes else map(_size, writes)
            if name.startswith("_foreach") and name.endswith("_"):  # the first list is changed
                written = [_size(x) for x in args[0]]
            again = sum(sorted(many, reverse=True)[: TWICE_READ.get(name, 0)])
            self.moved += sum(many) + sum(written) + again
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
    chosen = dataclasses.replace(options(), eager_modules=True, autocast=autocast, fused_accumulation=False)
    block = trace_block(module, inputs, chosen)
    return sum(number(op.mem_bytes) for op in block.graph.operators if op.kind is not OpKind.MATMUL)


def leaf(*shape: int, dtype: Any = None) -> Any:
    return torch.randn(*shape, dtype=dtype or torch.bfloat16, requires_grad=True)
