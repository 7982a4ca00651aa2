"""A search is never slower than what it is compared with, whatever its seed, its time and its options."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import semu
from semu.baselines import megatron
from semu.cli import main
from semu.errors import ConfigError
from semu.plan.verification.rules import verify
from semu.runfile import load_run
from semu.searcher import starts
from semu.simulation import simulate

SMALL = {"lm-7b": "16", "vlm-s": "8", "t2v-s": "8"}


def job_of(run: str) -> semu.TrainingJob:
    if run == "llama3-70b":
        return load_run(run, cluster="h100:16x8", parallel="tp8-pp4")
    return load_run(run, [f"training.global_batch={SMALL[run]}"])


def check(found: semu.SearchReport) -> None:
    """No slower than both comparisons; the plan verifies, and its simulation gives the time printed."""
    assert found.baseline is not None
    again = simulate(found.job, plan=found.plan)
    assert again.iteration_time_s == found.report.iteration_time_s
    assert found.report.iteration_time_s <= found.baseline.iteration_time_s
    assert found.alike is not None
    assert found.report.iteration_time_s <= found.alike.iteration_time_s <= found.baseline.iteration_time_s
    assert found.report.fits
    assert max(found.alike.peak_memory_bytes) <= found.limit_bytes
    verify(semu.compile_plan(found))
    assert f"{found.baseline.iteration_time_s / again.iteration_time_s:.3f} x Megatron-LM's speed" in repr(found)
    assert "of this cut into stages with these candidates" in " ".join(repr(found).split())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("run", ["llama3-70b", "lm-7b", "vlm-s", "t2v-s"])
@pytest.mark.parametrize(
    "options", [{"rollouts": 0}, pytest.param({"rollouts": 60, "seed": 3}, marks=pytest.mark.slow)], ids=str
)
def test_no_slower_than_the_baseline(run: str, options: dict[str, Any]) -> None:
    check(semu.search(job_of(run), workers=1, **options))


@pytest.mark.parametrize("run", [pytest.param("llama3-70b", marks=pytest.mark.slow), "vlm-s"])
def test_no_slower_where_segments_and_strategies_are_given(run: str) -> None:
    """One segment for every module, layers without recomputation: the cut that lost to Megatron-LM's."""
    job = job_of(run)
    one = {module.name: 1 for module in job.model.modules}
    check(semu.search(job, rollouts=20, seed=7, workers=1, segments=one, candidates=2))


def test_the_baseline_itself_where_nothing_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other start made slower: what is left is Megatron-LM's schedule, at exactly its time."""
    job = job_of("llama3-70b")
    inner = starts.baseline_starts

    def alone(*arguments: Any, **options: Any) -> Any:
        found, alike = inner(*arguments, **options)
        return found[:1], alike

    monkeypatch.setattr("semu.searcher.job_search.baseline_starts", alone)
    found = semu.search(job, rollouts=0, segments={"llm": 1}, workers=1)
    base = megatron(job)
    assert found.report.iteration_time_s == simulate(base.job).iteration_time_s
    assert found.plan.orders is not None
    assert found.plan.orders.orders == base.schedule.orders
    assert "1.000 x Megatron-LM's speed" in repr(found)
    assert found.to_json()["is_as_asked"] is False
    assert "Megatron-LM's cut is faster than the one asked for" in repr(found)
    assert found.changes["parallel.vpp"] == 2
    assert found.partition.modules[0].segments == 2
    check(found)


@pytest.mark.slow
def test_like_for_like_recomputes_as_a_flag_of_its_own_would() -> None:
    """vlm-s recomputes everything with most of its memory free; the like-for-like order is as fast as Megatron-LM
    with the fastest flag that fits, at least."""
    job = job_of("vlm-s")
    found = semu.search(job, rollouts=0, workers=1)
    flags = []
    for word in ("none", "selective", "full"):
        try:
            report = simulate(
                megatron(load_run("vlm-s", [f"training.recompute={word}", "training.global_batch=8"])).job
            )
        except ConfigError:
            continue
        if max(report.peak_memory_bytes) <= found.limit_bytes and report.fits:
            flags.append(report.iteration_time_s)
    assert found.alike is not None
    assert found.alike.iteration_time_s <= 1.02 * min(flags)
    assert found.to_json()["baseline_alike"]["iteration_time_s"] == found.alike.iteration_time_s  # type: ignore[index]


@pytest.mark.parametrize("run", ["llama3-70b", "lm-7b", "vlm-s"])
@pytest.mark.sampled(2)
def test_a_planner_begins_with_no_less(run: str) -> None:
    """Its cut is that with which a search begins; what it plans for its own batch is no slower than Megatron-LM."""
    job = job_of(run)
    with semu.Planner(job, [job.batch], rollouts=0, workers=1) as planner:
        step = next(planner)
    report = simulate(step.job, plan=step.plan)
    assert report.fits
    assert report.iteration_time_s <= megatron(job).evaluate().iteration_time_s


@pytest.mark.parametrize("run", ["mixtral-8x7b", pytest.param("vlm-m", marks=pytest.mark.slow)])
def test_where_nothing_but_a_baseline_fits_it_is_a_start(run: str) -> None:
    """mixtral-8x7b: interleaved 1F1B and all sequences need too much, 1F1B does not. vlm-m without recomputation
    does not fit as it stands; its cut and order do, with the memory strategies."""
    job = load_run(run, ["training.recompute=none"] if run == "vlm-m" else [])
    assert not megatron(job).evaluate().fits
    found = semu.search(job, rollouts=0, workers=1)
    assert found.report.fits and found.alike is not None and found.alike.fits
    assert found.report.iteration_time_s <= found.alike.iteration_time_s
    assert simulate(found.job, plan=found.plan).iteration_time_s == found.report.iteration_time_s
    if found.baseline is not None and found.baseline.fits:
        assert found.report.iteration_time_s <= found.baseline.iteration_time_s
    else:
        assert "(which does not fit)" in repr(found)
    assert found.to_json()["baseline_alike"]["fits"] is True  # type: ignore[index]


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("llama3-70b", "--cluster", "h100:16x8", "--parallel", "tp8-pp4"), marks=pytest.mark.slow),
        ("vlm-s", "--set", "training.global_batch=8"),
        pytest.param(("mixtral-8x7b",), marks=pytest.mark.slow),
        pytest.param(("vlm-s",), marks=pytest.mark.slow),
        pytest.param(("vlm-m",), marks=pytest.mark.slow),
        pytest.param(("gpt3-175b",), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_the_command_never_prints_less(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """What ``semu search --json`` says of the search against every schedule beside it that fits."""
    assert main(["search", *words, "--rollouts", "0", "--workers", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["search"]["fits"] and found["is_as_asked"]
    assert found["iteration_time_s"] == found["search"]["iteration_time_s"]
    compared = [found[name] for name in ("baseline", "baseline_alike", "heuristic") if found[name] is not None]
    assert any(one["fits"] for one in compared)
    for one in compared:
        assert not one["fits"] or found["iteration_time_s"] <= one["iteration_time_s"]


@pytest.mark.slow
def test_what_was_asked_of_a_cut_is_kept_or_said() -> None:
    """Sub-microbatches of four images: the cut asked for, or Megatron-LM's and the sentence."""
    job = job_of("vlm-s")
    name = job.model.modules[0].name
    found = semu.search(job, rollouts=0, workers=1, sub_batch={name: 4})
    module = next(one for one in found.partition.modules if one.name == name)
    assert found.is_as_asked == (module.sub_batch == 4)
    assert ("faster than the one asked for" in repr(found)) == (not found.is_as_asked)


@pytest.mark.slow
@pytest.mark.parametrize("run", ["lm-7b", "vlm-s"])
def test_no_slower_than_an_explored_order(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of those that a search can order; on lm-7b it is faster than what the search finds by itself."""
    job = job_of(run)
    rows = [
        row
        for row in semu.explore_schedules(job).rows
        if row.estimate.fits and {key.phase.value for own in row.stages.schedule.orders for key in own} == {"F", "B"}
    ]
    explored = min(simulate(row.job).iteration_time_s for row in rows if not any(row.stages.shape.chunk_flow))
    found = semu.search(job, rollouts=0, workers=1, explore=True)
    check(found)
    assert found.explored is not None
    assert found.explored.iteration_time_s == explored
    assert found.report.iteration_time_s <= explored
    if run == "lm-7b":
        alone = semu.search(job, rollouts=0, workers=1)
        assert alone.explored is None
        assert explored < alone.report.iteration_time_s
    changed = [f"training.global_batch={SMALL[run]}"]
    options = [word for key in changed for word in ("--set", key)]
    assert (
        main(["search", run, *options, "--rollouts", "0", "--workers", "1", "--explore", "--out", str(tmp_path)]) == 0
    )
    said = capsys.readouterr()
    assert "explored" in said.out
    again = shlex.split(said.err.split("it runs again with", 1)[1])
    assert main(["simulate", run, *options, *[word for word in again if "=" in word or word == "--set"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["iteration_time_s"] == found.report.iteration_time_s


def test_rules_are_explored_for_the_shortest_schedule_only() -> None:
    with pytest.raises(ConfigError, match="shortest"):
        semu.search(job_of("lm-7b"), rollouts=0, objective="max", explore=True)
