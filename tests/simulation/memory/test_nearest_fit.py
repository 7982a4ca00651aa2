"""Changes after which a job fits: legal, enough, in order of time; on two models."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulation.rooms import MIB, capacity_for

import semu
from semu.hardware.cluster import Cluster
from semu.job import Training, TrainingJob
from semu.nn import Model
from semu.parallel.config import Parallel
from semu.present.report import Report
from semu.simulation.memory.changes_that_fit import changed, nearest_fit, single_changes
from semu_models.text.gpt import GPT, GPTConfig
from semu_models.text.llama import Llama, LlamaConfig


def gpt() -> Model:
    return Model.from_module(GPT(GPTConfig(8, hidden=1024, heads=16, vocab=512, positions=8192)), name="llm")


def llama() -> Model:
    return Model.from_module(Llama(LlamaConfig(8, hidden=1024, ffn=2816, heads=16, kv_heads=8, vocab=512)), name="llm")


KEPT = 96 * MIB
"""What the allocator keeps beside what is allocated: cuBLAS's workspaces and the ends of segments."""


def memory_of(gigabytes: float) -> int:
    """Memory of a device with room for so much that is allocated [bytes]."""
    return capacity_for(round(gigabytes * 1e9) + KEPT, Parallel(dp=2, tp=2))


def job_of(model: Model, memory_gb: float, **training: object) -> TrainingJob:
    options = {"micro_batch": 4, "global_batch": 16, "seq_len": 8192, **training}
    cluster = Cluster("h100", 1, 4, override={"memory_bytes": memory_of(memory_gb)})
    return TrainingJob(model, cluster, Parallel(dp=2, tp=2), Training(**options))  # type: ignore[arg-type]


def found(job: TrainingJob) -> tuple[Report, list[str]]:
    report = semu.simulate(job)
    assert not report.fits
    report = replace(report, nearest_fit=nearest_fit(job, report, semu.simulate))
    assert report.nearest_fit is not None
    for change in report.nearest_fit:
        again = semu.simulate(changed(job, change.settings))
        assert again.fits
        assert change.peak_memory_bytes == max(again.peak_memory_bytes)
        assert change.saved_bytes == max(report.peak_memory_bytes) - change.peak_memory_bytes
        assert change.iteration_time_s - change.added_time_s == pytest.approx(report.iteration_time_s)
        assert again.tokens == report.tokens
    times = [change.iteration_time_s for change in report.nearest_fit]
    assert times == sorted(times)
    return report, [change.label() for change in report.nearest_fit]


@pytest.mark.parametrize("make", [gpt, llama])
def test_single_changes(make: object) -> None:
    job = job_of(make(), 4.0)  # type: ignore[operator]
    report, labels = found(job)
    assert "training.recompute=full" in labels
    assert "training.micro_batch=1" in labels
    assert "training.grad_dtype=bf16" not in labels
    assert "training.recompute=full training.recompute_policy=every_second_matmul" in labels
    singles = [label for label in labels if "recompute" not in label and "parallel" not in label]
    assert all(len(label.split()) == 1 for label in singles)
    assert "changes after which it fits in memory" in report.details()
    assert f"--set {labels[0]}" in " ".join(repr(report).split())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", [gpt, llama])
def test_several_changes_where_one_is_not_enough(make: object) -> None:
    _, labels = found(job_of(make(), 1.2))  # type: ignore[operator]
    assert all(len(label.split()) > 1 for label in labels)
    assert labels


def test_what_does_not_fit_on_the_host_is_no_help() -> None:
    job = job_of(gpt(), 4.6)
    _, labels = found(job)
    assert "training.offload=activations" in labels
    options = {"memory_bytes": memory_of(4.6), "host.memory_bytes": 1e6}
    small = replace(job, cluster=Cluster("h100", 1, 4, override=options))
    _, labels = found(small)
    assert labels
    assert not any("offload" in label for label in labels)


@pytest.mark.slow
def test_nothing_helps() -> None:
    report, labels = found(job_of(gpt(), 0.01))
    assert labels == []
    assert report.to_json()["nearest_fit"] == []
    assert "no change that was tried makes it fit in memory" in report.details()
    assert "no change that was tried makes it fit" in " ".join(repr(report).split())


def test_what_is_on_already_is_not_tried() -> None:
    job = job_of(gpt(), 4.0, recompute="full", grad_dtype="bf16", optimizer_state_dtype="bf16", micro_batch=1)
    assert [sorted(change) for change in single_changes(job)] == [
        ["parallel.zero"],
        ["parallel.zero"],
        ["parallel.dp", "parallel.tp", "training.global_batch"],
        ["parallel.dp", "parallel.pp", "training.global_batch"],
        ["training.offload"],
        ["training.offload"],
        ["training.offload"],
    ]


@pytest.mark.parametrize(("pp", "keeps"), [(2, True), (1, False)])
def test_parameters_kept_through_a_pipeline_may_be_gathered_again(pp: int, keeps: bool) -> None:
    job = job_of(gpt(), 4.0)
    parallel = Parallel(dp=4 // pp, pp=pp, zero=3, reshard_after_forward=False)
    changes = list(single_changes(replace(job, parallel=parallel)))
    assert ({"parallel.reshard_after_forward": True} in changes) == keeps
