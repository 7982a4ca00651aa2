"""What ``accelerate config`` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from semu.errors import ConfigError
from semu.imports.accelerate.read import read_accelerate
from semu.imports.huggingface.parts import Asked
from semu.runfile import Overrides
from semu.runfile.importing import import_run

FILES = Path(__file__).parent / "files"
LAUNCH: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "num_machines": 2, "num_processes": 16}


def read(data: dict[str, Any], **defined: str) -> dict[str, Any]:
    asked = Asked(model="llama3-8b", defined=defined)
    return read_accelerate(yaml.safe_dump({**LAUNCH, **data}), "acc.yaml", asked).tables


def test_fsdp() -> None:
    defined = {"model": "meta-llama/Llama-3.1-8B", "max_length": "4096", "per_device_train_batch_size": "1"}
    found = import_run(str(FILES / "fsdp.yaml"), Overrides(defined=defined))
    assert found.tables == {
        "model": {"name": "llama3-8b"},
        "cluster": {"device": "h100", "nodes": 2, "gpus_per_node": 8},
        "parallel": {"zero": 3},
        "training": {
            "micro_batch": 1,
            "global_batch": 16,
            "seq_len": 4096,
            "precision": "bf16",
            "grad_dtype": "bf16",
            "software": "torch",
            "recompute": "full",
            "attention_kernel": "sdpa",
            "cross_entropy": "unfused",
            "gradient_clipping": True,
            "fsdp": "fsdp2",
            "autocast": "fp32_norms",
            "eager_modules": True,
        },
        "overlap": {"grad_reduce": True, "param_gather": True},
    }


def test_deepspeed() -> None:
    tables = import_run(str(FILES / "deepspeed.yaml"), Overrides(defined={"model": "gpt2-xl"})).tables
    assert tables["parallel"] == {"zero": 2}
    assert tables["training"]["global_batch"] == 8 * 4 * 8
    assert tables["training"]["precision"] == "bf16"
    assert tables["training"]["gradient_clipping"] is True
    assert tables["cluster"]["nodes"] * tables["cluster"]["gpus_per_node"] == 8


def test_what_is_left_to_the_trainer() -> None:
    sizes = {"gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "zero_stage": 3}
    data = {"distributed_type": "DEEPSPEED", "mixed_precision": "bf16", "deepspeed_config": sizes}
    training = read(data, gradient_accumulation_steps="2")["training"]
    assert (training["global_batch"], training["gradient_clipping"]) == (8 * 2 * 16, True)


def test_one_process() -> None:
    assert read({"distributed_type": "NO"})["cluster"] == {"device": "h100", "nodes": 1, "gpus_per_node": 1}


def test_multi_gpu() -> None:
    tables = import_run(str(FILES / "multi_gpu.yaml"), Overrides(defined={"model": "gpt2"})).tables
    assert tables["cluster"] == {"device": "h100", "nodes": 1, "gpus_per_node": 4}
    assert tables["parallel"] == {"zero": 0}
    assert (tables["training"]["precision"], tables["training"]["loss_scaling"]) == ("fp16", True)
    assert "eager_modules" not in tables["training"]


@pytest.mark.parametrize(
    ("fsdp", "mesh", "parallel"),
    [
        ({"fsdp_sharding_strategy": "SHARD_GRAD_OP"}, {}, {"zero": 3, "reshard_after_forward": False}),
        ({"fsdp_sharding_strategy": 4}, {}, {"zero": 3, "zero_group": 8}),
        ({"fsdp_reshard_after_forward": False}, {}, {"zero": 3, "reshard_after_forward": False}),
        ({}, {"dp_replicate": 4, "dp_shard": 4}, {"zero": 3, "zero_group": 4}),
        (
            {},
            {"dp_replicate": 2, "dp_shard": 2, "tp": 2, "cp": 2},
            {"zero": 3, "tp": 2, "cp": 2, "sequence_parallel": False, "cp_kind": "all_gather", "zero_group": 2},
        ),
    ],
)
def test_strategies(fsdp: dict[str, Any], mesh: dict[str, int], parallel: dict[str, Any]) -> None:
    sizes = {f"parallelism_config_{name}_size": size for name, size in mesh.items()}
    data = {"distributed_type": "FSDP", "mixed_precision": "bf16", "fsdp_config": fsdp, "parallelism_config": sizes}
    assert read(data)["parallel"] == parallel


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ({"distributed_type": "MEGATRON_LM"}, "MEGATRON_LM"),
        ({"distributed_type": "FDSP"}, "distributed_type"),
        ({"distributed_type": "FSDP", "mixed_precision": "fp8"}, "fp8"),
        ({"distributed_type": "FSDP", "fsdp_config": {"fsdp_sharding_strategy": "SOME"}}, "SOME"),
        ({"distributed_type": "MULTI_GPU", "num_processes": 15}, "num_processes"),
        ({"distributed_type": "MULTI_GPU", "dynamo_config": {"dynamo_backend": "TENSORRT"}}, "TENSORRT"),
        ({"distributed_type": "MULTI_GPU", "num_procs": 8}, "num_procs"),
    ],
)
def test_refused(data: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(data)
    assert word in f"{caught.value.where} {caught.value}"


def test_no_model() -> None:
    with pytest.raises(ConfigError) as caught:
        import_run(str(FILES / "fsdp.yaml"))
    assert "--set model.name=" in str(caught.value.expected)


@pytest.mark.parametrize(("machines", "processes"), [(4, 8), (2, 2), (3, 15), (1, 6)])
def test_machines_share_the_processes(machines: int, processes: int) -> None:
    tables = read({"distributed_type": "MULTI_GPU", "num_machines": machines, "num_processes": processes})
    assert tables["cluster"] == {"device": "h100", "nodes": machines, "gpus_per_node": processes // machines}


def test_without_a_number_of_processes_a_node_of_eight_is_taken() -> None:
    text = yaml.safe_dump({"distributed_type": "MULTI_GPU", "num_machines": 1})
    tables = read_accelerate(text, "acc.yaml", Asked(model="llama3-8b")).tables
    assert tables["cluster"] == {"device": "h100", "nodes": 1, "gpus_per_node": 8}
