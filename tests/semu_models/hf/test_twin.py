"""config.json of BERT, CLIP and SigLIP: both heads, older copies of sections, contradictions, one command."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from semu.errors import ConfigError
from semu.nn.layers.contrastive import ContrastiveKind
from semu.runfile import Overrides, resolve_run
from semu.simulation import simulate
from semu_models.hf import load_hf
from semu_models.text.bert import BERT_BASE, BERT_LARGE
from semu_models.vision.clip import CLIP_B_32, CLIP_L_14, SIGLIP_SO400M
from tests.semu_models.published_counts import CONFIGS


def fixture(name: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return fields


def test_the_configurations_are_those_of_the_named_models() -> None:
    assert load_hf(fixture("bert-large-pretraining")).config == BERT_LARGE
    assert load_hf({**fixture("bert-base-uncased"), "architectures": ["BertForPreTraining"]}).config == BERT_BASE
    assert not load_hf(fixture("bert-base-uncased")).config.next_sentence
    assert load_hf(fixture("clip-vit-b-32")).config == CLIP_B_32
    assert load_hf(fixture("clip-vit-l-14")).config == CLIP_L_14
    assert load_hf(fixture("siglip-so400m-dual")).config == SIGLIP_SO400M
    assert SIGLIP_SO400M.loss is ContrastiveKind.SIGMOID


def test_an_absent_section_is_all_defaults() -> None:
    model = load_hf({"model_type": "clip"})
    assert model.config == CLIP_B_32
    assert {"projection_dim", "max_position_embeddings", "patch_size"} <= {row.key for row in model.reading.defaulted}


@pytest.mark.parametrize(
    ("name", "path", "value", "where"),
    [
        ("bert-base-uncased", "attention_probs_dropout_prob", 0.0, "attention_probs_dropout_prob"),
        ("bert-base-uncased", "tie_word_embeddings", False, "tie_word_embeddings"),
        ("bert-base-uncased", "position_embedding_type", "relative_key", "position_embedding_type"),
        ("bert-base-uncased", "architectures", ["BertForQuestionAnswering"], "architectures"),
        ("bert-base-uncased", "num_attention_heads", 7, "num_attention_heads"),
        ("clip-vit-l-14", "text_config_dict.hidden_size", 512, "text_config_dict"),
        ("clip-vit-l-14", "text_config.hidden_act", "swiglu", "text_config.hidden_act"),
        ("clip-vit-l-14", "vision_config.dropout", 0.1, "vision_config.dropout"),
        ("siglip-so400m-dual", "text_config.projection_size", 768, "text_config.projection_size"),
        ("siglip-so400m-dual", "text_config.layers", 3, "text_config.layers"),
    ],
)
def test_what_contradicts_or_is_not_modelled_is_refused(name: str, path: str, value: Any, where: str) -> None:
    fields = copy.deepcopy(fixture(name))
    table = fields
    *outer, last = path.split(".")
    for key in outer:
        table = table[key]
    table[last] = value
    with pytest.raises(ConfigError) as caught:
        load_hf(fields)
    assert caught.value.where is not None
    assert caught.value.where.endswith(where)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("bert-large-pretraining", "text"),
        pytest.param("clip-vit-b-32", "pairs", marks=pytest.mark.slow),
        pytest.param("siglip-so400m-dual", "pairs", marks=pytest.mark.slow),
    ],
)
def test_one_command(name: str, kind: str) -> None:
    run = resolve_run(str(CONFIGS / f"{name}.json"), Overrides(cluster="h100:1x8"))
    assert run.config["batch"]["kind"] == kind
    if kind == "text":
        assert run.config["training"]["seq_len"] == 512
    assert simulate(run.job()).fits


def test_adapters_on_a_model_that_was_read(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        f'[model]\nhf_config = "{CONFIGS / "clip-vit-b-32.json"}"\n[model.lora]\nrank = 8\n'
        'targets = ["q_proj", "v_proj"]\n[cluster]\ndevice = "h100"\n[parallel]\ndp = 8\n'
    )
    run = resolve_run(str(path))
    assert run.model.num_parameters(trainable_only=True) == 491_520


@pytest.mark.slow
def test_adapters_on_a_config_as_a_run() -> None:
    path = str(CONFIGS / "llama3-8b.json")
    run = resolve_run(path, Overrides(("model.lora.rank=16",), cluster="h100:1x8"))
    assert run.model.num_parameters(trainable_only=True) == 41_943_040
    with pytest.raises(ConfigError, match="did you mean 'q_proj'"):
        resolve_run(path, Overrides(('model.lora={rank=16, targets=["q_prj"]}',), cluster="h100:1x8"))


SMALL = {"num_hidden_layers": 3, "hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 6, "vocab_size": 96}
TOWER = {"hidden_size": 48, "patch_size": 14}


@pytest.mark.parametrize(
    ("model_type", "architecture", "fields", "count"),
    [
        ("bert", "BertForPreTraining", {**SMALL, "type_vocab_size": 3, "max_position_embeddings": 40}, 63_986),
        ("bert", "BertForMaskedLM", {}, 109_514_298),
        ("clip", "CLIPModel", {}, 151_277_313),
        ("clip", "CLIPModel", {"projection_dim": 20, "text_config": SMALL, "vision_config": TOWER}, None),
        ("siglip", "SiglipModel", {}, 203_155_970),
        ("siglip", "SiglipModel", {"text_config": SMALL, "vision_config": TOWER}, 4_102_178),
    ],
)
def test_variants_count_as_in_transformers(
    model_type: str, architecture: str, fields: dict[str, Any], count: int | None
) -> None:
    whole = {"model_type": model_type, "architectures": [architecture], **fields}
    found = load_hf(whole).model.num_parameters()
    if count is not None:  # counted by transformers 5.23
        assert found == count
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    model_class = getattr(transformers, architecture)
    with torch.device("meta"):
        model = model_class._from_config(
            model_class.config_class.from_dict({"architectures": [architecture], **fields})
        )
    model.tie_weights()
    assert found == sum({id(parameter): parameter.numel() for parameter in model.parameters()}.values())
