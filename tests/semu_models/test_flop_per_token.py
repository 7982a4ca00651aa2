"""FLOP of a token by convention: against the traced operators, and against each convention's own formula."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

import semu
import semu_models
import semu_models.hf
from semu_models.flop_formulas import CONVENTIONS, flop_per_token, token_work
from semu_models.hf import load_hf
from semu_models.listing import list_models
from semu_models.text.deepseek import deepseek_model

SIZES = {
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
FAMILIES: list[dict[str, Any]] = [
    {"model_type": "llama", **SIZES},
    {"model_type": "llama", **SIZES, "tie_word_embeddings": True, "head_dim": 32},
    {"model_type": "qwen2", **SIZES},
    {"model_type": "mistral", **SIZES, "sliding_window": 48},
    {"model_type": "gemma2", **SIZES, "sliding_window": 40},
    {"model_type": "gemma3_text", **SIZES, "sliding_window": 100, "sliding_window_pattern": 3},
    {"model_type": "gpt2", "n_layer": 3, "n_embd": 64, "n_head": 4, "vocab_size": 256, "n_positions": 512},
    {"model_type": "mixtral", **SIZES, "num_local_experts": 8},
    {"model_type": "qwen2_moe", **SIZES, **EXPERTS, "shared_expert_intermediate_size": 48, "mlp_only_layers": [0]},
    {"model_type": "qwen3_moe", **SIZES, **EXPERTS, "head_dim": 32},
    {"model_type": "deepseek_v3", **SIZES, **EXPERTS, "first_k_dense_replace": 1, "kv_lora_rank": 16},
    {"model_type": "deepseek_v2", **SIZES, **EXPERTS, "q_lora_rank": None, "first_k_dense_replace": 1},
    {"model_type": "gpt_oss", **SIZES, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 32},
]


@pytest.mark.parametrize("length", [32, 320])
@pytest.mark.parametrize("fields", FAMILIES, ids=lambda fields: fields["model_type"])
def test_the_closed_form_is_what_the_traced_operators_make(fields: dict[str, Any], length: int) -> None:
    """Model FLOP of an iteration over its tokens."""
    model = load_hf(fields).model
    job = semu.TrainingJob(
        model=model,
        cluster=semu.Cluster("h100", nodes=1, gpus_per_node=2),
        parallel=semu.Parallel(dp=2),
        training=semu.Training(micro_batch=2, global_batch=8, seq_len=length),
        batch=semu.workload.text_batch(),
    )
    counted = flop_per_token(model, length)
    assert counted is not None
    assert semu.simulate(job).model_flop == counted["semu"] * 8 * length


@pytest.mark.parametrize("fields", FAMILIES, ids=lambda fields: fields["model_type"])
def test_parallel_ranks_do_the_same_work_together(fields: dict[str, Any]) -> None:
    """With tensor, pipeline, data and, where there are experts, expert parallelism."""
    layers = "n_layer" if fields["model_type"] == "gpt2" else "num_hidden_layers"
    model = load_hf({**fields, layers: 4}).model
    has_experts = any("expert" in key for key in fields)
    job = semu.TrainingJob(
        model=model,
        cluster=semu.Cluster("h100", nodes=1, gpus_per_node=8),
        parallel=semu.Parallel(dp=2, tp=2, pp=2, ep=2 if has_experts else 1),
        training=semu.Training(global_batch=8, seq_len=128),
        batch=semu.workload.text_batch(),
    )
    counted = flop_per_token(model, 128)
    assert counted is not None
    report = semu.simulate(job)
    assert report.model_flop == counted["semu"] * 8 * 128
    assert report.parameters == model.num_parameters()


@pytest.mark.parametrize("name", ["lm-7b", "llama3-8b", "qwen2-72b"])
def test_a_dense_llama_under_every_formula(name: str) -> None:
    config = semu_models.build(name).modules[0].body.config  # type: ignore[attr-defined]
    layers, h, ffn, heads, kv, vocab = (
        getattr(config, key) for key in ("layers", "hidden", "ffn", "heads", "kv_heads", "vocab")
    )
    t = 8192
    model = semu_models.build(name)
    n, table = model.num_parameters(), vocab * h
    found = flop_per_token(model, t)
    assert found is not None
    # 2204.02311 appendix B, and torchtitan's: Q = h / heads
    assert found["palm"] == 6 * n + 12 * layers * heads * (h // heads) * t
    assert found["torchtitan"] == 6 * (n - table) + 12 * layers * heads * (h // heads) * t
    # Megatron-LM: 12 B S L h^2 ((1 + groups / heads + S / h / 2) + ffn / h * 3 / 2 + V / (2 L h)), gated
    inner = (1 + kv / heads + t / h / 2) + ffn / h * 3 / 2 + vocab / (2 * layers * h)
    assert math.isclose(found["megatron"], 12 * layers * h**2 * inner, rel_tol=1e-14)
    assert found["semu"] == found["megatron"]


def test_llama_3_8b_by_hand() -> None:
    """Products: 32 x (2 x 4096^2 + 2 x 4096 x 1024 + 3 x 4096 x 14336) + 4096 x 128256 = 7,504,658,432."""
    found = flop_per_token(semu_models.llama3_8b(), 8192)
    assert found == {
        "semu": 6 * 7_504_658_432 + 6 * 32 * 4096 * 8192,
        "megatron": 6 * 7_504_658_432 + 6 * 32 * 4096 * 8192,
        "megatron_full": 6 * 7_504_658_432 + 12 * 32 * 4096 * 8192,
        "palm": 6 * 8_030_261_248 + 12 * 32 * 32 * 128 * 8192,
        "torchtitan": 6 * (8_030_261_248 - 525_336_576) + 12 * 32 * 32 * 128 * 8192,
    }


@pytest.mark.paper
def test_gpt_3_by_the_formula_of_its_paper() -> None:
    """2104.04473 §5.1 without recomputation: 72 B s l h^2 (1 + s / (6 h) + V / (12 l h)), over the B s tokens."""
    found = flop_per_token(semu_models.gpt3_175b(), 2048)
    layers, h, vocab, s = 96, 12288, 51200, 2048
    assert found is not None
    formula = 72 * layers * h**2 * (1 + s / (6 * h) + vocab / (12 * layers * h))
    assert math.isclose(found["megatron_full"], formula, rel_tol=1e-14)
    assert found["semu"] == found["megatron"]


def test_mixtral_counts_the_experts_that_a_token_uses() -> None:
    t, h, ffn, layers, vocab = 4096, 4096, 14336, 32, 32000
    found = flop_per_token(semu_models.mixtral_8x7b(), t)
    assert found is not None
    inner = (1 + 8 / 32 + t / h / 2) + ffn / h * 2 * 3 / 2 + vocab / (2 * layers * h)
    assert math.isclose(found["megatron"], 12 * layers * h**2 * inner, rel_tol=1e-14)
    assert found["semu"] - found["megatron"] == 6 * layers * h * 8  # the routers
    active = 46_702_792_704 - layers * 6 * 3 * h * ffn
    assert found["palm"] == 6 * active + 12 * layers * h * t


def test_latent_attention_as_megatron_counts_it() -> None:
    """Megatron-LM's term of a layer with latent attention, 3 x 2 x [...], and its dense and sparse networks."""
    t, h, heads, layers, dense = 4096, 7168, 128, 61, 3
    q_rank, kv_rank, qk, rope, v, ffn, moe, vocab = 1536, 512, 128, 64, 128, 18432, 2048, 129280
    attention = q_rank * (h + heads * (qk + rope) + 1)
    attention += kv_rank * (h + heads * (qk + v) + 1) + h * rope
    attention += heads * v * h
    attention += t * heads * (qk + rope) / 2 + t * heads * v / 2
    networks = dense * ffn * 3 + (layers - dense) * (8 + 1) * moe * 3
    formula = 6 * (layers * attention + networks * h + h * vocab)
    found = flop_per_token(semu_models.deepseek_v3(), t)
    assert found is not None
    assert math.isclose(found["megatron"], formula, rel_tol=1e-14)
    assert found["semu"] - found["megatron"] == 6 * (layers - dense) * 256 * h - 6 * layers * (q_rank + kv_rank)


def test_further_tokens_count_their_layer_and_the_output_table_again() -> None:
    """Megatron-LM: 3 x 2 x (3 h + 2 h^2) and h V a further token, beside its layer."""
    config = replace(
        semu_models.hf.load_hf({"model_type": "deepseek_v3", **SIZES, **EXPERTS, "first_k_dense_replace": 1}).config,
        mtp_layers=2,
    )
    deeper = replace(config, layers=config.layers + 2, mtp_layers=0)
    length, h, vocab = 64, 64, 256
    model = deepseek_model("x", config)
    found, plain = flop_per_token(model, length), flop_per_token(deepseek_model("y", deeper), length)
    assert found is not None and plain is not None
    assert found["semu"] - plain["semu"] == 6 * 2 * (2 * h * h + h * vocab)
    assert found["megatron"] - plain["megatron"] == 6 * 2 * (3 * h + 2 * h * h + h * vocab)
    job = semu.TrainingJob(
        model=model,
        cluster=semu.Cluster("h100", nodes=1, gpus_per_node=1),
        parallel=semu.Parallel(),
        training=semu.Training(global_batch=4, seq_len=length),
        batch=semu.workload.text_batch(),
    )
    assert semu.simulate(job).model_flop == found["semu"] * 4 * length


def test_a_window_counts_for_semu_only() -> None:
    fields = {"model_type": "mistral", **SIZES}
    wide, narrow = (load_hf({**fields, "sliding_window": size}).model for size in (None, 64))
    full, less = flop_per_token(wide, 1024), flop_per_token(narrow, 1024)
    assert full is not None and less is not None
    assert {name for name in CONVENTIONS if full[name] != less[name]} == {"semu"}
    pairs = 1024**2 - (2 * 1024 * 64 - 64**2)
    assert full["semu"] - less["semu"] == 6 * 3 * 64 * pairs / 1024


def test_what_has_no_closed_form_has_no_figure() -> None:
    assert flop_per_token(semu_models.dit_5b(), 1024) is None
    assert token_work(semu_models.vit_2b().modules[0].body) is None


@pytest.mark.slow
def test_the_list_has_active_parameters_and_every_convention() -> None:
    rows = {item.entry.name: item for item in list_models()}
    assert set(rows) == set(semu_models.MODELS)
    assert rows["deepseek-v3"].active_parameters == 671_026_404_352 - 58 * (256 - 8) * 3 * 7168 * 2048
    assert rows["llama3-8b"].active_parameters == rows["llama3-8b"].parameters
    for item in rows.values():
        if item.flop_per_token is not None:
            assert tuple(item.flop_per_token) == CONVENTIONS
            flop = item.flop_per_token
            assert flop["semu"] <= flop["palm"] and flop["torchtitan"] < flop["palm"]


def test_the_work_of_a_token_scales_with_the_layers() -> None:
    config = semu_models.MixtralConfig(layers=2, hidden=64, ffn=96, heads=4, kv_heads=2, vocab=128)
    works = [token_work(semu_models.Mixtral(replace(config, layers=layers))) for layers in (2, 4, 6)]
    products = [work.products for work in works if work is not None]
    assert products[2] - products[1] == products[1] - products[0] > 0
