"""Small members of every family under TP, PP and EP: against the slow reference, and FLOP and memory by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from simulation.comparison import assert_tails_equal
from simulation.jobs import job_of, overlap, text_items

from semu.nn import LatentSizes, Model
from semu.parallel.config import Parallel
from semu.simulation import simulate
from semu.workload import Microbatch
from semu_models.text.decoder import decoder_model
from semu_models.text.deepseek import DeepSeekConfig, deepseek_model
from semu_models.text.gemma import Gemma, Gemma2Config, Gemma3Config
from semu_models.text.gpt import GPT, GPTConfig
from semu_models.text.gpt_oss import GptOss, GptOssConfig
from semu_models.text.language import language_model
from semu_models.text.llama import Llama, LlamaConfig
from semu_models.text.mistral import Mistral, MistralConfig
from semu_models.text.mixtral import Mixtral, MixtralConfig
from semu_models.text.qwen import Qwen, QwenConfig
from semu_models.text.qwen2_moe import Qwen2MoE, Qwen2MoEConfig
from semu_models.text.qwen3 import Qwen3, Qwen3Config
from semu_models.text.qwen_moe import QwenMoE, QwenMoEConfig

H, F, A, K, D, V, W = 64, 96, 4, 2, 32, 256, 48
"""Hidden, inner width, heads, key heads, width of a head (which is not H / A), vocabulary, window."""
EXPERTS, TOP, MOE = 4, 2, 64
LATENT = LatentSizes(kv_lora_rank=32, qk_head_dim=16, qk_pos_emb_head_dim=8, v_head_dim=16)

ATTENTION = H * (A + 2 * K) * D + A * D * H
"""Multiplications of a token with the projections, heads of width D."""
SWIGLU, ROUTED = 3 * H * F, H * EXPERTS + TOP * 3 * H * MOE


def latent(q_rank: int | None) -> int:
    """Of latent attention."""
    query = A * 24 * H if q_rank is None else H * q_rank + q_rank * A * 24
    return query + H * 40 + 32 * A * 32 + A * 16 * H


@dataclass(frozen=True)
class Member:
    """A small model of a family.

    Attributes:
        make: builds it. work: multiplications of a token with matrices, forward, without the output table.
        windows: of every layer's attention, None: none. scores: heads x (width of keys + of values).
        tables: how often a token meets the output table.
    """

    make: Callable[[], Model]
    work: int
    windows: tuple[int | None, ...]
    scores: int = 2 * A * D
    tables: int = 1
    has_experts: bool = False


def small_deepseek(**more: int) -> DeepSeekConfig:
    """Three layers with experts behind a dense one; with predictions, queries have a latent too."""
    latent_sizes = replace(LATENT, q_lora_rank=24) if "mtp_layers" in more else LATENT
    return DeepSeekConfig(4, H, F, A, V, 1, MOE, EXPERTS, TOP, latent_sizes, **more)  # type: ignore[arg-type]


NONE4 = (None,) * 4
FAMILIES = {
    "gpt": Member(
        lambda: decoder_model("gpt", GPT(GPTConfig(4, H, A, V, positions=512))),
        4 * (4 * H * H + 8 * H * H),
        NONE4,
        2 * H,
    ),
    "llama": Member(
        lambda: decoder_model("llama", Llama(LlamaConfig(4, H, F, A, K, V))),
        4 * (2 * H * H + 2 * H * H // 2 + SWIGLU),
        NONE4,
        2 * H,
    ),
    "llama tied, with biases": Member(
        lambda: decoder_model(
            "llama", Llama(LlamaConfig(4, H, F, A, K, V, D, tied=True, attention_bias=True, mlp_bias=True))
        ),
        4 * (ATTENTION + SWIGLU),
        NONE4,
    ),
    "mistral": Member(
        lambda: decoder_model("mistral", Mistral(MistralConfig(4, H, F, A, K, V, head_dim=D, window=W))),
        4 * (ATTENTION + SWIGLU),
        (W,) * 4,
    ),
    "qwen2": Member(
        lambda: decoder_model(
            "qwen2", Qwen(QwenConfig(4, H, F, A, K, V, D, window=W, windowed=(False, False, True, True)))
        ),
        4 * (ATTENTION + SWIGLU),
        (None, None, W, W),
    ),
    "qwen3": Member(
        lambda: decoder_model("qwen3", Qwen3(Qwen3Config(4, H, F, A, K, V, D))), 4 * (ATTENTION + SWIGLU), NONE4
    ),
    "gemma2": Member(
        lambda: decoder_model("gemma2", Gemma(Gemma2Config(4, H, F, A, K, V, D, window=W))),
        4 * (ATTENTION + SWIGLU),
        (W, None, W, None),
    ),
    "gemma3": Member(
        lambda: decoder_model("gemma3", Gemma(Gemma3Config(7, H, F, A, K, V, D, window=W))),
        7 * (ATTENTION + SWIGLU),
        (W, W, W, W, W, None, W),
    ),
    "mixtral": Member(
        lambda: decoder_model("mixtral", Mixtral(MixtralConfig(4, H, MOE, A, K, V, D, experts=EXPERTS, window=W))),
        4 * (ATTENTION + ROUTED),
        (W,) * 4,
        has_experts=True,
    ),
    "qwen3-moe": Member(
        lambda: decoder_model(
            "qwen3-moe",
            QwenMoE(
                QwenMoEConfig(
                    layers=4,
                    hidden=H,
                    ffn=F,
                    moe_ffn=MOE,
                    heads=A,
                    kv_heads=K,
                    head_dim=D,
                    vocab=V,
                    experts=EXPERTS,
                    top_k=TOP,
                    dense_layers=(1,),
                )
            ),
        ),
        4 * ATTENTION + 3 * ROUTED + SWIGLU,
        NONE4,
        has_experts=True,
    ),
    "qwen2-moe": Member(
        lambda: decoder_model(
            "qwen2-moe",
            Qwen2MoE(
                Qwen2MoEConfig(
                    layers=4,
                    hidden=H,
                    moe_ffn=MOE,
                    shared_ffn=F,
                    heads=A,
                    kv_heads=K,
                    head_dim=D,
                    vocab=V,
                    experts=EXPERTS,
                    top_k=TOP,
                )
            ),
        ),
        4 * (ATTENTION + ROUTED + SWIGLU + H),
        NONE4,
        has_experts=True,
    ),
    "deepseek-v2": Member(
        lambda: deepseek_model("deepseek", small_deepseek(shared_experts=2)),
        4 * latent(None) + SWIGLU + 3 * (ROUTED + 3 * H * 2 * MOE),
        NONE4,
        A * (24 + 16),
        has_experts=True,
    ),
    "deepseek-v3-mtp": Member(
        lambda: deepseek_model("deepseek", small_deepseek(mtp_layers=1)),
        5 * latent(24) + SWIGLU + 4 * (ROUTED + 3 * H * MOE) + 2 * H * H,
        (None,) * 5,
        A * (24 + 16),
        tables=2,
        has_experts=True,
    ),
    "gpt-oss": Member(
        lambda: decoder_model(
            "gpt-oss",
            GptOss(
                GptOssConfig(
                    layers=4,
                    hidden=H,
                    ffn=MOE,
                    heads=A,
                    kv_heads=K,
                    head_dim=D,
                    vocab=V,
                    window=W,
                    experts=EXPERTS,
                    top_k=TOP,
                )
            ),
        ),
        4 * (ATTENTION + ROUTED),
        (W, None, W, None),
        has_experts=True,
    ),
}

LENGTHS = (40, 100, 116)


def pairs(window: int | None) -> int:
    """Query-key pairs, in both directions, of sequences of LENGTHS: by hand."""
    if window is None:
        return 40**2 + 100**2 + 116**2
    assert window == W == 48
    return 40**2 + (2 * 100 - 48) * 48 + (2 * 116 - 48) * 48


def parallel_of(member: Member, pp: int = 2) -> Parallel:
    return Parallel(dp=2, tp=2, pp=pp, ep=2) if member.has_experts else Parallel(tp=2, pp=pp)


@pytest.mark.parametrize("name", FAMILIES)
def test_flop_by_hand(name: str) -> None:
    """Forward 2 FLOP a multiplication, backward twice that; attention 2 a pair and channel, halved by its mask."""
    member = FAMILIES[name]
    parallel = parallel_of(member)
    items = [Microbatch({"text": LENGTHS}, 1)] * (2 * parallel.dp)
    report = simulate(job_of(member.make(), items, parallel))
    forward = 2 * sum(LENGTHS) * (member.work + member.tables * H * V)
    forward += sum(2 * pairs(window) // 2 * member.scores for window in member.windows)
    found = report.model_tflop_per_s_per_gpu * 1e12 * report.iteration_time_s * parallel.num_gpus
    assert found == pytest.approx(3 * forward * len(items), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "recompute"), [*((name, "none") for name in FAMILIES), ("gemma2", "full"), ("gpt-oss", "full")]
)
@pytest.mark.sampled(2)
def test_times_and_memory_are_the_reference_s(name: str, recompute: str) -> None:
    member = FAMILIES[name]
    parallel = parallel_of(member)
    options = overlap(tensor=recompute == "full", gradients=True)
    assert_tails_equal(
        job_of(member.make(), text_items(2 * parallel.dp), parallel, recompute=recompute, overlap=options)
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama", {}),
        ("llama", {"attention": "unfused"}),
        ("qwen3", {"recompute": "full"}),
        ("gpt-oss", {}),
        ("gpt-oss", {"precision": "fp8"}),
    ],
    ids=str,
)
def test_ranks_that_share_key_value_heads(name: str, options: dict[str, object]) -> None:
    """Four ranks over two heads: times and memory are the reference's, and no parameter counts twice."""
    member = FAMILIES[name]
    parallel = replace(parallel_of(member), tp=4)
    job = job_of(member.make(), text_items(2 * parallel.dp), parallel, **options)  # type: ignore[arg-type]
    assert_tails_equal(job)
    assert simulate(job).parameters == job.model.num_parameters()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["gemma2", "gpt-oss", "qwen2-moe"])
@pytest.mark.parametrize(
    "options",
    [
        {"attention": "unfused"},
        {"attention": "unfused", "recompute": "selective"},
        {"precision": "fp8"},
        {"recompute": ["layernorm", "attention"]},
        {"gradient_accumulation_fusion": False},
    ],
    ids=str,
)
def test_under_other_settings(name: str, options: dict[str, object]) -> None:
    member = FAMILIES[name]
    parallel = replace(parallel_of(member, pp=1), zero=1)
    assert_tails_equal(job_of(member.make(), text_items(2 * parallel.dp), parallel, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FAMILIES)
def test_static_memory_by_hand(name: str) -> None:
    """Parameters in bf16, gradients in fp32, three fp32 states of Adam: 18 bytes an element of one rank."""
    member = FAMILIES[name]
    model = member.make()
    report = simulate(job_of(model, text_items(1), Parallel()))
    assert report.static_memory_bytes == (18 * model.num_parameters(),)
    assert report.parameters == model.num_parameters()


def test_any_configuration_is_a_language_model() -> None:
    """What multimodal models ask for."""
    for config in (Gemma3Config(2, H, F, A, K, V, D), MistralConfig(2, H, F, A, K, V), LlamaConfig(2, H, F, A, K, V)):
        body = language_model(config)
        assert [name for name, _ in body.named_children()] == ["embedding", "layers.0", "layers.1", "head"]
