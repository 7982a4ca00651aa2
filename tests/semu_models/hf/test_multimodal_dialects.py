"""config.json of encoders and multimodal models: both forms, contradictions, what is refused, one command each."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

import semu_models
from semu.cli import main
from semu.errors import ConfigError
from semu.nn import Activation
from semu_models.hf import load_hf
from tests.semu_models.published_counts import CONFIGS


def config(name: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return fields


def changed(name: str, **changes: Any) -> dict[str, Any]:
    """A configuration with other values; ``section__key`` for one inside, ``...`` to leave a key out."""
    fields = deepcopy(config(name))
    for path, value in changes.items():
        *outer, key = path.split("__")
        table = fields
        for part in outer:
            table = table[part]
        if value is ...:
            del table[key]
        else:
            table[key] = value
    return fields


NAMED = {
    **{name: name for name in ("vit-base-patch16", "clip-vision-l-14-336", "siglip-so400m", "whisper-large-v3")},
    **{name: name for name in ("llava-1.5-7b", "llava-1.5-13b", "internvl3-1b", "internvl3-8b", "internvl3-78b")},
    **{name: name for name in ("qwen2-vl-2b", "qwen2-vl-7b", "qwen2-vl-72b", "qwen2.5-vl-3b", "qwen2.5-vl-72b")},
    **{name: name for name in ("gemma3-vl-4b", "gemma3-vl-12b", "gemma3-vl-27b", "qwen2-audio-7b")},
    "qwen2-vl-7b-nested": "qwen2-vl-7b",
    "qwen2.5-omni-7b-thinker": "qwen2.5-omni-7b",
}


@pytest.mark.parametrize("fixture", NAMED)
def test_the_file_is_the_named_model(fixture: str) -> None:
    """Structure by structure, not only in its number of parameters."""
    read, named = load_hf(CONFIGS / f"{fixture}.json").model, semu_models.build(NAMED[fixture])
    assert [m.name for m in read.modules] == [m.name for m in named.modules]
    for ours, theirs in zip(read.modules, named.modules, strict=True):
        assert ours.merging == theirs.merging
        assert ours.inputs == theirs.inputs
        blocks = dict(theirs.blocks())
        for path, block in ours.blocks():
            assert [(n, p.shape) for n, p in block.named_parameters()] == [
                (n, p.shape) for n, p in blocks[path].named_parameters()
            ]


def test_the_flat_and_the_nested_form_are_one_model() -> None:
    flat, nested = load_hf(config("qwen2-vl-7b")), load_hf(config("qwen2-vl-7b-nested"))
    assert flat.config == nested.config
    assert flat.config.vision.hidden == 1280
    assert flat.config.vision.out == flat.config.language.hidden == 3584


def test_keys_at_both_places_must_agree() -> None:
    again = changed("qwen2-vl-7b-nested", hidden_size=3584)
    assert load_hf(again).config == load_hf(config("qwen2-vl-7b")).config
    with pytest.raises(ConfigError, match="contradicts") as caught:
        load_hf(changed("qwen2-vl-7b-nested", hidden_size=4096))
    assert caught.value.nearest == 3584


@pytest.mark.parametrize(
    ("name", "key", "value", "nearest"),
    [
        ("qwen2-vl-7b", "vision_config__hidden_size", 1280, 3584),
        ("qwen2.5-vl-7b", "vision_config__out_hidden_size", 3420, 3584),
        ("qwen2.5-omni-7b-thinker", "audio_config__output_dim", 2048, 3584),
        ("qwen2.5-omni-7b-thinker", "vision_config__out_hidden_size", 2048, 3584),
    ],
)
def test_an_encoder_of_another_width_than_the_backbone(name: str, key: str, value: int, nearest: int) -> None:
    with pytest.raises(ConfigError, match="not as wide as the language model") as caught:
        load_hf(changed(name, **{key: value}), name="c.json")
    assert caught.value.nearest == nearest
    assert key.replace("__", ".") in str(caught.value.where)


ABSENT = ...
TIES = {  # (top, text_config) -> tied; every cell as the meta-device models of transformers 4.57.6 and 5.23.0 count
    "4.57.6": {  # the text section alone; Gemma's says true by default
        **{(top, False): () for top in (ABSENT, True, False)},
        **{(top, True): ("vl", "llava", "internvl", "gemma", "audio", "omni") for top in (ABSENT, True, False)},
        **{(top, ABSENT): ("gemma",) for top in (ABSENT, True, False)},
    },
    "5.23.0": {
        (ABSENT, ABSENT): ("internvl", "gemma"),
        (ABSENT, False): ("internvl", "gemma"),
        (ABSENT, True): ("vl", "llava", "internvl", "gemma"),
        (False, ABSENT): (),
        (False, False): (),
        (False, True): ("vl", "llava"),
        **{(True, inner): ("vl", "llava", "internvl", "gemma", "omni") for inner in (ABSENT, True, False)},
    },
}
TIED_FIXTURES = {
    "vl": "qwen2-vl-7b-nested",
    "llava": "llava-1.5-7b",
    "internvl": "internvl3-8b",
    "gemma": "gemma3-vl-4b",
    "audio": "qwen2-audio-7b",
    "omni": "qwen2.5-omni-7b-thinker",
}


@pytest.mark.parametrize("version", TIES)
@pytest.mark.parametrize("kind", TIED_FIXTURES)
def test_which_of_two_places_ties_the_tables(kind: str, version: str) -> None:
    for (top, inner), kinds in TIES[version].items():
        fields = config(TIED_FIXTURES[kind]) | {"transformers_version": version}
        for table, value in ((fields, top), (fields["text_config"], inner)):
            table.pop("tie_word_embeddings", None)
            if value is not ABSENT:
                table["tie_word_embeddings"] = value
        read = load_hf(fields)
        assert read.config.language.tied is (kind in kinds), (top, inner)
        differ = any(kind in TIES[one][top, inner] for one in TIES) != all(
            kind in TIES[one][top, inner] for one in TIES
        )
        contradict = ABSENT not in (top, inner) and top != inner
        assert any("tie_word_embeddings" in note for note in read.reading.notes) == (differ or contradict)


def test_the_flat_form_ties_by_its_only_place() -> None:
    for version in TIES:
        for tied in (True, False):
            fields = config("qwen2-vl-7b") | {"transformers_version": version, "tie_word_embeddings": tied}
            assert load_hf(fields).config.language.tied is tied


def test_the_pooling_head_of_gemma_is_told() -> None:
    read = load_hf(changed("gemma3-vl-4b", vision_config__vision_use_head=...))
    assert read.config == load_hf(config("gemma3-vl-4b")).config
    assert any("vision_use_head" in note for note in read.reading.notes)
    assert not any("vision_use_head" in note for note in load_hf(config("gemma3-vl-4b")).reading.notes)


def test_the_feature_layer_of_llava() -> None:
    assert load_hf(changed("llava-1.5-7b", vision_feature_layer=22)).config.feature_layer == -3
    assert load_hf(changed("llava-1.5-7b", vision_feature_layer=-1)).config.feature_layer == -1
    full = load_hf(changed("llava-1.5-7b", vision_feature_select_strategy="full"))
    assert full.config.keeps_class
    for layer in (0, 25, -25):
        with pytest.raises(ConfigError, match="features of several layers"):
            load_hf(changed("llava-1.5-7b", vision_feature_layer=layer))
    with pytest.raises(ConfigError, match="not an integer"):
        load_hf(changed("llava-1.5-7b", vision_feature_layer=[-2, -5]))


def test_defaults_of_nested_configurations() -> None:
    """Vicuna's sizes are transformers' own defaults of ``llama``."""
    rows = {row.key for row in load_hf(config("llava-1.5-7b")).reading.defaulted}
    assert {"text_config.hidden_size", "text_config.num_hidden_layers", "vision_config.num_channels"} <= rows


def test_windows_and_heads_of_vit() -> None:
    assert load_hf(config("qwen2.5-vl-7b")).config.vision.full_layers == (7, 15, 23, 31)
    names = changed("vit-base-patch16", num_labels=..., id2label={"0": "cat", "1": "dog", "2": "cow"})
    assert load_hf(names).config.labels == 3
    pooled = changed("vit-base-patch16", architectures=["ViTModel"])
    assert load_hf(pooled).model.num_parameters() == 86_389_248
    assert load_hf(changed("vit-base-patch16", image_size=[224, 224])).config.image_size == 224
    assert load_hf(changed("clip-vision-l-14-336", hidden_act="gelu")).config.activation is Activation.GELU


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("vit-base-patch16", {"image_size": [224, 448]}, "a list of equal ones"),
        ("vit-base-patch16", {"hidden_dropout_prob": 0.1}, "not modelled"),
        ("clip-vision-l-14-336", {"hidden_act": "mish"}, "an activation that is not modelled"),
        ("internvl3-8b", {"downsample_ratio": 0.3}, "not one over a whole number"),
        ("internvl3-8b", {"vision_feature_layer": -2}, "not modelled"),
        ("internvl3-8b", {"vision_config__use_mask_token": True}, "not modelled"),
        ("gemma3-vl-4b", {"mm_tokens_per_image": 200}, "do not pool"),
        ("whisper-large-v3", {"encoder_layerdrop": 0.1}, "not modelled"),
        ("whisper-large-v3", {"tie_word_embeddings": False}, "not modelled"),
        ("qwen2-vl-7b", {"vision_config__depht": 32}, "unknown key"),
        ("qwen2-vl-7b", {"vision_config": 3}, "not an object"),
        ("qwen2-vl-7b", {"architectures": ["Qwen2VLModel"]}, "not modelled"),
        ("qwen2.5-vl-7b", {"vision_config__window_size": 100}, "windows do not divide"),
        ("qwen2.5-vl-7b", {"vision_config__fullatt_block_indexes": [7, 32]}, "no such layer"),
        ("llava-1.5-7b", {"projector_hidden_act": "relu"}, "not modelled"),
        ("llava-1.5-7b", {"text_config__model_type": "lama"}, "did you mean 'llama'"),
    ],
)
def test_what_would_change_the_arithmetic_is_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_hf(changed(name, **changes))


def test_the_whole_omni_model_is_its_thinker() -> None:
    thinker = config("qwen2.5-omni-7b-thinker")
    whole = {
        "architectures": ["Qwen2_5OmniModel"],
        "model_type": "qwen2_5_omni",
        "enable_audio_output": True,
        "enable_talker": True,
        "thinker_config": thinker,
        "talker_config": {"hidden_size": 896, "model_type": "qwen2_5_omni_talker"},
        "token2wav_config": {"model_type": "qwen2_5_omni_token2wav"},
        "transformers_version": "4.50.0.dev0",
    }
    read = load_hf(whole)
    assert read.config == load_hf(thinker).config
    assert any("thinker" in note for note in read.reading.notes)
    thinker["text_config"]["tie_word_embeddings"] = True
    del thinker["tie_word_embeddings"]
    assert load_hf(whole).config.language.tied


@pytest.mark.parametrize(
    ("name", "section", "other", "where"),
    [
        ("llava-1.5-7b", "vision_config", "siglip-so400m", "vision_config.model_type"),
        ("gemma3-vl-4b", "vision_config", "clip-vision-l-14-336", "vision_config.model_type"),
        ("llava-1.5-7b", "text_config", "gpt2", "text_config.model_type"),
        ("qwen2-audio-7b", "text_config", "deepseek-v3", "text_config.model_type"),
    ],
)
def test_parts_of_other_families(name: str, section: str, other: str, where: str) -> None:
    part = {key: value for key, value in config(other).items() if key != "quantization_config"}
    with pytest.raises(ConfigError, match="is not modelled") as caught:
        load_hf(changed(name, **{section: part}), name="c.json")
    assert where in str(caught.value.where)


def test_other_language_models_of_the_decoder_families() -> None:
    """LLaVA with Mistral, InternVL3.5 with a mixture of experts."""
    mistral, experts = config("mistral-7b-v0.1"), config("qwen3-30b-a3b")
    llava, intern = changed("llava-1.5-7b", text_config=mistral), changed("internvl3-8b", text_config=experts)
    assert load_hf(llava).config.language == load_hf(mistral).config
    assert load_hf(intern).config.language == load_hf(experts).config


SIZES = ("--cluster", "h100:1x8", "--parallel", "dp4-tp2-pp1", "--set", "training.global_batch=8")


@pytest.mark.parametrize(
    ("name", "more"),
    [
        pytest.param("qwen2-vl-7b", (), marks=pytest.mark.slow),
        pytest.param("qwen2-vl-72b", (), marks=pytest.mark.slow),
        ("qwen2-vl-72b", ("--cluster", "h100:4x8", "--parallel", "dp1-tp8-pp4", "--set", "training.grad_dtype=bf16")),
        ("qwen2-audio-7b", SIZES),
        ("qwen2.5-omni-7b-thinker", (*SIZES, "--parallel", "dp2-tp4-pp1")),
    ],
)
def test_one_command_runs_a_config(name: str, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(CONFIGS / f"{name}.json"), "--json", *more]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["fits"]
    assert document["parameters"] == load_hf(config(name)).model.num_parameters()
