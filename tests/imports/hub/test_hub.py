"""Ids of the hub, and folders, as models."""

from __future__ import annotations

from pathlib import Path

import pytest

from semu.errors import ConfigError
from semu.imports.hub import find_hub_model, hub_model, is_quantized, sequence_length
from semu_models import MODELS
from semu_models.names import SAME_SHAPE

FOLDER = Path(__file__).parents[1] / "deepspeed" / "files"


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3-8b"),
        ("NousResearch/Meta-Llama-3-8B", "llama3-8b"),
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "llama3-8b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama3-70b"),
        ("meta-llama/Llama-2-70b-chat-hf", "llama2-70b"),
        ("NousResearch/Llama-3.2-1B", "llama3.2-1b"),
        ("Qwen/Qwen2.5-7B", "qwen2.5-7b"),
        ("Qwen/Qwen2.5-1.5B-Instruct", "qwen2-1.5b"),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-7b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("unsloth/mistral-7b-v0.3-bnb-4bit", "mistral-7b-v0.3"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("google/gemma-2-9b-it", "gemma2-9b"),
        ("google/gemma-3-1b-it", "gemma3-1b"),
        ("google/gemma-3-27b-it", "gemma3-vl-27b"),
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", "deepseek-v2-lite"),
        ("moonshotai/Kimi-K2-Instruct", "kimi-k2"),
        ("Qwen/Qwen3-235B", "qwen3-235b-a22b"),
        ("qwen2-57b", "qwen2-57b-a14b"),
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
        ("openai-community/gpt2-xl", "gpt2-xl"),
        ("llava-hf/llava-1.5-7b-hf", "llava-1.5-7b"),
        ("llama3_8b", "llama3-8b"),
    ],
)
def test_shipped(name: str, model: str) -> None:
    assert find_hub_model(name, "run.yaml") == {"name": model}


@pytest.mark.parametrize(
    "name", ["microsoft/phi-2", "EleutherAI/pythia-1b", "", " ", "./nowhere", "a/b/c", "Qwen/", "\0", "-", "x" * 5000]
)
def test_unknown(name: str) -> None:
    assert find_hub_model(name, "run.yaml") is None


def test_names_of_the_table() -> None:
    assert set(SAME_SHAPE.values()) <= set(MODELS)
    assert all(name == name.lower() for name in SAME_SHAPE)


def test_distinct_shapes_stay_apart() -> None:
    """An id never becomes a model of another size."""
    for name in ("Llama-3.2-3B", "Qwen2.5-14B", "Qwen3-14B", "gemma-2-27b", "Qwen2.5-3B"):
        found = find_hub_model(name, "run.yaml")
        assert found is not None
        size = name.rpartition("-")[2].lower()
        assert found["name"].endswith(size)


def test_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text((FOLDER / "config.json").read_text())
    near = str(tmp_path / "run.yaml")
    path = str(tmp_path / "model" / "config.json")
    assert find_hub_model("model", near) == {"hf_config": path}
    assert find_hub_model(path, "elsewhere.yaml") == {"hf_config": path}
    monkeypatch.chdir(tmp_path)
    assert find_hub_model("model", "/elsewhere/run.yaml") == {"hf_config": "model/config.json"}
    assert sequence_length({"hf_config": path})[0] == 2048


def test_error_names_the_way_out() -> None:
    with pytest.raises(ConfigError) as caught:
        hub_model("acme/Llama-3-9B", "run.yaml", "run.yaml:1 base_model")
    error = caught.value
    assert error.where == "run.yaml:1 base_model"
    assert "--set model.hf_config=" in str(error.expected) and "--set model.name=" in str(error.expected)
    assert error.nearest is not None


def test_quantized() -> None:
    assert is_quantized("unsloth/llama-3-8b-bnb-4bit") and is_quantized("TheBloke/Llama-2-7B-GPTQ")
    assert not is_quantized("meta-llama/Llama-3.1-8B")


def test_sequence_length() -> None:
    assert sequence_length({"name": "llama3-8b"})[0] == 8192
    assert sequence_length({"name": "vit-2b"})[0] == 4096
