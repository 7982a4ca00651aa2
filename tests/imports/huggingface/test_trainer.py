"""TrainingArguments, with DeepSpeed and FSDP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from semu.errors import ConfigError
from semu.imports.huggingface.parts import Asked
from semu.imports.huggingface.read import is_trainer, read_trainer
from semu.runfile import Overrides
from semu.runfile.importing import import_run

FILES = Path(__file__).parent / "files"
BASE: dict[str, Any] = {
    "model_name_or_path": "Qwen/Qwen2.5-7B",
    "output_dir": "out",
    "num_train_epochs": 1,
    "max_length": 2048,
    "packing": True,
    "gradient_checkpointing": False,
    "bf16": True,
}
EAGER = {
    "micro_batch": 8,
    "global_batch": 64,
    "seq_len": 2048,
    "precision": "bf16",
    "grad_dtype": "fp32",
    "software": "torch",
    "recompute": "none",
    "attention_kernel": "sdpa",
    "cross_entropy": "unfused",
    "gradient_clipping": True,
    "autocast": "fp32_norms",
    "eager_modules": True,
}
"""``[training]`` of ``BASE``."""


def read(changes: dict[str, Any], asked: Asked | None = None) -> Any:
    return read_trainer(json.dumps({**BASE, **changes}), "args.json", asked)


def test_deepspeed_beside_arguments() -> None:
    """Every table, by hand."""
    found = import_run(str(FILES / "sft_deepspeed.yaml"))
    assert found.kind == "TrainingArguments of transformers"
    assert {name: found.tables[name] for name in ("model", "cluster", "parallel", "overlap")} == {
        "model": {"name": "llama3-8b"},
        "cluster": {"device": "h100", "nodes": 1, "gpus_per_node": 8},
        "parallel": {"zero": 3},
        "overlap": {"grad_reduce": True, "param_gather": True},
    }
    deepspeed = {name: value for name, value in EAGER.items() if name != "autocast"}  # which casts the modules
    assert found.tables["training"] == {
        **deepspeed,
        "fsdp": "none",
        "micro_batch": 2,
        "global_batch": 2 * 8 * 8,
        "seq_len": 4096,
        "grad_dtype": "bf16",
        "recompute": "full",
        "attention_kernel": "fa2",
    }
    assert found.run.model.num_parameters() == 8_030_261_248


def test_adapters() -> None:
    """As PEFT counts them: rank x (in + out) for every layer that has one."""
    found = import_run(str(FILES / "lora.json"))
    assert found.tables["model"] == {
        "name": "mistral-7b",
        "lora": {"rank": 8, "targets": ["q_proj", "v_proj"], "dropout": 0.0, "alpha": 16.0},
    }
    trained = found.run.model.num_parameters(trainable_only=True)
    assert trained == 32 * 8 * ((4096 + 4096) + (4096 + 1024))
    assert found.tables["training"]["master_dtype"] == "bf16"


def test_fsdp() -> None:
    tables = import_run(str(FILES / "fsdp.yaml")).tables
    assert tables["parallel"] == {"zero": 3}
    expected = {**EAGER, "micro_batch": 4, "global_batch": 32, "grad_dtype": "bf16", "recompute": "full"}
    del expected["eager_modules"]
    assert tables["training"] == {**expected, "fsdp": "fsdp1", "gradient_clipping": False}


@pytest.mark.parametrize(
    ("changes", "training"),
    [
        ({}, {}),
        ({"bf16": False, "fp16": True}, {"precision": "fp16", "loss_scaling": True}),
        ({"bf16": False}, {"precision": "fp32", "autocast": None}),
        ({"bf16": False, "tf32": True}, {"precision": "tf32", "autocast": None}),
        (
            {"dtype": "bfloat16"},
            {"master_dtype": "bf16", "grad_dtype": "bf16", "optimizer_state_dtype": "bf16", "autocast": None},
        ),
        ({"gradient_checkpointing": True}, {"recompute": "full"}),
        ({"attn_implementation": "eager"}, {"attention": "unfused", "attention_kernel": None}),
        ({"attn_implementation": "flash_attention_3"}, {"attention_kernel": "fa3"}),
        ({"torch_compile": True}, {"eager_modules": None}),
        ({"torch_compile": True, "torch_compile_backend": "aot_eager"}, {"left_out": ["torch_compile_backend 0.02"]}),
        ({"use_liger_kernel": True}, {"eager_modules": None, "launch": True, "cross_entropy": "fused"}),
        ({"full_determinism": True}, {"attention_deterministic": True}),
        ({"max_grad_norm": 0}, {"gradient_clipping": False}),
        ({"gradient_accumulation_steps": 4}, {"global_batch": 256}),
        ({"optim": "adamw_torch"}, {"optimizer_kernels": "foreach"}),
        ({"optim": "adamw_apex_fused"}, {}),
        ({"optim": "adamw_bnb_8bit"}, {"optimizer_state_dtype": "bf16", "left_out": ["optim 0.01"]}),
    ],
)
def test_arguments(changes: dict[str, Any], training: dict[str, Any]) -> None:
    expected = {name: value for name, value in {**EAGER, **training}.items() if value is not None}
    assert read(changes).tables["training"] == expected


@pytest.mark.parametrize(
    ("changes", "parallel"),
    [
        ({"fsdp": "full_shard auto_wrap"}, {"zero": 3}),
        ({"fsdp": ["shard_grad_op", "auto_wrap"]}, {"zero": 3, "reshard_after_forward": False}),
        ({"fsdp": "no_shard"}, {"zero": 0}),
        ({"fsdp": "hybrid_shard auto_wrap"}, {"zero": 3, "zero_group": 8}),
        ({"fsdp": "hybrid_shard_zero2"}, {"zero": 3, "zero_group": 8, "reshard_after_forward": False}),
        (
            {"fsdp": "full_shard", "fsdp_config": {"version": 2, "reshard_after_forward": False}},
            {"zero": 3, "reshard_after_forward": False},
        ),
        (
            {"fsdp": "full_shard", "parallelism_config": {"dp_replicate_size": 2, "cp_size": 4}},
            {"zero": 3, "zero_group": 2, "cp": 4, "cp_kind": "all_gather"},
        ),
        ({"parallelism_config": {"tp_size": 2}}, {"zero": 0, "tp": 2, "sequence_parallel": False}),
        ({"parallelism_config": {"sp_size": 2}}, {"zero": 0, "cp": 2, "cp_kind": "all_to_all"}),
        ({"deepspeed": {"zero_optimization": {"stage": 1}, "bf16": {"enabled": "auto"}}}, {"zero": 1}),
    ],
)
def test_sharding(changes: dict[str, Any], parallel: dict[str, Any]) -> None:
    assert read(changes, Asked("h100:2x8")).tables["parallel"] == parallel


def test_offload() -> None:
    tables = read({"fsdp": "full_shard offload"}).tables
    assert tables["training"]["offload"] == ["weights", "optimizer"]


def test_gradients_that_stay_whole_are_refused() -> None:
    changes = {"fsdp": "full_shard", "gradient_accumulation_steps": 2}
    with pytest.raises(ConfigError, match="whole gradients on every rank"):
        read(changes)
    kept = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    assert read({**changes, "accelerator_config": kept}).tables["parallel"] == {"zero": 3}
    left = read({**changes, "use_peft": True}).tables["training"]["left_out"]
    assert left == ["gradient_accumulation_steps 0.03"]


def test_types_that_are_assumed_are_told() -> None:
    assert any("fp32 under autocast" in note for note in read({}).reading.notes)
    assert any("taken as 16 bits" in note for note in read({"use_peft": True}).reading.notes)
    with pytest.raises(ConfigError, match="frozen weights in fp32"):
        read({"use_peft": True, "torch_dtype": "float32"})


def test_defaults_are_those_of_the_program() -> None:
    rows = {row.key: row.value for row in read({}).reading.defaulted}
    assert rows["per_device_train_batch_size"] == 8
    assert rows["gradient_accumulation_steps"] == 1
    assert rows["optim"] == "adamw_torch_fused"
    assert rows["max_grad_norm"] == 1.0


def test_defaults_of_trl() -> None:
    """A file with arguments of SFTConfig has its defaults; one of a script before it has those of transformers."""
    data = {name: BASE[name] for name in ("model_name_or_path", "output_dir", "num_train_epochs")}
    found = read_trainer(json.dumps({**data, "packing": True}), "args.json")
    training = found.tables["training"]
    assert (training["seq_len"], training["recompute"], training["precision"]) == (1024, "full", "bf16")
    assert any("SFTConfig" in note for note in found.reading.notes)
    rows = {row.key: row.value for row in found.reading.understood}
    assert rows["SFTConfig's gradient_checkpointing"] is True and rows["SFTConfig's max_length"] == 1024
    plain = read_trainer(json.dumps({**data, "packing": True, "max_seq_length": 512}), "args.json").tables["training"]
    assert (plain["seq_len"], plain["recompute"], plain["precision"]) == (512, "none", "fp32")


def test_arguments_as_they_are_saved(tmp_path: Path) -> None:
    """What TrainingArguments writes of itself, every argument with its value."""
    pytest.importorskip("torch", reason="TrainingArguments needs torch")
    pytest.importorskip("accelerate", reason="TrainingArguments needs accelerate")
    transformers = pytest.importorskip("transformers", reason="writes its arguments")
    fsdp = {"activation_checkpointing": True, "reshard_after_forward": False}
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), fsdp=True, fsdp_config=fsdp, per_device_train_batch_size=2, report_to="none"
    )
    data = {**json.loads(arguments.to_json_string()), "model_name_or_path": "gpt2-xl"}
    found = read_trainer(json.dumps(data), "args.json")
    assert found.tables["parallel"] == {"zero": 3, "reshard_after_forward": False}
    training = found.tables["training"]
    assert (training["micro_batch"], training["recompute"], training["precision"]) == (2, "full", "fp32")
    assert "left_out" not in training and not found.reading.unmodelled


def test_a_file_of_fsdp(tmp_path: Path) -> None:
    (tmp_path / "fsdp.json").write_text('{"backward_prefetch": "backward_pre", "activation_checkpointing": true}')
    path = tmp_path / "args.json"
    path.write_text(json.dumps({**BASE, "fsdp": "full_shard", "fsdp_config": "fsdp.json"}))
    assert import_run(str(path)).tables["training"]["recompute"] == "full"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"model_name_or_path": "acme/unknown-9b"}, "model_name_or_path"),
        ({"model_name_or_path": "unsloth/llama-3-8b-bnb-4bit"}, "weights of 8 bits"),
        ({"fp16": True}, "fp16"),
        ({"load_in_4bit": True}, "weights of 4 bits without adapters"),
        ({"load_in_8bit": True}, "weights of 8 bits"),
        ({"optim": "adafactor"}, "adafactor"),
        ({"attn_implementation": "magic"}, "attn_implementation"),
        ({"per_device_train_batch_size": 0}, "per_device_train_batch_size"),
        ({"gradient_acumulation_steps": 3}, "gradient_acumulation_steps"),
        ({"deepspeed": "nowhere.json"}, "deepspeed"),
        ({"fsdp_config": "nowhere.json"}, "fsdp_config"),
        ({"deepspeed": {"gradient_accumulation_steps": 3}, "gradient_accumulation_steps": 2}, "says 3"),
        ({"deepspeed": {"fp16": {"enabled": True}}}, "says fp16"),
        ({"parallelism_config": {"tp_size": 3}}, "3"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
    ],
)
def test_refused(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(changes, Asked("h100:1x8"))
    assert word in f"{caught.value.where} {caught.value}"
    assert str(caught.value.where).startswith("args.json")


def test_defined() -> None:
    found = import_run(
        str(FILES / "fsdp.yaml"), Overrides(defined={"per_device_train_batch_size": "2", "model": "gpt2"})
    )
    assert found.tables["training"]["micro_batch"] == 2
    assert found.tables["model"] == {"name": "gpt2"}
    with pytest.raises(ConfigError) as caught:
        import_run(str(FILES / "fsdp.yaml"), Overrides(defined={"per_device_train_batchsize": "2"}))
    assert caught.value.nearest == "per_device_train_batch_size"


def test_places() -> None:
    """A value that does not fit is blamed on the key that decided it."""
    with pytest.raises(ConfigError) as caught:
        import_run(str(FILES / "fsdp.yaml"), Overrides(("training.global_batch=7",)))
    assert caught.value.where is not None


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("output_dir: x\nper_device_train_batch_size: 2\n", True),
        ("output_dir: x\n", False),
        ("base_model: x\noutput_dir: x\nnum_train_epochs: 2\n", False),
        ("finetuning_type: full\noutput_dir: x\nnum_train_epochs: 2\n", False),
        ("model_type: llama\noutput_dir: x\nnum_train_epochs: 2\n", False),
        ("trainer: {}\noutput_dir: x\nnum_train_epochs: 2\n", False),
    ],
)
def test_recognised(text: str, is_one: bool) -> None:
    assert is_trainer("a.yaml", text) is is_one
    assert not is_trainer("a.toml", text)
