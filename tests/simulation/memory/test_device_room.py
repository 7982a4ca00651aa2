"""One answer to "does it fit" from everything that is asked, on what a device must hold; its parts add up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from frozen.cases import settings
from simulation.rooms import outside

import semu
from semu.errors import ConfigError
from semu.hardware.cluster import Cluster
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.present.estimate import FRAGMENTED, KEPT_BYTES, DeviceRoom
from semu.runfile import load_run
from semu.simulation.memory.reserved import device_room

GIB = 1 << 30


def shipped(name: str) -> TrainingJob:
    """vlm-s as shipped; llama3-70b's layers four to a rank with two replicas."""
    if name == "vlm-s":
        return load_run("vlm-s", [])
    config: dict[str, Any] = {
        "model": {"name": "llama3-70b"},
        "cluster": {"device": "h100", "nodes": 8, "gpus_per_node": 8},
        "parallel": {"tp": 8, "pp": 4},
        "training": {"global_batch": 32, "seq_len": 8192},
    }
    from semu.runfile import make_job

    return make_job(config)


def on_memory(job: TrainingJob, size: int, margin: float | None = None) -> TrainingJob:
    cluster = job.cluster
    override = {**dict(cluster.override), "memory_bytes": size}
    made = replace(job, cluster=Cluster(cluster.device, cluster.nodes, cluster.gpus_per_node, override))
    return replace(made, training=replace(job.training, memory_margin=margin))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["vlm-s", "llama3-70b"])
def test_everything_gives_one_answer(name: str) -> None:
    """On a device that holds what the allocator reserves, and on one that lacks 4 GiB of it but holds the tensors."""
    job = shipped(name)
    roomy = semu.simulate(on_memory(job, 400 * GIB))
    held, peak = max(roomy.held_memory_bytes), max(roomy.peak_memory_bytes)
    assert held > peak
    needed = held + outside(job.parallel)
    for size, expected in ((needed + 1, True), (peak + outside(job.parallel) - 1, False)):
        made = on_memory(job, size, 0.0)
        report, estimate = semu.simulate(made), semu.evaluate(made)
        assert report.fits is estimate.fits is expected
        assert report.room == estimate.room == DeviceRoom(size, outside(job.parallel), 0)
        rows = semu.grid(made, vary={"tp": (job.parallel.tp,)}, fix={"pp": job.parallel.pp})
        own = next(row for row in rows if row.point.tp == job.parallel.tp and row.point.pp == job.parallel.pp)
        assert own.fits is expected
        assert (own.headroom_bytes >= 0) is expected


def test_what_is_allocated_fits_and_what_is_reserved_does_not() -> None:
    """Between the two, ``fits`` is what the allocator says on that device."""
    job = shipped("vlm-s")
    roomy = semu.evaluate(on_memory(job, 400 * GIB))
    peak = max(roomy.peak_memory_bytes)
    found = semu.evaluate(on_memory(job, peak + outside(job.parallel) + 1, 0.0))
    assert max(found.peak_memory_bytes) <= found.room.usable_bytes
    assert found.fits == (max(found.held_memory_bytes) <= found.room.usable_bytes)
    assert not found.fits


@pytest.mark.parametrize("name", [pytest.param("vlm-s", marks=pytest.mark.slow), "llama3-70b"])
def test_what_a_search_returns_fits(name: str) -> None:
    report = semu.search(shipped(name), rollouts=40 if name == "vlm-s" else 8).report
    room = report.room
    assert report.fits
    assert max(report.held_memory_bytes) + room.other_bytes + room.margin_bytes <= room.capacity_bytes


@pytest.mark.parametrize("name", ["vlm-s", "llama3-70b"])
def test_kinds_add_up(name: str) -> None:
    job = shipped(name)
    report = semu.simulate(job)
    assert len(report.memory) == job.parallel.pp
    for rank, kinds in enumerate(report.memory):
        assert sum(kinds[:6]) == report.peak_memory_bytes[rank]
        assert sum(kinds[:7]) == report.held_memory_bytes[rank]
        assert (kinds.other, kinds.margin) == (report.other_memory_bytes, report.memory_margin_bytes)
        assert min(kinds) >= 0
        static = kinds.parameters + kinds.gradients + kinds.optimizer
        assert static <= report.peak_memory_bytes[rank]
        assert kinds.activations > 0 and kinds.optimizer > 0 and kinds.capacity == report.capacity_bytes
    document = report.to_json()["memory"]
    assert [row["rank"] for row in document] == [*range(job.parallel.pp)]  # type: ignore[index, attr-defined]
    assert report.fits == all(sum(kinds[:9]) <= kinds.capacity for kinds in report.memory)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
@pytest.mark.parametrize("name", ["lm-7b", "vlm-s", "t2v-s", "qwen2-audio-7b"])
def test_no_allocator_keeps_more_than_the_bound(name: str, schedule: str) -> None:
    run = load_run(name, settings(name, schedule, 1))
    found = semu.evaluate(on_memory(run, 400 * GIB))
    for held, peak in zip(found.held_memory_bytes, found.peak_memory_bytes, strict=True):
        assert peak <= held <= FRAGMENTED * peak + KEPT_BYTES


def test_the_margin_in_a_run_file_and_in_a_profile(tmp_path: Path) -> None:
    job = load_run("vlm-s", [])
    capacity = int(job.profile.memory_bytes.value)
    assert device_room(job).margin_bytes == -(-capacity * 5 // 1000)
    assert device_room(load_run("vlm-s", ["training.memory_margin=0.25"])).margin_bytes == -(-capacity // 4)
    assert device_room(load_run("vlm-s", ["training.memory_margin=0"])).margin_bytes == 0
    assert device_room(load_run("vlm-s", ["cluster.override.memory_margin=0.5"])).margin_bytes == -(-capacity // 2)
    assert not semu.evaluate(load_run("vlm-s", ["training.memory_margin=0.99"])).fits


@pytest.mark.parametrize("change", ["training.memory_margin=1.5", "training.memory_margin=-0.1"])
def test_a_margin_out_of_range(change: str) -> None:
    with pytest.raises(ConfigError, match="memory_margin"):
        load_run("vlm-s", [change])
    with pytest.raises(ConfigError, match="memory_margin"):
        load_run("vlm-s", [change.replace("training.", "cluster.override.")])


def test_outside_by_hand() -> None:
    job = load_run("vlm-s", [])
    assert device_room(job).other_bytes == outside(job.parallel)
    assert device_room(job, Parallel()).other_bytes == 512 << 20
    assert device_room(job, Parallel(dp=2, tp=2, pp=2)).other_bytes == (512 + 3 * 128) << 20


def test_ranks_of_modules_on_their_own_gpus_have_as_many_communicators_as_any() -> None:
    """An encoder of four replicas of one GPU, a language model of one of four: tensor, data and pipeline ranks."""
    sizes = {"vit": {"gpus": 4, "tp": 1}, "llm": {"gpus": 4, "tp": 4}}
    job = load_run("vlm-s", ["training.global_batch=8"], cluster="h100:1x8", parallel="dp1-tp4-pp2")
    assert device_room(job).other_bytes == (512 + 2 * 128) << 20
    apart = replace(job, parallel=Parallel(dp=1, tp=4, pp=2, segments="apart", modules=sizes))
    assert [apart.parallel.of_module(name).dp for name in sizes] == [4, 1]
    assert device_room(apart).other_bytes == (512 + 3 * 128) << 20
