"""``semu.search``: what the search computes is what the simulation of its schedule gives, and it fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation.jobs import gpt, job_of, overlap, t2v, t2v_items, text_items, vlm, vlm_items
from simulation.multimodal_jobs import items_of, model_of

import semu
from semu.errors import ConfigError, MemoryLimitError, ScheduleError
from semu.graph.operator import Phase
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.schedule.stage_plan import StagePlan
from semu.searcher.problem.build import JobProblem
from semu.searcher.problem.search_problem import Solution
from semu.searcher.report import SearchReport
from semu.simulation import simulate

SENDS_OVERLAP = overlap(pipeline=True)


def vision_job(count: int = 3, **options: object) -> TrainingJob:
    return job_of(vlm(layers=4), vlm_items(count, seed=3), Parallel(pp=2), overlap=SENDS_OVERLAP, **options)  # type: ignore[arg-type]


def video_job(count: int = 3, **options: object) -> TrainingJob:
    return job_of(t2v(layers=4), t2v_items(count, seed=3), Parallel(pp=2), overlap=SENDS_OVERLAP, **options)  # type: ignore[arg-type]


def times_of(report: semu.Report) -> dict[tuple[int, Phase, int], tuple[float, float]]:
    """(chunk, phase, turn within that) -> start and end."""
    found: dict[tuple[int, Phase, int], tuple[float, float]] = {}
    for rank in report.timeline.ranks:
        for stage in rank.stages:
            turn = sum(key[:2] == (stage.chunk, stage.phase) for key in found)
            found[stage.chunk, stage.phase, turn] = stage.start_s, stage.end_s
    return found


def searched_times(built: JobProblem, solution: Solution) -> dict[tuple[int, Phase, int], tuple[float, float]]:
    found: dict[tuple[int, Phase, int], tuple[float, float]] = {}
    for order in solution.orders():
        for stage in order.tolist():
            chunk = int(built.costs.chunk[stage // 2])
            phase = Phase.BACKWARD if stage % 2 else Phase.FORWARD
            turn = sum(key[:2] == (chunk, phase) for key in found)
            found[chunk, phase, turn] = float(solution.start_s[stage]), float(solution.end_s[stage])
    return found


def check(found: SearchReport, dp: int) -> None:
    report = simulate(found.job, plan=found.plan)
    assert report.to_json() == found.report.to_json()
    makespan = report.timeline.makespan_s
    if not found.job.training.overlap.pipeline:  # stages wait for their sends
        assert makespan >= found.solution.makespan_s or dp > 1
    elif dp == 1:
        assert makespan == found.solution.makespan_s
        assert times_of(report) == searched_times(found.problem, found.solution)
    else:
        assert makespan <= found.solution.makespan_s
    assert found.bound <= found.solution.makespan_s
    # Schedules are compared by whole iterations: with waits for sends or several replicas, a longer makespan may win.
    assert report.iteration_time_s <= found.default.iteration_time_s or found.result.objective.value == "max"
    assert max(report.peak_memory_bytes) <= found.limit_bytes
    assert np.all(found.solution.peak_bytes <= found.problem.problem.limit_bytes)


def random_job(random: Random) -> TrainingJob:
    kind = random.choice(["vlm", "t2v", "gpt", "omni"])
    dp, tp, pp = random.choice([(1, 1, 1), (1, 1, 2), (1, 2, 2), (2, 1, 2), (1, 1, 3)])
    m, layers = random.randint(1, 4), random.randint(3, 5)
    count, seed = m * dp, random.randint(0, 999)
    if kind == "vlm":
        empty = [i for i in range(count) if random.random() < random.choice([0.2, 1.0])]
        items, model = vlm_items(count, seed=seed, empty=empty), vlm(layers=layers)
        if random.random() < 0.2:
            model = model.freeze(["vit"])
    elif kind == "t2v":
        items, model = t2v_items(count, seed=seed), t2v(layers=layers)
    elif kind == "omni":
        pp = min(pp, 2)  # of two layers
        items, model = items_of("omni", count, seed=seed), model_of("omni")
    else:
        items, model = text_items(count, seed=seed), gpt(layers=layers)
    return job_of(
        model,
        items,
        Parallel(dp=dp, tp=tp, pp=pp, zero=random.randint(0, 1)),
        overlap=overlap(tensor=random.random() < 0.5, pipeline=random.random() < 0.9, gradients=random.random() < 0.5),
        recompute=random.choice(["none", "full", "selective"]),
    )


@pytest.mark.slow
@settings(max_examples=3, deadline=None)
@given(st.randoms(use_true_random=False))
def test_what_is_searched_is_what_is_simulated(random: Random) -> None:
    job = random_job(random)
    found = semu.search(job, rollouts=random.choice([0, 40]), seed=random.randint(0, 99))
    check(found, job.parallel.dp)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False))
def test_what_is_searched_is_what_is_simulated_many(random: Random) -> None:
    job = random_job(random)
    options = {"strategy": random.choice(["mixed", "mcts", "local", "dfs", "random"]), "seed": random.randint(0, 99)}
    found = semu.search(job, rollouts=random.choice([0, 40, 200]), **options)  # type: ignore[arg-type]
    check(found, job.parallel.dp)
    low = int(max(found.problem.costs.static_bytes))
    limit = low + int(random.uniform(0.3, 1.0) * (max(found.report.peak_memory_bytes) - low))
    try:
        tight = semu.search(job, rollouts=40, memory_limit_bytes=limit)
    except MemoryLimitError as error:
        assert "rank" in str(error)
        return
    check(tight, job.parallel.dp)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", [vision_job, video_job])
def test_a_limit_that_binds(make: object) -> None:
    job = make(4)  # type: ignore[operator]
    free = semu.search(job, rollouts=60)
    check(free, 1)
    static = int(max(free.problem.costs.static_bytes))
    limit = static + int(0.6 * (max(free.report.peak_memory_bytes) - static))
    tight = semu.search(job, rollouts=60, memory_limit_bytes=limit)
    check(tight, 1)
    assert max(tight.report.peak_memory_bytes) <= limit < max(free.report.peak_memory_bytes)
    with pytest.raises(MemoryLimitError, match=r"rank [01]") as caught:
        semu.search(job, rollouts=60, memory_limit_bytes=static + 1)
    assert "missing" in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", [vision_job, video_job])
def test_a_seed_gives_the_same_again(make: object, tmp_path: Path) -> None:
    job = make()  # type: ignore[operator]
    first, second = (semu.search(job, rollouts=64, seed=7, workers=2) for _ in range(2))
    assert first.plan.to_json() == second.plan.to_json()
    assert first.result.is_reproducible
    assert first.solution.makespan_s == second.solution.makespan_s
    path = tmp_path / "schedule.json"
    first.plan.write(path)
    again = simulate(replace(job, training=replace(job.training, schedule_file=str(path))))
    assert again.iteration_time_s == first.report.iteration_time_s
    assert again.peak_memory_bytes == first.report.peak_memory_bytes
    other = make(2)  # type: ignore[operator]
    with pytest.raises(ScheduleError, match="another problem"):
        simulate(replace(other, training=replace(other.training, schedule_file=str(path))))


@pytest.mark.slow
def test_no_budget_is_the_heuristic() -> None:
    job = vision_job()
    for budget in ({"rollouts": 0}, {"time_s": 0.0}):
        found = semu.search(job, **budget)  # type: ignore[arg-type]
        assert found.report.iteration_time_s == found.default.iteration_time_s
        assert found.result.rollouts == 0
    assert semu.search(job, rollouts=200).report.iteration_time_s <= found.report.iteration_time_s


@pytest.mark.slow
def test_a_search_without_a_limit_gives_the_same_again() -> None:
    first, again = (semu.search(vision_job(2), workers=1) for _ in range(2))
    assert first.result.is_reproducible and first.result.ended_by in ("bound", "rollouts")
    assert first.solution.makespan_s == again.solution.makespan_s
    assert first.result.rollouts == again.result.rollouts <= 1024


def test_the_longest_schedule() -> None:
    job = vision_job(4)
    worst, best = (semu.search(job, rollouts=60, objective=goal) for goal in ("max", "min"))
    assert worst.solution.makespan_s > best.solution.makespan_s
    assert worst.result.objective.value == "max"
    check(worst, 1)


def test_the_exact_solver_goes_on() -> None:
    job = vision_job(1)
    plain = semu.search(job, time_s=0.05, strategies=("none",))
    exact = semu.search(job, time_s=0.05, strategies=("none",), exact=True)
    check(exact, 1)
    assert exact.solution.makespan_s <= plain.solution.makespan_s
    assert exact.bound >= plain.bound


@pytest.mark.slow
def test_one_rank_and_no_images() -> None:
    for job in (
        job_of(vlm(), vlm_items(2, seed=1), Parallel(), overlap=SENDS_OVERLAP),
        job_of(vlm(), vlm_items(3, seed=1, empty=(0, 1, 2)), Parallel(pp=2), overlap=SENDS_OVERLAP),
        job_of(t2v(), t2v_items(1), Parallel(pp=3), overlap=SENDS_OVERLAP),
    ):
        check(semu.search(job, rollouts=20), 1)


def test_options_of_the_job_that_go() -> None:
    job = vision_job(recompute="full", recompute_layers=1, recompute_method="block")
    found = semu.search(job, rollouts=8)
    assert found.changes["training.recompute_layers"] is None
    assert found.job.training.recompute_layers is None
    check(found, 1)


@pytest.mark.parametrize(
    "bad",
    [
        {"strategy": "mtcs"},
        {"objective": "best"},
        {"seed": -1},
        {"rollouts": -1},
        {"time_s": float("nan")},
        {"workers": 0},
        {"strategies": ("none", "half")},
        {"strategies": ()},
        {"candidates": 0},
        {"memory_limit_bytes": 0},
        {"exact": True, "objective": "max"},
    ],
)
def test_bad_options_are_named(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        semu.search(vision_job(1), **bad)  # type: ignore[arg-type]


def test_what_this_version_does_not_model() -> None:
    job = job_of(vlm(), vlm_items(4, seed=1), Parallel(dp=2, pp=2, zero=3))
    with pytest.raises(ConfigError, match=r"parallel\.zero"):
        semu.search(job, rollouts=1)


@pytest.mark.slow
def test_a_report_tells_and_saves(tmp_path: Path) -> None:
    lines: list[str] = []
    found = semu.search(vision_job(), rollouts=40, progress=lines.append)
    text = repr(found)
    for word in ("Megatron-LM", "heuristic", "search", "bound", "vit:", "llm:"):
        assert word in text
    assert any(line.startswith("best ") for line in lines)
    document = found.to_json()
    assert document["gap"] == found.gap
    assert document["lower_bound_s"] == found.bound
    files = {path.name for path in found.save(tmp_path)}
    assert files == {"schedule.json", "result.json", "timeline.png", "memory.png", "curve.png", "report.html"}
    assert StagePlan.read(tmp_path / "schedule.json").to_json() == found.plan.to_json()
    assert found.schedule.orders == found.plan.orders.orders  # type: ignore[union-attr]
    first = (tmp_path / "timeline.png").read_bytes()
    found.save(tmp_path)
    assert (tmp_path / "timeline.png").read_bytes() == first
