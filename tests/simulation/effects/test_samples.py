"""Jitter: samples of the iteration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from simulation.jobs import gpt, job_of, overlap, text_items, wide

import semu.simulation.effects.noise as samples_module
from semu.errors import ConfigError
from semu.job import TrainingJob
from semu.parallel.config import Parallel
from semu.present.report import IterationSamples
from semu.simulation import prepare, simulate
from semu.simulation.effects.noise import stage_factors

LAYOUTS = [
    Parallel(),
    Parallel(pp=3),
    Parallel(dp=2, pp=2),
    Parallel(dp=3, zero=1),
    Parallel(dp=2, tp=2, pp=2, zero=1),
]


def job(parallel: Parallel, jitter: float, **options: Any) -> TrainingJob:
    return job_of(gpt(), text_items(4 * parallel.dp), parallel, jitter=jitter, **options)


def drawn(job: TrainingJob, count: int, seed: int = 0) -> IterationSamples:
    found = simulate(job, samples=count, seed=seed).samples
    assert found is not None
    return found


@pytest.mark.parametrize("hidden", [False, True], ids=["waits", "overlaps"])
@pytest.mark.parametrize("parallel", LAYOUTS, ids=Parallel.label)
def test_without_jitter_every_sample_is_the_iteration(parallel: Parallel, hidden: bool) -> None:
    chosen = overlap(pipeline=hidden, gradients=hidden, parameters=hidden)
    plain = job(parallel, 0.0, overlap=chosen, overhead_s=0.001)
    found = simulate(plain, samples=5)
    assert found.samples is not None
    assert found.samples.p50_s == found.samples.p95_s == found.iteration_time_s == simulate(plain).iteration_time_s


def test_without_jitter_where_stages_wait_for_parameters() -> None:
    parallel = Parallel(dp=2, pp=2, zero=1)
    plain = job_of(wide(), text_items(4), parallel, overlap=overlap(parameters=True, gradients=True))
    found = simulate(plain, samples=3)
    assert found.samples is not None
    assert found.samples.p50_s == found.samples.p95_s == found.iteration_time_s


@pytest.mark.parametrize("parallel", LAYOUTS, ids=Parallel.label)
def test_the_rest_of_the_report_does_not_change(parallel: Parallel) -> None:
    plain, with_samples = simulate(job(parallel, 0.0)), simulate(job(parallel, 0.2), samples=20)
    found = with_samples.samples
    assert found is not None
    assert (found.count, found.jitter, found.seed) == (20, 0.2, 0)
    assert found.p50_s <= found.p95_s
    assert with_samples.iteration_time_s == plain.iteration_time_s
    assert with_samples.peak_memory_bytes == plain.peak_memory_bytes
    assert plain.samples is None and "samples" not in plain.to_json()
    document = with_samples.to_json()["samples"]
    assert document == {
        "count": 20,
        "jitter": 0.2,
        "seed": 0,
        "iteration_time_s": {"p50": found.p50_s, "p95": found.p95_s},
    }
    assert "p95" in with_samples.details() and "p95" not in plain.details()
    assert "with jitter" in repr(with_samples) and "with jitter" not in repr(plain)


def test_the_seed_decides() -> None:
    chosen = job(Parallel(dp=2, pp=2), 0.1)
    assert drawn(chosen, 40, 7) == drawn(chosen, 40, 7)
    assert drawn(chosen, 40, 7) != replace(drawn(chosen, 40, 8), seed=7)


@pytest.mark.parametrize("dp", [1, 3])
def test_how_many_are_timed_together_does_not_matter(dp: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = job(Parallel(dp=dp, pp=2), 0.3)
    together = drawn(chosen, 31)
    monkeypatch.setattr(samples_module, "_TOGETHER", 1)
    assert drawn(chosen, 31) == together


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_one_rank_is_the_sum_of_its_stages(schedule: str, seed: int) -> None:
    """One rank, one replica: stages one after the other, then the step."""
    chosen = job(Parallel(), 0.25, schedule=schedule)
    report, checkpoint = simulate(chosen), prepare(chosen)
    units = checkpoint.units
    assert units.num_transfers == 0
    rest = report.iteration_time_s - report.makespan_s
    plain = checkpoint.nodes.latency[0]
    factors = stage_factors(np.random.default_rng(seed), (9, 1, units.num_units), 0.25)[:, 0]
    expected = [sum(round(t * f * 2**40) for t, f in zip(plain, row, strict=True)) / 2**40 + rest for row in factors]
    found = drawn(chosen, 9, seed)
    assert found.p50_s == sorted(expected)[4]
    assert found.p95_s == max(expected)


def test_factors_have_mean_one_and_the_deviation_asked_for() -> None:
    factors = stage_factors(np.random.default_rng(0), (400_000,), 0.3)
    assert factors.min() > 0
    assert factors.mean() == pytest.approx(1, abs=0.003)
    assert factors.std() == pytest.approx(0.3, abs=0.003)
    assert (stage_factors(np.random.default_rng(0), (1000,), 0.0) == 1).all()


def test_more_replicas_wait_longer_for_the_slowest() -> None:
    def median(dp: int) -> float:
        chosen = job_of(gpt(), text_items(1) * (4 * dp), Parallel(dp=dp, pp=2), jitter=0.2)
        return drawn(chosen, 60).p50_s / simulate(chosen).iteration_time_s

    assert median(1) < median(4) < median(8)


@pytest.mark.parametrize("parallel", LAYOUTS, ids=Parallel.label)
def test_where_every_gpu_is_a_straggler_all_stages_are_slower(parallel: Parallel) -> None:
    """Transfers and what follows the pipeline take as long as ever."""
    plain = simulate(job(parallel, 0.0))
    found = drawn(job(parallel, 0.0, straggler_share=1, straggler_slowdown=1.5), 5)
    assert found.p50_s == found.p95_s
    assert plain.makespan_s < found.p50_s - (plain.iteration_time_s - plain.makespan_s) <= 1.5000001 * plain.makespan_s
    if parallel == Parallel():
        rest = plain.iteration_time_s - plain.makespan_s
        assert found.p50_s == pytest.approx(1.5 * plain.makespan_s + rest, rel=1e-9)


@pytest.mark.slow
def test_a_straggler_slows_its_rank_throughout_the_iteration() -> None:
    """On one GPU an iteration is usual or slow; of two tensor-parallel GPUs the slower decides: 1 - (1 - q)^2."""
    for parallel, probability in [(Parallel(), 0.2), (Parallel(tp=2), 1 - 0.8**2)]:
        rows = [drawn(job(parallel, 0.0, straggler_share=0.2, straggler_slowdown=2.0), 1, seed) for seed in range(80)]
        usual = simulate(job(parallel, 0.0)).iteration_time_s
        assert len({row.p50_s for row in rows}) == 2
        slow = sum(row.p50_s > usual for row in rows) / len(rows)
        assert slow == pytest.approx(probability, abs=4 * (probability * (1 - probability) / len(rows)) ** 0.5)


def test_stragglers_leave_the_jitter_as_drawn() -> None:
    usual = drawn(job(Parallel(dp=2, pp=2), 0.1), 20)
    assert drawn(job(Parallel(dp=2, pp=2), 0.1, straggler_share=0.5, straggler_slowdown=1.0), 20) == usual
    slower = drawn(job(Parallel(dp=2, pp=2), 0.1, straggler_share=0.5, straggler_slowdown=1.3), 20)
    assert slower.p50_s > usual.p50_s


@pytest.mark.parametrize(
    ("name", "value"), [("straggler_share", -0.1), ("straggler_share", 1.1), ("straggler_slowdown", 0.9)]
)
def test_stragglers_out_of_range(name: str, value: float) -> None:
    with pytest.raises(ConfigError) as caught:
        job(Parallel(), 0.0, **{name: value})
    assert caught.value.where == f"training.{name}"


@pytest.mark.parametrize(("name", "value"), [("samples", -1), ("samples", 1.5), ("samples", True), ("seed", -3)])
def test_refusals(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        simulate(job(Parallel(), 0.1), **{name: value})
    assert caught.value.where == name


def test_samples_of_a_checkpoint_are_those_of_the_job() -> None:
    chosen = job(Parallel(dp=2, pp=2), 0.1)
    found = prepare(chosen).report("1f1b", samples=25, seed=3).samples
    assert found == drawn(chosen, 25, 3)
