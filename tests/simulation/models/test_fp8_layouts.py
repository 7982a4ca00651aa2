"""fp8 on devices whose products take either layout: one copy under per-tensor scales, two of MXFP8; by hand and against
the slow reference."""

from __future__ import annotations

from typing import Any

import pytest
from nn.tracing_kit import Row, backward, forward, rows, saved, spec
from simulation.comparison import assert_tails_equal
from simulation.jobs import gpt, job_of, overlap, t2v, t2v_items, text_items, vlm, vlm_items

from semu.hardware.cluster import Cluster
from semu.hardware.fp8 import Fp8Recipe
from semu.hardware.kinds import DType
from semu.hardware.network import CommGroup
from semu.hardware.profile import list_profiles, load_profile
from semu.job import Training, TrainingJob
from semu.nn import MLP, MixtureOfExperts, Model, Module, Sequential
from semu.nn.trace.block import TracedBlock, trace_block
from semu.nn.trace.options import TraceOptions
from semu.parallel.config import Parallel
from semu.parallel.tensor import megatron_plan
from semu.simulation import simulate
from semu_models.text.gpt import GPT, GPTConfig
from semu_models.text.llama import Llama, LlamaConfig

EITHER = {"fp8_layouts": 2}


@pytest.mark.sampled(18)
@pytest.mark.parametrize("recipe", ["tensorwise", "blockwise", "mxfp8"])
@pytest.mark.parametrize("weights", ["iteration", "primary", "microbatch"])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(
    ("sizes", "tensor"),
    [
        ({}, False),
        ({"pp": 2, "dp": 2, "zero": 1}, False),
        ({"tp": 2, "dp": 2, "zero": 0}, False),
        ({"tp": 2, "pp": 2, "sequence_parallel": True}, True),
    ],
    ids=["alone", "pipeline", "tensor", "sequence"],
)
def test_text_against_the_reference(
    sizes: dict[str, Any], tensor: bool, recompute: str, weights: str, recipe: str
) -> None:
    parallel = Parallel(**sizes)
    job = job_of(
        gpt(),
        text_items(3 * parallel.dp),
        parallel,
        overlap=overlap(tensor=tensor),
        recompute=recompute,
        precision="fp8",
        fp8_recipe=recipe,
        fp8_weights=weights,
        override=EITHER,
    )
    assert_tails_equal(job)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("recipe", ["tensorwise", "mxfp8"])
@pytest.mark.parametrize("kind", ["vlm", "t2v"])
def test_other_models_against_the_reference(kind: str, recipe: str) -> None:
    model, items = {"vlm": (vlm(frozen=("vit.layers",)), vlm_items(3)), "t2v": (t2v(), t2v_items(3))}[kind]
    assert_tails_equal(job_of(model, items, Parallel(pp=2, tp=2), precision="fp8", fp8_recipe=recipe, override=EITHER))


# -- operators by hand: x [m, k] in bf16 -------------------------------------------------------------------------------
M, H, FFN = 256, 256, 320


class Region(Sequential):
    """Runs in fp8 what is inside."""

    fp8_region = True


def run(module: Module, recipe: Fp8Recipe, copies: int, tp: int = 1) -> TracedBlock:
    model = Model.from_module(module, name="block")
    options = TraceOptions(
        plan=megatron_plan(model, Parallel(tp=tp, sequence_parallel=tp > 1)),
        tp_group=CommGroup("tp", tp, 1),
        compute_dtype=DType.FP8,
        fp8_recipe=recipe,
        fp8_copies=copies,
    )
    traced = trace_block(module, [spec(M, H, shards=(tp, 1))], options, root="block")
    traced.graph.lint()
    return traced


class Sizes:
    """Bytes of copies: a byte of an element, and of MXFP8 one more for every 32 of a row or of a weight."""

    def __init__(self, recipe: Fp8Recipe) -> None:
        self.step = 32 if recipe is Fp8Recipe.MXFP8 else 1 << 60

    def row(self, width: int) -> int:
        return width + (-(-width // self.step) if self.step == 32 else 0)

    def cast(self, phase: str, m: int, k: int, copies: int) -> Row:
        return ("cast", phase, 0, 2 * m * k + copies * m * self.row(k), 0)

    def product(self, phase: str, m: int, n: int, k: int) -> Row:
        weight = n * k + (-(-n * k // 32) if self.step == 32 else 0)
        return ("matmul", phase, 2 * m * n * k, m * self.row(k) + weight + 2 * m * n, 0)

    def weight_product(self, m: int, n: int, k: int) -> Row:
        return ("matmul", "W", 2 * m * n * k, m * self.row(n) + m * self.row(k) + 8 * n * k, 0)


RECIPES = [(Fp8Recipe.TENSORWISE, 1), (Fp8Recipe.MXFP8, 2)]


@pytest.mark.parametrize(("recipe", "copies"), RECIPES)
def test_an_mlp(recipe: Fp8Recipe, copies: int) -> None:
    traced, s = run(Region(MLP(H, FFN, gated=False, bias=False)), recipe, copies), Sizes(recipe)
    assert [r for r in rows(forward(traced)) if r[0] != "activation"] == [
        s.cast("F", M, H, copies),
        s.product("F", M, FFN, H),
        s.cast("F", M, FFN, copies),
        s.product("F", M, H, FFN),
    ]
    assert [r for r in rows(backward(traced)) if r[0] != "activation"] == [
        s.cast("I", M, H, copies),
        s.product("I", M, FFN, H),
        s.weight_product(M, H, FFN),
        s.cast("I", M, FFN, copies),
        s.product("I", M, H, FFN),
        s.weight_product(M, FFN, H),
    ]
    assert sum(saved(traced).values()) == M * s.row(H) + 2 * M * FFN + M * s.row(FFN)


@pytest.mark.parametrize(("recipe", "copies"), RECIPES)
def test_tokens_are_gathered_and_nothing_is_transposed(recipe: Fp8Recipe, copies: int) -> None:
    """MXFP8 gathers a gradient in both copies, and an input in the one that the product reads."""
    traced, s = run(Region(MLP(H, FFN, bias=False)), recipe, copies, tp=2), Sizes(recipe)
    half, f = M // 2, FFN // 2
    gather = half * s.row(H)
    assert [r for r in rows(forward(traced)) if r[0] != "activation"] == [
        s.cast("F", half, H, copies),
        ("all_gather", "F", 0, 0, gather),
        s.product("F", M, f, H),
        s.cast("F", M, f, copies),
        s.product("F", M, H, f),
        ("reduce_scatter", "F", 0, 0, 2 * half * H),
    ]
    assert [r for r in rows(backward(traced)) if r[0] != "activation"] == [
        s.cast("I", half, H, copies),
        *[("all_gather", "I", 0, 0, gather)] * copies,
        s.product("I", M, f, H),
        s.weight_product(M, H, f),
        s.cast("I", M, f, copies),
        ("all_gather", "I", 0, 0, gather),
        s.product("I", M, H, f),
        ("reduce_scatter", "I", 0, 0, 2 * half * H),
        s.weight_product(M, f, H),
    ]


# -- whole models ------------------------------------------------------------------------------------------------------
MODELS = {
    "gpt": lambda: GPT(GPTConfig(layers=2, hidden=256, heads=4, vocab=512, positions=1024)),
    "llama": lambda: Llama(LlamaConfig(layers=2, hidden=256, ffn=768, heads=8, kv_heads=2, vocab=512)),
}
WEIGHTS = {"gpt": 2 * 12 * 256**2, "llama": 2 * (256 * 384 + 256**2 + 3 * 256 * 768)}


@pytest.mark.parametrize("weights", ["iteration", "primary"])
@pytest.mark.parametrize("name", MODELS)
def test_static_memory(name: str, weights: str) -> None:
    """Of every weight of a layer two bytes where two copies are kept, one where one is, and MXFP8's scales."""
    held = {}
    for device in ("h100", "b200"):
        for recipe in ("tensorwise", "mxfp8"):
            training = Training(1, 1, 512, precision="fp8", fp8_recipe=recipe, fp8_weights=weights)
            job = TrainingJob(Model.from_module(MODELS[name]()), Cluster(device, 1, 1), Parallel(), training)
            held[device, recipe] = simulate(job).static_memory_bytes[0]
    count = WEIGHTS[name]
    assert held["h100", "tensorwise"] - held["b200", "tensorwise"] == count
    assert held["h100", "mxfp8"] == held["b200", "mxfp8"] == held["h100", "tensorwise"] + 2 * count // 32


def test_which_devices_take_either_layout() -> None:
    found = {name for name in list_profiles() if load_profile(name).fp8_layouts.value == 2}
    assert found == {"b200", "b300", "gb200-nvl72", "gb300-nvl72"}


def test_mxfp8_on_a_device_without_it_is_said() -> None:
    training = Training(1, 1, 512, precision="fp8", fp8_recipe="mxfp8")
    for device, is_told in (("h100", True), ("b200", False)):
        job = TrainingJob(Model.from_module(MODELS["gpt"]()), Cluster(device, 1, 1), Parallel(), training)
        assert any("no MXFP8 products" in note for note in simulate(job).warnings) is is_told


@pytest.mark.parametrize("order", [("h100", "b200"), ("b200", "h100")])
def test_one_model_on_devices_of_either_kind(order: tuple[str, str]) -> None:
    """What is remembered of a model for one device is not what another one runs."""

    def time_on(device: str, model: Model) -> float:
        training = Training(1, 1, 512, precision="fp8")
        return simulate(TrainingJob(model, Cluster(device, 1, 1), Parallel(), training)).iteration_time_s

    shared = Model.from_module(MODELS["llama"]())
    for device in order:
        assert time_on(device, shared) == time_on(device, Model.from_module(MODELS["llama"]()))


@pytest.mark.parametrize(("recipe", "copies"), RECIPES)
def test_experts_are_cast_into_as_many_copies(recipe: Fp8Recipe, copies: int) -> None:
    """Rows of two tokens' experts into up and down products, and their gradients back."""
    traced = run(Region(MixtureOfExperts(H, FFN, experts=4, top_k=2)), recipe, copies)
    casts = [size for kind, _, _, size, _ in (*rows(forward(traced)), *rows(backward(traced))) if kind == "cast"]
    s, m = Sizes(recipe), 2 * M
    assert sorted(casts) == sorted(s.cast("F", m, width, copies)[3] for width in (H, FFN, H, 2 * FFN))
