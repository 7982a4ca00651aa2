"""Files of the programs around the Trainer run: through the command line, and what they ask for in odd ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import semu
from semu.cli import main
from semu.imports.kinds import program_of
from semu.runfile import Overrides, resolve_run
from semu.runfile.importing import import_run

FOLDER = Path(__file__).parents[1]
NAMES = ("deepspeed", "huggingface", "accelerate", "axolotl", "llamafactory")
FILES = [path for name in NAMES for path in sorted((FOLDER / name / "files").iterdir()) if path.name != "config.json"]
SMALL = {"model_name_or_path": "llama3.2-1b", "output_dir": "o", "num_train_epochs": 1, "max_seq_length": 512}
AXOLOTL = {"base_model": "llama3.2-1b", "sequence_len": 512, "micro_batch_size": 1, "sample_packing": True}


def ids(path: Path) -> str:
    return f"{path.parents[1].name}-{path.stem}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("path", FILES, ids=ids)
def test_command_line(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every file imports and simulates, and the run file that is written is the same job."""
    model = ["--define", "model=gpt2"] if path.parents[1].name == "accelerate" else []
    assert main(["import", str(path), "--json", *model]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["predicted"]["iteration_time_s"] > 0
    written = tmp_path / "run.toml"
    written.write_text(document["toml"])
    overrides = Overrides(defined={"model": "gpt2"} if model else {})
    there, here = resolve_run(str(written)), import_run(str(path), overrides).run
    for table in ("cluster", "parallel", "training", "overlap"):
        assert there.config[table] == here.config[table]
    for trainable in (False, True):
        count = here.model.num_parameters(trainable_only=trainable)
        assert there.model.num_parameters(trainable_only=trainable) == count


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_one_program_takes_a_file(path: Path) -> None:
    from semu.imports.kinds import PROGRAMS

    takers = [program.kind for program in PROGRAMS if program.recognises(str(path), path.read_text())]
    assert len(takers) == 1


@pytest.mark.parametrize("text", ['{"model_type": "llama", "hidden_size": 64}', "[model]\nname = 'gpt2'\n", "a: 1\n"])
def test_files_of_others(text: str) -> None:
    for name in ("config.json", "run.toml", "a.yaml"):
        assert program_of(name, text) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"fsdp": "hybrid_shard", "bf16": True},
        {"fsdp": "shard_grad_op", "bf16": True, "gradient_checkpointing": True},
        {"fsdp": "full_shard offload", "bf16": True},
        {
            "deepspeed": {
                "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
                "bf16": {"enabled": True},
            }
        },
        {"deepspeed": {"zero_optimization": {"stage": 3, "mics_shard_size": 4}, "fp16": {"enabled": True}}},
        {"deepspeed": {"zero_optimization": {"stage": 2, "cpu_offload": True}, "fp16": {"enabled": True}}},
        {"deepspeed": {"sequence_parallel_size": 2, "zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}},
        {"deepspeed": {"tensor_parallel": {"autotp_size": 4}, "zero_optimization": {"stage": 1}}, "bf16": True},
        {"bf16": True, "parallelism_config": {"tp_size": 2, "cp_size": 2}},
        {"fp16": True, "gradient_accumulation_steps": 3},
        {"bf16": True, "dtype": "bfloat16", "attn_implementation": "eager"},
        {"tf32": True, "torch_compile": True},
        {"bf16": True, "use_liger_kernel": True, "gradient_checkpointing": True},
        {"bf16": True, "use_peft": True, "lora_target_modules": "all-linear", "optim": "adafactor"},
    ],
)
def test_arguments_simulate(changes: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "args.json"
    path.write_text(json.dumps({**SMALL, "per_device_train_batch_size": 1, **changes}))
    run = import_run(str(path), Overrides(cluster="h100:2x8")).run
    report = semu.simulate(run.job())
    assert report.iteration_time_s > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"adapter": "lora", "lora_target_linear": True, "gradient_checkpointing": True},
        {"adapter": "lora", "lora_modules_to_save": ["embed_tokens", "norm"], "base_model": "llama3-8b"},
        {"fsdp_version": 2, "fsdp_config": {"offload_params": True}},
        {"context_parallel_size": 2, "flash_attention": True},
        {"tensor_parallel_size": 4},
        {"unfrozen_parameters": ["model.layers.15"], "optimizer": "adamw_8bit"},
    ],
)
def test_axolotl_simulates(changes: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "axolotl.yaml"
    path.write_text(yaml.safe_dump({**AXOLOTL, **changes}))
    assert semu.simulate(import_run(str(path)).run.job()).iteration_time_s > 0


def test_sharding_takes_memory_away(tmp_path: Path) -> None:
    """Of one model on the same GPUs: every stage of ZeRO needs less than the one before."""
    peaks = []
    for stage in range(4):
        path = tmp_path / "ds.json"
        zero = {"stage": stage, "overlap_comm": True}
        sizes = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2}
        path.write_text(json.dumps({**sizes, "bf16": {"enabled": True}, "zero_optimization": zero}))
        changes = Overrides(("model.name=llama3-8b", "training.seq_len=512"), cluster="h100:1x8")
        peaks.append(semu.simulate(import_run(str(path), changes).run.job()).peak_memory_bytes)
    assert peaks == sorted(peaks, reverse=True) and len(set(peaks)) == 4
