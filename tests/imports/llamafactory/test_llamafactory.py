"""Configurations of LLaMA-Factory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from semu.errors import ConfigError
from semu.imports.huggingface.parts import Asked
from semu.imports.llamafactory.read import is_llamafactory, read_llamafactory
from semu.runfile.importing import import_run

FILES = Path(__file__).parent / "files"
BASE: dict[str, Any] = {
    "model_name_or_path": "Qwen/Qwen2.5-7B",
    "stage": "sft",
    "do_train": True,
    "finetuning_type": "full",
    "template": "qwen",
    "dataset": "x",
    "cutoff_len": 1024,
    "packing": True,
    "per_device_train_batch_size": 2,
    "bf16": True,
}
TRAINING = {
    "micro_batch": 2,
    "global_batch": 16,
    "seq_len": 1024,
    "precision": "bf16",
    "grad_dtype": "fp32",
    "software": "torch",
    "recompute": "full",
    "attention_kernel": "sdpa",
    "cross_entropy": "unfused",
    "gradient_clipping": True,
    "autocast": "fp32_norms",
    "eager_modules": True,
}
"""``[training]`` of ``BASE``."""


def read(changes: dict[str, Any]) -> dict[str, Any]:
    data = {name: value for name, value in {**BASE, **changes}.items() if value is not None}
    return read_llamafactory(yaml.safe_dump(data), "lf.yaml", Asked("h100:1x8")).tables


def test_full_with_deepspeed() -> None:
    found = import_run(str(FILES / "full_deepspeed.yaml"))
    deepspeed = {name: value for name, value in TRAINING.items() if name != "autocast"} | {"fsdp": "none"}
    assert found.tables == {
        "model": {"name": "qwen2.5-7b"},
        "cluster": {"device": "h100", "nodes": 1, "gpus_per_node": 8},
        "parallel": {"zero": 3},
        "training": {**deepspeed, "micro_batch": 1, "seq_len": 4096, "grad_dtype": "bf16"},
        "overlap": {"grad_reduce": True, "param_gather": True},
    }


def test_adapters() -> None:
    found = import_run(str(FILES / "lora.yaml"))
    lora = {"rank": 8, "targets": ["all-linear"], "dropout": 0.0, "alpha": 16.0}
    assert found.tables["model"] == {"name": "llama3-8b", "lora": lora}
    hidden, ffn, kv = 4096, 14336, 1024
    layer = 8 * (2 * (hidden + hidden) + 2 * (hidden + kv) + 3 * (hidden + ffn))
    assert found.run.model.num_parameters(trainable_only=True) == 32 * layer
    training = found.tables["training"]
    assert (training["launch"], training["cross_entropy"], training["attention_kernel"]) == (True, "fused", "fa2")


def test_frozen_layers() -> None:
    """The last four layers train, in bf16."""
    found = import_run(str(FILES / "freeze.yaml"))
    hidden, ffn, kv = 4096, 14336, 1024
    layer = 2 * hidden + hidden * (2 * hidden + 2 * kv) + 3 * hidden * ffn
    assert found.run.model.num_parameters(trainable_only=True) == 4 * layer
    assert found.tables["training"]["master_dtype"] == "bf16"
    assert found.tables["training"]["recompute"] == "none"
    assert "left_out" not in found.tables["training"]  # pretraining packs


@pytest.mark.parametrize(
    ("changes", "training"),
    [
        ({}, {}),
        ({"disable_gradient_checkpointing": True}, {"recompute": "none"}),
        ({"flash_attn": "disabled"}, {"attention": "unfused", "attention_kernel": None}),
        ({"packing": None}, {"left_out": ["packing 0.1"]}),
        ({"packing": None, "neat_packing": True}, {}),
        ({"cutoff_len": None}, {"seq_len": 2048}),
        ({"use_muon": True}, {"optimizer": "muon", "muon_dtype": "bf16"}),
        ({"use_dft_loss": True}, {"left_out": ["use_dft_loss 0.02"]}),
        ({"galore_rank": 128, "pref_beta": 0.2}, {}),
        ({"fp16": True, "bf16": False}, {"precision": "fp16", "loss_scaling": True}),
    ],
)
def test_keys(changes: dict[str, Any], training: dict[str, Any]) -> None:
    expected = {name: value for name, value in {**TRAINING, **training}.items() if value is not None}
    assert read(changes)["training"] == expected


def test_first_layers() -> None:
    model = read({"finetuning_type": "freeze", "freeze_trainable_layers": -2})["model"]
    assert "llm.layers.0" not in model["frozen"] and "llm.layers.2" in model["frozen"]
    assert len(model["frozen"]) == 26 + 3


def test_encoders_stay_as_they_are() -> None:
    images = {"model_name_or_path": "Qwen/Qwen2-VL-7B-Instruct"}
    assert read(images)["model"]["frozen"] == ["vision"]
    adapters = read({**images, "finetuning_type": "lora", "lora_target": "q_proj,v_proj"})["model"]["lora"]
    assert adapters["targets"] == ["llm.*.q_proj", "llm.*.v_proj"]
    with pytest.raises(ConfigError, match="frozen together"):
        read({**images, "freeze_multi_modal_projector": False})


def test_four_bits_beside_adapters() -> None:
    found = read({"finetuning_type": "lora", "lora_target": "all", "quantization_bit": 4})
    assert found["training"]["frozen_weights"] == "nf4"


def test_experts_are_told() -> None:
    data = {**BASE, "model_name_or_path": "Qwen/Qwen3-30B-A3B"}
    notes = read_llamafactory(yaml.safe_dump(data), "lf.yaml").reading.notes
    assert any("grouped products" in note for note in notes)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"stage": "dpo"}, "dpo"),
        ({"quantization_bit": 8}, "weights of 8 bits by bnb"),
        ({"quantization_bit": 4, "quantization_method": "hqq"}, "weights of 4 bits by hqq"),
        ({"quantization_bit": 4, "finetuning_type": "full"}, "weights of 4 bits without adapters"),
        ({"finetuning_type": "oft"}, "oft"),
        ({"use_galore": True}, "use_galore"),
        ({"use_asft_loss": True}, "use_asft_loss"),
        ({"use_muon": True, "fsdp": "full_shard"}, "use_muon"),
        ({"tensor_model_parallel_size": 2}, "Megatron-core"),
        ({"do_train": False, "do_predict": True}, "evaluates"),
        ({"do_train": None, "export_dir": "out"}, "exports"),
        ({"do_train": None, "infer_backend": "vllm"}, "answers"),
        ({"finetuning_type": "freeze", "freeze_trainable_modules": "mlp"}, "freeze_trainable_modules"),
        ({"finetuning_type": "lora", "additional_target": "embed"}, "additional_target"),
        ({"flash_attn": "fa9"}, "flash_attn"),
        ({"cutoff_length": 3}, "cutoff_length"),
        ({"fsdp": "full_shard", "gradient_accumulation_steps": 2}, "whole gradients"),
    ],
)
def test_refused(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(changes)
    assert word in f"{caught.value.where} {caught.value}"
    assert str(caught.value.where).startswith("lf.yaml")


def test_recognised() -> None:
    assert is_llamafactory("a.yaml", "model_name_or_path: x\nstage: sft\ntemplate: y\n")
    assert not is_llamafactory("a.yaml", "model_name_or_path: x\n")
    assert is_llamafactory("a.yaml", "model_name_or_path: x\ninfer_backend: vllm\ntemplate: y\n")


def test_files_of_the_next_trainer() -> None:
    text = "model: Qwen/Qwen3-0.6B\ntrain_dataset: x.yaml\ndist_config:\n  name: fsdp2\nmicro_batch_size: 1\n"
    assert is_llamafactory("v1.yaml", text)
    with pytest.raises(ConfigError, match="next trainer"):
        read_llamafactory(text, "v1.yaml")


def test_deepspeed_from_the_folder_of_the_installation(tmp_path: Path) -> None:
    """A path that starts where LLaMA-Factory does, for a file in a folder below."""
    place = tmp_path / "examples" / "train"
    place.mkdir(parents=True)
    zero = tmp_path / "examples" / "deepspeed" / "z3.json"
    zero.parent.mkdir()
    zero.write_text('{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3}}')
    (place / "lf.yaml").write_text(yaml.safe_dump({**BASE, "deepspeed": "examples/deepspeed/z3.json"}))
    found = read_llamafactory((place / "lf.yaml").read_text(), str(place / "lf.yaml"), Asked("h100:1x8"))
    assert found.tables["parallel"]["zero"] == 3


@pytest.mark.parametrize(
    ("keys", "is_its"),
    [
        (("model", "train_dataset", "dist_config"), True),
        (("model", "train_dataset"), False),
        (("model", "other", "more"), False),
        (("train_dataset", "dist_config"), False),
        (("model_name_or_path", "stage", "template"), True),
        (("model_name_or_path", "export_dir", "infer_backend"), True),
        (("model_name_or_path", "stage", "other"), False),
    ],
)
def test_two_keys_of_its_own_tell_a_file(keys: tuple[str, ...], is_its: bool) -> None:
    assert is_llamafactory("x.yaml", "".join(f"{key}: 1\n" for key in keys)) == is_its
