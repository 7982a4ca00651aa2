"""What rows say of their software, network and adapters reaches the job."""

from __future__ import annotations

from typing import Any

import pytest
from validation.rows_kit import run

import semu
from semu.hardware.attention_kernels import AttentionKernel
from semu.hardware.software import Software
from semu.job import TrainingJob
from semu.job.kinds import Attention
from semu.runfile import make_job
from semu.validation import BadRow, Row, parse_rows
from semu.validation.jobs import run_tables
from semu.validation.memory import peak_bytes
from semu.validation.resolve import candidates
from semu.validation.row import Measure, Scope


def row_of(changes: dict[str, Any] | None = None, /, **more: Any) -> Row:
    (row,) = parse_rows([run(changes, **more)])
    assert isinstance(row, Row), row
    return row


def job_of(changes: dict[str, Any] | None = None, /, **more: Any) -> TrainingJob:
    row = row_of(changes, **more)
    return make_job(run_tables(row, next(candidates(row)), row.profile))


def test_software_is_said() -> None:
    for word in ("megatron", "torch"):
        job = job_of(software=word, software_date="2024-01", zero_group=2)
        assert (job.training.software, job.training.software_date) == (Software(word), "2024-01")
    assert job_of(zero_group=2).training.software is Software.MEGATRON  # nothing follows from an unrelated field
    assert job_of(sharding_kind="fsdp").training.software is Software.TORCH


@pytest.mark.parametrize(
    ("words", "named", "software"),
    [
        ({"notes": "Megatron-DeepSpeed, iteration 2"}, "megatron", Software.MEGATRON_DEEPSPEED),
        ({"notes": "Megatron-DeepSpeed, iteration 2"}, "torch", Software.TORCH),  # it runs other kernels
        ({"notes": "plain"}, "megatron", Software.MEGATRON),
    ],
)
def test_remarks_name_software_that_runs_the_same_kernels(
    words: dict[str, str], named: str, software: Software
) -> None:
    assert job_of(words, software=named).training.software is software


def test_launches_block_where_pipelines_deadlocked() -> None:
    at_scale = {"software": "megatron-deepspeed", "gpus": 384, "dp": 384, "global_batch": 768}
    assert job_of(at_scale, software_date="2022-02").training.launch_blocking
    assert job_of(at_scale).training.launches
    assert not job_of(at_scale, software_date="2023-01").training.launch_blocking
    assert not job_of(at_scale, software="megatron").training.launch_blocking
    assert not job_of(software="megatron-deepspeed").training.launch_blocking


def test_what_nvidia_smi_shows_is_more_than_the_allocator_holds() -> None:
    measured = {"peak_mem_bytes": 1e9, "peak_mem_scope": "max", "peak_mem_measure": "reserved"}
    words = "reserved: nvidia-smi of the nodes, includes CUDA and NCCL context"
    held, shown = row_of(measured), row_of(measured, peak_mem_kind=words)
    assert (held.measure, shown.measure) == (Measure.RESERVED, Measure.DEVICE)
    report = semu.simulate(job_of())
    assert report.reserved_memory_bytes is not None
    outside = peak_bytes(report, Scope.MAX, Measure.DEVICE) - max(report.reserved_memory_bytes)  # type: ignore[operator]
    assert outside == (512 + 128) << 20  # context, and the communicator of the replicas


@pytest.mark.parametrize("field", ["group", "id", "zero_group", "source", "system", "gpus_per_node"])
def test_factors_depend_on_device_kernel_precision_software_and_date_only(field: str) -> None:
    """The rates of kernels of two rows that differ in anything else are the same."""
    other: dict[str, Any] = {"zero_group": 2, "gpus_per_node": 4}
    one, two = job_of(software="torch"), job_of({field: other.get(field, "x")}, software="torch")
    assert one.profile.efficiencies == two.profile.efficiencies
    assert one.profile.variants == two.profile.variants
    assert (one.profile.interference, one.profile.transfer_s) == (two.profile.interference, two.profile.transfer_s)


def test_kernels_are_said() -> None:
    assert job_of(attention_kernel="triton-fa1").attention_kernel is AttentionKernel.TRITON_FA1
    assert job_of(attention_kernel="unfused").training.attention is Attention.UNFUSED
    job = job_of(attention_deterministic=True, gradient_accumulation_fusion=False, cross_entropy="fused")
    assert job.training.attention_deterministic and not job.training.gradient_accumulation_fusion
    assert job.training.cross_entropy.value == "fused"


def test_networks_are_said() -> None:
    assert job_of(nic_bytes_per_s=6.25e9).cluster.profile.nic_bytes_per_s.value == 6.25e9
    rack = job_of(profile="b200", gpus=72, dp=72, gpus_per_node=72, global_batch=288)
    assert rack.cluster.profile.nvlink_gpus.value == 72
    assert job_of(profile="b200").cluster.profile.nvlink_gpus.value == 8


def test_adapters_are_said() -> None:
    whole, adapted = job_of(), job_of(lora={"rank": 8, "targets": "attention (linear_qkv, linear_proj)"})
    listed = job_of(lora={"rank": 8, "targets": ["linear_qkv", "linear_proj"]})
    every = job_of(lora={"rank": 8})

    def trainable(job: TrainingJob) -> int:
        return job.model.num_parameters(trainable_only=True)

    # a fused projection of 256 -> 768 and one of 256 -> 256, in 4 layers
    assert trainable(adapted) == trainable(listed) == 4 * 8 * ((256 + 768) + (256 + 256))
    assert trainable(adapted) < trainable(every) < trainable(whole)
    named = {"run": {"model": {"name": "gpt2"}}, "lora": {"rank": 8, "targets": ["linear_proj"]}}
    assert trainable(job_of(named)) == 12 * 8 * (768 + 768)  # a whole model keeps the row's adapters


def test_recomputed_modules_are_said() -> None:
    job = job_of(recompute_kind="selective", recompute_modules=["layernorm", "mlp"])
    assert job.training.recompute_modules == ("layernorm", "mlp")
    assert job_of(recompute_kind="none", recompute_modules=["mlp"]).training.recompute_modules is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("recompute_modules", "mlp"),
        ("lora", {"rank": 0}),
        ("lora", 3),
        ("nic_bytes_per_s", -1),
        ("software_date", 2024),
    ],
)
def test_a_wrong_field_is_named(field: str, value: object) -> None:
    (row,) = parse_rows([run({field: value})])
    assert isinstance(row, BadRow)
    assert row.reason.startswith(field)
