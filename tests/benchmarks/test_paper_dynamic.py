"""Figures 8b to 12 and 14 of benchmarks/paper: their helpers, and, slowly, two of them in small sizes.

``make bench-quick`` runs all of them.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import semu
from benchmarks.paper import fig08b, fig14
from benchmarks.paper._images import RARE, BoundedImages, InTurn, mean_images, wave_bounds
from benchmarks.paper._jobs import baseline, job_of, planning_batches
from benchmarks.paper._memory import Steps, fluctuation, swing, thinned
from benchmarks.paper._results import PaperResult
from benchmarks.paper.choices import CHOICES
from benchmarks.paper.fig09 import Size, tiny_loss
from benchmarks.paper.fig11 import Run
from benchmarks.paper.fig12 import Point, exponent
from semu.errors import ConfigError
from semu.searcher.job_search import job_problem
from semu.searcher.orders.levels import search_levels
from semu.searcher.orders.loop import Budget
from semu.searcher.plain_jobs import plain_job
from semu.searcher.problem.build import build_problem

NAMES = ("fig08b", "fig14")


# -- images ------------------------------------------------------------------------------------------------------------


def test_two_equal_waves_rise_in_five_iterations_and_fall_to_zero_in_fifteen() -> None:
    bounds = wave_bounds()
    assert len(bounds) == 40
    assert bounds[:20] == bounds[20:]
    assert bounds[:5] == [(0, 32), (4, 32), (8, 32), (12, 32), (16, 32)]
    lower, upper = zip(*bounds[4:20], strict=True)
    assert list(lower) == sorted(lower, reverse=True)
    assert list(upper) == sorted(upper, reverse=True)
    assert bounds[19] == (0, 0)
    assert all(low <= high for low, high in bounds)


@pytest.mark.parametrize(("lower", "upper"), [(16, 32), (4, 9), (1, 2), (0, 0)])
def test_sequences_keep_the_bounds_and_the_first_ones_do_not_depend_on_how_many(lower: int, upper: int) -> None:
    batch = BoundedImages(semu.workload.vlm_batch(seed=3), lower, upper)
    found = batch.microbatches(12, 1)
    assert all(lower <= len(item.lengths["vision"]) <= upper for item in found)
    assert all(item.tokens("text") <= 8192 for item in found)
    assert batch.microbatches(5, 1) == found[:5]
    assert mean_images(batch, 12) == sum(len(item.lengths["vision"]) for item in found) / 12
    assert (batch.drawn.images_mean is None) == (lower + upper >= 2 * RARE)


def test_at_the_top_of_a_wave_there_are_about_22_images() -> None:
    """DIP §7.2 prints the average; the bounds alone would allow 16 to 32."""
    batches = [BoundedImages(semu.workload.vlm_batch(seed=seed), 16, 32) for seed in range(20)]
    assert np.mean([mean_images(batch, 64) for batch in batches]) == pytest.approx(22, rel=0.1)


def test_bounds_that_are_none_and_that_nothing_keeps_are_refused() -> None:
    with pytest.raises(ConfigError, match="not bounds"):
        BoundedImages(semu.workload.vlm_batch(), 5, 4)
    few = semu.workload.vlm_batch(images_max=8)
    with pytest.raises(ConfigError, match="hardly any"):
        BoundedImages(few, 40, 48).microbatches(600, 1)


def test_batches_in_turn_are_the_batches_behind_one_another() -> None:
    own = tuple(semu.workload.vlm_batch(seed=seed) for seed in range(3))
    batch = InTurn(own, 4)
    expected = [item for one in own for item in one.microbatches(4, 1)]
    assert batch.microbatches(12, 1) == expected
    assert batch.microbatches(6, 1) == expected[:6]
    with pytest.raises(ConfigError, match="too few"):
        batch.microbatches(13, 1)


# -- memory ------------------------------------------------------------------------------------------------------------


def steps(times: list[float], values: list[float]) -> Steps:
    return Steps(np.array(times), np.array(values))


def test_fluctuation_of_a_square_wave_is_half_its_height_and_of_a_constant_none() -> None:
    square = steps([0, 1, 2, 3], [10, 16, 10, 16])
    assert fluctuation(square, 0, 4) == pytest.approx(3)
    assert swing(square, 0, 4) == 6
    assert fluctuation(square, 1, 2) == 0
    assert swing(square, 1, 2) == 0
    # a quarter of the time high: sqrt(p (1 - p)) of the height
    assert fluctuation(steps([0, 3], [0, 8]), 0, 4) == pytest.approx(8 * math.sqrt(3 / 16))
    assert fluctuation(steps([0], [5]), 2, 3) == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 50)), min_size=1, max_size=12),
    st.integers(0, 6),
    st.integers(7, 14),
)
def test_fluctuation_and_swing_are_those_of_the_curve_sampled_in_every_unit_of_time(
    points: list[tuple[int, int]], start: int, end: int
) -> None:
    times = sorted(time for time, _ in points)
    times[0] = 0
    values = [value for _, value in points]
    sampled = []
    for moment in range(start, end):
        holds = [value for time, value in zip(times, values, strict=True) if time <= moment]
        sampled.append(holds[-1])
    curve = steps([float(time) for time in times], [float(value) for value in values])
    assert fluctuation(curve, start, end) == pytest.approx(float(np.std(sampled)), abs=1e-9)
    assert swing(curve, start, end) == max(sampled) - min(sampled)


def test_a_thinned_curve_keeps_the_highest_value_of_every_column() -> None:
    curve = steps([0.0, 1.0, 1.01, 2.0, 3.9], [1, 9, 2, 3, 7])
    times, values = thinned(curve, 4.0, 4)
    assert times.tolist() == [0, 1, 2, 3]
    assert values.tolist() == [1, 9, 3, 7]


# -- figures -----------------------------------------------------------------------------------------------------------


def test_gap_and_loss_of_sub_microbatch_sizes() -> None:
    sizes = [
        Size(4, 11.0, 12.0, 10.5),
        Size(6, 11.5, 13.0, 11.0),
        Size(12, 10.0, 15.0, 9.0),
        Size(32, 20.0, 21.0, 20.0),
    ]
    assert sizes[2].gap == pytest.approx(50)
    assert tiny_loss(sizes) == pytest.approx(15)  # the slower of 4 and 6 over 12


def test_a_search_is_read_at_any_time() -> None:
    run = Run("mcts", 0, np.array([0.1, 1.0, 5.0]), np.array([9.0, 7.0, 6.0]))
    np.testing.assert_array_equal(run.at(np.array([0.05, 0.1, 2.0, 9.0])), [np.nan, 9.0, 7.0, 6.0])
    assert run.reached_s(7.0) == 1.0
    assert run.reached_s(8.0) == 1.0
    assert run.reached_s(5.0) is None
    assert run.best_s == 6.0


def test_the_factor_per_microbatch_is_that_of_exponentials_of_two_setups() -> None:
    times = {"vlm-s": 0.01, "t2v-s": 0.4}
    points = [Point(name, m, m, 0.1, 1.0, own * 5.0**m, True, 1.0) for name, own in times.items() for m in (1, 2, 4)]
    assert exponent(points) == pytest.approx(5)
    assert exponent(points[:1]) is None


def test_fewer_replicas_leave_each_as_it_is() -> None:
    job = job_of("vlm-xl-8k", CHOICES)
    few = fig14.fewer(job, 2)
    assert few.num_microbatches == job.num_microbatches
    assert few.parallel.num_gpus == 2 * job.parallel.num_gpus // job.parallel.dp
    assert few.cluster.num_gpus == few.parallel.num_gpus


@pytest.mark.slow
def test_the_slowest_replica_is_the_slowest_of_all_searched() -> None:
    job = fig14.fewer(job_of("t2v-xl-3k", CHOICES.changed(microbatches=8)), 4)
    _, built = job_problem(plain_job(job)[0], candidates=2)
    budget = Budget(rollouts=20, workers=1)
    slowest, searched, spread = fig14.slowest_replica(built, budget, 0)
    every = [build_problem(built.checkpoint, replica=number).problem for number in range(4)]
    alone = [search_levels(problem, budget, seed=0).solution.makespan_s for problem in every]
    assert slowest == max(alone)
    assert 1 <= searched <= 4
    assert spread >= 1


@pytest.mark.slow
@pytest.mark.parametrize("merge", CHOICES.merge.alternatives)
def test_larger_patches_leave_169_tokens_and_compute_less(merge: int) -> None:
    job, other = (job_of("vlm-s", choices) for choices in (CHOICES, CHOICES.changed(merge=merge)))
    (one,) = other.batch.microbatches(1, 1)
    assert set(one.lengths["vision"].tolist()) == {169 * merge**2}
    assert set(one.lengths["vision_tokens"].tolist()) == {169}
    assert semu.evaluate(other).iteration_time_s < semu.evaluate(job).iteration_time_s


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PaperResult]:
    out = tmp_path_factory.mktemp("paper")
    return {
        name: importlib.import_module(f"benchmarks.paper.{name}").run(CHOICES, quick=True, out=out) for name in NAMES
    }


def value(result: PaperResult, words: str) -> float:
    """Ours of the only row with these words."""
    (row,) = (row for row in result.rows if words in row.what)
    assert row.ours is not None
    return row.ours


@pytest.mark.slow
def test_scripts_give_rows_pictures_and_words(quick: dict[str, PaperResult]) -> None:
    for name, result in quick.items():
        assert result.name == name
        assert result.text
        assert result.rows
        assert any(row.theirs is not None for row in result.rows)
        for row in result.rows:
            assert row.what
            assert row.ours is None or math.isfinite(row.ours)
        for path in result.pictures:
            assert Path(path).read_bytes().startswith(b"\x89PNG")
        assert PaperResult.from_json(result.to_json(), Path(result.pictures[0]).parent) == result


@pytest.mark.slow
def test_figures_agree_with_what_the_simulator_says_alone(quick: dict[str, PaperResult]) -> None:
    small = job_of("vlm-s", CHOICES)
    batch = fig08b.bounded(small, CHOICES, CHOICES.first_seed.value, fig08b.TOP - 1)
    assert value(quick["fig08b"], "most images") == mean_images(batch, small.num_microbatches)

    for row in (row for row in quick["fig14"].rows if "GPUs" in row.what):
        assert row.ours == row.theirs


@pytest.mark.slow
def test_a_static_choice_of_recomputation_fits_the_workload_it_is_made_for() -> None:
    job = job_of("vlm-s", CHOICES.changed(microbatches=16))
    light = planning_batches(job, CHOICES)[:1]
    heavy = [BoundedImages(semu.workload.vlm_batch(seed=9), 16, 32)]
    few, many = (baseline("megatron", job, CHOICES, workload=workload) for workload in (light, heavy))
    for found, workload in ((few, light), (many, heavy)):
        assert semu.evaluate(replace(found.job, batch=workload[0])).fits
    layers = [found.job.training.recompute_layers or 0 for found in (few, many)]
    assert layers[0] <= layers[1]
