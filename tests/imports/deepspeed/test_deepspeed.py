"""Configurations of DeepSpeed, alone and beside a model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from semu.errors import ConfigError
from semu.imports.deepspeed.read import is_deepspeed, read_deepspeed
from semu.imports.huggingface.parts import Asked
from semu.runfile import Overrides
from semu.runfile.importing import import_run

FILES = Path(__file__).parent / "files"
MODEL = Asked(model="llama3-8b")


def tables_of(data: dict[str, Any], asked: Asked = MODEL) -> dict[str, Any]:
    return read_deepspeed(json.dumps(data), "ds_config.json", asked).tables


def test_a_file_beside_a_model() -> None:
    """Every table, by hand."""
    tables = import_run(str(FILES / "zero3.json")).tables
    assert tables["model"] == {"hf_config": str(FILES / "config.json")}
    assert tables["cluster"] == {"device": "h100", "nodes": 2, "gpus_per_node": 8}  # 256 = 4 x 4 x 16
    assert tables["parallel"] == {"zero": 3}
    assert tables["overlap"] == {"grad_reduce": True, "param_gather": True}
    assert tables["training"] == {
        "micro_batch": 4,
        "global_batch": 256,
        "seq_len": 2048,
        "precision": "bf16",
        "grad_dtype": "bf16",
        "software": "torch",
        "recompute": "none",
        "attention_kernel": "sdpa",
        "cross_entropy": "unfused",
        "gradient_clipping": True,
        "fsdp": "none",  # nor has it an autocast
        "eager_modules": True,
        "left_out": ["zero_optimization.stage3_param_persistence_threshold 0.02"],
    }


def test_parameters_of_the_model_beside() -> None:
    """As the sizes of the config.json give them."""
    run = import_run(str(FILES / "zero3.json")).run
    hidden, ffn, layers, vocab, kv = 512, 1408, 6, 32000, 4 * 64
    layer = 2 * hidden + hidden * (2 * hidden + 2 * kv) + 3 * hidden * ffn
    assert run.model.num_parameters() == layers * layer + 2 * vocab * hidden + hidden


def test_zero_2_with_offload() -> None:
    tables = import_run(str(FILES / "zero2_offload.json"), Overrides(cluster="a100-80g:2x8")).tables
    assert tables["parallel"] == {"zero": 2}
    training = tables["training"]
    assert (training["precision"], training["loss_scaling"], training["grad_dtype"]) == ("fp16", True, "fp16")
    assert training["offload"] == ["optimizer"]
    assert training["global_batch"] == 2 * 8 * 16
    assert training["gradient_clipping"] is False
    assert tables["overlap"] == {"grad_reduce": True, "param_gather": False}


def test_auto_is_the_trainers() -> None:
    found = import_run(
        str(FILES / "auto.json"), Overrides(defined={"gradient_accumulation_steps": "4", "fp16": "true"})
    )
    training = found.tables["training"]
    assert (training["micro_batch"], training["global_batch"], training["precision"]) == (8, 8 * 4 * 8, "fp16")
    assert training["gradient_clipping"] is True
    assert any("left to the Trainer (auto)" in note for note in found.report.notes)
    assert any(row.key == "per_device_train_batch_size" and row.value == 8 for row in found.report.defaulted)


def test_auto_precision_is_told() -> None:
    read = read_deepspeed((FILES / "auto.json").read_text(), "x.json", MODEL)
    assert read.tables["training"]["precision"] == "bf16"
    assert any("taken as bf16" in note for note in read.reading.notes)


@pytest.mark.parametrize(
    ("data", "parallel", "overlap"),
    [
        ({}, {"zero": 0}, {"grad_reduce": False, "param_gather": False}),
        ({"stage": 1}, {"zero": 1}, {"grad_reduce": False, "param_gather": False}),
        ({"stage": 2, "overlap_comm": True}, {"zero": 2}, {"grad_reduce": True, "param_gather": False}),
        ({"stage": 3}, {"zero": 3}, {"grad_reduce": True, "param_gather": True}),
        ({"stage": 3, "overlap_comm": False}, {"zero": 3}, {"grad_reduce": False, "param_gather": True}),
        ({"stage": 3, "stage3_prefetch_bucket_size": 0}, {"zero": 3}, {"grad_reduce": True, "param_gather": False}),
        ({"stage": 3, "mics_shard_size": 8}, {"zero": 3, "zero_group": 8}, {"grad_reduce": True, "param_gather": True}),
        ({"stage": 3, "mics_shard_size": 32}, {"zero": 3}, {"grad_reduce": True, "param_gather": True}),
    ],
)
def test_stages(data: dict[str, Any], parallel: dict[str, Any], overlap: dict[str, Any]) -> None:
    document = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": data}
    tables = tables_of(document, Asked("h100:4x8", model="llama3-8b"))
    assert tables["parallel"] == parallel
    assert tables["overlap"] == overlap


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [
        ({"zero_optimization": {"stage": 0}}, "fp32"),
        ({"zero_optimization": {"stage": 1}}, "bf16"),
        ({"zero_optimization": {"stage": 2}, "communication_data_type": "fp32"}, "fp32"),
        ({"zero_optimization": {"stage": 2}, "data_types": {"grad_accum_dtype": "fp32"}}, "bf16"),
        (
            {
                "zero_optimization": {"stage": 2},
                "communication_data_type": "fp32",
                "data_types": {"grad_accum_dtype": "fp32"},
            },
            "fp32",
        ),
    ],
)
def test_types_of_gradients(keys: dict[str, Any], dtype: str) -> None:
    tables = tables_of({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, **keys})
    assert tables["training"]["grad_dtype"] == dtype


@pytest.mark.parametrize(
    ("sizes", "batch"),
    [
        ({"train_batch_size": 64}, (8, 64)),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 4}, (2, 64)),
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2}, (2, 64)),
        ({"train_micro_batch_size_per_gpu": 2}, (2, 16)),
        ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}, (2, 48)),
        ({"zero_optimization": {"stage": 1}}, (8, 64)),
    ],
)
def test_sizes_of_a_batch(sizes: dict[str, Any], batch: tuple[int, int]) -> None:
    training = tables_of(sizes, Asked("h100:1x8", model="llama3-8b"))["training"]
    assert (training["micro_batch"], training["global_batch"]) == batch


def test_other_axes() -> None:
    data = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
        "tensor_parallel": {"autotp_size": 4},
        "sequence_parallel_size": 2,
    }
    tables = tables_of(data)
    assert tables["parallel"] == {
        "zero": 1,
        "tp": 4,
        "cp": 2,
        "sequence_parallel": False,
        "cp_kind": "all_to_all",
    }


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage"),
        ({"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}, "zero_quantized_weights"),
        ({"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 4}}, "zero_hpz_partition_size"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, "offload_param.device"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "disk"}}}, "offload_param.device"),
        ({"zero_optimization": {"stag": 3}}, "zero_optimization.stag"),
        ({"optimizer": {"type": "OneBitAdam"}}, "OneBitAdam"),
        ({"optimizer": {"type": "Lamb"}}, "Lamb"),
        ({"sparse_attention": {"mode": "fixed"}}, "sparse_attention.mode"),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "fp16.enabled"),
        ({"train_batch_size": 7}, "train_batch_size"),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 3}, "train_batch_size"),
        ({"train_micro_batch_size_per_gpu": "many"}, "train_micro_batch_size_per_gpu"),
        ({"train_micro_batch_size_per_gpu": 0}, "train_micro_batch_size_per_gpu"),
    ],
)
def test_refused(keys: dict[str, Any], word: str) -> None:
    data = {"train_micro_batch_size_per_gpu": 1, **keys}
    with pytest.raises(ConfigError) as caught:
        tables_of(data, Asked("h100:1x8", model="llama3-8b"))
    assert word in f"{caught.value.where} {caught.value}"
    assert str(caught.value.where).startswith("ds_config.json")


def test_left_out_where_the_user_says_so() -> None:
    data = {"zero_optimization": {"stage": 3, "zero_quantized_gradients": True}}
    tables = tables_of(data, Asked(allow_unmodelled=True, model="llama3-8b"))
    assert tables["training"]["left_out"] == ["zero_optimization.zero_quantized_gradients 0.1"]


def test_no_model(tmp_path: Path) -> None:
    path = tmp_path / "zero3.json"
    shutil.copy(FILES / "zero3.json", path)
    with pytest.raises(ConfigError) as caught:
        import_run(str(path))
    assert caught.value.where == str(path)
    assert "--set model.name=" in str(caught.value.expected)
    found = import_run(str(path), Overrides(("model.name=llama3-8b", "training.seq_len=2048")))
    assert found.tables["model"] == {"name": "llama3-8b"} and found.tables["training"]["seq_len"] == 2048


@pytest.mark.parametrize(
    ("name", "text", "is_one"),
    [
        ("ds.json", '{"zero_optimization": {}}', True),
        ("ds.json", '{"model_type": "llama", "train_batch_size": 1}', False),
        ("run.toml", "[training]\ntrain_batch_size = 1\n", False),
        ("a.yaml", "zero_optimization: {stage: 1}\noutput_dir: x\n", False),
        ("ds.json", '{"zero_optimization": ', False),
    ],
)
def test_recognised(name: str, text: str, is_one: bool) -> None:
    assert is_deepspeed(name, text) is is_one
