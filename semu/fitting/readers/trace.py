"""``read_trace``: kernels of a trace of torch.profiler with ``record_shapes=True`` -> samples.

A kernel belongs to the operator of its ``External id``; the operator's ``Input Dims`` and ``Input type`` are the shape.
Products, fused attention forward and backward, norms, additions, activations and softmax are taken. All other kernels
are left out and counted, collectives too, whose kernels wait for the other ranks. Several kernels of one operator (a
product split over k and its reduction) count together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from semu.checks import is_number
from semu.errors import ConfigError
from semu.fitting.kernel_names import family_of, family_of_kind
from semu.fitting.samples import Refusal, Sample, places
from semu.fitting.trace_events import read_events
from semu.hardware.known_devices import named_device

_BYTES = {
    "c10::bfloat16": 2,
    "c10::half": 2,
    "float": 4,
    "c10::float8_e4m3fn": 1,
    "c10::float8_e5m2": 1,
}
_LONGEST_US = 1e15
_LARGEST = 1e15
"""Largest size of a shape."""
_HALVES = ("c10::bfloat16", "c10::half")
Dims = Sequence[Sequence[int]]


def is_trace(content: bytes) -> bool:
    """Whether a file may be a trace: JSON that names traceEvents."""
    head = content[:200_000]
    return head.lstrip()[:1] in (b"{", b"[") and (b'"traceEvents"' in content or b'"ph"' in head)


def read_trace(
    path: str | os.PathLike[str], profile: str, *, name: str | None = None
) -> tuple[list[Sample], list[Refusal]]:
    """Read one trace.

    Args:
        path: the file. profile: name of the device, for a trace that names none.
        name: of the file in places; None: the file's name without folders.
    Raises:
        ConfigError: no trace; no kernel; no operator with shapes; a kernel's time that is no number or negative.
    """
    name = Path(path).name if name is None else name
    events, document, _ = read_events(path)
    listed = document.get("deviceProperties")
    devices = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    device = named_device((str(item.get("name") or "") for item in devices), profile)
    operators: dict[str, dict[str, Any]] = {}
    kernels: dict[str, list[tuple[str, float]]] = {}
    bad: list[str] = []
    for event in events:
        arguments = event.get("args")
        if not isinstance(arguments, dict):
            continue
        identity = arguments.get("External id", arguments.get("External Id"))
        category = str(event.get("cat", "")).lower()
        if category == "cpu_op" and identity is not None and arguments.get("Input Dims"):
            operators[str(identity)] = event
        elif category == "kernel":
            duration = event.get("dur")
            if is_number(duration) and 0 <= duration <= _LONGEST_US:
                kernels.setdefault(str(identity), []).append((str(event.get("name")), float(duration)))
            else:
                bad.append(f"ts {event.get('ts')} ({duration})")
    if bad:
        raise ConfigError(
            f"{len(bad)} kernels whose times are not positive numbers",
            where=f"{name} {bad[0].partition(' (')[0]}",
            expected="dur >= 0 [us] of every kernel",
            got=places(bad),
        )
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
    for identity, launched in kernels.items():
        operator = operators.get(identity)
        sample = None if operator is None else _sample(operator, launched, name, device)
        if sample is not None:
            samples.append(sample)
        else:
            what = launched[0][0][:40] if operator is None else str(operator.get("name"))
            left[what] = left.get(what, 0) + len(launched)
    refusals = [
        Refusal(name, f"{count} kernels of {what}: no shape, or no section")
        for what, count in sorted(left.items(), key=lambda item: (-item[1], item[0]))
    ]
    return samples, refusals


def _sample(event: Mapping[str, Any], kernels: Sequence[tuple[str, float]], name: str, device: str) -> Sample | None:
    arguments = event["args"]
    time_us = sum(duration for _, duration in kernels)
    reader = _READERS.get(str(event.get("name")))
    if reader is None or time_us <= 0:
        return None
    try:
        dims = [list(dim) if isinstance(dim, list) else [] for dim in arguments["Input Dims"]]
        types = [str(item).lower() for item in arguments.get("Input type", arguments.get("Input Types", []))]
        read = reader(dims, types, arguments)
    except (KeyError, IndexError, ValueError, TypeError, OverflowError):
        return None
    if read is None:
        return None
    section, shape = read
    family = family_of_kind(section.split(".")[1])
    if any(not 0 <= value <= _LARGEST for value in shape) or family not in {family_of(name) for name, _ in kernels}:
        return None
    return Sample(section, shape, time_us * 1e-6, f"trace/{name}", device, f"{name} ts {event.get('ts')}")


Found = tuple[str, tuple[float, ...]] | None
"""Section and shape; None: a call that no section describes."""
Reader = Callable[[Dims, Sequence[str], Mapping[str, Any]], Found]
"""Sizes and types of an operator's inputs, and the event's arguments -> section and shape."""


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


_NO_WINDOW = ("", "None", "-1")


def _attention(
    position: int, *, first: int = 0, is_forward: bool = True, tokens_first: bool = False, window: int | None = None
) -> Reader:
    """Fused attention on q, k, v of [batch, heads, tokens, head_dim].

    Args:
        position: of is_causal among the inputs. first: that of q, before k and v.
        tokens_first: they are [batch, tokens, heads, head_dim]. window: position of its left size, before the right.
    Source:
        aten/src/ATen/native/native_functions.yaml of PyTorch has the operators' inputs in order.
    """

    def _read(dims: Dims, types: Sequence[str], arguments: Mapping[str, Any]) -> Found:
        q, k, v = dims[first : first + 3]
        if types[first] not in _HALVES or any(len(dim) != 4 for dim in (q, k, v)):
            return None
        causal = str(arguments["Concrete Inputs"][position]).lower()
        sizes = [] if window is None else arguments["Concrete Inputs"][window : window + 2]
        if causal not in ("true", "false") or any(str(size) not in _NO_WINDOW for size in sizes):
            return None
        heads, tokens = (2, 1) if tokens_first else (1, 2)
        b, d = q[0], q[3]
        shape = (b, q[heads], k[heads], q[tokens], k[tokens], d, v[3], causal == "true", 0, 0)
        if min(*q, *k, *v) < 1:
            return None
        variant = "" if d == 128 else f".head_dim_{d}"
        section = "attention_forward" if is_forward else "attention_backward"
        return f"efficiency.{section}{variant}", tuple(float(value) for value in shape)

    return _read


def _moved(section: str, tensors: Sequence[int]) -> Reader:
    """A kernel that reads its inputs and writes one result of the first one's size."""

    def _read(dims: Dims, types: Sequence[str], _: Mapping[str, Any]) -> Found:
        size = _BYTES.get(types[0], 0)
        if not size or not dims[0]:
            return None
        total = sum(prod(dims[i]) * _BYTES.get(types[i], 0) for i in tensors) + prod(dims[0]) * size
        if total < 1:
            return None
        return f"efficiency.{section}", (float(total), float(dims[0][-1]))

    return _read


_READERS: Mapping[str, Reader] = {
    "aten::mm": _mm,
    "aten::bmm": _mm,
    "aten::addmm": _addmm,
    "aten::_scaled_dot_product_flash_attention": _attention(4),
    "aten::_scaled_dot_product_cudnn_attention": _attention(6),
    "aten::_flash_attention_forward": _attention(8, tokens_first=True, window=11),
    "aten::_cudnn_attention_forward": _attention(10),
    "aten::_flash_attention_backward": _attention(11, first=1, is_forward=False, tokens_first=True, window=15),
    "aten::_cudnn_attention_backward": _attention(14, first=1, is_forward=False),
    "aten::_scaled_dot_product_flash_attention_backward": _attention(11, first=1, is_forward=False),
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention(14, first=1, is_forward=False),
    "aten::native_layer_norm": _moved("norm", (0,)),
    "aten::_fused_rms_norm": _moved("norm", (0,)),
    "aten::_softmax": _moved("softmax", (0,)),
    "aten::add": _moved("add", (0, 1)),
    "aten::gelu": _moved("activation", (0,)),
    "aten::silu": _moved("activation", (0,)),
}
"""Operator -> reader of its shape."""
