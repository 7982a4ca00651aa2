"""Parameter counts against published numbers and closed forms written down here once more."""

from __future__ import annotations

import pytest

import semu_models
from semu.nn import Model
from semu_models.text.gpt import GPT, GPT3_175B, GPTConfig
from semu_models.vision.vit import VIT_2B, VIT_5B, VIT_22B, ViTConfig

PUBLISHED = {
    "llama3-8b": 8_030_261_248,
    "lm-7b": 6_738_415_616,
    "qwen2-32b": 32_763_876_352,
    "qwen2-72b": 72_706_203_648,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-v3": 671_026_404_352,
}
"""What the released checkpoints hold (model cards of Llama 3 8B, Llama 2 7B, Qwen2.5 32B, Qwen2 72B, Mixtral,
Qwen3-MoE and, without its 58 x 256 routing biases, DeepSeek-V3)."""


def parts(model: Model) -> dict[str, int]:
    return {module.name: module.body.num_parameters() for module in model.modules}


def gpt_parameters(c: GPTConfig) -> int:
    """2104.04473 §5.1, times 12 to stay in integers, and the final norm that the paper leaves out."""
    layers, h = c.layers, c.hidden
    return layers * h * (12 * h + 13) + (c.vocab + c.positions) * h + 2 * h


def transformer_parameters(layers: int, hidden: int, ffn: int) -> int:
    """Plain feed-forward network, biases, layer norms with weight and bias."""
    attention = 4 * hidden * hidden + 4 * hidden
    mlp = 2 * hidden * ffn + ffn + hidden
    return layers * (attention + mlp + 4 * hidden)


def adapter_parameters(hidden: int, width: int) -> int:
    """4 x 4 patches side by side -> width -> width, biases; the ViT's final norm is not counted."""
    return 16 * hidden * width + width + width * width + width


def dit_parameters(layers: int, h: int, ffn: int, context: int) -> int:
    table, cross_norm, cross_attention = 6 * h, 2 * h, 4 * h * h + 4 * h
    own = layers * (table + cross_norm + cross_attention)
    norms_without_parameters = layers * 4 * h
    latents, caption = 64 * h + h, context * h + h + 2 * h
    timestep = 256 * h + h + h * h + h + 6 * (h * h + h)
    head = 2 * h + 64 * h + 64
    return transformer_parameters(layers, h, ffn) - norms_without_parameters + own + latents + caption + timestep + head


@pytest.mark.paper
@pytest.mark.parametrize("name", PUBLISHED)
def test_released_models_have_their_published_size(name: str) -> None:
    assert semu_models.build(name).num_parameters() == PUBLISHED[name]


@pytest.mark.paper
@pytest.mark.parametrize(
    "config", [GPT3_175B, GPTConfig(layers=3, hidden=64, heads=4, vocab=101, positions=33)], ids=("175b", "tiny")
)
def test_gpt_follows_the_formula_of_its_paper(config: GPTConfig) -> None:
    assert GPT(config).num_parameters() == gpt_parameters(config)


@pytest.mark.paper
def test_gpt3_has_the_size_that_megatron_prints() -> None:
    assert round(semu_models.gpt3_175b().num_parameters() / 1e9, 1) == 174.6  # 2104.04473 Table 2


@pytest.mark.parametrize("config", [VIT_2B, VIT_5B, VIT_22B], ids=("2b", "5b", "22b"))
def test_vit_closed_form(config: ViTConfig) -> None:
    h = config.hidden
    body = transformer_parameters(config.layers, h, config.ffn) + (588 * h + h) + 2704 * h + 2 * h
    assert semu_models.ViT(config, None).num_parameters() == body + h * 588 + 588
    assert semu_models.ViT(config, 4096).num_parameters() == body + adapter_parameters(h, 4096)


@pytest.mark.paper
def test_vit_layers_make_dips_totals() -> None:
    assert transformer_parameters(63, 1792, 15360) / 1e9 == pytest.approx(4.3, abs=0.05)
    assert semu_models.vit_5b().num_parameters() / 1e9 == pytest.approx(4.3, abs=0.05)
    assert semu_models.vit_22b().num_parameters() / 1e9 == pytest.approx(21.7, abs=0.1)
    assert semu_models.vit_2b().num_parameters() / 1e9 == pytest.approx(1.843, abs=0.01)  # 2106.04560 Table 2


@pytest.mark.paper
@pytest.mark.parametrize(
    ("name", "printed", "hidden", "width"),
    [("vlm-s", 12, 1792, 4096), ("vlm-m", 37, 1792, 5120), ("vlm-l", 94, 6144, 8192)],
)
def test_vision_language_models_have_dips_totals_without_their_adapters(
    name: str, printed: int, hidden: int, width: int
) -> None:
    adapter = adapter_parameters(hidden, width)
    assert 0.1e9 < adapter < 1.4e9
    assert round((semu_models.build(name).num_parameters() - adapter) / 1e9) == printed


def test_dit_closed_form() -> None:
    assert semu_models.dit_5b().num_parameters() == dit_parameters(28, 3584, 10240, 4096)
    assert semu_models.dit_30b().num_parameters() == dit_parameters(48, 6144, 24576, 4096)
    in_video = parts(semu_models.t2v_l())["dit"]
    assert in_video == dit_parameters(48, 6144, 24576, 5120)


def test_a_text_encoder_is_a_language_model_without_its_output_table() -> None:
    whole, inside = semu_models.llama3_8b().num_parameters(), parts(semu_models.t2v_s())["llm"]
    assert whole - inside == 128256 * 4096


def test_a_backbone_is_the_language_model_as_it_is_alone() -> None:
    for name, alone in (("vlm-s", "llama3-8b"), ("vlm-m", "qwen2-32b"), ("vlm-l", "qwen2-72b"), ("vlm-7b", "lm-5b")):
        assert parts(semu_models.build(name))["llm"] == semu_models.build(alone).num_parameters()
    longer = (8192 - 2048) * 12288  # positions
    assert parts(semu_models.vlm_xl())["llm"] == semu_models.gpt3_175b().num_parameters() + longer


@pytest.mark.sampled(2)
@pytest.mark.paper
@pytest.mark.parametrize("name", semu_models.MODELS)
def test_every_model_is_about_as_large_as_its_name_says(name: str) -> None:
    entry = semu_models.MODELS[name]
    tolerance = 0.15 if name in ("vit-5b", "vit-2b") else 0.05
    assert semu_models.build(name).num_parameters() == pytest.approx(entry.nominal_parameters, rel=tolerance)


def test_both_models_of_dip_table_1_are_of_one_size() -> None:
    unimodal, multimodal = semu_models.lm_7b().num_parameters(), semu_models.vlm_7b().num_parameters()
    assert multimodal == pytest.approx(unimodal, rel=0.06)
