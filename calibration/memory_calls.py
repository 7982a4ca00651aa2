"""How torch is asked for each memory-bound operation of ``memory.py``."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F

from calibration.bench import Bench
from calibration.case import Case
from calibration.memory import CHANNELS_LAST, GROUPS
from calibration.timing import Call

VOCAB = 32000


def swiglu(x: Any) -> Any:
    """silu(gate) * up of [rows, 2 width]."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    """Rotary positions: x [rows, heads, dim], cos and sin [rows, 1, dim / 2]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def rms_norm(x: Any, weight: Any) -> Any:
    """Over the last axis."""
    return F.rms_norm(x, (x.shape[-1],), weight)


def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    """Over the last axis."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias)


def softmax(x: Any) -> Any:
    """Over the last axis."""
    return F.softmax(x, dim=-1)


def dropout(x: Any) -> Any:
    """A tenth of the elements."""
    return F.dropout(x, p=0.1, training=True)


def gelu(x: Any) -> Any:
    """With the error function."""
    return F.gelu(x)


def silu(x: Any) -> Any:
    """x * sigmoid(x)."""
    return F.silu(x)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """One graph for all shapes of a function where that is possible; never the function itself.

    With ``fullgraph`` a shape that cannot be compiled is an error, where torch would else run the eager kernels.
    """
    import torch._functorch.config

    torch._functorch.config.donated_buffer = False  # a backward pass is run many times on one graph
    for name in ("recompile_limit", "cache_size_limit"):  # the newer and the older name
        if hasattr(torch._dynamo.config, name):
            setattr(torch._dynamo.config, name, 64)
            break
    return torch.compile(function, dynamic=True, fullgraph=True)


def build_memory(bench: Bench, case: Case) -> Call:
    """Operands and the call; a backward pass runs on a graph that is built here and kept."""
    op, options = str(case.row["op"]), case.options
    if op == "adam":
        return _adam(bench, str(case.row["dtype"]), options["tensors"], options["elements"], options["variant"])
    if op in ("memcpy_h2d", "memcpy_d2h"):
        return _copy(bench, options["count"], to_device=op == "memcpy_h2d")
    if op == "group_norm":
        return _group_norm(bench, case)
    rows, width, dtype = options["rows"], options["width"], str(case.row["dtype"])
    is_backward = case.row["pass"] == "bwd"
    if op == "rope":
        x = bench.random(rows, width, 128, dtype=dtype)
    elif op == "embedding":
        x = bench.random(VOCAB, width, dtype=dtype)
    else:
        x = bench.random(rows, width, dtype=dtype)
    if op == "stream_copy":
        target = torch.empty_like(x)
        return lambda: target.copy_(x)
    function, others = _forward(bench, op, rows, width, dtype)
    if case.row["note"] == "torch.compile":
        function = _compiled(function)
    trained = [x, *(other for other in others if op.endswith("_norm"))] if is_backward else []
    for tensor in trained:
        tensor.requires_grad_()
    if not is_backward:
        return partial(function, x, *others)
    out = function(x, *others)
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, trained, gradient, retain_graph=True)


def _forward(bench: Bench, op: str, rows: int, width: int, dtype: str) -> tuple[Callable[..., Any], list[Any]]:
    """The function of the large operand, and its other arguments."""
    if op == "rms_norm":
        return rms_norm, [bench.random(width, dtype=dtype)]
    if op == "layer_norm":
        return layer_norm, [bench.random(width, dtype=dtype), bench.random(width, dtype=dtype)]
    if op == "rope":
        return rotate, [bench.random(rows, 1, 64, dtype=dtype), bench.random(rows, 1, 64, dtype=dtype)]
    if op == "add":
        return torch.add, [bench.random(rows, width, dtype=dtype)]
    if op == "embedding":
        ids = bench.integers(VOCAB, rows)
        return lambda table: F.embedding(ids, table), []
    if op == "cross_entropy":
        targets = bench.integers(width, rows)
        return lambda logits: F.cross_entropy(logits, targets), []
    return {"gelu": gelu, "silu": silu, "swiglu": swiglu, "softmax": softmax, "dropout": dropout}[op], []


def _group_norm(bench: Bench, case: Case) -> Call:
    """In 32 groups, with weights; channels first or last."""
    images, channels, *sides = case.options["shape"]
    layout = torch.channels_last if case.row["note"] == CHANNELS_LAST else torch.contiguous_format
    x = bench.random(images, channels, *sides).contiguous(memory_format=layout)
    weight, bias = bench.random(channels), bench.random(channels)
    if case.row["pass"] == "fwd":
        return lambda: F.group_norm(x, GROUPS, weight, bias)
    trained = [x, weight, bias]
    for tensor in trained:
        tensor.requires_grad_()
    out = F.group_norm(x, GROUPS, weight, bias)
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, trained, gradient, retain_graph=True)


def _adam(bench: Bench, dtype: str, tensors: int, elements: int, variant: str) -> Call:
    parameters = [bench.random(elements, dtype=dtype, grad=True) for _ in range(tensors)]
    for parameter in parameters:
        parameter.grad = bench.random(elements, dtype=dtype)
    return torch.optim.Adam(parameters, lr=1e-4, **{variant: True}).step


def _copy(bench: Bench, count: int, *, to_device: bool) -> Call:
    host = torch.randint(256, (count,), dtype=torch.uint8)
    if bench.is_cuda:
        host = host.pin_memory()
    device = torch.empty(count, dtype=torch.uint8, device=bench.device)
    target, source = (device, host) if to_device else (host, device)
    return lambda: target.copy_(source, non_blocking=True)
