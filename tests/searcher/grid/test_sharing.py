"""What configurations share changes none of them: each is what it is in a process that has seen no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from searcher.grid.cases import dense, experts, vision
from simulation.rooms import capacity_for

import semu
import semu_models
from semu import memo
from semu.costs.result_cache import ResultCache
from semu.hardware.cluster import Cluster
from semu.job import TrainingJob
from semu.parallel.config import Overlap
from semu.searcher.grid.evaluate_points import (
    ONE_ORDER,
    Outcome,
    alike,
    evaluate_chunk,
    evaluate_point,
    in_chunks,
    in_order,
)
from semu.searcher.grid.grid_search import grid
from semu.searcher.grid.legal import legal_points
from semu.searcher.grid.space import Point, Space, job_at
from semu.simulation.estimate import evaluate

FEW = {"tp": None, "pp": (1, 2, 4), "vpp": (1, 2), "micro_batch": (1, 2), "recompute": None, "zero": (0, 1, 3)}


def alone(job: TrainingJob, point: Point) -> Outcome:
    """A configuration, as nobody has seen one before."""
    memo.clear()
    found = evaluate(job_at(job, point), cache=ResultCache())
    own = (found.iteration_time_s, found.mfu, found.bubble_ratio, max(found.peak_memory_bytes))
    return Outcome(point, own, held_bytes=found.judged_bytes)  # type: ignore[arg-type]


def check(job: TrainingJob, points: list[Point], seed: int) -> None:
    """Configurations one by one from nothing, together in the order of the grid, in another one, and once more."""
    expected = {point: alone(job, point) for point in points}
    memo.clear()
    orders = [in_order(job, points), Random(seed).sample(points, len(points)), points]
    for order in orders:
        assert evaluate_chunk(job, order) == [expected[point] for point in order]


def drawn(job: TrainingJob, vary: dict[str, tuple[int, ...] | None], count: int, seed: int) -> list[Point]:
    points = legal_points(job, Space.of(job, vary)).points  # type: ignore[arg-type]
    return Random(seed).sample(points, count)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", [dense, experts, vision])
def test_what_configurations_share_changes_none_of_them(make: Callable[[], TrainingJob]) -> None:
    job = make()
    check(job, drawn(job, FEW, 6, seed=11), seed=5)


def large_dense() -> TrainingJob:
    training = semu.Training(micro_batch=1, global_batch=192, seq_len=2048, recompute="full")
    cluster = semu.Cluster("a100-80g", 8, 8)
    return TrainingJob(semu_models.gpt3_175b(), cluster, semu.Parallel(dp=8, tp=8), training)


def large_experts() -> TrainingJob:
    training = semu.Training(micro_batch=1, global_batch=128, seq_len=4096)
    cluster = semu.Cluster("h800", 8, 8)
    return TrainingJob(semu_models.mixtral_8x7b(), cluster, semu.Parallel(dp=8, tp=8), training)


def large_vision() -> TrainingJob:
    training = semu.Training(micro_batch=1, global_batch=64, recompute="full")
    batch = semu.workload.vlm_batch(seed=0)
    cluster = semu.Cluster("h800", 4, 8)
    return TrainingJob(semu_models.vlm_s(), cluster, semu.Parallel(dp=8, tp=2, pp=2), training, batch)


@pytest.mark.slow
@pytest.mark.parametrize("make", [large_dense, large_experts, large_vision])
def test_what_configurations_of_large_models_share_changes_none_of_them(make: Callable[[], TrainingJob]) -> None:
    job = make()
    check(job, drawn(job, {**FEW, "vpp": (1, 2, 3), "pp": (1, 2, 4, 8)}, 20, seed=3), seed=4)
    training = replace(job.training, overlap=replace(job.training.overlap, param_gather=False, grad_reduce=False))
    other = replace(job, training=training)
    check(other, drawn(other, {**FEW, "pp": (2, 4)}, 8, seed=7), seed=8)


@pytest.mark.parametrize(("size", "most"), [(24, 48), (1, 1), (5, 7)])
def test_tasks_hold_every_configuration_once_and_keep_pipelines_together(size: int, most: int) -> None:
    job = dense()
    points = [*legal_points(job, Space.of(job, FEW)).points]
    tasks = in_chunks(job, points, size, most)
    assert [point for task in tasks for point in task] == in_order(job, points)
    assert all(0 < len(task) <= most for task in tasks)
    whole = {(point.pp, point.vpp): 0 for point in points}
    for point in points:
        whole[point.pp, point.vpp] += 1
    for pipeline, count in whole.items():
        parts = sum(any((point.pp, point.vpp) == pipeline for point in task) for task in tasks)
        assert parts == -(-count // most)


ORDERED = {"tp": (1, 2), "pp": (1, 2, 4), "vpp": (1, 2), "zero": (0, 1, 2, 3), "recompute": None, "micro_batch": (1, 2)}
HIDES = Overlap(expert_parallel=True, delayed_weight_gradients=True)


@pytest.mark.slow
@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.data())
def test_schedules_of_one_order_come_to_the_same(data: st.DataObject) -> None:
    """Whatever is sharded, recomputed or hidden, and what the allocator holds on a device that is nearly full."""
    make = data.draw(st.sampled_from((dense, experts, vision)))
    job = make(**data.draw(st.sampled_from(({}, {"software": "torch"}, {"overlap": HIDES}))))
    vary = {**ORDERED, "schedule": ONE_ORDER} | ({"ep": (1, 2)} if make is experts else {})
    points = [*legal_points(job, Space.of(job, vary)).points]
    own = alike(data.draw(st.sampled_from(points)))
    assert len(own) == 2 and {*own} <= {*points}
    first = evaluate(job_at(job, own[0]))
    full = Cluster("h800", 2, 4, {"memory_bytes": capacity_for(max(first.held_memory_bytes), job.parallel)})
    for where in (job, replace(job, cluster=full)):
        found = [evaluate_point(where, point) for point in own]
        assert found[0].figures == found[1].figures is not None
        assert found[0].held_bytes == found[1].held_bytes


@pytest.mark.parametrize("exhaustive", [False, True])
def test_what_is_alike_is_evaluated_once(exhaustive: bool, tmp_path: Path) -> None:
    vary = {"tp": None, "pp": (1, 2), "vpp": (1, 2), "schedule": ("interleaved", "gpipe", "1f1b")}
    found = grid(dense(), vary=vary, framework="any", exhaustive=exhaustive, top=6, results=tmp_path / "some.sqlite")
    stood_for = {alike(row.point)[0] for row in found}
    assert found.evaluated == len(stood_for) < len(found)
    for row in found:
        assert evaluate_point(found.job, row.point).figures == row.figures
    again = grid(dense(), vary=vary, framework="any", exhaustive=exhaustive, top=6, results=tmp_path / "some.sqlite")
    assert again.evaluated == 0 and again.reused == len(found) and again.rows == found.rows


def test_what_was_kept_serves_what_is_alike(tmp_path: Path) -> None:
    file, vary = tmp_path / "some.sqlite", {"tp": None, "pp": (1, 2)}
    first = grid(dense(), vary=vary, exhaustive=True, framework="any", results=file)
    both = {**vary, "schedule": ONE_ORDER}
    found = grid(dense(), vary=both, exhaustive=True, framework="any", results=file)
    assert found.reused == first.evaluated and found.evaluated == 0
    assert found.rows == grid(dense(), vary=both, exhaustive=True, framework="any").rows
