"""Library workspaces count into the peaks where they are asked for, and into nothing else."""

from __future__ import annotations

import pytest
from simulation.comparison import assert_equal
from simulation.jobs import gpt, job_of, text_items, vlm, vlm_items
from simulation.models.test_experts import moe
from simulation.reference.expansion import expand

from semu.errors import ConfigError
from semu.graph.tensor import Role
from semu.hardware.cluster import Cluster
from semu.job import Training, TrainingJob
from semu.nn import Model
from semu.parallel.config import Parallel
from semu.simulation import simulate

KIB = 1024


def jobs(device: str, kind: str, workspaces: str) -> TrainingJob:
    items = text_items(4) if kind == "text" else vlm_items(4)
    model = gpt() if kind == "text" else vlm()
    job = job_of(model, items, Parallel(pp=2), workspaces=workspaces)
    return TrainingJob(model, Cluster(device, 1, 2), job.parallel, job.training, job.batch)


@pytest.mark.parametrize("kind", ["text", "vlm"])
@pytest.mark.parametrize(
    ("device", "workspaces", "kib"),
    [
        ("h100", "torch", 2 * 32 * KIB),  # two cuBLAS handles with 32 MiB
        ("h100", "transformer_engine", 3 * 32 * KIB),  # and as much again
        ("h800", "transformer_engine", 3 * 32 * KIB),
        ("a100-80g", "torch", 2 * (2 * 4096 + 8 * 16)),  # :4096:2:16:8
        ("a100-80g", "transformer_engine", 2 * (2 * 4096 + 8 * 16) + 4 * KIB),
    ],
)
def test_peaks_are_higher_by_the_workspaces(kind: str, device: str, workspaces: str, kib: int) -> None:
    plain, more = (simulate(jobs(device, kind, word)) for word in ("none", workspaces))
    size = kib * KIB
    assert more.peak_memory_bytes == tuple(peak + size for peak in plain.peak_memory_bytes)
    assert more.static_memory_bytes == plain.static_memory_bytes
    assert more.iteration_time_s == plain.iteration_time_s
    for with_them, without in zip(more.timeline.ranks, plain.timeline.ranks, strict=True):
        assert with_them.memory.total.tolist() == (without.memory.total + size).tolist()
        assert with_them.memory.roles.index(Role.WORKSPACE) == without.memory.roles.index(Role.WORKSPACE)
    described = more.job["training"]
    assert isinstance(described, dict)
    assert described["workspaces"] == workspaces
    assert "library workspaces" in plain.warnings[0]
    assert "library workspaces" not in more.warnings[0]


def test_grouped_products_have_a_workspace_for_each_of_their_streams() -> None:
    """On the pipeline rank that has experts: four streams with 32 MiB each."""
    first_dense = moe(2, dense=1)
    plain, more = (
        simulate(job_of(first_dense, text_items(4), Parallel(pp=2, dp=2, ep=2), workspaces=word))
        for word in ("none", "transformer_engine")
    )
    added = [b - a for a, b in zip(plain.peak_memory_bytes, more.peak_memory_bytes, strict=True)]
    kinds = [sum(".mlp.experts." in path for path in parameters(first_dense, rank)) for rank in range(2)]
    assert added == [(3 + 4 * (count > 0)) * 32 * KIB * KIB for count in kinds]
    assert sorted(kinds) == [0, 2]
    apart = [
        simulate(job_of(moe(), text_items(4), Parallel(dp=2, ep=2), workspaces=word, moe_grouped_gemm=False))
        for word in ("none", "transformer_engine")
    ]
    assert apart[1].peak_memory_bytes[0] - apart[0].peak_memory_bytes[0] == 3 * 32 * KIB * KIB


def parameters(model: Model, rank: int) -> list[str]:
    """Paths of what a pipeline rank holds: the model is cut before its second layer."""
    paths = [path for path, _ in model.named_parameters()]
    second = next(number for number, path in enumerate(paths) if ".layers.1." in path)
    return paths[second:] if rank else paths[:second]


def test_nothing_changes_without_them() -> None:
    job = jobs("h800", "text", "none")
    assert_equal(simulate(job), expand(job))
    assert "workspaces" not in simulate(job).job["training"]  # type: ignore[operator]


def test_an_unknown_library_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        Training(workspaces="transformer-engine")
    assert (caught.value.where, caught.value.nearest) == ("training.workspaces", "transformer_engine")
