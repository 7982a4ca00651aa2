"""Expert parallelism against the slow reference, bit for bit, and against figures worked out by hand."""

from __future__ import annotations

from random import Random

import pytest
from simulation.comparison import assert_equal, assert_tails_equal
from simulation.jobs import job_of, overlap, text_items
from simulation.reference.expansion import expand
from simulation.reference.tail import gather_times

from semu.nn import LatentAttention, LatentSizes, MixtureOfExperts, Model, TransformerLayer
from semu.parallel.config import Parallel
from semu.simulation import simulate
from semu_models.text.decoder import Decoder, decoder_model

HIDDEN, FFN, EXPERTS, HEADS, VOCAB = 64, 48, 8, 4, 256


def moe(layers: int = 2, *, top_k: int = 2, shared: bool = False, dense: int = 0, gated: bool = True) -> Model:
    """Layers with experts behind ``dense`` ones without."""

    def layer(number: int) -> TransformerLayer:
        experts = MixtureOfExperts(
            HIDDEN, FFN, EXPERTS, top_k, gated=gated, shared_ffn=96 if shared else None, shared_gate=shared
        )
        return TransformerLayer(
            HIDDEN,
            128,
            HEADS,
            rotary=True,
            gated=True,
            rms_norm=True,
            bias=False,
            mlp=None if number < dense else experts,
        )

    return decoder_model("moe", Decoder(layers, HIDDEN, VOCAB, layer, rms_norm=True))


def latent(layers: int = 2) -> Model:
    """Layers of latent attention with experts."""
    sizes = LatentSizes(kv_lora_rank=32, qk_head_dim=16, qk_pos_emb_head_dim=8, v_head_dim=16, q_lora_rank=48)

    def layer(_: int) -> TransformerLayer:
        return TransformerLayer(
            HIDDEN,
            128,
            HEADS,
            rms_norm=True,
            bias=False,
            mlp=MixtureOfExperts(HIDDEN, FFN, EXPERTS, 2),
            attention=LatentAttention(HIDDEN, HEADS, sizes),
        )

    return decoder_model("latent", Decoder(layers, HIDDEN, VOCAB, layer, rms_norm=True))


SIZES = [
    {"dp": 2, "ep": 2},
    {"dp": 4, "ep": 2},
    {"dp": 4, "ep": 4},
    {"dp": 2, "tp": 2, "ep": 2},
    {"dp": 2, "tp": 2, "ep": 4, "etp": 1},
    {"dp": 2, "tp": 2, "ep": 1, "etp": 1},
    {"dp": 1, "tp": 4, "ep": 2, "etp": 2},
    {"dp": 2, "tp": 2, "ep": 1},
    {"dp": 2, "pp": 2, "ep": 2},
    {"dp": 2, "tp": 2, "pp": 2, "ep": 2, "etp": 1},
    {"cp": 2, "ep": 2},
    {"dp": 2, "cp": 2, "ep": 4},
    {"cp": 2, "tp": 2, "ep": 2},
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: Parallel(**sizes).label())
def test_everything_around_the_pipeline_too(sizes: dict[str, int], zero: int) -> None:
    parallel = Parallel(**sizes, zero=zero)
    job = job_of(
        moe(shared=True, dense=1),
        text_items(parallel.dp * 2),
        parallel,
        overlap=overlap(gradients=zero == 1, tensor=zero == 0),
        gradient_clipping=True,
    )
    assert_tails_equal(job)


@pytest.mark.parametrize("sizes", SIZES[3:6], ids=lambda sizes: Parallel(**sizes).label())
def test_latent_attention(sizes: dict[str, int]) -> None:
    assert_tails_equal(job_of(latent(), text_items(4), Parallel(**sizes)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "routing",
    [
        {"moe_imbalance": 1.3},
        {"moe_imbalance": 1.3, "moe_capacity_factor": 1.1},
        {"moe_capacity_factor": 0.7},
        {"moe_capacity_factor": 1.25, "moe_pad_to_capacity": True},
        {"moe_imbalance": [3, 1, 1, 2, 1, 1, 1, 1]},
        {"moe_imbalance": [3, 1, 1, 2, 1, 1, 1, 1], "moe_capacity_factor": 1.5},
    ],
    ids=str,
)
@pytest.mark.parametrize("gated", [True, False], ids=["gated", "gelu"])
def test_routing(routing: dict[str, object], gated: bool) -> None:
    for sizes in ({"dp": 4, "ep": 4}, {"dp": 2, "tp": 2, "ep": 2}):
        assert_tails_equal(job_of(moe(gated=gated), text_items(4), Parallel(**sizes), **routing))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("recompute", "precision"),
    [
        ("full", "bf16"),
        (["moe"], "bf16"),
        (["moe_act"], "bf16"),
        ("none", "fp8"),
        ("full", "fp8"),
        (["moe_act"], "fp8"),
    ],
)
def test_recomputation_and_fp8(recompute: str | list[str], precision: str) -> None:
    for gated in (True, False):
        job = job_of(
            moe(gated=gated, shared=recompute == "full"),
            text_items(4),
            Parallel(dp=2, tp=2, ep=4, etp=1),
            recompute=recompute,
            precision=precision,
            attention="fused",
        )
        assert_tails_equal(job)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "strategy",
    [
        {"gradient_accumulation_fusion": False},
        {"offload": ["optimizer"]},
        {"offload": ["activations"]},
        {"offload": ["weights"]},
        {"recompute": "full", "recompute_policy": "every_second_matmul"},
        {"cross_entropy": "fused"},
    ],
    ids=str,
)
def test_memory_strategies(strategy: dict[str, object]) -> None:
    for sizes in ({"dp": 4, "ep": 2}, {"dp": 2, "tp": 2, "ep": 4, "etp": 1}):
        assert_tails_equal(job_of(moe(), text_items(4), Parallel(**sizes), **strategy))


def test_experts_one_after_the_other() -> None:
    """The same work as ordinary products."""
    sizes = {"dp": 2, "tp": 2, "ep": 2}
    apart = job_of(moe(), text_items(4), Parallel(**sizes), moe_grouped_gemm=False)
    assert_tails_equal(apart)
    together = simulate(job_of(moe(), text_items(4), Parallel(**sizes)))
    assert simulate(apart).model_flop == together.model_flop
    kinds = {row.kind for row in simulate(apart).top_operators}
    assert "grouped_matmul" not in kinds


def test_parameters_gathered_during_the_first_forwards() -> None:
    parallel = Parallel(dp=4, ep=2, zero=1)
    job = job_of(moe(), text_items(8), parallel, overlap=overlap(parameters=True, gradients=True))
    assert_equal(simulate(job), expand(job, gather_times(expand(job))))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(14))
def test_random_jobs(seed: int) -> None:
    random = Random(seed)
    ep = random.choice([1, 2, 4])
    tp = random.choice([1, 2])
    dp = random.choice([2, 4]) if ep < 4 or tp == 2 else 4
    etp = random.choice([None, 1])
    if dp * tp % (ep * (tp if etp is None else etp)):
        etp = 1
    zero = random.choice([0, 1, 2, 3])
    parallel = Parallel(
        dp=dp,
        tp=tp,
        pp=random.choice([1, 2]),
        ep=ep,
        etp=etp,
        zero=zero,
        reshard_after_forward=random.random() < 0.6,
    )
    job = job_of(
        moe(random.randint(2, 3), top_k=random.choice([1, 2, 4]), shared=random.random() < 0.5),
        text_items(dp * random.randint(1, 3), seed=seed),
        parallel,
        overlap=overlap(tensor=random.random() < 0.5, gradients=random.random() < 0.5),
        recompute=random.choice(["none", "full", "selective"]),
        moe_imbalance=1.0 if ep == 1 else random.choice([1.0, 1.5, 2.0]),
        gpus_per_node=random.choice([0, 2]),
    )
    assert_tails_equal(job)
