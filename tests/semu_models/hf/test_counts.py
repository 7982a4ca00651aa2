"""Parameters of models read from config.json files, against transformers' own counts."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
from published_counts import CONFIGS, PUBLISHED

from semu_models.hf import load_hf


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


@pytest.mark.parametrize("name", PUBLISHED)
def test_transformers_counts_the_same(name: str) -> None:
    pytest.importorskip("transformers")
    assert count_by_transformers(json.loads((CONFIGS / f"{name}.json").read_text())) == PUBLISHED[name][0]


SMALL = {"num_hidden_layers": 3, "hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 6, "vocab_size": 96}
VARIANTS: list[dict[str, Any]] = [
    {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SMALL, "num_key_value_heads": 2},
    {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SMALL, "num_key_value_heads": None},
    {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], **SMALL, "num_key_value_heads": 3},
    {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        **SMALL,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
    },
    {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        **SMALL,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_experts": 4,
        "moe_intermediate_size": 24,
    },
    {
        "model_type": "deepseek_v3",
        "architectures": ["DeepseekV3ForCausalLM"],
        **SMALL,
        "n_routed_experts": 8,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 24,
        "kv_lora_rank": 16,
        "q_lora_rank": None,
        "num_key_value_heads": 6,
    },
]


@pytest.mark.parametrize("fields", VARIANTS, ids=lambda fields: fields["model_type"])
def test_small_variants_and_defaults_count_the_same(fields: dict[str, Any]) -> None:
    """What these leave out is taken by default, by both."""
    pytest.importorskip("transformers")
    assert load_hf(fields).model.num_parameters() == count_by_transformers(fields)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "mixtral", "qwen3_moe", "deepseek_v3"])
def test_the_defaults_are_those_of_transformers(model_type: str) -> None:
    pytest.importorskip("transformers")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    assert CONFIG_MAPPING[model_type] is not None
    fields = {"model_type": model_type, "architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]]}
    assert load_hf(fields).model.num_parameters() == count_by_transformers(fields)
