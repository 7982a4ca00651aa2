"""Unequal pipelines as one job: equal ones are today's job; others against reductions that are timed by hand here."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import semu
import semu_models
from semu.cli.command import main
from semu.errors import ConfigError
from semu.hardware.kinds import OpKind
from semu.hardware.network.cost import collective_latency
from semu.hardware.network.group import CommGroup
from semu.resilience.templates.composing import Speed
from semu.resilience.templates.making import pipeline_job
from semu.resilience.templates.planner import Stage
from semu.resilience.templates.template_set import PipelineSet, PipelineTemplate, TemplateSet
from semu.resilience.templates.together import reduce_together, simulate_pipelines
from semu.simulation import prepare


def a_job(nodes: int, gpus: int = 1, *, overlaps: bool = True, name: str = "lm-7b") -> semu.TrainingJob:
    return semu.TrainingJob(
        semu_models.build(name),
        semu.Cluster("h100", nodes=nodes, gpus_per_node=gpus),
        semu.Parallel(pp=nodes, tp=gpus, zero=0),
        semu.Training(
            global_batch=32,
            seq_len=2048,
            recompute="full",
            overlap=semu.Overlap(grad_reduce=overlaps),
        ),
    )


def a_set(
    job: semu.TrainingJob, layers: int, *pipelines: tuple[list[int], int, int]
) -> tuple[TemplateSet, PipelineSet]:
    """Pipelines of (layers of each stage, GPUs of a stage, microbatches)."""
    templates = []
    for cut, gpus, _ in pipelines:
        ends = [sum(cut[: k + 1]) for k in range(len(cut))]
        stages = tuple(Stage(end - size, end, gpus) for end, size in zip(ends, cut, strict=True))
        nodes = -(-len(cut) * gpus // job.cluster.gpus_per_node)
        templates.append(PipelineTemplate(Speed(nodes, 0.0, 1.0), stages, 1.0, True))
    kinds = sorted(set(templates), key=lambda one: one.nodes)
    found = TemplateSet(
        "by hand", job, 1, job.cluster.nodes, tuple(kinds), np.ones(layers), 1.0, np.zeros(layers, dtype=np.int64)
    )
    return found, PipelineSet(tuple(templates), tuple(m for _, _, m in pipelines), 0.0)


@pytest.mark.parametrize("overlaps", [True, False])
def test_equal_pipelines_are_replicas(overlaps: bool) -> None:
    """Bit for bit the job with two replicas, whose ranks are numbered pipeline after pipeline."""
    job = a_job(4, overlaps=overlaps)
    found = simulate_pipelines(*a_set(job, 32, ([16, 16], 1, 16), ([16, 16], 1, 16)))
    layout = semu.PipelineLayout(layers=(16, 16))
    parallel = semu.Parallel(dp=2, pp=2, zero=0, layout=layout, rank_order="tp-cp-pp-dp")
    report = semu.simulate(replace(job, parallel=parallel, training=replace(job.training, schedule="1f1b")))
    assert found.iteration_time_s == report.iteration_time_s and found.mfu == report.mfu
    mine, theirs = found.pipelines[0].report, report
    assert mine.peak_memory_bytes == theirs.peak_memory_bytes and mine.breakdown_s == theirs.breakdown_s
    for one, other in zip(mine.timeline.ranks, theirs.timeline.ranks, strict=True):
        assert [(piece.label, piece.start_s, piece.end_s) for piece in one.stages] == [
            (piece.label, piece.start_s, piece.end_s) for piece in other.stages
        ]
        assert one.outer == other.outer


@pytest.mark.parametrize("overlaps", [True, False])
def test_the_way_of_unequal_ones_comes_near_it(overlaps: bool) -> None:
    """Two equal pipelines reduced layer by layer end as late as those reduced by buckets, but for their latencies."""
    job = a_job(4, overlaps=overlaps)
    templates, pipelines = a_set(job, 32, ([16, 16], 1, 16), ([16, 16], 1, 16))
    one = pipeline_job(job, templates.module_of, 2, pipelines.pipelines[0].stages, 16)
    timed = prepare(one).timed()
    (reductions, other) = reduce_together([timed, timed], [1, 1], 1)
    assert reductions.end_s == other.end_s
    whole = simulate_pipelines(templates, pipelines).pipelines[0].report.timeline
    ends = [max(piece.end_s for piece in rank.outer if piece.stream == "dp") for rank in whole.ranks]
    assert [max(own.end_s) for own in reductions.by_rank] == pytest.approx(ends, rel=0.01)


def expected_ends(job: semu.TrainingJob, pipelines: list[tuple[list[int], int, int]]) -> tuple[list[float], list[Any]]:
    """Ends of the gradients of every layer where nothing overlaps, by hand: a layer may go when all ranks that hold it
    are done; of those that may the first in time goes first; a rank does one after another."""
    reports = []
    for cut, gpus, microbatches in pipelines:
        parallel = semu.Parallel(pp=len(cut), tp=gpus, zero=0, layout=semu.PipelineLayout(layers=tuple(cut)))
        training = replace(job.training, global_batch=microbatches, schedule="1f1b")
        nodes = -(-len(cut) * gpus // job.cluster.gpus_per_node)
        cluster = replace(job.cluster, nodes=nodes)
        reports.append(semu.simulate(replace(job, cluster=cluster, parallel=parallel, training=training)))
    done = [[max(stage.end_s for stage in rank.stages) for rank in report.timeline.ranks] for report in reports]
    sizes: dict[str, int] = {}
    order: list[str] = []
    for path, parameter in job.model.named_parameters():
        words = path.split(".")
        layer = ".".join(words[: words.index("layers") + 2] if "layers" in words else words[:2])
        sizes[layer] = sizes.get(layer, 0) + math.prod(parameter.shape)
        if layer not in order:
            order.append(layer)
    layers = [name for name in order if "layers" in name]
    first, last = order[: order.index(layers[0])], order[order.index(layers[-1]) + 1 :]
    where = {}
    for name in order:
        index = 0 if name in first else len(layers) - 1 if name in last else layers.index(name)
        where[name] = []
        for cut, _, _ in pipelines:
            stage, left = 0, index
            while left >= cut[stage]:
                left -= cut[stage]
                stage += 1
            where[name].append(stage)
    shards = math.lcm(*(gpus for _, gpus, _ in pipelines))
    ready = {name: max(done[k][stage] for k, stage in enumerate(where[name])) for name in order}
    free: dict[tuple[int, int], float] = {}
    group = CommGroup("dp", len(pipelines), len(pipelines))
    ends: dict[str, float] = {}
    while len(ends) < len(order):
        begins = {
            name: max(ready[name], *(free.get((k, stage), 0.0) for k, stage in enumerate(where[name])))
            for name in order
            if name not in ends
        }
        name = min(begins, key=lambda name: (begins[name], ready[name], name))
        wire = Fraction(2 * (len(pipelines) - 1), len(pipelines)) * Fraction(4 * sizes[name], shards)
        turns = shards // min(gpus for _, gpus, _ in pipelines)
        seconds = turns * collective_latency(job.cluster.profile, OpKind.ALL_REDUCE, group, int(wire))
        for k, stage in enumerate(where[name]):
            free[k, stage] = begins[name] + seconds
        ends[name] = begins[name] + seconds
    return sorted(ends.values()), reports


@pytest.mark.parametrize(
    "pipelines",
    [
        [([11, 11, 10], 1, 20), ([16, 16], 1, 12)],
        [([8, 8, 8, 8], 1, 18), ([20, 12], 1, 8), ([11, 11, 10], 1, 6)],
    ],
)
def test_unequal_pipelines_by_hand(pipelines: list[tuple[list[int], int, int]]) -> None:
    job = a_job(sum(len(cut) for cut, _, _ in pipelines), overlaps=False)
    found = simulate_pipelines(*a_set(job, 32, *pipelines))
    ends, reports = expected_ends(job, pipelines)
    seen = {
        piece.name: piece.end_s
        for one in found.pipelines
        for rank in one.report.timeline.ranks
        for piece in rank.outer
        if piece.stream == "dp"
    }
    assert sorted(seen.values()) == pytest.approx(ends, rel=1e-4)
    for one, alone in zip(found.pipelines, reports, strict=True):
        assert one.report.makespan_s == alone.makespan_s
        assert one.report.peak_memory_bytes == alone.peak_memory_bytes
        step = alone.iteration_time_s - alone.makespan_s
        assert one.report.iteration_time_s == pytest.approx(max(ends) + step, rel=1e-3)
    assert found.iteration_time_s == max(one.report.iteration_time_s for one in found.pipelines)
    flop = sum(report.model_flop for report in reports)
    peak = job.cluster.profile.peak_flop_per_s(semu.DType.BF16) * found.gpus * found.iteration_time_s
    assert found.mfu == pytest.approx(flop / peak, rel=1e-6)


def test_gradients_hide_behind_backwards() -> None:
    """Overlapped, layers go while others still run, never before all holders have ended their last backward."""
    cuts = [([11, 11, 10], 1, 20), ([16, 16], 1, 12)]
    late, early = (simulate_pipelines(*a_set(a_job(5, overlaps=overlaps), 32, *cuts)) for overlaps in (False, True))
    assert early.iteration_time_s < late.iteration_time_s
    begins = {}
    for one in early.pipelines:
        for rank in one.report.timeline.ranks:
            for piece in rank.outer:
                if piece.stream == "dp":
                    begins.setdefault(piece.name, set()).add(piece.start_s)
                    last = max(stage.start_s for stage in rank.stages)
                    assert piece.start_s > last
    assert all(len(times) == 1 for times in begins.values())  # every holder at once


def test_tensor_parallel_sizes_of_their_own() -> None:
    """Two GPUs a stage beside one: the layers of the second are reduced in two shards, one after the other."""
    job = a_job(3, 2, overlaps=False)
    pipelines = [([16, 16], 2, 8), ([16, 16], 1, 4)]
    found = simulate_pipelines(*a_set(job, 32, *pipelines))
    names = {piece.name for piece in found.pipelines[0].report.timeline.ranks[0].outer if piece.stream == "dp"}
    layer = next(name for name in sorted(names) if "layers.3" in name)
    (piece,) = [p for p in found.pipelines[1].report.timeline.ranks[0].outer if p.name == layer and p.stream == "dp"]
    shard = (
        4 * sum(math.prod(one.shape) for path, one in job.model.named_parameters() if ".layers.3." in f".{path}.") // 2
    )
    group = CommGroup("dp", 2, 2)
    each = collective_latency(job.cluster.profile, OpKind.ALL_REDUCE, group, shard)
    assert piece.end_s - piece.start_s == pytest.approx(2 * each, rel=2e-2)


def test_stages_of_different_sizes_are_refused() -> None:
    job = a_job(2, 2)
    templates, pipelines = a_set(job, 32, ([16, 16], 1, 4))
    stages = (Stage(0, 16, 2), Stage(16, 32, 1))
    odd = replace(pipelines.pipelines[0], stages=stages)
    with pytest.raises(ConfigError, match="stages of 1 and 2 GPUs"):
        simulate_pipelines(templates, replace(pipelines, pipelines=(odd,)))


def test_the_command_and_another_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["gpt2-xl", "--cluster", "a40:5x1", "--parallel", "pp5", "--set", "parallel.zero=0"]
    more = ["--set", "training.recompute=full", "--set", "training.global_batch=16", "--set", "training.seq_len=1024"]
    code = main(["templates", *words, *more, "--nodes", "5", "--out", str(tmp_path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    together = found["simulated"]
    assert json.loads((tmp_path / "templates.json").read_text())["simulated"] == together
    assert together["gpus"] == 5 and 0 < together["mfu"] < 1 and together["fits"]
    assert sum(one["pipelines"] * one["nodes"] for one in together["pipelines"]) == 5
    slowest = max(one["makespan_s"] for one in together["pipelines"])
    assert together["iteration_time_s"] == pytest.approx(slowest + together["reduction_s"])
    assert (tmp_path / "iteration.png").read_bytes().startswith(b"\x89PNG")
    job = semu.load_run("lm-7b", ["parallel.zero=0", "training.recompute=full"], cluster="h100:5x1", parallel="pp5")
    templates = semu.pipeline_templates(job, faults=1)
    assert "simulated together" in repr(semu.simulate_pipelines(templates, templates.compose(5)))
