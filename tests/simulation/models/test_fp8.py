"""fp8 jobs through ``semu.simulate``: against the slow reference, and by hand."""

from __future__ import annotations

import pytest
from simulation.comparison import assert_equal, assert_tails_equal
from simulation.jobs import gpt, job_of, overlap, t2v, t2v_items, text_items, vlm, vlm_items
from simulation.reference.expansion import expand

from semu.errors import ConfigError
from semu.graph.operator import Phase
from semu.hardware.cluster import Cluster
from semu.hardware.kinds import DType, OpKind
from semu.hardware.profile import list_profiles, load_profile
from semu.job import Training, TrainingJob
from semu.nn import Model
from semu.parallel.config import Parallel
from semu.runfile.transformer import TransformerConfig
from semu.simulation import prepare, simulate
from semu_models.text.gpt import GPT, GPTConfig
from semu_models.text.llama import Llama, LlamaConfig

PERFECT = {
    **{
        f"efficiency.{kind}.{name}": value
        for kind in ("cast", "matmul.fp8")
        for name, value in (("mem", 1), ("t0_s", 0))
    },
    "efficiency.matmul.fp8.flop": 1,
    "efficiency.matmul.fp8.p": float("inf"),
}
"""alpha = 1: the bare roofline."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("weights", ["iteration", "primary", "microbatch"])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize(("pp", "tp", "sp"), [(1, 1, False), (2, 1, False), (2, 2, False), (3, 2, True), (1, 4, True)])
def test_text_against_the_reference(pp: int, tp: int, sp: bool, recompute: str, weights: str) -> None:
    job = job_of(
        gpt(),
        text_items(3),
        Parallel(pp=pp, tp=tp, sequence_parallel=sp),
        overlap=overlap(tensor=tp == 4),
        recompute=recompute,
        precision="fp8",
        fp8_weights=weights,
    )
    assert_equal(simulate(job), expand(job))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("first", "last"), [(1, None), (None, 1), (1, 1), (2, 1), (3, None)])
@pytest.mark.parametrize("options", [{}, {"recompute": "full"}, {"recompute_every": 2, "recompute": "full"}])
@pytest.mark.parametrize("kind", ["text", "vlm"])
def test_layers_in_bf16(kind: str, options: dict[str, object], first: int | None, last: int | None) -> None:
    """The layers at both ends of every module are those of a bf16 job."""
    model, items = (gpt(), text_items(3)) if kind == "text" else (vlm(), vlm_items(3))
    chosen = {"bf16_first_layers": first, "bf16_last_layers": last}
    job = job_of(model, items, Parallel(pp=2, tp=2), precision="fp8", **chosen, **options)  # type: ignore[arg-type]
    assert_tails_equal(job)


def test_all_layers_in_bf16() -> None:
    parallel = Parallel(tp=2)
    mixed = simulate(job_of(gpt(), text_items(3), parallel, precision="fp8", bf16_first_layers=3))
    plain = simulate(job_of(gpt(), text_items(3), parallel, precision="bf16"))
    assert mixed.iteration_time_s == plain.iteration_time_s
    assert mixed.static_memory_bytes == plain.static_memory_bytes


def test_layers_that_predict_further_tokens_stay_in_fp8() -> None:
    """Megatron-LM counts the layers of the decoder only."""
    config = TransformerConfig.from_table({"layers": 3, "hidden": 64, "heads": 4, "vocab": 128, "mtp_layers": 1})
    job = job_of(config.model(), text_items(2), precision="fp8", bf16_first_layers=1, bf16_last_layers=1)
    layout = prepare(job).layout
    blocks = [block for chunk in layout.chunks for block in chunk.blocks]
    in_fp8 = {block.path for block in blocks if any(held.is_fp8 for held in block.parameters)}
    assert {path.partition(".")[0] for path in in_fp8} == {"llm", "mtp"}
    assert [path for path in sorted(in_fp8) if path.startswith("llm")] == ["llm.layers.1"]


def test_more_layers_in_bf16_than_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        simulate(job_of(gpt(), text_items(2), precision="fp8", bf16_last_layers=9))
    assert (caught.value.where, caught.value.nearest) == ("training.bf16_last_layers", 3)
    simulate(job_of(gpt(), text_items(2), bf16_last_layers=9))


def test_layers_in_bf16_are_not_recomputed_in_groups() -> None:
    with pytest.raises(ConfigError, match="recompute_method"):
        job_of(
            gpt(),
            text_items(2),
            Parallel(),
            precision="fp8",
            bf16_first_layers=1,
            recompute="full",
            recompute_method="uniform",
            recompute_layers=2,
        )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("weights", ["iteration", "primary", "microbatch"])
@pytest.mark.parametrize("kind", ["vlm", "frozen", "t2v"])
def test_other_models_against_the_reference(kind: str, weights: str) -> None:
    model, items = {
        "vlm": (vlm(), vlm_items(3)),
        "frozen": (vlm(frozen=("vit.layers",)), vlm_items(3)),
        "t2v": (t2v(), t2v_items(3)),
    }[kind]
    job = job_of(model, items, Parallel(pp=2, tp=2), precision="fp8", fp8_weights=weights)
    assert_equal(simulate(job), expand(job))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("weights", ["iteration", "primary", "microbatch"])
@pytest.mark.parametrize(("dp", "pp", "zero"), [(1, 2, 0), (2, 2, 0), (2, 1, 1), (3, 2, 1)])
def test_weights_cast_after_the_step(dp: int, pp: int, zero: int, weights: str) -> None:
    job = job_of(gpt(), text_items(3 * dp), Parallel(dp=dp, pp=pp, zero=zero), precision="fp8", fp8_weights=weights)
    assert_tails_equal(job)


def _gpt(layers: int) -> Model:
    return Model.from_module(GPT(GPTConfig(layers=layers, hidden=256, heads=4, vocab=512, positions=1024)), name="llm")


def _llama(layers: int) -> Model:
    config = LlamaConfig(layers=layers, hidden=256, ffn=688, heads=8, kv_heads=2, vocab=512)
    return Model.from_module(Llama(config), name="llm")


# elements of a layer's linears, biases left out: qkv, output, up (both halves of a gate), down
ELEMENTS = {"gpt": 256 * (3 * 256 + 256 + 2 * 4 * 256), "llama": 256 * ((256 + 2 * 64) + 256 + 3 * 688)}
MODELS = {"gpt": _gpt, "llama": _llama}


def alone(model: Model, precision: str, **options: object) -> TrainingJob:
    """One rank, one sequence of 512 tokens."""
    return TrainingJob(
        model,
        Cluster("h100", 1, 1),
        Parallel(),
        Training(micro_batch=1, global_batch=1, seq_len=512, precision=precision, **options),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("name", MODELS)
def test_work_is_that_of_bf16_and_the_peak_is_that_of_fp8(name: str) -> None:
    model = MODELS[name](2)
    half, eight = simulate(alone(model, "bf16")), simulate(alone(model, "fp8"))
    assert (eight.model_flop, eight.hardware_flop) == (half.model_flop, half.hardware_flop)
    assert half.mfu_bf16 is None
    profile = load_profile("h100")
    rate = eight.model_flop / eight.iteration_time_s
    assert eight.mfu == pytest.approx(rate / profile.peak_flop_per_s(DType.FP8))
    assert eight.mfu_bf16 == pytest.approx(rate / profile.peak_flop_per_s(DType.BF16))


@pytest.mark.parametrize("name", MODELS)
def test_static_bytes(name: str) -> None:
    """Two fp8 copies of every linear's weight in the layers stay; embedding and head have none."""
    model = MODELS[name](2)
    half = simulate(alone(model, "bf16")).static_memory_bytes[0]
    kept = simulate(alone(model, "fp8")).static_memory_bytes[0]
    cast = simulate(alone(model, "fp8", fp8_weights="microbatch")).static_memory_bytes[0]
    assert kept - half == 2 * 2 * ELEMENTS[name]
    assert cast == half


@pytest.mark.parametrize("name", MODELS)
def test_times_by_closed_form_without_inefficiency(name: str) -> None:
    """At alpha = 1 and p = infinity every product takes its FLOP at the fp8 peak, or its bytes; every cast 4 bytes
    per element read and written."""
    job = TrainingJob(
        MODELS[name](1),
        Cluster("h100", 1, 1, PERFECT),
        Parallel(),
        Training(micro_batch=1, global_batch=1, seq_len=512, precision="fp8", software="kernels"),
    )
    checkpoint = prepare(job)
    operators = checkpoint.layout.library.operators
    latency = checkpoint.evaluation.by_shape.latency[0]
    profile = job.profile
    memory = profile.mem_bytes_per_s.value
    casts = [row for row, op in enumerate(operators) if op.kind is OpKind.CAST]
    tokens, h = 512, 256
    f = 1024 if name == "gpt" else 688
    qkv, up = (3 * h, f) if name == "gpt" else (h + 2 * 64, 2 * f)
    expected = {
        "F": [h, h, h, f],
        "I": [h, up, h, qkv],
    }  # inputs of qkv, out, up, down; gradients of down, up, out, qkv
    for phase, widths in expected.items():
        found = [row for row in casts if operators[row].phase is Phase(phase)]
        assert [latency[row] for row in found] == [
            round(4 * tokens * width / memory * 2**40) / 2**40 for width in widths
        ]
    products = {row: op for row, op in enumerate(operators) if op.kind is OpKind.MATMUL}
    eight = {row for row, op in products.items() if op.dtype is DType.FP8}
    assert len(eight) == 12
    assert {op.path.partition(".")[0] for row, op in products.items() if row not in eight} == {"projection"}
    peak = profile.peak_flop_per_s(DType.FP8)
    for row in eight:
        a, b, c = (512 if not isinstance(d, int) else d for d in products[row].key)  # [a, b] is a sum over c
        written = 8 * a * b if products[row].phase is Phase.WEIGHT_GRADIENT else 2 * a * b  # fp32 read, written; bf16
        seconds = max(2 * a * b * c / peak, (a * c + c * b + written) / memory)
        assert latency[row] == round(seconds * 2**40) / 2**40
    attention = next(op for op in operators if op.kind is OpKind.ATTENTION_FORWARD)
    assert attention.dtype is DType.BF16


def test_a_device_without_fp8_is_refused_with_those_that_have_it() -> None:
    job = TrainingJob(_gpt(1), Cluster("a100-80g", 1, 1), Parallel(), Training(precision="fp8", seq_len=64))
    with pytest.raises(ConfigError, match="no fp8 arithmetic") as caught:
        simulate(job)
    able = [name for name in list_profiles() if DType.FP8 in load_profile(name).flop_per_s]
    assert "h100" in able and "a100-80g" not in able
    assert all(name in (caught.value.expected or "") for name in able)
    assert caught.value.nearest == "bf16"


def test_an_unknown_word_for_the_weights() -> None:
    with pytest.raises(ConfigError) as caught:
        Training(fp8_weights="iterations")
    assert caught.value.where == "training.fp8_weights"
    assert caught.value.nearest == "iteration"
