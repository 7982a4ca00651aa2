"""Parameters of released language models: literal numbers, transformers' own count, and totals that were published."""

from __future__ import annotations

import pytest

import semu_models
from semu.nn import Model
from semu.nn.layers.moe import active_parameters
from tests.semu_models.released import CONFIGS, PARAMETERS

PUBLISHED = {
    "gpt2": (124e6, "README of openai/gpt-2"),
    "gpt2-medium": (355e6, "README of openai/gpt-2"),
    "gpt2-large": (774e6, "README of openai/gpt-2"),
    "gpt2-xl": (1.558e9, "README of openai/gpt-2"),
    "llama3.2-1b": (1.23e9, "model card"),
    "llama3.2-3b": (3.21e9, "model card"),
    "mistral-7b": (7.24e9, "model card"),
    "mistral-nemo-12b": (12.2e9, "model card"),
    "mistral-small-24b": (23.6e9, "model card"),
    "qwen2-0.5b": (0.49e9, "2407.10671 Table 1"),
    "qwen2-1.5b": (1.54e9, "2407.10671 Table 1"),
    "qwen2.5-7b": (7.61e9, "model card"),
    "qwen2.5-3b": (3.09e9, "model card"),
    "qwen2.5-14b": (14.7e9, "model card"),
    "qwen2.5-32b": (32.5e9, "model card"),
    "qwen2.5-72b": (72.7e9, "model card"),
    "qwen3-4b": (4.0e9, "model card"),
    "qwen3-8b": (8.2e9, "model card"),
    "qwen3-14b": (14.8e9, "model card"),
    "qwen3-32b": (32.8e9, "model card"),
    "gemma2-2b": (2_024_517_888 + 590_118_912 - 294_912, "2408.00118 Table 2: non-embedding and embedding"),
    "gemma2-9b": (8_324_201_984 + 917_962_752 - 458_752, "2408.00118 Table 2: non-embedding and embedding"),
    "gemma2-27b": (26_047_480_320 + 1_180_237_824 - 589_824, "2408.00118 Table 2: non-embedding and embedding"),
    "gemma3-1b": (302e6 + 698e6, "2503.19786 Table 1"),
    "gemma3-4b": (675e6 + 3209e6, "2503.19786 Table 1"),
    "gemma3-12b": (1012e6 + 10759e6, "2503.19786 Table 1"),
    "gemma3-27b": (1416e6 + 25600e6, "2503.19786 Table 1"),
    "mixtral-8x7b": (46.7e9, "mistral.ai, Mixtral of experts"),
    "mixtral-8x22b": (141e9, "mistral.ai, Cheaper, better, faster, stronger"),
    "qwen1.5-moe-a2.7b": (14.3e9, "model card"),
    "qwen2-57b-a14b": (57.4e9, "2407.10671 Table 1"),
    "qwen3-30b-a3b": (30.5e9, "model card"),
    "qwen3-235b-a22b": (235e9, "model card"),
    "deepseek-v2-lite": (15.7e9, "2405.04434 appendix B"),
    "deepseek-v2": (236e9, "2405.04434 abstract"),
    "deepseek-v3": (671e9, "2412.19437 abstract"),
    "gpt-oss-20b": (20.91e9, "2508.10925 Table 1"),
    "gpt-oss-120b": (116.83e9, "2508.10925 Table 1"),
}
"""Name -> total, where it stands. Gemma 2 prints its embeddings with 256128 rows, released are 256000."""

ACTIVE = {
    "mixtral-8x7b": (12.9e9, "mistral.ai, Mixtral of experts"),
    "mixtral-8x22b": (39e9, "mistral.ai, Cheaper, better, faster, stronger"),
    "qwen2-57b-a14b": (14.2e9, "2407.10671 Table 1"),
    "qwen3-30b-a3b": (3.3e9, "model card"),
    "qwen3-235b-a22b": (22e9, "model card"),
    "deepseek-v2-lite": (2.4e9 + 102400 * 2048, "2405.04434 appendix B, and the token table"),
    "deepseek-v3": (37e9, "2412.19437 abstract"),
    "kimi-k2": (32.6e9, "2507.20534 Table 2"),
    "gpt-oss-20b": (3.61e9 + 201088 * 2880, "2508.10925 Table 1, and one table more"),
    "gpt-oss-120b": (5.13e9 + 201088 * 2880, "2508.10925 Table 1, and one table more"),
}
"""Name -> parameters that a token uses, where they stand; in all but GPT-OSS both tables are counted."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_of_transformers(name: str) -> None:
    assert semu_models.build(name).num_parameters() == PARAMETERS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_transformers_counts_them_again(name: str) -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    model_type, sizes = CONFIGS[name]
    config = transformers.AutoConfig.for_model(model_type, **sizes)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]


@pytest.mark.paper
@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str) -> None:
    printed, _ = PUBLISHED[name]
    assert semu_models.build(name).num_parameters() == pytest.approx(printed, rel=0.01)


@pytest.mark.paper
@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_are_the_published_ones(name: str) -> None:
    printed, _ = ACTIVE[name]
    assert _active(semu_models.build(name)) == pytest.approx(printed, rel=0.03)


def _active(model: Model) -> int:
    return sum(active_parameters(module.body) for module in model.modules)


def test_shapes_that_two_names_share() -> None:
    for one, other in (("qwen2-7b", "qwen2.5-7b"), ("qwen2-72b", "qwen2.5-72b"), ("qwen2-32b", "qwen2.5-32b")):
        assert semu_models.build(one).num_parameters() == semu_models.build(other).num_parameters()


def test_multi_token_prediction_adds_one_layer_two_norms_and_a_projection() -> None:
    """2412.19437 §2.2; tables are shared. With two more tables and the routing biases it is the model card's 685 B."""
    alone, both = semu_models.deepseek_v3(), semu_models.deepseek_v3_mtp()
    h, latent = 7168, 7168 * 1536 + 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 + 512 * 128 * 256 + 128 * 128 * 7168
    experts = 257 * 3 * h * 2048 + 256 * h
    added = latent + experts + 2 * h + 2 * h * h + 2 * h + h
    assert both.num_parameters() - alone.num_parameters() == added
    assert added == 11_610_067_968
    released = both.num_parameters() + 2 * 129280 * h + (58 + 1) * 256
    assert released == pytest.approx(685e9, rel=1e-3)
    shared = [p for _, p in both.modules[1].body.named_parameters() if p is both.modules[0].body[0].weight]  # type: ignore[index]
    assert len(shared) == 1
