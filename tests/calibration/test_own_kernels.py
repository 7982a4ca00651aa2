"""Kernels of one H100 (``calibration/measurements/h100-sxm-2026-11``) beside what semu's operators take there.

Times are made from the profile's coefficients here, not by the simulator: t0 + bytes / rate, and a product's tiles.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from nn.tracing_kit import number, options, saved_bytes, spec

from semu.graph.operator import Operator, OpKind, Phase
from semu.hardware.kinds import DType
from semu.hardware.profile import load_profile
from semu.hardware.shape_terms import tiled_flop
from semu.nn import Activation, GroupNorm, Module, Sequences, Tensor
from semu.nn.layers.convolution import Conv1d
from semu.nn.rules.optimizer import optimizer_bytes
from semu.nn.trace.block import trace_block
from semu.nn.trace.options import TraceOptions
from semu_models.text.encoder import ImageEmbedding

FOLDER = Path(__file__).resolve().parents[2] / "calibration" / "measurements" / "h100-sxm-2026-11"
H100 = load_profile("h100")
GRADIENTS = (Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT)
"""Of an embedding, whose input needs none: the weights'."""


def measured(table: str) -> Iterator[Mapping[str, str]]:
    with (FOLDER / f"{table}.csv").open(encoding="utf-8") as file:
        yield from csv.DictReader(file)


def kernel_us(operator: Operator) -> float:
    """Of one operator, on whole numbers."""
    found = H100.efficiency(operator.kind, dtype=operator.dtype)
    flop, peak = 0.0, H100.peak_flop_per_s(operator.dtype)
    if operator.kind is OpKind.MATMUL:
        m, n, k = (number(size) for size in operator.key[:3])
        shape = {"k0": found.tile_k0, "rest": found.tile_rest, "tile_128": found.tile_128}
        flop = tiled_flop(m, n, k, tiles_at_once=found.tiles_at_once, **shape)
    return 1e6 * found.latency_s(flop, number(operator.mem_bytes), peak, H100.mem_bytes_per_s.value)


def traced_us(module: Module, tokens: int, width: int, images: int, phases: tuple[Phase, ...], **how: bool) -> float:
    x = spec(tokens, width, sequences=Sequences.uniform(images, tokens // images))
    chosen: TraceOptions = replace(options(), **how)
    block = trace_block(module, [x], chosen)
    return sum(kernel_us(operator) for operator in block.graph.operators if operator.phase in phases)


def test_group_norms() -> None:
    """Those above 60 MB; smaller ones are several kernels of some microseconds each, which nobody counts."""
    ratios: dict[tuple[str, bool], list[float]] = {}
    for row in measured("memory_ops"):
        if row["op"] != "group_norm" or float(row["bytes"]) < 60e6:
            continue
        images, channels, side, _ = (int(size) for size in row["shape"].split("x"))
        is_last, is_forward = "channels last" in row["note"], row["pass"] == "fwd"
        phases = (Phase.FORWARD,) if is_forward else GRADIENTS
        how = {"eager_modules": True, "channels_first": not is_last}
        found = traced_us(GroupNorm(channels), images * side * side, channels, images, phases, **how)
        ratios.setdefault((row["pass"], is_last), []).append(found / float(row["time_us"]))
    assert {key: len(found) for key, found in ratios.items()} == {
        ("fwd", False): 7, ("fwd", True): 5, ("bwd", False): 11, ("bwd", True): 7
    }  # fmt: skip
    assert all(0.7 < fmean(found) < 1.05 for found in ratios.values()), ratios


@pytest.mark.parametrize("kind", ["patches", "first"])
def test_forward_convolutions_of_few_channels(kind: str) -> None:
    """With channels last; as products of as many FLOP they were 0.04 to 0.5 of what was measured."""
    ratios = []
    for row in measured("convolutions"):
        inputs, outputs, side, taps, stride = (
            int(row[name]) for name in ("channels_in", "channels_out", "side", "kernel", "stride")
        )
        if inputs > 4 or (row["pass"], row["layout"], row["dtype"]) != ("fwd", "nhwc", "bf16"):
            continue
        if (kind == "patches") != (stride == taps):
            continue
        images, pixels = int(row["batch"]), (side // stride) ** 2
        module: Module = Conv1d(inputs, outputs, taps * taps)
        width = inputs
        if kind == "patches":
            width = inputs * taps * taps
            module = ImageEmbedding(width, outputs, bias=False)
        found = traced_us(module, images * pixels, width, images, (Phase.FORWARD,), convolves_patches=True)
        ratios.append(found / float(row["time_us"]))
    assert len(ratios) == 3
    assert all(0.6 < ratio < 1.5 for ratio in ratios), ratios


def test_fused_adam_over_16_bits() -> None:
    """Of whole steps, which set gradients to zero with it: 0.6 of what was measured by the bytes alone."""
    half = dict.fromkeys(("tensor_dtype", "grad_dtype", "master_dtype", "state_dtype"), DType.BF16)
    step, copy = H100.efficiency(OpKind.OPTIMIZER), H100.efficiency(OpKind.COPY)
    ratios = []
    for row in measured("model_steps"):
        elements = int(row["parameters"])
        if row["optimizer"] == "fused" and row["micro_batch"] != "8":  # those wait for their host
            found = step.latency_s(0, optimizer_bytes(elements, **half), 1, H100.mem_bytes_per_s.value)
            found += copy.latency_s(0, 2 * elements, 1, H100.mem_bytes_per_s.value)
            ratios.append(1e6 * found / float(row["optimizer_us"]))
    assert len(ratios) == 19
    assert all(0.92 < ratio < 1.05 for ratio in ratios), ratios
    fp32 = dict.fromkeys(half, DType.FP32)
    assert optimizer_bytes(1, **fp32) == 28 and optimizer_bytes(1, **half) == 14 + 6


def test_the_profile_s_products_are_those_of_sustained_load() -> None:
    """The first 20 ms of products run at a clock that 700 W do not allow for longer."""
    rates = {row["phase"]: float(row["tflops"]) for row in measured("clocks") if row["load"] == "gemm"}
    found = H100.efficiency(OpKind.MATMUL, dtype=DType.BF16)
    size = 8192
    shape = {"k0": found.tile_k0, "rest": found.tile_rest, "tile_128": found.tile_128}
    flop = tiled_flop(size, size, size, tiles_at_once=found.tiles_at_once, **shape)
    seconds = found.latency_s(flop, 3 * 2 * size**2, H100.peak_flop_per_s(DType.BF16), H100.mem_bytes_per_s.value)
    simulated = 2 * size**3 / seconds * 1e-12
    assert simulated == pytest.approx(rates["sustained"], rel=0.08)
    assert simulated < 0.9 * rates["first 20 ms"]


@pytest.mark.parametrize(
    ("name", "function", "more"),
    [
        ("quick", lambda x: Activation.QUICK_GELU.apply(x, gated=False), 1.0),
        ("squared", lambda x: Activation.SQUARED_RELU.apply(x, gated=False), 0.0),
        ("gelu", lambda x: Activation.GELU.apply(x, gated=False), 0.0),
        ("gate", lambda x: Activation.SILU.apply(x, gated=True), 0.5),
    ],
)
def test_what_composed_activations_keep(name: str, function: Callable[[Tensor], Tensor], more: float) -> None:
    """Eager beside fused, in sizes of the input: autograd keeps a sigmoid, an activated gate."""

    class Only(Module):
        def forward(self, x: Tensor) -> Tensor:
            return function(x)

    kept = {
        eager: saved_bytes(trace_block(Only(), [spec(64, 32)], replace(options(), eager_modules=eager)))
        for eager in (False, True)
    }
    assert kept[True] - kept[False] == more * 64 * 32 * 2, name
