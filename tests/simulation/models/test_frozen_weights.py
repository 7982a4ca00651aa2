"""Weights of four bits beside adapters (QLoRA): bytes and kernels by hand, the slow reference, run files, imports."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from nn.tracing_kit import backward, forward, rows, spec
from simulation.comparison import assert_tails_equal
from simulation.jobs import gpt, job_of, overlap, text_items, vlm, vlm_items

import semu_models
from semu.cli.command import main
from semu.errors import ConfigError
from semu.hardware.packed import FrozenWeights
from semu.nn import Linear, LoRA, Model, Module, Sequential, add_lora
from semu.nn.trace.block import trace_block
from semu.nn.trace.options import TraceOptions
from semu.parallel.config import Parallel
from semu.simulation import simulate

TARGETS = ("q_proj", "v_proj", "up_proj")


def text() -> Model:
    return add_lora(gpt(), LoRA(4, ("q_proj", "v_proj")))


def images() -> Model:
    return add_lora(vlm(), LoRA(4, ("llm.*.q_proj", "llm.*.v_proj")))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("recompute", ["none", "full", ["mlp"]], ids=str)
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"pp": 2, "dp": 2, "zero": 1},
        {"tp": 2, "dp": 2, "zero": 2},
        {"tp": 2, "pp": 2, "sequence_parallel": True},
        {"cp": 2, "dp": 2, "zero": 0},
    ],
    ids=lambda sizes: Parallel(**sizes).label(),
)
@pytest.mark.parametrize(("make", "items"), [(text, text_items), (images, vlm_items)], ids=["text", "vlm"])
def test_against_the_reference(
    make: Callable[[], Model], items: Callable[[int], Any], sizes: dict[str, Any], recompute: Any
) -> None:
    parallel = Parallel(**sizes)
    job = job_of(
        make(),
        items(3 * parallel.dp),
        parallel,
        recompute=recompute,
        frozen_weights="nf4",
        overlap=overlap(tensor=parallel.sequence_parallel and parallel.tp > 1),
    )
    assert_tails_equal(job)


class Region(Sequential):
    """A transformer layer, as far as weights are concerned."""

    fp8_region = True


M, N, K = 24, 96, 64


def traced(module: Module) -> tuple[list[Any], list[Any]]:
    block = trace_block(module, [spec(M, K)], TraceOptions(frozen_weights=FrozenWeights.NF4), root="block")
    block.graph.lint()
    return rows(forward(block)), rows(backward(block))


@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_weight_is_unpacked_for_each_product(is_frozen: bool) -> None:
    linear = Linear(K, N, bias=False)
    linear.weight.requires_grad = not is_frozen
    there, back = traced(Region(linear))
    packed = N * K // 2 + N * K // 64 + 4
    unpack = packed + 2 * N * K
    kernels = [(kind, size) for kind, _, _, size, _ in there]
    product = 2 * (M * N + M * K + N * K)
    assert kernels == [*([("cast", unpack)] if is_frozen else []), ("matmul", product)]
    kinds = [(kind, size) for kind, _, _, size, _ in back]
    assert kinds[:1] == ([("cast", unpack)] if is_frozen else [("matmul", product)])
    assert len(kinds) == 2  # the input's gradient, after the weight or before the weight's gradient


def test_outside_of_layers_nothing_is_packed() -> None:
    linear = Linear(K, N, bias=False)
    linear.weight.requires_grad = False
    there, _ = traced(Sequential(linear))
    assert [row[0] for row in there] == ["matmul"]


@pytest.mark.parametrize("elements", [1, 64, 65, 16_384, 16_385, 4096 * 11_008])
def test_bytes_of_packed_weights(elements: int) -> None:
    """Four bits, and 0.127 of scales (2305.14314 §3), rounded up."""
    exact = elements * (4 + 8 / 64 + 32 / (64 * 256)) / 8
    assert exact <= FrozenWeights.NF4.packed_bytes(elements) <= exact + 6


@pytest.mark.parametrize(
    ("name", "outside"),
    [
        ("llama3-8b", 2 * 128256 * 4096 + 65 * 4096),  # table, head, norms
        ("lm-7b", None),
    ],
)
def test_static_memory_of_a_model(name: str, outside: int | None) -> None:
    """What a fine-tuned model keeps: four bits of every weight of a layer, two bytes of all else, 18 of an adapter."""
    model = semu_models.build(name)
    count = model.num_parameters()
    if outside is None:
        layers = [module for module in model.modules[0].body.modules() if getattr(module, "fp8_region", None)]
        weights = {id(m.weight): m.weight.numel for layer in layers for m in layer.modules() if isinstance(m, Linear)}
        outside = count - sum(weights.values())
    add_lora(model, LoRA(16, ("q_proj", "v_proj")))
    adapters = model.num_parameters(trainable_only=True)
    job = job_of(model, text_items(1), Parallel(), frozen_weights="nf4")
    expected = 2 * outside + FrozenWeights.NF4.packed_bytes(count - outside) + 18 * adapters
    assert simulate(job).static_memory_bytes == (expected,)


@pytest.mark.parametrize(
    ("sizes", "options", "where"),
    [
        ({"dp": 2, "zero": 3}, {}, "parallel.zero"),
        ({}, {"precision": "fp8"}, "training.precision"),
        ({}, {"offload": ["weights"]}, "training.offload"),
        ({}, {"frozen_weights": "nf5"}, "frozen_weights"),
    ],
)
def test_what_is_refused(sizes: dict[str, Any], options: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError, match=where):
        job_of(text(), text_items(2), Parallel(**sizes), **({"frozen_weights": "nf4"} | options))
    with pytest.raises(ConfigError, match="frozen weights"):
        job_of(gpt(), text_items(2), frozen_weights="nf4")


def test_a_70b_model_on_one_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """The claim of the paper's title, one size up: 65 billion parameters on one GPU of 48 GB, 70 on one of 80."""
    command = [
        *("simulate", "llama3-70b", "--cluster", "h100:1x1", "--parallel", "dp1", "--json"),
        *("--set", "model.lora.rank=16", "--set", 'model.lora.targets=["q_proj", "v_proj"]'),
        *("--set", "training.seq_len=512", "--set", "training.global_batch=1", "--set", "training.recompute=full"),
    ]
    assert main(command) == 3
    capsys.readouterr()
    assert main([*command, "--set", "training.frozen_weights=nf4"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] and found["memory"][0]["parameters"] < 41e9
