"""Candidates of chunks (DIP §5.3): the knapsack against every way, what they are made of, what they cost."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.jobs import job_of, overlap, t2v, t2v_items, vlm, vlm_items

from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.schedule.stage_plan import STRATEGIES
from semu.searcher.candidates import LayerGroup, best_counts, candidate_variants
from semu.searcher.partitioning import partition
from semu.searcher.problem.build import build_problem
from semu.simulation import prepare

SIZES = st.integers(0, 12).map(float)


@st.composite
def groups(draw: st.DrawFn) -> list[LayerGroup]:
    width = draw(st.integers(1, 4))
    found, at = [], 0
    for _ in range(draw(st.integers(1, 2))):
        count = draw(st.sampled_from([1, 2, 4]))  # shares are exact
        columns = [[0.0] + [draw(SIZES) * draw(st.sampled_from([-1, 1])) for _ in range(width - 1)] for _ in range(2)]
        found.append(LayerGroup(tuple(range(at, at + count)), np.array(columns[0]), np.array(columns[1])))
        at += count
    return found


def every_way(own: list[LayerGroup]) -> list[tuple[float, float]]:
    """(memory, time) of a strategy for each layer, all of them."""
    layers = [(group, len(group.positions)) for group in own for _ in group.positions]
    ways = product(*(range(len(group.time_s)) for group, _ in layers))
    found = []
    for way in ways:
        time = sum(group.time_s[s] / n for s, (group, n) in zip(way, layers, strict=True))
        held = sum(group.held_bytes[s] / n for s, (group, n) in zip(way, layers, strict=True))
        found.append((float(held), float(time)))
    return found


@settings(max_examples=40, deadline=None)
@given(groups(), st.integers(2, 10))
def test_the_knapsack_against_every_way(own: list[LayerGroup], most: int) -> None:
    chosen = best_counts(own, most)
    every = every_way(own)
    costs = []
    for counts in chosen:
        share = [np.array(c) / len(g.positions) for c, g in zip(counts, own, strict=True)]
        assert [sum(c) for c in counts] == [len(g.positions) for g in own]
        costs.append(
            (
                sum(float(s @ g.held_bytes) for s, g in zip(share, own, strict=True)),
                sum(float(s @ g.time_s) for s, g in zip(share, own, strict=True)),
            )
        )
    assert 1 <= len(costs) <= most
    near = 1e-9
    held, time = [c[0] for c in costs], [c[1] for c in costs]
    assert all(a < b for a, b in pairwise(held))
    assert all(a > b for a, b in pairwise(time))
    assert min(held) == pytest.approx(min(h for h, _ in every), abs=near)
    assert min(time) == pytest.approx(min(t for _, t in every), abs=near)
    for h, t in costs:  # none is beaten
        assert not any(a < h - near and b < t - near for a, b in every)
    if len(costs) == most > 3:  # the fastest of every bucket between
        edges = np.linspace(held[0], held[-1], most - 1)
        for low, high in pairwise(edges):
            inside = [t for h, t in every if low + near < h <= high - near]
            if inside:
                assert min(t for h, t in costs if h <= high + near) <= min(inside) + near


def test_many_alike_layers_go_in_steps() -> None:
    group = LayerGroup(tuple(range(120)), np.array([0.0, 4.0, 9.0, 20.0]), np.array([0.0, -3.0, -6.0, -8.0]))
    found = best_counts([group])
    assert len(found) == 10
    assert all(sum(counts[0]) == 120 for counts in found)
    assert found[0][0] == (0, 0, 0, 120)
    assert found[-1][0] == (120, 0, 0, 0)


def vision_job(**options: object) -> TrainingJob:
    return job_of(vlm(layers=4), vlm_items(3, seed=3), Parallel(pp=2), overlap=overlap(pipeline=True), **options)  # type: ignore[arg-type]


def video_job(**options: object) -> TrainingJob:
    return job_of(t2v(layers=4), t2v_items(3, seed=3), Parallel(pp=2), overlap=overlap(pipeline=True), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [vision_job, video_job])
def test_candidates_are_what_the_whole_chunk_costs(make: object) -> None:
    job = make()  # type: ignore[operator]
    plan = candidate_variants(job, partition(job).plan())
    assert all(1 <= len(own) <= 10 for own in plan.variants)
    built = build_problem(prepare(job, plan=plan))
    problem = built.problem
    assert problem.forward_s.shape[1] > 2
    for pair in range(0, problem.num_pairs, 5):
        for column in (0, int(problem.num_candidates[pair]) - 1):
            variant = int(built.variant[pair, column])
            chunk = int(built.costs.chunk[pair])
            alone = plan.variants[chunk][variant]
            variants = tuple((alone,) if c == chunk else own[:1] for c, own in enumerate(plan.variants))
            costs = prepare(job, plan=replace(plan, variants=variants)).pair_costs()
            assert costs.forward_s[pair, 0] == problem.forward_s[pair, column]
            assert costs.backward_s[pair, 0] == problem.backward_s[pair, column]
            assert costs.held_bytes[pair, 0] == problem.held_bytes[pair, column]


def test_strategies_of_ones_own() -> None:
    job = vision_job()
    plan = candidate_variants(job, partition(job).plan(), strategies=("none", "full"), most=3)
    words = {word for own in plan.variants for variant in own for word in variant}
    assert words <= {"none", "full"}
    assert max(map(len, plan.variants)) <= 3
    assert set(STRATEGIES) == {"none", "selective", "full", "offload"}


def test_a_limit_beyond_the_device() -> None:
    job = vision_job()
    checkpoint = prepare(job, plan=partition(job).plan())
    for bad in (0, -1, 1 << 60):
        with pytest.raises(ConfigError, match="memory_limit_bytes"):
            build_problem(checkpoint, memory_limit_bytes=bad)
    assert build_problem(checkpoint).problem.num_candidates.max() == 1
