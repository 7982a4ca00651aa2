"""The tables of keys of DeepSpeed, TrainingArguments, accelerate, axolotl and LLaMA-Factory."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from semu.imports.accelerate.read import FLAGS as ACCELERATE
from semu.imports.axolotl.read import FLAGS as AXOLOTL
from semu.imports.flags import FlagTable, Grade
from semu.imports.huggingface.parts import Asked
from semu.imports.huggingface.trainer import FLAGS as TRAINER
from semu.imports.huggingface.zero import FLAGS as ZERO
from semu.imports.kinds import ReadOptions, program_of
from semu.imports.llamafactory.read import FLAGS as LLAMAFACTORY
from semu.runfile.schema import SCHEMA

TABLES = {"deepspeed": ZERO, "trainer": TRAINER, "accelerate": ACCELERATE, "axolotl": AXOLOTL, "lf": LLAMAFACTORY}
MODEL = "llama3-8b"
LORA = {"lora_r": 4, "lora_alpha": 8, "lora_dropout": 0.1, "lora_modules_to_save": ["lm_head"]}
ARGUMENTS: dict[str, Any] = {"output_dir": "out", "num_train_epochs": 1, "model_name_or_path": MODEL}
FSDP = {"fsdp": "full_shard", "bf16": True}
OWN: dict[str, Any] = {"base_model": MODEL, "sequence_len": 512, "datasets": [{"path": "x"}]}
FACTORY = {"model_name_or_path": MODEL, "stage": "sft", "template": "x", "cutoff_len": 128}
LAUNCH: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "num_machines": 1, "num_processes": 8}

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "deepspeed": [
        {
            "train_batch_size": 64,
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 4,
            "communication_data_type": "bf16",
            "data_types": {"grad_accum_dtype": "bf16"},
            "zero_optimization": {"stage": 3, "overlap_comm": True},
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
        },
        {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}},
    ],
    "trainer": [
        {**ARGUMENTS, "max_length": 128, "torch_compile": True, "torch_compile_backend": "inductor"},
        {**ARGUMENTS, "torch_compile_mode": "default", "torch_compile": True, "deepspeed": "ds.json", "bf16": True},
        {**ARGUMENTS, "use_peft": True, "lora_target_modules": ["q_proj"], **LORA},
        {
            **ARGUMENTS,
            **FSDP,
            "fsdp": "auto_wrap",
            "fsdp_config": {"sharding_strategy": "1", "backward_prefetch": "backward_pre"},
        },
        {**ARGUMENTS, **FSDP, "fsdp": "auto_wrap", "fsdp_config": {"reshard_after_forward": "true"}},
        {**ARGUMENTS, "parallelism_config": {"dp_shard_size": 8}, "tf32": True, "max_grad_norm": 0},
    ],
    "accelerate": [
        {**LAUNCH, "distributed_type": "FSDP", "fsdp_config": {"fsdp_sharding_strategy": "FULL_SHARD"}},
        {
            **LAUNCH,
            "distributed_type": "FSDP",
            "fsdp_config": {"fsdp_reshard_after_forward": True, "fsdp_backward_prefetch": "BACKWARD_PRE"},
        },
        {
            **LAUNCH,
            "distributed_type": "DEEPSPEED",
            "deepspeed_config": {"gradient_accumulation_steps": 2, "gradient_clipping": 1.0, "zero_stage": 2},
        },
        {**LAUNCH, "distributed_type": "DEEPSPEED", "deepspeed_config": {"deepspeed_config_file": "ds.json"}},
    ],
    "axolotl": [
        {**OWN, "gradient_accumulation_steps": 2, "attn_implementation": "sdpa", "deepspeed": "ds.json"},
        {**OWN, "batch_size": 2, "plugins": ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"]},
        {**OWN, "adapter": "lora", "lora_target_modules": ["q_proj"], **LORA},
        {**OWN, "unfrozen_parameters": ["lm_head"], "context_parallel_size": 2, "ring_attn_func": "batch_ring"},
        {**OWN, "fsdp": ["full_shard"], "fsdp_config": {"backward_prefetch": "BACKWARD_PRE"}, "dp_shard_size": 4},
        {**OWN, "fsdp_version": 2, "fsdp_config": {"reshard_after_forward": True}, "bf16": False},
        {**OWN, "plugins": ["axolotl.integrations.liger.LigerPlugin"], "liger_fused_linear_cross_entropy": True},
        {**OWN, "plugins": ["axolotl.integrations.liger.LigerPlugin"], "liger_cross_entropy": True},
        {**OWN, "fsdp_config": {"sharding_strategy": "FULL_SHARD"}},
    ],
    "lf": [
        {**FACTORY, "finetuning_type": "full", "packing": True, "quantization_bit": 4, "bf16": True},
        {**FACTORY, "finetuning_type": "freeze", "deepspeed": "ds.json"},
        {**FACTORY, "lora_alpha": 4, "additional_target": "lm_head"},
        {**FACTORY, "model_name_or_path": "qwen2-vl-2b", "finetuning_type": "full"},
        {**FACTORY, **FSDP, "finetuning_type": "full"},
        {**FACTORY, "do_train": True, "infer_backend": "vllm", "export_dir": "x", "use_muon": True},
    ],
}
"""Together they make every key count."""
NOT_IN = {
    "lf": set(TRAINER.understood),  # asked for as of TrainingArguments
    "trainer": {"fsdp_config"},  # a path, whose contents take its place
}


@pytest.mark.parametrize("program", TABLES)
def test_a_flag_stands_once(program: str) -> None:
    names = Counter(flag.name for flag in TABLES[program].flags)
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("program", TABLES)
def test_keys_are_those_of_a_run_file(program: str) -> None:
    for flag in TABLES[program].understood.values():
        for key in filter(None, flag.to.split(", ")):
            table, _, last = key.rpartition(".")
            assert last in SCHEMA[table], f"{flag.name} leads to {key}"


@pytest.mark.parametrize("program", TABLES)
def test_every_understood_key_is_asked_for(program: str, tmp_path: Path) -> None:
    """None is listed as understood and then forgotten."""
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}))
    asked: set[str] = set()
    for number, data in enumerate(VARIANTS[program]):
        path = tmp_path / (f"{number}.json" if program == "deepspeed" else f"{number}.yaml")
        path.write_text(json.dumps(data) if program == "deepspeed" else yaml.safe_dump(data))
        found = program_of(str(path), path.read_text())
        assert found is not None
        options = ReadOptions("h100:1x8", allow_unmodelled=True, model=None if "model" in str(data) else MODEL)
        reading = found.read(path.read_text(), str(path), options).reading
        rows = (*reading.understood, *reading.defaulted, *reading.small, *reading.unmodelled)
        asked |= {row.key for row in rows}
    table: FlagTable = TABLES[program]
    spellings: dict[str, set[str]] = {}
    for flag in table.flags:
        if flag.grade is Grade.EXACT:
            spellings.setdefault(flag.dest, set()).add(flag.name)
    silent = {dest for dest, names in spellings.items() if not names & asked} - NOT_IN.get(program, set())
    assert silent - {"model", "base_model"} == set()


@pytest.mark.parametrize(
    ("program", "name", "grade"),
    [
        ("deepspeed", "zero_optimization.stage", Grade.EXACT),
        ("deepspeed", "zero_optimization.reduce_bucket_size", Grade.SMALL),
        ("deepspeed", "zero_optimization.zero_quantized_weights", Grade.STRUCTURAL),
        ("deepspeed", "optimizer.params.betas", Grade.HARMLESS),
        ("deepspeed", "nonsense", None),
        ("trainer", "dtype", Grade.EXACT),
        ("trainer", "logging_steps", Grade.HARMLESS),
        ("trainer", "neftune_noise_alpha", Grade.SMALL),
        ("axolotl", "datasets.0.path", Grade.HARMLESS),
        ("axolotl", "rl", Grade.STRUCTURAL),
        ("lf", "per_device_train_batch_size", Grade.EXACT),
        ("lf", "lora_rank", Grade.EXACT),
        ("lf", "use_galore", Grade.STRUCTURAL),
        ("accelerate", "fsdp_config.fsdp_version", Grade.EXACT),
    ],
)
def test_grade(program: str, name: str, grade: Grade | None) -> None:
    flag = TABLES[program].spelt(name)
    assert (None if flag is None else flag.grade) is grade


def test_arguments_of_transformers() -> None:
    """Every argument of the installed TrainingArguments is in the table, with its default."""
    pytest.importorskip("torch", reason="TrainingArguments needs torch")
    transformers = pytest.importorskip("transformers", reason="lists the arguments of TrainingArguments")
    from dataclasses import MISSING, fields

    unknown, other = [], []
    for field in fields(transformers.TrainingArguments):
        flag = TRAINER.spelt(field.name)
        if flag is None:
            unknown.append(field.name)
            continue
        is_same = field.default in (MISSING, None, flag.absent) or flag.absent is None
        if flag.grade is Grade.EXACT and not is_same:
            other.append((field.name, flag.absent, field.default))
    assert [name for name in unknown if not name.startswith("_")] == []
    assert other == []


def test_asked_is_plain() -> None:
    assert Asked() == Asked(None, {}, False, None)
