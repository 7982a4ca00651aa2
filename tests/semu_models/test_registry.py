"""Names, errors, configurations and the table for people."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import semu_models
from semu.errors import ConfigError
from semu.nn import ModalityRole
from semu_models.generation.dit import DiTConfig
from semu_models.text.gpt import GPTConfig
from semu_models.text.llama import LlamaConfig
from semu_models.text.qwen import QwenConfig
from semu_models.vision.vit import ViTConfig
from tests.semu_models.names import DECODERS, PAPER


def test_every_model_of_the_paper_has_a_name() -> None:
    assert set(PAPER) | set(DECODERS) <= set(semu_models.MODELS)
    for name, entry in semu_models.MODELS.items():
        assert entry.name == name == semu_models.build(name).name == name.lower()
        assert entry.source


@pytest.mark.parametrize("name", semu_models.MODELS)
def test_every_model_is_also_a_function(name: str) -> None:
    function = getattr(semu_models, name.replace("-", "_").replace(".", "_"))
    assert semu_models.MODELS[name].builder is function


def test_builds_are_independent() -> None:
    first, second = semu_models.vlm_s(), semu_models.vlm_s()
    first.freeze(["vit"])
    assert second.num_parameters(trainable_only=True) == second.num_parameters()


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean 'llama3-8b'") as caught:
        semu_models.build("lama3-8b", where="run.toml:2 model.name")
    assert caught.value.nearest == "llama3-8b"
    assert caught.value.where == "run.toml:2 model.name"


def test_families_are_told_apart_by_their_module_roles() -> None:
    for name, entry in semu_models.MODELS.items():
        roles = [module.role for module in semu_models.build(name).modules]
        if entry.family is semu_models.Family.VLM:
            assert roles == [ModalityRole.ENCODER, ModalityRole.BACKBONE]
        elif entry.family is semu_models.Family.T2V:
            assert roles == [ModalityRole.ENCODER, ModalityRole.DECODER]
        elif name.endswith("-mtp"):
            assert roles == [ModalityRole.BACKBONE, ModalityRole.DECODER]
        elif name in (*PAPER, *DECODERS):
            assert roles == [ModalityRole.BACKBONE]


BAD: list[tuple[Callable[[], object], str, str, object]] = [
    (lambda: GPTConfig(layers=0, hidden=64, heads=4), "not a size", "GPTConfig.layers", 1),
    (lambda: GPTConfig(layers=1, hidden=64, heads=5), "does not divide", "GPTConfig.heads", 4),
    (lambda: GPTConfig(layers=True, hidden=64, heads=4), "not a size", "GPTConfig.layers", 1),
    (lambda: LlamaConfig(1, 64, 128, 8, 3, 10), "does not divide", "LlamaConfig.kv_heads", 2),
    (lambda: QwenConfig(1, 64, 128, 8, 16), "does not divide", "QwenConfig.kv_heads", 8),
    (lambda: ViTConfig(1, 64, 128, 4, image_size=730), "does not divide", "ViTConfig.patch_size", 10),
    (lambda: ViTConfig(1, 64, 128, 4, merge=3), "does not divide", "ViTConfig.merge", 2),
    (lambda: DiTConfig(1, 64, 128, 4, latent_features=-1), "not a size", "DiTConfig.latent_features", 1),
]


@pytest.mark.parametrize(("make", "message", "where", "nearest"), BAD, ids=[case[2] for case in BAD])
def test_impossible_configurations_are_refused(
    make: Callable[[], object], message: str, where: str, nearest: object
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make()
    assert (caught.value.where, caught.value.nearest) == (where, nearest)


def test_images_have_the_tokens_that_dip_prints() -> None:
    config = ViTConfig(1, 64, 128, 4)
    assert config.num_patches == 2704
    assert config.num_patches // config.merge**2 == 169
    assert config.patch_features == 588


def test_the_table_shows_every_model_with_its_counted_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    lines = semu_models.parameter_table().splitlines()
    assert len(lines) == 1 + len(semu_models.MODELS)
    (llama,) = (line for line in lines if line.startswith("llama3-8b"))
    assert "8,030,261,248" in llama
    assert "8 B" in llama
    (vlm,) = (line for line in lines if line.startswith("vlm-s"))
    assert "vit 4.42 B, llm 8.03 B" in vlm


def test_data_streams_are_those_that_batches_provide() -> None:
    def streams(name: str) -> set[str]:
        return {spec.stream for module in semu_models.build(name).modules for spec in module.inputs}

    assert streams("vlm-m") == {"vision", "text"}
    assert streams("t2v-l") == {"video", "text"}
    assert streams("dit-5b") == {"video", "text"}
    assert streams("vit-5b") == {"vision"}
    assert streams("llama3-8b") == {"text"}
