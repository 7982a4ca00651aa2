"""``read_trace``: kernels of a trace of torch.profiler with ``record_shapes=True`` -> samples.

A kernel belongs to the operator of its ``External id``; the operator's ``Input Dims`` and ``Input type`` are the shape.
Products, fused attention, norms, additions, activations, softmax and collectives with their sizes are taken; what else
runs is counted as left out. Several kernels of one operator (a product split over k and its reduction) count together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from semu.errors import ConfigError
from semu.fitting.kernel_names import Family as KernelFamily
from semu.fitting.kernel_names import family_of
from semu.fitting.samples import Refusal, Sample
from semu.fitting.trace_events import read_events

_BYTES = {
    "c10::bfloat16": 2,
    "c10::half": 2,
    "float": 4,
    "c10::float8_e4m3fn": 1,
    "c10::float8_e5m2": 1,
}
_HALVES = ("c10::bfloat16", "c10::half")
Dims = Sequence[Sequence[int]]


def is_trace(content: bytes) -> bool:
    """Whether a file may be a trace: JSON that names traceEvents."""
    head = content[:200_000]
    return head.lstrip()[:1] in (b"{", b"[") and (b'"traceEvents"' in content or b'"ph"' in head)


def read_trace(path: str | os.PathLike[str], profile: str) -> tuple[list[Sample], list[Refusal]]:
    """Read one trace.

    Args:
        path: the file. profile: name of the device that it is taken to be of.
    Raises:
        ConfigError: no trace; no kernel; no operator with shapes.
    """
    name = Path(path).name
    events, _, _ = read_events(path)
    operators: dict[object, dict[str, Any]] = {}
    kernels: dict[object, list[tuple[str, float]]] = {}
    for event in events:
        arguments = event.get("args")
        if not isinstance(arguments, dict):
            continue
        identity = arguments.get("External id", arguments.get("External Id"))
        category = str(event.get("cat", "")).lower()
        if category == "cpu_op" and identity is not None and arguments.get("Input Dims"):
            operators[identity] = event
        elif category == "kernel":
            kernels.setdefault(identity, []).append((str(event.get("name")), float(event.get("dur", 0.0))))
    if not kernels:
        raise ConfigError("no GPU kernels in the trace", where=name, expected="events of category kernel", got="none")
    if not operators:
        raise ConfigError(
            "a trace without shapes",
            where=name,
            expected="operators with Input Dims: profile with record_shapes=True",
            got=f"{sum(map(len, kernels.values()))} kernels, no shapes",
        )
    samples: list[Sample] = []
    left: dict[str, int] = {}
    for identity, own in kernels.items():
        operator = operators.get(identity)
        sample = None if operator is None else _sample(operator, own, name, profile)
        if sample is not None:
            samples.append(sample)
        else:
            what = own[0][0][:40] if operator is None else str(operator.get("name"))
            left[what] = left.get(what, 0) + len(own)
    refusals = [
        Refusal(name, f"{count} kernels of {what}: no shape, or no section")
        for what, count in sorted(left.items(), key=lambda item: (-item[1], item[0]))
    ]
    return samples, refusals


def _sample(event: Mapping[str, Any], kernels: Sequence[tuple[str, float]], name: str, profile: str) -> Sample | None:
    arguments = event["args"]
    dims = [list(dim) if isinstance(dim, list) else [] for dim in arguments["Input Dims"]]
    types = [str(item).lower() for item in arguments.get("Input type", arguments.get("Input Types", []))]
    time_us = sum(duration for _, duration in kernels)
    reader = _READERS.get(str(event.get("name")))
    if reader is None or time_us <= 0:
        return None
    function, families = reader
    if not any(family_of(kernel) in families for kernel, _ in kernels):
        return None
    try:
        found = function(dims, types, arguments)
    except (KeyError, IndexError, ValueError, TypeError):
        return None
    if found is None:
        return None
    section, shape = found
    return Sample(section, shape, time_us * 1e-6, f"trace/{name}", profile, f"{name} ts {event.get('ts')}")


Found = tuple[str, tuple[float, ...]] | None


def _product(a: Sequence[int], b: Sequence[int], dtype: str) -> Found:
    if dtype not in _HALVES or len(a) != len(b):
        return None
    groups = prod(a[:-2])
    (m, k), n = a[-2:], b[-1]
    if b[-2] != k or min(m, n, k, groups) < 1:
        return None
    section = "efficiency.matmul" if groups == 1 else "efficiency.grouped_matmul"
    return section, (float(m), float(n), float(k), float(groups), 2.0, 2.0, 0.0, 0.0)


def _mm(dims: Dims, types: Sequence[str], _: Mapping[str, Any]) -> Found:
    return _product(dims[0], dims[1], types[0])


def _addmm(dims: Dims, types: Sequence[str], _: Mapping[str, Any]) -> Found:
    return _product(dims[1], dims[2], types[1])


def _attention(position: int) -> Callable[[Dims, Sequence[str], Mapping[str, Any]], Found]:
    """Fused attention on q, k, v of [batch, heads, tokens, head_dim]; ``position`` of is_causal among the inputs."""

    def read(dims: Dims, types: Sequence[str], arguments: Mapping[str, Any]) -> Found:
        if types[0] not in _HALVES or any(len(dim) != 4 for dim in dims[:3]):
            return None
        causal = str(arguments["Concrete Inputs"][position]).lower()
        if causal not in ("true", "false"):
            return None
        b, h, s_q, d = dims[0]
        h_kv, s_kv, d_v = dims[1][1], dims[1][2], dims[2][3]
        variant = "" if d == 128 else f".head_dim_{d}"
        shape = (b, h, h_kv, s_q, s_kv, d, d_v, causal == "true", 0, 0)
        return f"efficiency.attention_forward{variant}", tuple(float(value) for value in shape)

    return read


def _moved(section: str, tensors: Sequence[int]) -> Callable[[Dims, Sequence[str], Mapping[str, Any]], Found]:
    """A kernel that reads its inputs and writes one result of the first one's size."""

    def read(dims: Dims, types: Sequence[str], _: Mapping[str, Any]) -> Found:
        size = _BYTES.get(types[0], 0)
        if not size or not dims[0]:
            return None
        total = sum(prod(dims[i]) * _BYTES.get(types[i], 0) for i in tensors) + prod(dims[0]) * size
        return f"efficiency.{section}", (float(total), float(dims[0][-1]))

    return read


_READERS: Mapping[str, tuple[Callable[[Dims, Sequence[str], Mapping[str, Any]], Found], tuple[KernelFamily, ...]]] = {
    "aten::mm": (_mm, (KernelFamily.MATMUL,)),
    "aten::bmm": (_mm, (KernelFamily.MATMUL,)),
    "aten::addmm": (_addmm, (KernelFamily.MATMUL,)),
    "aten::_scaled_dot_product_flash_attention": (_attention(4), (KernelFamily.ATTENTION_FORWARD,)),
    "aten::_scaled_dot_product_cudnn_attention": (_attention(6), (KernelFamily.ATTENTION_FORWARD,)),
    "aten::native_layer_norm": (_moved("norm", (0,)), (KernelFamily.NORM,)),
    "aten::_fused_rms_norm": (_moved("norm", (0,)), (KernelFamily.NORM,)),
    "aten::_softmax": (_moved("softmax", (0,)), (KernelFamily.NORM,)),
    "aten::add": (_moved("add", (0, 1)), (KernelFamily.ELEMENTWISE,)),
    "aten::gelu": (_moved("activation", (0,)), (KernelFamily.ELEMENTWISE,)),
    "aten::silu": (_moved("activation", (0,)), (KernelFamily.ELEMENTWISE,)),
}
"""Operator -> how its shape is read, and what its kernels have to be."""
