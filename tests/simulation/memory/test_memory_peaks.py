"""Peaks of ranks: the summit of a single stage, and events outside stages, against slow copies of their definitions."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from simulation.jobs import (
    attention_encoder,
    carry_along,
    gpt,
    job_of,
    overlap,
    t2v,
    t2v_items,
    text_items,
    vlm,
    vlm_items,
    wide,
)

from semu.engine.kernels.memory_parts import highest_of_parts
from semu.engine.kernels.pipeline_memory import sort_events
from semu.engine.sampling import pool_step_function
from semu.engine.timeline import compress_steps
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.schedule.problem import lower
from semu.simulation import prepare
from semu.simulation.context import PipelineRun
from semu.simulation.iteration import time_iteration
from semu.simulation.memory.ranks import RankMemory
from semu.simulation.pipeline import run_pipeline
from semu.simulation.results.estimated import estimate_iteration

JOBS = {
    "text": lambda: job_of(gpt(), text_items(6), Parallel(pp=3), overlap=overlap(pipeline=True)),
    "waits": lambda: job_of(gpt(), text_items(6), Parallel(dp=2, pp=2), schedule="gpipe"),
    "vlm": lambda: job_of(vlm(), vlm_items(8, empty=(1, 2)), Parallel(dp=2, pp=4), overlap=overlap(pipeline=True)),
    "vlm tp": lambda: job_of(
        vlm(), vlm_items(4), Parallel(pp=2, tp=2), overlap=overlap(tensor=True, pipeline=True), recompute="full"
    ),
    "t2v": lambda: job_of(t2v(), t2v_items(6), Parallel(dp=2, pp=3), overlap=overlap(pipeline=True)),
    "kept": lambda: job_of(attention_encoder(), text_items(5), Parallel(pp=2), overlap=overlap(pipeline=True)),
    "along": lambda: job_of(carry_along(), text_items(5), Parallel(pp=5), overlap=overlap(pipeline=True)),
    "gathers": lambda: job_of(wide(), text_items(6), Parallel(dp=2, pp=2), overlap=overlap(parameters=True)),
    "interleaved": lambda: job_of(vlm(), vlm_items(8), Parallel(dp=2, pp=2, vpp=2), overlap=overlap(pipeline=True)),
    "unsharded": lambda: job_of(
        vlm(), vlm_items(8), Parallel(dp=2, pp=2, zero=3, reshard_after_forward=False), overlap=overlap(gradients=True)
    ),
}


def memories_of(job: TrainingJob) -> tuple[PipelineRun, list[RankMemory]]:
    """The run of a job under its own schedule, and every rank's memory."""
    ready = prepare(job)
    problem = lower(ready.schedule(), ready.pipeline_shape, overlapped_sends=job.overlaps_sends)
    iteration = time_iteration(run_pipeline(ready, problem))
    return iteration.run, estimate_iteration(iteration).memories


def curve_of_one(
    memory: RankMemory, run: PipelineRun, replica: int, only: int
) -> tuple[NDArray[np.float64], list[int]]:
    """A rank's memory with every stage but one as a single step at its end, event by event."""
    events: list[tuple[float, int, int]] = [(0.0, 1, 0)]
    outside = memory.pipeline.outside_events.of_rank(memory.rank)
    for time, size in zip(outside.time[replica].tolist(), outside.size[replica].tolist(), strict=True):
        events.append((time, 0 if size < 0 else 2, size))
    for node in memory.nodes.tolist():
        stage = memory.pipeline.expand(replica, node)
        sizes = stage.event_bytes.sum(axis=0).tolist()
        if node == only:
            times = (run.start[replica, node] + stage.event_time).tolist()
            events += [(time, 1, size) for time, size in zip(times, sizes, strict=True)]
        else:
            events.append((float(run.end[replica, node]), 1, sum(sizes)))
    events.sort(key=lambda event: event[:2])  # stable: stages keep their order
    level, total = [], 0
    for _, _, size in events:
        total += size
        level.append(total)
    times, levels = compress_steps(np.array([event[0] for event in events]), np.array([level], dtype=np.int64))
    return times, levels[0].tolist()


@pytest.mark.parametrize("name", JOBS)
def test_the_summit_of_a_stage_is_that_of_the_curve_with_only_this_stage(name: str) -> None:
    run, memories = memories_of(JOBS[name]())
    if name == "gathers":
        assert run.release
    moved = 0
    found = memories[0].pipeline.summits
    assert (name == "unsharded") == (
        memories[0].pipeline.outside_events.time.shape != memories[0].pipeline.boundary_events.time.shape
    )
    for memory in memories:
        for replica in range(run.num_replicas):
            for node in memory.nodes.tolist():
                times, levels = curve_of_one(memory, run, replica, node)
                begin, end = run.start[replica, node], run.end[replica, node]
                inside = [level for time, level in zip(times, levels, strict=True) if begin <= time <= end]
                summit = memory.pipeline.exact_summit(replica, node)
                assert summit == max([0, *inside]), (memory.rank, replica, node)
                moved += int(found.high[replica, node] > found.low[replica, node])
    assert moved > 0 or name in ("waits", "gathers")


@pytest.mark.parametrize("name", JOBS)
def test_a_peak_is_the_highest_point_of_the_replicas_curves(name: str) -> None:
    run, memories = memories_of(JOBS[name]())
    for memory in memories:
        peak = memory.peak()
        curves = [memory.curve(replica)[1].sum(axis=0) for replica in range(run.num_replicas)]
        assert peak.size_bytes == memory.static.total + max(int(curve.max()) for curve in curves)
        assert int(curves[peak.replica].max()) + memory.static.total == peak.size_bytes


@pytest.mark.parametrize("name", JOBS)
def test_parts_have_their_highest_points_without_the_curve(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal parts, one part for all, and parts that begin at or between moments of the curve."""
    run, memories = memories_of(JOBS[name]())
    curves = [[memory.curve(replica) for replica in range(run.num_replicas)] for memory in memories]
    monkeypatch.setattr(RankMemory, "curve", None)
    for memory, own in zip(memories, curves, strict=True):
        for replica, (times, dynamic) in enumerate(own):
            moments = np.unique(times)
            for edges in (
                np.linspace(0, float(run.makespan()[replica]) * 1.1, 40),
                np.array([0.0, np.inf]),
                moments,
                np.concatenate((moments[:1], (moments[1:] + moments[:-1]) / 2)),
            ):
                since, levels = memory.highest(replica, edges)
                kept = pool_step_function(times, dynamic.sum(axis=0), edges)
                assert since.tolist() == times[kept].tolist()
                assert levels.tolist() == dynamic[:, kept].tolist()


CHANGES = st.lists(st.tuples(st.integers(0, 3), st.tuples(st.integers(-3, 3), st.integers(-3, 3))), max_size=5)


@given(
    outside=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 1), st.integers(-3, 3)), max_size=8),
    kinds=st.lists(CHANGES, min_size=1, max_size=3),
    stages=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=6),
    edges=st.sets(st.integers(1, 24), min_size=1, max_size=6),
)
def test_changes_at_one_moment_count_in_order(
    outside: list[tuple[int, int, int]],
    kinds: list[list[tuple[int, tuple[int, int]]]],
    stages: list[tuple[int, int]],
    edges: set[int],
) -> None:
    """Whole seconds, so that much happens at once, against a walk over all events."""
    kinds = [sorted(changes, key=lambda change: change[0]) for changes in kinds]
    outside = sorted([*outside, (0, 0, 0)], key=lambda event: (event[0], event[2] >= 0))
    starts, kind, now = [], [], 0
    events = [(time, 2 if size >= 0 else 0, (size, 0) if role == 0 else (0, size)) for time, role, size in outside]
    for gap, number in stages:
        now += gap
        starts.append(now)
        kind.append(number % len(kinds))
        events += [(now + time, 1, change) for time, change in kinds[kind[-1]]]
        now += 3
    events.sort(key=lambda event: event[:2])
    times = np.array([float(time) for time, *_ in events])
    times, levels = compress_steps(times, np.cumsum([change for *_, change in events], axis=0).T)
    parts = np.array([0.0, *sorted(edges)])
    kept = pool_step_function(times, levels.sum(axis=0), parts)
    since, found = np.empty(len(parts) - 1), np.empty((2, len(parts) - 1), dtype=np.int64)
    time, role, size = (np.array(column) for column in zip(*outside, strict=True))
    inner = [change for changes in kinds for change in changes]
    highest_of_parts(
        time.astype(np.float64),
        role,
        size,
        np.array(starts, dtype=np.float64),
        np.array(kind, dtype=np.int64),
        np.cumsum([0, *map(len, kinds)]),
        np.array([float(moment) for moment, _ in inner]),
        np.array([change for _, change in inner], dtype=np.int64).reshape(len(inner), 2),
        parts,
        since,
        found,
    )
    assert since.tolist() == times[kept].tolist()
    assert found.tolist() == levels[:, kept].tolist()


MOMENTS = st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0])


RANKS = st.lists(st.lists(st.tuples(MOMENTS, st.integers(-3, 3)), max_size=12), min_size=1, max_size=3)


@given(ranks=RANKS, later=st.sampled_from([0.0, 1.0]))
def test_events_outside_stages_are_sorted_by_time_then_size(ranks: list[list[tuple[float, int]]], later: float) -> None:
    """Two replicas, one of them later and with other sizes; in any order, though a pipeline's are almost in order."""
    flat = [event for events in ranks for event in events]
    rows = [(0.0, 1), (later, -1)]
    time = np.array([[moment + shift for moment, _ in flat] for shift, _ in rows])
    size = np.array([[sign * change for _, change in flat] for _, sign in rows], dtype=np.int64)
    ptr = np.cumsum([0, *(len(events) for events in ranks)])
    sort_events(ptr, time, size)
    for row, (shift, sign) in enumerate(rows):
        found = list(zip(time[row].tolist(), size[row].tolist(), strict=True))
        for rank, events in enumerate(ranks):
            wanted = sorted((moment + shift, sign * change) for moment, change in events)
            assert found[ptr[rank] : ptr[rank + 1]] == wanted


def test_random_jobs_peak_where_their_curves_do() -> None:
    random = Random(5)
    for seed in range(6):
        model, items = random.choice([(gpt, text_items), (vlm, vlm_items), (t2v, t2v_items)])
        pp = random.randint(2, 4)
        job = job_of(
            model(layers=random.randint(2, 4)),
            items(random.randint(3, 8), seed=seed),
            Parallel(pp=pp),
            overlap=overlap(pipeline=True),
            schedule=random.choice(["1f1b", "gpipe"]),
        )
        _, memories = memories_of(job)
        for memory in memories:
            highest = int(memory.curve(0)[1].sum(axis=0).max())
            assert memory.peak().size_bytes == memory.static.total + highest
