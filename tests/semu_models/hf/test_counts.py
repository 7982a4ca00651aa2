"""Parameters of models read from config.json files, against transformers' own counts."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest

from semu_models.hf import load_hf
from tests.semu_models.published_counts import CONFIGS, PUBLISHED


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_has_exactly_the_parameters_of_the_framework(name: str) -> None:
    model = load_hf(CONFIGS / f"{name}.json").model
    assert model.num_parameters() == PUBLISHED[name][0]
    assert model.name == name


def test_every_fixture_has_a_published_count() -> None:
    assert {path.stem for path in CONFIGS.glob("*.json")} == set(PUBLISHED)


def count_by_transformers(fields: dict[str, Any]) -> int:
    """Distinct parameters of transformers' meta-device model."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    fields = {key: value for key, value in fields.items() if key not in ("quantization_config", "auto_map")}
    model_class = getattr(transformers, fields["architectures"][0])
    config = model_class.config_class.from_dict({k: v for k, v in fields.items() if k != "model_type"})
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        model = model_class._from_config(config)
    model.tie_weights()
    return sum({id(parameter): parameter.numel() for parameter in model.parameters()}.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_transformers_counts_the_same(name: str) -> None:
    pytest.importorskip("transformers")
    assert count_by_transformers(json.loads((CONFIGS / f"{name}.json").read_text())) == PUBLISHED[name][0]


SMALL = {"num_hidden_layers": 3, "hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 6, "vocab_size": 96}
FEW = {"num_key_value_heads": 2}
FALCON = {name: value for name, value in SMALL.items() if name != "intermediate_size"}
QUARTER = {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.25}
PAD = {"pad_token_id": 0}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {**SMALL, **FEW}),
    ("llama", {**SMALL, "num_key_value_heads": None, "tie_word_embeddings": True}),
    ("llama", {**SMALL, **FEW, "attention_bias": True, "mlp_bias": True, "head_dim": 4}),
    ("qwen2", {**SMALL, "num_key_value_heads": 3, "tie_word_embeddings": True}),
    ("qwen3", {**SMALL, **FEW, "attention_bias": True}),
    ("qwen3", {**SMALL, **FEW, "head_dim": 12, "use_sliding_window": True, "sliding_window": 8}),
    ("mistral", {**SMALL, **FEW, "head_dim": 16}),
    ("mistral", {**SMALL, **FEW, "sliding_window": None}),
    ("gemma2", {**SMALL, **FEW, "attention_bias": True, "attn_logit_softcapping": None}),
    ("gemma3_text", {**SMALL, **FEW, "sliding_window_pattern": 2}),
    ("gpt2", {"n_layer": 3, "n_embd": 48, "n_head": 6, "vocab_size": 96, "n_positions": 32, "n_inner": 80}),
    ("gpt2", {"n_layer": 3, "n_embd": 48, "n_head": 6, "vocab_size": 96, "tie_word_embeddings": False}),
    ("mixtral", {**SMALL, **FEW, "num_local_experts": 4, "head_dim": 4}),
    ("qwen2_moe", {**SMALL, **FEW, **EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 40}),
    ("qwen2_moe", {**SMALL, **FEW, **EXPERTS, "num_experts": 4, "decoder_sparse_step": 2, "mlp_only_layers": [1]}),
    ("qwen3_moe", {**SMALL, **FEW, **EXPERTS, "head_dim": 16, "num_experts": 4, "mlp_only_layers": [0, 2]}),
    ("deepseek_v3", {**SMALL, **EXPERTS, "n_routed_experts": 8, "first_k_dense_replace": 1, "q_lora_rank": None}),
    ("deepseek_v3", {**SMALL, **EXPERTS, "n_routed_experts": 8, "kv_lora_rank": 16, "attention_bias": True}),
    ("deepseek_v2", {**SMALL, **EXPERTS, "n_routed_experts": 8, "n_shared_experts": 3, "first_k_dense_replace": 2}),
    ("gpt_oss", {**SMALL, **FEW, "num_local_experts": 4, "num_experts_per_tok": 2}),
    ("gpt_oss", {**SMALL, **FEW, "num_local_experts": 4, "attention_bias": False, "head_dim": 16}),
    ("phi3", {**SMALL, **PAD, **FEW, "sliding_window": 8, "partial_rotary_factor": 0.5}),
    ("phi3", {**SMALL, **PAD, "tie_word_embeddings": True, "head_dim": 16}),
    ("olmo2", {**SMALL, **FEW}),
    ("olmo2", {**SMALL, **FEW, "attention_bias": True, "tie_word_embeddings": True}),
    ("glm4", {**SMALL, **PAD, **FEW, "head_dim": 8}),
    (
        "glm4",
        {
            **SMALL,
            **PAD,
            **FEW,
            "attention_bias": False,
            "rope_parameters": QUARTER,
        },
    ),
    ("glm", {**SMALL, **PAD, **FEW, "tie_word_embeddings": True}),
    ("falcon", {**FALCON}),
    ("falcon", {**FALCON, "multi_query": False, "bias": True, "ffn_hidden_size": 40}),
    ("falcon", {**FALCON, "multi_query": False, "parallel_attn": False, "alibi": True, "tie_word_embeddings": False}),
    ("falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    ("falcon", {**FALCON, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1, "activation": "relu"}),
    ("bloom", {"n_layer": 3, "hidden_size": 48, "n_head": 6, "vocab_size": 96}),
    ("bloom", {"num_hidden_layers": 3, "n_embed": 48, "num_attention_heads": 6, "tie_word_embeddings": False}),
]


def architecture(model_type: str) -> str:
    pytest.importorskip("transformers")
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    name: str = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
    return name


@pytest.mark.parametrize(("model_type", "fields"), VARIANTS, ids=lambda value: value if isinstance(value, str) else "")
def test_small_variants_count_the_same(model_type: str, fields: dict[str, Any]) -> None:
    """What these leave out is taken by default, by both."""
    whole = {"model_type": model_type, "architectures": [architecture(model_type)], **fields}
    if model_type.startswith("deepseek"):
        whole |= {"num_key_value_heads": fields["num_attention_heads"]}
    assert load_hf(whole).model.num_parameters() == count_by_transformers(whole)


@pytest.mark.parametrize("model_type", sorted({name for name, _ in VARIANTS}))
def test_the_defaults_are_those_of_transformers(model_type: str) -> None:
    fields: dict[str, Any] = {"model_type": model_type, "architectures": [architecture(model_type)]}
    if model_type == "deepseek_v2":
        fields["num_experts_per_tok"] = 6
    assert load_hf(fields).model.num_parameters() == count_by_transformers(fields)
