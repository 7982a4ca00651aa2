"""Configurations of axolotl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from semu.errors import ConfigError
from semu.imports.axolotl.read import is_axolotl, read_axolotl
from semu.imports.huggingface.parts import Asked
from semu.runfile.importing import import_run

FILES = Path(__file__).parent / "files"
BASE: dict[str, Any] = {
    "base_model": "Qwen/Qwen2.5-7B",
    "datasets": [{"path": "data", "type": "alpaca"}],
    "sequence_len": 2048,
    "sample_packing": True,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 1,
    "bf16": True,
}
TRAINING = {
    "micro_batch": 2,
    "global_batch": 16,
    "seq_len": 2048,
    "precision": "bf16",
    "master_dtype": "bf16",
    "grad_dtype": "bf16",
    "optimizer_state_dtype": "bf16",
    "software": "torch",
    "recompute": "none",
    "attention_kernel": "sdpa",
    "cross_entropy": "unfused",
    "gradient_clipping": True,
    "eager_modules": True,
}
"""``[training]`` of ``BASE``."""
WIDE = {"master_dtype": None, "optimizer_state_dtype": None}
LIGER = ["axolotl.integrations.liger.LigerPlugin"]
CUT = ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"]


def read(changes: dict[str, Any], cluster: str | None = "h100:1x8") -> dict[str, Any]:
    data = {name: value for name, value in {**BASE, **changes}.items() if value is not None}
    return read_axolotl(yaml.safe_dump(data), "axolotl.yaml", Asked(cluster)).tables


def test_adapters() -> None:
    """As PEFT counts them, and the head, which trains beside them."""
    found = import_run(str(FILES / "lora.yml"))
    assert found.tables["model"] == {
        "name": "llama3-8b",
        "lora": {
            "rank": 32,
            "targets": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
            "dropout": 0.05,
            "alpha": 16.0,
            "trainable": ["*.head.projection.weight"],
        },
    }
    assert found.tables["training"] == {
        **TRAINING,
        "global_batch": 2 * 4 * 8,
        "seq_len": 4096,
        "recompute": "full",
        "attention_kernel": "fa2",
        "left_out": ["optimizer 0.01"],
    }
    hidden, ffn, kv = 4096, 14336, 1024
    attention = 2 * (hidden + hidden) + 2 * (hidden + kv)
    layer = 32 * (attention + 3 * (hidden + ffn))
    assert found.run.model.num_parameters(trainable_only=True) == 32 * layer + 128256 * hidden


def test_fsdp_with_liger() -> None:
    tables = import_run(str(FILES / "fsdp.yaml")).tables
    assert tables["model"] == {"name": "qwen2.5-14b"}
    assert tables["cluster"] == {"device": "h100", "nodes": 2, "gpus_per_node": 8}
    assert tables["parallel"] == {"zero": 3, "cp": 2, "cp_kind": "all_gather"}
    assert tables["overlap"] == {"grad_reduce": True, "param_gather": True}
    expected = {**TRAINING, "micro_batch": 1, "global_batch": 8, "seq_len": 8192, "recompute": "full", "launch": True}
    for name in ("master_dtype", "optimizer_state_dtype", "eager_modules"):
        del expected[name]
    expected |= {"attention_kernel": "fa2", "cross_entropy": "fused", "fsdp": "fsdp2", "autocast": "fp32_norms"}
    assert tables["training"] == {**expected, "left_out": ["liger_fused_linear_cross_entropy 0.02"]}


def test_frozen_parts() -> None:
    """Only what the patterns name trains: head, table, and six layers without their norms."""
    found = import_run(str(FILES / "full.yaml"))
    assert found.tables["training"]["global_batch"] == 16 * 8
    hidden, ffn, vocab, q, kv, head = 4096, 12288, 151936, 4096, 1024, 128
    layer = hidden * (2 * q + 2 * kv) + 2 * head + 3 * hidden * ffn
    assert found.run.model.num_parameters(trainable_only=True) == 6 * layer + 2 * vocab * hidden


@pytest.mark.parametrize(
    ("changes", "training"),
    [
        ({}, {}),
        ({"bf16": "auto"}, {}),
        ({"bf16": None}, {}),
        ({"bf16": False, "tf32": False}, {"precision": "fp32", "grad_dtype": "fp32", **WIDE}),
        ({"bf16": False, "tf32": True}, {"precision": "tf32", "grad_dtype": "fp32", **WIDE}),
        (
            {"bf16": False, "fp16": True},
            {"precision": "fp16", "loss_scaling": True, "master_dtype": "fp16", "grad_dtype": "fp16"},
        ),
        ({"flash_attention": True}, {"attention_kernel": "fa2"}),
        ({"flex_attention": True}, {"attention_kernel": "flex"}),
        ({"eager_attention": True}, {"attention": "unfused", "attention_kernel": None}),
        ({"gradient_checkpointing": True}, {"recompute": "full"}),
        (
            {"gradient_checkpointing": "offload"},
            {"recompute": "full", "left_out": ["gradient_checkpointing 0.03"]},
        ),
        ({"torch_compile": True}, {"eager_modules": None}),
        ({"plugins": LIGER, "liger_rms_norm": True}, {"left_out": ["liger_rms_norm 0.05"]}),
        ({"liger_rms_norm": True, "liger_rope": True, "liger_glu_activation": True}, {}),
        ({"plugins": CUT}, {"cross_entropy": "fused", "left_out": ["plugins 0.02"]}),
        ({"plugins": CUT, "cut_cross_entropy": False}, {}),
        ({"max_grad_norm": 0}, {"gradient_clipping": False}),
        ({"sample_packing": None}, {"left_out": ["sample_packing 0.1"]}),
        ({"pad_to_sequence_len": True, "sample_packing": False}, {}),
        ({"gradient_accumulation_steps": None, "batch_size": 8}, {"global_batch": 64}),
        ({"optimizer": "adamw_torch"}, {"optimizer_kernels": "foreach"}),
    ],
)
def test_keys(changes: dict[str, Any], training: dict[str, Any]) -> None:
    expected = {name: value for name, value in {**TRAINING, **training}.items() if value is not None}
    assert read(changes)["training"] == expected


@pytest.mark.parametrize(
    ("changes", "parallel"),
    [
        ({"fsdp": ["full_shard", "auto_wrap"]}, {"zero": 3}),
        ({"fsdp_version": 2, "fsdp_config": {"reshard_after_forward": True}}, {"zero": 3}),
        ({"fsdp_config": {"sharding_strategy": "NO_SHARD"}}, {"zero": 0}),
        ({"tensor_parallel_size": 2}, {"zero": 0, "tp": 2, "sequence_parallel": False}),
        ({"context_parallel_size": 4}, {"zero": 0, "cp": 4, "cp_kind": "all_gather"}),
        ({"sequence_parallel_degree": 2, "sample_packing": False}, {"zero": 0, "cp": 2, "cp_kind": "ring"}),
        ({"deepspeed": {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}}, {"zero": 2}),
        (
            {"fsdp_version": 2, "fsdp_config": {"offload_params": False}, "dp_replicate_size": 2},
            {"zero": 3, "zero_group": 4},
        ),
    ],
)
def test_sharding(changes: dict[str, Any], parallel: dict[str, Any]) -> None:
    assert read(changes)["parallel"] == parallel


@pytest.mark.parametrize(
    "changes",
    [{"adapter": "qlora", "load_in_4bit": True}, {"adapter": "qlora"}, {"adapter": "lora", "load_in_4bit": True}],
)
def test_four_bits_beside_adapters(changes: dict[str, Any]) -> None:
    tables = read({**changes, "lora_r": 4, "lora_target_linear": True})
    assert tables["training"]["frozen_weights"] == "nf4"


def test_whole_layers_are_named() -> None:
    model = read({"adapter": "lora", "lora_r": 4, "lora_target_linear": True})["model"]
    assert model["lora"]["targets"] == ["all-linear"]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"base_model": "acme/unknown"}, "base_model"),
        ({"load_in_4bit": True}, "weights of 4 bits without adapters"),
        ({"adapter": "qlora", "fsdp": ["full_shard"]}, "weights of 4 bits in shards"),
        ({"load_in_8bit": True, "adapter": "lora"}, "weights of 8 bits"),
        ({"rl": "dpo"}, "rl"),
        ({"optimizer": "muon"}, "muon"),
        ({"plugins": ["axolotl.integrations.kd.KDPlugin"]}, "kd"),
        ({"unfrozen_parameters": ["model.layers.3.self_attn.q_proj"]}, "trains in part"),
        ({"base_model": "mistralai/Mixtral-8x7B-v0.1", "unfrozen_parameters": ["lm_head"]}, "which parameters"),
        ({"fsdp": ["full_shard"], "gradient_accumulation_steps": 4}, "whole gradients"),
        ({"deepspeed": "my/own.json"}, "deepspeed"),
        ({"gradient_accumulation_steps": None, "batch_size": 3}, "batch_size"),
        ({"sequence_length": 3}, "sequence_length"),
        ({"fp16": True}, "fp16"),
        ({"dp_replicate_size": 3, "fsdp_config": {"offload_params": False}}, "sharding groups"),
    ],
)
def test_refused(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(changes)
    assert word in f"{caught.value.where} {caught.value}"
    assert str(caught.value.where).startswith("axolotl.yaml")


def test_recognised() -> None:
    assert is_axolotl("a.yml", "base_model: x\nsequence_len: 1\n")
    assert not is_axolotl("a.yml", "base_model: x\n")
    assert not is_axolotl("a.toml", "base_model: x\nsequence_len: 1\n")


@pytest.mark.parametrize(
    ("name", "zero", "offload"),
    [
        ("zero1.json", 1, None),
        ("zero2_torch_compile.json", 2, None),
        ("zero3_bf16.json", 3, None),
        ("zero3_bf16_cpuoffload_params.json", 3, ["weights"]),
        ("zero3_bf16_cpuoffload_all.json", 3, ["optimizer", "weights"]),
        ("ds_z2_offload_config.json", 2, ["optimizer"]),
    ],
)
def test_a_file_of_the_repository_that_is_not_there(name: str, zero: int, offload: list[str] | None) -> None:
    """Its name says the stage of ZeRO and what is on the host, and the reader says that it went by that."""
    found = read_axolotl(
        yaml.safe_dump({**BASE, "deepspeed": f"deepspeed_configs/{name}"}), "a.yaml", Asked("h100:1x8")
    )
    assert found.tables["parallel"]["zero"] == zero
    told = found.tables["training"].get("offload")
    assert (sorted([told] if isinstance(told, str) else told) if told else None) == offload
    assert any(name in note and "by its name" in note for note in found.reading.notes)
