"""Blockwise fp8 through ``semu.simulate``: bytes and times by hand on two models, and the slow reference."""

from __future__ import annotations

import pytest
from nn.tracing_kit import Row, backward, forward, rows, saved, spec
from simulation.comparison import assert_equal, assert_tails_equal
from simulation.jobs import gpt, job_of, overlap, t2v, t2v_items, text_items, vlm, vlm_items
from simulation.reference.expansion import expand

from semu.errors import ConfigError
from semu.graph.operator import Phase
from semu.hardware.cluster import Cluster
from semu.hardware.fp8 import Fp8Recipe
from semu.hardware.kinds import DType, OpKind
from semu.hardware.network import CommGroup
from semu.hardware.profile import load_profile
from semu.hardware.shape_terms import tiled_flop
from semu.job import Training, TrainingJob
from semu.nn import MLP, Linear, Model, Module, Sequential
from semu.nn.trace.block import TracedBlock, trace_block
from semu.nn.trace.options import TraceOptions
from semu.parallel.config import Parallel
from semu.parallel.tensor import megatron_plan
from semu.runfile import load_run
from semu.simulation import prepare, simulate
from semu_models.text.gpt import GPT, GPTConfig
from semu_models.text.llama import Llama, LlamaConfig

BLOCKS = {"precision": "fp8", "fp8_recipe": "blockwise"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("weights", ["iteration", "primary", "microbatch"])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(("pp", "tp", "sp"), [(1, 1, False), (2, 2, False), (3, 2, True)])
def test_text_against_the_reference(pp: int, tp: int, sp: bool, recompute: str, weights: str) -> None:
    job = job_of(
        gpt(),
        text_items(3),
        Parallel(pp=pp, tp=tp, sequence_parallel=sp),
        overlap=overlap(tensor=sp),
        recompute=recompute,
        fp8_weights=weights,
        **BLOCKS,
    )
    assert_equal(simulate(job), expand(job))


@pytest.mark.parametrize("kind", ["vlm", "t2v"])
def test_other_models_against_the_reference(kind: str) -> None:
    model, items = {"vlm": (vlm(frozen=("vit.layers",)), vlm_items(3)), "t2v": (t2v(), t2v_items(3))}[kind]
    job = job_of(model, items, Parallel(pp=2, tp=2), fp8_weights="microbatch", **BLOCKS)
    assert_equal(simulate(job), expand(job))


@pytest.mark.parametrize("weights", ["iteration", "primary", "microbatch"])
@pytest.mark.parametrize(("dp", "pp", "zero"), [(1, 2, 0), (2, 1, 1), (3, 2, 1)])
def test_the_step_against_the_reference(dp: int, pp: int, zero: int, weights: str) -> None:
    assert_tails_equal(
        job_of(gpt(), text_items(3 * dp), Parallel(dp=dp, pp=pp, zero=zero), fp8_weights=weights, **BLOCKS)
    )


# -- operators by hand: x [m, k] in bf16; a copy is a byte per element and four per 128 of a row ---------------------
M, H, FFN = 256, 256, 320  # 320 = 2.5 tiles, of which three have a scale


def row(width: int) -> int:
    return width + 4 * -(-width // 128)


def block(n: int, k: int) -> int:
    return n * k + 4 * -(-n * k // 128**2)


class Region(Sequential):
    """Runs in fp8 what is inside."""

    fp8_region = True


def run(module: Module, tp: int = 1, *, sp: bool = False, weights: bool = False) -> TracedBlock:
    model = Model.from_module(module, name="block")
    options = TraceOptions(
        plan=megatron_plan(model, Parallel(tp=tp, sequence_parallel=sp)),
        tp_group=CommGroup("tp", tp, 1),
        compute_dtype=DType.FP8,
        cast_weights=weights,
        fp8_recipe=Fp8Recipe.BLOCKWISE,
    )
    traced = trace_block(module, [spec(M, H, shards=(tp if sp else 1, 1))], options, root="block")
    traced.graph.lint()
    return traced


def cast(phase: str, m: int, k: int, copies: int) -> Row:
    return ("cast", phase, 0, 2 * m * k + copies * m * row(k), 0)


def product(phase: str, m: int, n: int, k: int) -> Row:
    return ("matmul", phase, 2 * m * n * k, m * row(k) + block(n, k) + 2 * m * n, 0)


def weight_product(m: int, n: int, k: int) -> Row:
    return ("matmul", "W", 2 * m * n * k, m * row(n) + m * row(k) + 8 * n * k, 0)


@pytest.mark.parametrize("gated", [False, True])
def test_an_mlp(gated: bool) -> None:
    up = 2 * FFN if gated else FFN
    traced = run(Region(MLP(H, FFN, gated=gated, bias=False)))
    assert [r for r in rows(forward(traced)) if r[0] != "activation"] == [
        cast("F", M, H, 2),
        product("F", M, up, H),
        cast("F", M, FFN, 2),
        product("F", M, H, FFN),
    ]
    assert [r for r in rows(backward(traced)) if r[0] != "activation"] == [
        cast("I", M, H, 2),
        product("I", M, FFN, H),
        weight_product(M, H, FFN),
        cast("I", M, up, 2),
        product("I", M, H, up),
        weight_product(M, up, H),
    ]
    assert sum(saved(traced).values()) == M * row(H) + 2 * M * up + M * row(FFN)


def test_tokens_are_gathered_with_their_scales_and_quantised_again() -> None:
    traced = run(Region(MLP(H, FFN, bias=False)), 2, sp=True)
    half, f = M // 2, FFN // 2
    gather = half * row(H)
    again = ("cast", "W", 0, 2 * M * row(H), 0)
    assert [r for r in rows(forward(traced)) if r[0] != "activation"] == [
        cast("F", half, H, 1),
        ("all_gather", "F", 0, 0, gather),
        product("F", M, f, H),
        cast("F", M, f, 2),
        product("F", M, H, f),
        ("reduce_scatter", "F", 0, 0, 2 * half * H),
    ]
    assert [r for r in rows(backward(traced)) if r[0] != "activation"] == [
        cast("I", half, H, 1),
        ("all_gather", "I", 0, 0, gather),
        again,
        product("I", M, f, H),
        weight_product(M, H, f),
        cast("I", M, f, 2),
        ("all_gather", "I", 0, 0, gather),
        again,
        product("I", M, H, f),
        ("reduce_scatter", "I", 0, 0, 2 * half * H),
        weight_product(M, f, H),
    ]


def test_weights_cast_by_every_microbatch() -> None:
    traced = run(Region(Linear(H, 2 * H, bias=False)), weights=True)
    weight = ("cast", "F", 0, 2 * 2 * H * H + 2 * block(2 * H, H), 0)
    assert rows(forward(traced)) == [cast("F", M, H, 2), weight, product("F", M, 2 * H, H)]
    assert sum(saved(traced).values()) == M * row(H) + block(2 * H, H)


# -- whole models ------------------------------------------------------------------------------------------------------
def _gpt(layers: int) -> Model:
    return Model.from_module(GPT(GPTConfig(layers=layers, hidden=256, heads=4, vocab=512, positions=1024)), name="llm")


def _llama(layers: int) -> Model:
    config = LlamaConfig(layers=layers, hidden=256, ffn=768, heads=8, kv_heads=2, vocab=512)
    return Model.from_module(Llama(config), name="llm")


WEIGHTS = {  # of a layer's linears
    "gpt": ((3 * 256, 256), (256, 256), (1024, 256), (256, 1024)),
    "llama": ((256 + 2 * 64, 256), (256, 256), (2 * 768, 256), (256, 768)),
}
MODELS = {"gpt": _gpt, "llama": _llama}
TOKENS = 512


def alone(model: Model, device: str = "h100", **options: object) -> TrainingJob:
    """One rank, one sequence of 512 tokens."""
    training = Training(1, 1, TOKENS, **options)  # type: ignore[arg-type]
    return TrainingJob(model, Cluster(device, 1, 1), Parallel(), training)


@pytest.mark.parametrize("name", MODELS)
def test_bytes_of_a_model(name: str) -> None:
    """Static: four bytes per 128 x 128 block of both copies of each weight. After the forward pass: besides, four bytes
    per 128 elements of what two layers keep of their four inputs."""
    tensor, blocks = (
        simulate(alone(MODELS[name](2), precision="fp8", fp8_recipe=r)) for r in ("tensorwise", "blockwise")
    )
    scales = 2 * sum(4 * n * k // 128**2 for n, k in WEIGHTS[name]) * 2
    assert blocks.static_memory_bytes[0] - tensor.static_memory_bytes[0] == scales
    kept = 2 * sum(4 * TOKENS * k // 128 for _, k in WEIGHTS[name])

    def after_forward(report: object) -> int:
        rank = report.timeline.ranks[0]  # type: ignore[attr-defined]
        curve, end = rank.memory, rank.stages[0].end_s
        return int(curve.total[(curve.times_s < end).nonzero()[0][-1]])

    assert after_forward(blocks) - after_forward(tensor) == scales + kept
    assert (blocks.model_flop, blocks.hardware_flop) == (tensor.model_flop, tensor.hardware_flop)


@pytest.mark.parametrize("name", MODELS)
def test_products_and_casts_have_their_own_coefficients(name: str) -> None:
    job = alone(MODELS[name](1), software="kernels", **BLOCKS)
    checkpoint = prepare(job)
    operators, latency = checkpoint.layout.library.operators, checkpoint.evaluation.by_shape.latency[0]
    profile = load_profile("h100")
    product_of = profile.variants[OpKind.MATMUL, Fp8Recipe.BLOCKWISE]
    cast_of = profile.variants[OpKind.CAST, Fp8Recipe.BLOCKWISE]
    peak, memory = profile.peak_flop_per_s(DType.FP8), profile.mem_bytes_per_s.value
    found: dict[OpKind, list[float]] = {OpKind.CAST: [], OpKind.MATMUL: []}
    for place, op in enumerate(operators):
        if op.kind is OpKind.CAST or op.dtype is DType.FP8:
            found[op.kind].append(float(latency[place]))
    casts = [2 * TOKENS * k + 2 * TOKENS * row(k) for _, k in WEIGHTS[name]]
    casts += [2 * TOKENS * n + 2 * TOKENS * row(n) for n, _ in reversed(WEIGHTS[name])]
    expected = [cast_of.latency_s(0, size, peak, memory) for size in casts]
    assert sorted(found[OpKind.CAST]) == sorted(round(seconds * 2**40) / 2**40 for seconds in expected)
    sizes = []
    for n, k in WEIGHTS[name]:
        sizes.append(TOKENS * row(k) + block(n, k) + 2 * TOKENS * n)
        sizes.append(TOKENS * row(n) + block(n, k) + 2 * TOKENS * k)
        sizes.append(TOKENS * row(n) + TOKENS * row(k) + 8 * n * k)
    shapes = [shape for n, k in WEIGHTS[name] for shape in ((TOKENS, n, k), (TOKENS, k, n), (n, k, TOKENS))]
    flop = [
        float(
            tiled_flop(
                *shape,
                tiles_at_once=product_of.tiles_at_once,
                k0=product_of.tile_k0,
                rest=product_of.tile_rest,
                tile_128=product_of.tile_128,
            )
        )
        for shape in shapes
    ]
    expected = [product_of.latency_s(w, q, peak, memory) for w, q in zip(flop, sizes, strict=True)]
    assert sorted(found[OpKind.MATMUL]) == sorted(round(seconds * 2**40) / 2**40 for seconds in expected)
    assert {op.phase for op in operators if op.kind is OpKind.CAST} == {Phase.FORWARD, Phase.INPUT_GRADIENT}


def test_a_device_that_lacks_the_coefficients_says_so(tmp_path: object) -> None:
    path = f"{tmp_path}/mine.toml"
    with open(path, "w") as file:
        file.write(
            "memory_bytes = 8e10\nmem_bytes_per_s = 3e12\nnvlink_bytes_per_s = 4e11\nnic_bytes_per_s = 5e10\n"
            "pcie_bytes_per_s = 6e10\n[flop_per_s]\nbf16 = 1e15\nfp8 = 2e15\n"
        )
    notes = simulate(alone(_gpt(1), path, **BLOCKS)).warnings
    assert any("blockwise fp8" in note for note in notes)
    assert not any("blockwise fp8" in note for note in simulate(alone(_gpt(1), **BLOCKS)).warnings)


def test_it_is_asked_for_in_a_run_file_and_needs_fp8() -> None:
    job = load_run("lm-7b", ["training.precision=fp8", "training.fp8_recipe=blockwise"], cluster="h100:1x8")
    assert job.training.fp8_recipe is Fp8Recipe.BLOCKWISE
    with pytest.raises(ConfigError) as caught:
        Training(fp8_recipe="blockwise")
    assert caught.value.where == "training.fp8_recipe"
    with pytest.raises(ConfigError) as caught:
        Training(precision="fp8", fp8_recipe="block")
    assert caught.value.nearest == "blockwise"


def test_the_coefficients_can_be_overridden() -> None:
    changes = {"efficiency.matmul.fp8_block.flop": 0.5}
    profile = load_profile("h100").override(changes).scaled(Fp8Recipe.BLOCKWISE)
    assert profile.efficiency(OpKind.MATMUL, dtype=DType.FP8).flop == 0.5
    assert load_profile("h100").scaled(Fp8Recipe.TENSORWISE) == load_profile("h100")
