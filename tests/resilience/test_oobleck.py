"""Templates of a job, the guarantee by enumeration, Oobleck's long runs counted by hand."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semu
import semu_models
from semu.cli.command import main
from semu.errors import ConfigError, MemoryLimitError
from semu.resilience import long_run
from semu.resilience.job_figures import JobFigures
from semu.resilience.long_run import situation_of
from semu.resilience.options import CheckpointOptions, Resilience
from semu.resilience.strategies.checkpoint_restart import CheckpointRestart
from semu.resilience.strategies.oobleck import Oobleck
from semu.resilience.strategies.oobleck_checkpoint import OobleckCheckpoint
from semu.resilience.templates.composing import Speed
from semu.resilience.templates.cover import sizes
from semu.resilience.templates.holding import lost_layers, reassign
from semu.resilience.templates.planner import Stage
from semu.resilience.templates.template_set import PipelineTemplate, TemplateSet
from semu.resilience.templates.together import iteration_s

LAYERS = 12

OFTEN = CheckpointOptions(every_s=100.0, save_s=5.0, restart_s=60.0, load_s=7.0)


def small_job(nodes: int = 5, **parallel: Any) -> semu.TrainingJob:
    return semu.TrainingJob(
        semu_models.lm_7b(),
        semu.Cluster("h100", nodes=nodes, gpus_per_node=1),
        semu.Parallel(pp=nodes, **{"zero": 0, **parallel}),
        semu.Training(global_batch=32, seq_len=2048, recompute="full"),
    )


def made_up(nodes: int, faults: int, smallest: int) -> TemplateSet:
    """Templates of a node a stage and even cuts of twelve layers."""
    templates = []
    for size in sizes(smallest, faults, nodes, LAYERS):
        ends = [round(k * LAYERS / size) for k in range(size + 1)]
        stages = tuple(Stage(first, last, 1) for first, last in itertools.pairwise(ends))
        templates.append(PipelineTemplate(Speed(size, 1.0, 1.0 / size), stages, 1.0))
    job = small_job()
    job = replace(job, training=replace(job.training, global_batch=64))
    return TemplateSet("made up", job, faults, nodes, tuple(templates), np.ones(LAYERS), 1.0)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("faults", [0, 1, 2, 3])
def test_guarantee(faults: int) -> None:
    """N <= 12, f <= 3: every set of up to f failures, at once and one after another, leaves every layer, all nodes in
    use and f + 1 pipelines while (f + 1) n0 nodes are left."""
    for smallest in range(1, 5):
        for nodes in range((faults + 1) * smallest, 13):
            found = made_up(nodes, faults, smallest)
            first = dict(enumerate(found.compose(nodes).places(1)))
            for count in range(1, faults + 1):
                for lost in itertools.combinations(range(nodes), count):
                    for at_once in (True, False):
                        held = first
                        for group in [lost] if at_once else [(one,) for one in lost]:
                            held = {node: layers for node, layers in held.items() if node not in group}
                            assert lost_layers(held, LAYERS) == []
                            if len(held) < found.fewest_nodes:
                                continue
                            pipelines = found.compose(len(held))
                            assert pipelines.nodes == len(held) and len(pipelines.pipelines) > faults
                            chosen, _ = reassign(held, pipelines.places(1), found.layer_bytes)
                            held = dict(zip(chosen, pipelines.places(1), strict=True))
                            for layer in range(LAYERS):
                                assert sum(layer in layers for layers in held.values()) > faults


@pytest.fixture(scope="module")
def templates() -> TemplateSet:
    return semu.pipeline_templates(small_job(), faults=1)


def test_templates_are_the_engines(templates: TemplateSet) -> None:
    """Every template's time is what ``evaluate`` gives for its cut; no cut of even layers is faster."""
    job = small_job()
    layers = len(templates.layer_bytes)
    assert [one.nodes for one in templates.templates] == [2, 3]
    for one in templates.templates:
        cut = tuple(stage.last - stage.first for stage in one.stages)
        even = [layers // one.nodes + (k < layers % one.nodes) for k in range(one.nodes)]
        times = []
        for layout in (cut, even):
            other = replace(
                job,
                cluster=replace(job.cluster, nodes=one.nodes),
                parallel=semu.Parallel(pp=one.nodes, zero=0, layout=semu.PipelineLayout(layers=tuple(layout))),
                training=replace(job.training, global_batch=20),
            )
            found = semu.evaluate(other)
            times.append(found.iteration_time_s)
        assert one.speed.time_s(20) == pytest.approx(times[0], rel=2e-3)
        assert times[0] <= times[1] * (1 + 1e-9)


def test_composition_of_a_job(templates: TemplateSet) -> None:
    composed = templates.compose(5)
    assert sorted(one.nodes for one in composed.pipelines) == [2, 3]
    assert sum(composed.microbatches) == 32
    slow = max(composed.times_s)
    for k, one in enumerate(composed.pipelines):  # a microbatch moved makes it slower
        moved = [m + (1 if j == k else -1) for j, m in enumerate(composed.microbatches)]
        assert max(p.speed.time_s(m) for p, m in zip(composed.pipelines, moved, strict=True)) >= slow
        assert one.places(1) == [frozenset(range(s.first, s.last)) for s in one.stages]
    with pytest.raises(ConfigError, match="faults") as caught:
        templates.compose(3)
    assert caught.value.nearest == 4 and "faults = 0" in str(caught.value)


def test_refused() -> None:
    with pytest.raises(ConfigError, match="takes its part with it") as caught:
        semu.pipeline_templates(small_job(zero=1))
    assert caught.value.where == "parallel.zero" and caught.value.nearest == 0
    with pytest.raises(ConfigError, match="the fewest that fit") as caught:
        semu.pipeline_templates(small_job(), faults=5)
    assert caught.value.nearest == 1
    big = replace(small_job(), model=semu_models.build("gpt3-175b"))
    with pytest.raises(MemoryLimitError):
        semu.pipeline_templates(big)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


WORDS = ("lm-7b", "--cluster", "h100:5x1", "--parallel", "pp5", "--set", "parallel.zero=0")


@pytest.mark.slow
def test_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, found = run(capsys, "templates", *WORDS, "--nodes", "5", "--out", str(tmp_path))
    assert code == 0
    assert sum(one["nodes"] for one in found["composition"]["pipelines"]) == 5
    assert json.loads((tmp_path / "templates.json").read_text())["templates"] == found["templates"]
    for name in ("templates.png", "pipelines.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert run(capsys, "templates", *WORDS, "--nodes", "1")[0] == 2
    assert run(capsys, "templates", *WORDS, "--faults", "-1")[0] == 2
    assert run(capsys, "templates", *WORDS[:-2])[1]["error"]["where"].endswith("parallel.zero")
    assert run(capsys, "templates", "gpt3-175b", *WORDS[1:])[0] == 3


@pytest.mark.parametrize(
    ("more", "code", "where", "nearest"),
    [
        (("--nodes", "3"), 2, "nodes", 4),  # 3 < (f + 1) n0: one failure fewer holds
        (("--nodes", "6"), 2, "nodes", 5),
        (("--faults", "5"), 2, "resilience.faults", 1),
        (("--faults", "-1"), 2, "resilience.faults", None),
        (("--nodes", "5", "--set", "training.global_batch=1"), 2, "training.global_batch", 2),
        (("--set", "training.global_batch=7", "--set", "training.micro_batch=2"), 2, "training.global_batch", None),
        (("--set", "parallel.zero=1"), 2, "parallel.zero", 0),
        (("--set", "parallel.zero=3"), 2, "parallel.zero", 0),
        (("--set", "training.seq_len=1048576", "--set", "training.global_batch=5"), 3, "memory", None),
    ],
)
def test_refusals_of_the_command(
    more: tuple[str, ...], code: int, where: str, nearest: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    got, found = run(capsys, "templates", *WORDS, *more)
    assert got == code
    error = found["error"]
    assert where in error["where"] and error["expected"]
    if nearest is not None:
        assert str(nearest) in f"{error.get('nearest')} {error['expected']}"


@pytest.mark.parametrize("after_s", [0.0, 1.0, 29.999999, 30.0, 30.5, 200.0])
def test_failures_during_a_reconfiguration_and_a_copy(after_s: float, tmp_path: Path) -> None:
    """A second node goes at the same moment, while pipelines are made anew, at the very end of that, while layers are
    copied, later: every microsecond is in an account, nothing else is lost than the iteration in flight."""
    lines = ["1000,4,fail,0", f"{1000 + after_s:.6f},1,fail,0", "2500,1,join,0"]
    found = semu.goodput(
        small_job(), failures=trace(tmp_path / "two.csv", *lines), strategies=("oobleck",), days=4000 / 86400
    )
    (outcome,) = found.strategies[0].outcomes
    assert sum(outcome.gpu_us.values()) == outcome.wall_us * outcome.gpus == 4000 * 10**6 * 5
    assert outcome.failures == 2 and min(outcome.gpu_us.values()) >= 0
    waits = outcome.gpu_us[semu_account("waiting")]
    assert waits > 0  # three nodes are too few for two pipelines of two
    assert outcome.gpu_us[semu_account("reconfigure")] <= 2 * 30 * 10**6 * 4 + 30 * 10**6 * 4


def trace(path: Path, *lines: str) -> str:
    path.write_text("\n".join(("time_s,node,event,notice_s", *lines)) + "\n")
    return str(path)


def test_a_failure_costs_an_iteration_and_a_reconfiguration(templates: TemplateSet, tmp_path: Path) -> None:
    job = small_job()
    path = trace(tmp_path / "one.csv", "1000,2,fail,0")
    report = semu.goodput(job, failures=path, strategies="oobleck", days=4000 / 86400)
    (row,) = report.strategies
    (outcome,) = row.outcomes
    before, after = (semu.simulate_pipelines(templates, templates.compose(nodes)).iteration_time_s for nodes in (5, 4))
    shares = row.shares()
    copy_s = shares[semu_account("copy")] * 4000 * 5 / 4
    assert shares[semu_account("reconfigure")] * 4000 * 5 / 4 == pytest.approx(30.0, abs=1e-4)
    assert 0 <= copy_s < 30
    expected = math.floor(1000 / before) + math.floor((3000 - 30 - copy_s) / after)
    assert abs(outcome.iterations - expected) <= 1
    assert shares[semu_account("lost")] * 4000 * 5 == pytest.approx(5 * (1000 % before), rel=1e-2)
    assert outcome.from_start == 0


def test_long_runs_take_the_times_of_pipelines_together(
    templates: TemplateSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the engine, not the composition's estimate; beyond so many compositions the estimate, scaled."""
    job = small_job()
    figures = JobFigures.of(job, semu.simulate(job))
    strategy = Oobleck(situation_of(job, figures, Resilience(), 3600.0))
    for nodes in (5, 4):
        composed = templates.compose(nodes)
        together = semu.simulate_pipelines(templates, composed).iteration_time_s
        assert strategy.conduct(nodes).iteration_s == together == iteration_s(templates, composed)
        assert together != composed.iteration_s
    monkeypatch.setattr(long_run, "MOST_TOGETHER", 1)
    few = Oobleck(situation_of(job, figures, Resilience(), 3600.0))
    ratio = few.conduct(5).iteration_s / templates.compose(5).iteration_s
    assert few.conduct(4).iteration_s == pytest.approx(ratio * templates.compose(4).iteration_s)


def semu_account(name: str) -> Any:
    from semu.resilience.accounts import Account

    return Account(name)


def test_all_holders_gone(tmp_path: Path) -> None:
    """Two nodes at once that hold the same layers, with one failure to survive: the checkpoint is all that is left."""
    job = small_job()
    lines = [f"{2000 + (k > 1)},{node},fail,0" for k, node in enumerate(range(4))]
    path = trace(tmp_path / "four.csv", *lines, *(f"{2100},{node},join,0" for node in range(4)))
    found = semu.goodput(
        job, failures=path, strategies=("oobleck", "oobleck-checkpoint"), days=4000 / 86400, checkpoint=OFTEN
    )
    bare, kept = found.strategies
    assert bare.outcomes[0].from_start >= 1
    assert bare.outcomes[0].iterations < kept.outcomes[0].iterations
    assert kept.outcomes[0].saves > 0
    for one in found.strategies:
        assert sum(one.outcomes[0].gpu_us.values()) == one.outcomes[0].wall_us * 5


@pytest.mark.parametrize(("every_s", "expected_s"), [("best", 3600.0), ("2h", 7200.0), (900.0, 900.0)])
def test_saves_to_fall_back_on_are_seldom_unless_said(every_s: Any, expected_s: float) -> None:
    """Of failures every two minutes, whose best interval is far below an hour."""
    job = small_job()
    figures = JobFigures.of(job, semu.simulate(job))
    options = Resilience(checkpoint=CheckpointOptions(every_s=every_s))
    (tier,) = OobleckCheckpoint(situation_of(job, figures, options, 120.0)).tiers()
    assert tier.every_s == expected_s
    assert tier.stall_s <= CheckpointRestart(situation_of(job, figures, options, 120.0)).tiers()[0].stall_s


def test_too_few_nodes_wait(tmp_path: Path) -> None:
    path = trace(tmp_path / "two.csv", "500,0,fail,0", "700,1,fail,0", "1500,0,join,0")
    (row,) = semu.goodput(small_job(), failures=path, strategies="oobleck", days=3000 / 86400).strategies
    assert row.shares()[semu_account("waiting")] == pytest.approx(3 / 5 * 800 / 3000, rel=1e-3)
    assert row.outcomes[0].from_start == 0
    assert row.refusal is None
    refused = semu.goodput(small_job(zero=1), failures=path, strategies="oobleck", days=0.01).strategies[0]
    assert refused.refusal is not None and "parallel.zero" in refused.refusal and refused.goodput == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("microbatches", [6, 8, 16, 64])
def test_templates_do_not_hang_on_the_batch(microbatches: int) -> None:
    """Planned for many microbatches: few of them change no stage sizes that are tried, and reward no slow stage."""
    job = small_job(4)
    job = replace(
        job, cluster=semu.Cluster("h200", nodes=4, gpus_per_node=2), parallel=semu.Parallel(tp=2, pp=4, zero=0)
    )
    found = semu.pipeline_templates(replace(job, training=replace(job.training, global_batch=microbatches)), faults=0)
    assert found.templates[0].nodes == 1
    for one in found.templates:
        layers = [stage.last - stage.first for stage in one.stages]
        assert max(layers) <= 2 * min(layers) + 2
    pace = [one.speed.period_s * one.nodes for one in found.templates]
    assert max(pace) <= 1.3 * min(pace)


def test_a_batch_too_small_for_templates_is_one_strategys_refusal() -> None:
    job = replace(small_job(5), training=replace(small_job(5).training, global_batch=1))
    report = semu.goodput(job, failures="3h", strategies=("checkpoint", "oobleck"), days=0.1, seeds=1)
    checkpoint, oobleck = report.strategies
    assert checkpoint.refusal is None and checkpoint.goodput > 0
    assert oobleck.refusal is not None and "microbatch" in oobleck.refusal
