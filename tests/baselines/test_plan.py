"""The static planner against all cuts and all choices, and its numbers against what a simulated job does."""

from __future__ import annotations

from itertools import chain, combinations, pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.jobs import job_of, t2v, t2v_items, vlm, vlm_items

from semu.baselines.costs_of_layers import LayerCosts, layer_costs
from semu.baselines.plan import plan_stages
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.parallel.stage_layers import layer_parts
from semu.simulation import simulate


@st.composite
def layered(draw: st.DrawFn) -> tuple[LayerCosts, list[int], list[float]]:
    """Costs of a few layers, microbatches in flight, limits."""
    modules = draw(st.lists(st.integers(1, 4), min_size=1, max_size=2))
    n, m = sum(modules), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    kept = rng.integers(1, 9, n).astype(float)
    held = rng.integers(1, 9, (n, draw(st.integers(1, 2)), m)).astype(float)
    costs = LayerCosts(
        np.repeat(np.arange(len(modules)), modules),
        np.stack([kept, kept + rng.integers(1, 4, n)]),
        np.stack([held, np.ones_like(held)]),
        rng.integers(1, 6, n).astype(float),
    )
    stages = draw(st.integers(1, min(n, 3)))
    in_flight = [min(m, stages - stage) for stage in range(stages)]
    return costs, in_flight, [float(draw(st.integers(4, 70))) for _ in range(stages)]


def brute_force(costs: LayerCosts, in_flight: list[int], limits: list[float]) -> tuple[float, float] | None:
    """(slowest stage, work of all) of the best plan: every cut, every set of chunks, every row of microbatches."""
    n, found = costs.num_layers, []
    for cut in combinations(range(1, n), len(limits) - 1):
        stages = []
        for (first, last), count, limit in zip(pairwise((0, *cut, n)), in_flight, limits, strict=True):
            own = range(first, last)
            there = sorted({int(costs.module[layer]) for layer in own})
            legal = []
            for again in chain.from_iterable(combinations(there, size) for size in range(len(there) + 1)):
                way = [int(costs.module[layer] in again) for layer in own]
                _, _, replicas, m = costs.held_bytes.shape
                held = max(
                    sum(costs.held_bytes[w, i, r, start : start + count].sum() for w, i in zip(way, own, strict=True))
                    for r in range(replicas)
                    for start in range(m - count + 1)
                )
                working = max((costs.held_bytes[0, i].max() for w, i in zip(way, own, strict=True) if w), default=0.0)
                if sum(costs.state_bytes[i] for i in own) + held + working <= limit:
                    legal.append(sum(costs.latency_s[w, i] for w, i in zip(way, own, strict=True)))
            stages.append(min(legal, default=np.inf))
        found.append((max(stages), cut, sum(stages)))
    slowest = min(item[0] for item in found)
    return None if np.isinf(slowest) else (slowest, min(item[2] for item in found if item[0] == slowest))


@settings(max_examples=150, deadline=None)
@given(layered())
def test_no_cut_and_choice_is_better(case: tuple[LayerCosts, list[int], list[float]]) -> None:
    costs, in_flight, limits = case
    plan, expected = plan_stages(costs, in_flight, limits), brute_force(*case)
    if expected is None:
        assert plan is None
        return
    assert plan is not None
    assert plan.bounds[0] == 0
    assert plan.bounds[-1] == costs.num_layers
    work = [
        sum(costs.latency_s[int(costs.module[i] in again), i] for i in range(first, last))
        for (first, last), again in zip(pairwise(plan.bounds), plan.recomputed, strict=True)
    ]
    assert (plan.slowest_s, max(work)) == (expected[0], expected[0])
    assert sum(work) == expected[1]
    assert all(need <= limit for need, limit in zip(plan.need_bytes, limits, strict=True))


def jobs(kind: str, recompute: str, **sizes: int) -> TrainingJob:
    model, items = (vlm(), vlm_items(4, empty=[2])) if kind == "vlm" else (t2v(), t2v_items(4))
    return job_of(model, items, Parallel(**sizes), recompute=recompute)  # type: ignore[arg-type]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["vlm", "t2v"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_stage_takes_what_its_layers_take(kind: str, recompute: str) -> None:
    job = jobs(kind, recompute, pp=2, tp=2)
    costs = layer_costs(job, job.batch, 4)
    counts = [len(layer_parts(module)) for module in job.model.modules]
    assert counts == np.bincount(costs.module).tolist()
    for first, second in product(range(1, counts[0]), range(1, counts[1])):
        layout = {"modules": {job.model.modules[0].name: [first, counts[0] - first, 0, 0]}}
        layout["modules"][job.model.modules[1].name] = [0, 0, second, counts[1] - second]
        four = jobs(kind, recompute, pp=4, tp=2, layout=layout)  # type: ignore[arg-type]
        report = simulate(four)
        bounds = (0, first, counts[0], counts[0] + second, sum(counts))
        for rank, (begin, end) in enumerate(pairwise(bounds)):
            taken = sum(stage.end_s - stage.start_s for stage in report.timeline.ranks[rank].stages) / 4
            assert taken == pytest.approx(costs.latency_s[int(recompute == "full"), begin:end].sum(), rel=1e-12)
            assert report.static_memory_bytes[rank] == pytest.approx(costs.state_bytes[begin:end].sum(), rel=1e-3)
            assert report.peak_memory_bytes[rank] > report.static_memory_bytes[rank]
