"""Contention: against the slow reference bit for bit, nothing changes where nothing is shared, and cases by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from simulation.comparison import assert_memory_equal, assert_sends_equal, assert_stages_equal
from simulation.jobs import gpt, job_of, overlap, t2v, t2v_items, text_items, vlm, vlm_items, wide
from simulation.reference_contention import contended

from semu.engine.timeline import OuterSlice
from semu.errors import ConfigError
from semu.hardware.kinds import OpKind, Port
from semu.hardware.network import CommGroup, collective_cost, port_shares
from semu.hardware.profile import load_profile
from semu.job import TrainingJob
from semu.nn import Model
from semu.parallel.config import Parallel
from semu.report import Report
from semu.simulation import link_units, simulate

ALL = overlap(tensor=True, pipeline=True, gradients=True, parameters=True)
REDUCED = ("gradients", "replicated", "tied")

JOBS: dict[str, Callable[[], TrainingJob]] = {
    "text pp3": lambda: job_of(gpt(), text_items(4), Parallel(pp=3), overlap=overlap(pipeline=True)),
    "text pp2 dp2": lambda: job_of(gpt(), text_items(4), Parallel(pp=2, dp=2)),
    "text pp2 dp2 on NICs": lambda: job_of(
        gpt(), text_items(6), Parallel(pp=2, dp=2), overlap=overlap(pipeline=True, gradients=True), gpus_per_node=1
    ),
    "text tp2": lambda: job_of(
        gpt(), text_items(4), Parallel(pp=2, tp=2, sequence_parallel=True), overlap=overlap(tensor=True, pipeline=True)
    ),
    "text cp2": lambda: job_of(gpt(), text_items(2), Parallel(cp=2, tp=2), overlap=overlap(tensor=True)),
    "text zero3": lambda: job_of(
        gpt(),
        text_items(4),
        Parallel(dp=2, tp=2, zero=3),
        overlap=overlap(tensor=True, gradients=True, parameters=True),
    ),
    "text zero2": lambda: job_of(
        gpt(), text_items(4), Parallel(dp=2, tp=2, zero=2), overlap=overlap(tensor=True, gradients=True)
    ),
    "vlm pp2 dp2": lambda: job_of(
        vlm(), vlm_items(6, seed=3), Parallel(pp=2, dp=2, zero=1), overlap=overlap(pipeline=True, gradients=True)
    ),
    "vlm gpipe": lambda: job_of(
        vlm(), vlm_items(4), Parallel(pp=4), overlap=overlap(pipeline=True), schedule="gpipe", recompute="full"
    ),
    "vlm interleaved": lambda: job_of(
        vlm(), vlm_items(4), Parallel(pp=2, vpp=2, dp=2), overlap=overlap(pipeline=True, gradients=True)
    ),
    "t2v": lambda: job_of(t2v(), t2v_items(4), Parallel(pp=2, tp=2, dp=2), overlap=overlap(tensor=True, pipeline=True)),
    "offload": lambda: job_of(
        wide(2), text_items(2), Parallel(pp=2), overlap=overlap(pipeline=True), offload=["activations"]
    ),
}


def reductions(report: Report, rank: int) -> list[OuterSlice]:
    """Gradient collectives of a rank in order."""
    return [piece for piece in report.timeline.ranks[rank].outer if piece.name.startswith(REDUCED)]


@pytest.mark.parametrize("name", JOBS)
def test_everything_is_as_the_slow_reference_has_it(name: str) -> None:
    """Times of every operator, memory of every rank at every moment, and the gradient collectives."""
    job = JOBS[name]()
    report = simulate(job, contention=True)
    expected, reduced = contended(job)
    makespans = [replica.makespan_s for replica in expected.replicas]
    assert report.makespan_s == max(makespans)
    slowest = expected.replicas[makespans.index(max(makespans))]
    for rank, timeline in enumerate(report.timeline.ranks):
        assert_stages_equal(timeline, slowest, slowest.orders[rank])
        assert_sends_equal(timeline, slowest, rank, expected)
        assert_memory_equal(timeline.memory, slowest.memory[rank], expected.static[rank].total)
        seen = sorted((piece.start_s, piece.end_s) for piece in reductions(report, rank))
        assert seen == sorted((item.start_s, item.end_s) for item in reduced if rank in item.ranks)
    assert list(report.peak_memory_bytes) == expected.peak_bytes


def test_the_jobs_above_share_something() -> None:
    """Else they would show little: all kinds of communicators lose time somewhere."""
    seen = [simulate(make(), contention=True).contention for make in JOBS.values()]
    assert {name for one in seen if one is not None for name in one.lost_s} >= {"pp", "dp", "tp", "fsdp"}
    assert sum(one.touched_stages for one in seen if one is not None) > 0
