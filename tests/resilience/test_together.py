"""Unequal pipelines as one job: equal ones are today's job; others against reductions that are timed by hand here."""

from __future__ import annotations

import itertools
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
from semu.graph.operator import Phase
from semu.hardware.kinds import OpKind
from semu.hardware.network.cost import collective_latency
from semu.hardware.network.group import CommGroup
from semu.resilience.templates.composing import Speed
from semu.resilience.templates.planner import Stage
from semu.resilience.templates.template_set import PipelineSet, PipelineTemplate, TemplateSet
from semu.resilience.templates.timed import time_pipeline
from semu.resilience.templates.together import reduce_together, simulate_pipelines


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
        templates.append(PipelineTemplate(Speed(nodes, 0.0, 1.0), stages, 1.0))
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
    timed = time_pipeline(job, templates.module_of, 2, pipelines.pipelines[0].stages, 16)
    (reductions, other) = reduce_together([timed, timed], [1, 1], job.cluster)
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
    where: dict[str, list[int]] = {}
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
    begins: dict[str, set[float]] = {}
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


def walked(
    stage_s: list[tuple[float, float]], send_s: list[tuple[float, float]], microbatches: int
) -> list[list[tuple[float, float]]]:
    """1F1B by hand: (start, end) of all stages of every rank. A rank's compute waits for what it sends.

    Args:
        stage_s: forward and backward of each rank. send_s: from each rank but the last to the next, and back.
    """
    count = len(stage_s)
    orders = []
    for rank in range(count):
        warm = min(count - 1 - rank, microbatches)
        order = [(0, m) for m in range(warm)]
        for m in range(microbatches - warm):
            order += [(0, warm + m), (1, m)]
        orders.append(order + [(1, m) for m in range(microbatches - warm, microbatches)])
    came: dict[tuple[int, int, int], float] = {(0, 0, m): 0.0 for m in range(microbatches)}
    came |= {(count - 1, 1, m): 0.0 for m in range(microbatches)}  # behind its own forward
    free, wire, found = (
        [0.0] * count,
        dict[tuple[int, int], float](),
        [list[tuple[float, float]]() for _ in range(count)],
    )
    while any(orders):
        for rank, order in enumerate(orders):
            while order and (rank, *order[0]) in came:
                back, m = order.pop(0)
                begin = max(free[rank], came[rank, back, m])
                end = free[rank] = begin + stage_s[rank][back]
                found[rank].append((begin, end))
                other = rank - 1 if back else rank + 1
                if 0 <= other < count:
                    sent = max(end, wire.get((rank, other), 0.0)) + send_s[min(rank, other)][back]
                    came[other, back, m] = free[rank] = wire[rank, other] = sent
    return found


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize(
    ("name", "device", "cut"),
    [
        ("lm-7b", "h100", [(12, 4), (6, 2), (14, 2)]),
        ("lm-7b", "h100", [(16, 2), (16, 2)]),  # the walk itself
        ("qwen3-8b", "h200", [(4, 1), (10, 2), (8, 1), (14, 4)]),
    ],
)
def test_stages_of_different_sizes_by_hand(
    name: str, device: str, cut: list[tuple[int, int]], sequence_parallel: bool
) -> None:
    """Stages as long as in pipelines whose stages all have as many GPUs, walked by hand; memory as there; bytes sent
    counted by hand: every GPU that takes gets all of the activation, or its part of the sequence."""
    gpus, microbatches, layers = sum(one for _, one in cut), 9, sum(one for one, _ in cut)
    job = a_job(2, overlaps=False, name=name)
    training = replace(job.training, global_batch=microbatches, seq_len=1024)
    ends = [sum(one for one, _ in cut[: k + 1]) for k in range(len(cut))]
    stages = tuple(Stage(end - size, end, on) for end, (size, on) in zip(ends, cut, strict=True))
    reports = {}
    for on in {one for _, one in cut}:
        layout = semu.PipelineLayout(layers=tuple(one for one, _ in cut))
        parallel = semu.Parallel(pp=len(cut), tp=on, zero=0, layout=layout, sequence_parallel=sequence_parallel)
        cluster = semu.Cluster(device, nodes=1, gpus_per_node=on * len(cut))
        alike = semu.TrainingJob(job.model, cluster, parallel, replace(training, schedule="1f1b"))
        reports[on] = semu.simulate(alike)
    cluster = semu.Cluster(device, nodes=1, gpus_per_node=gpus)
    parallel = semu.Parallel(dp=gpus, zero=0, sequence_parallel=sequence_parallel)
    own = semu.TrainingJob(job.model, cluster, parallel, replace(training, global_batch=microbatches * gpus))
    timed = time_pipeline(own, np.zeros(layers, dtype=np.int64), 1, stages, microbatches)
    found = timed.report(timed.iterations())
    profile, hidden = cluster.profile, 4096

    def send_s(source: int, target: int) -> float:
        whole = 2 * 1024 * hidden
        each = -(-whole // target) if sequence_parallel else whole
        busiest = max(each, -(-each * target // source))
        return collective_latency(profile, OpKind.P2P, CommGroup("pp", 2, 1), busiest)

    stage_s = []
    for rank, (_, on) in enumerate(cut):
        pieces = reports[on].timeline.ranks[rank].stages
        by_phase = {piece.phase: piece.end_s - piece.start_s for piece in pieces}
        stage_s.append((by_phase[Phase.FORWARD], by_phase[Phase.BACKWARD]))
    sends = [(send_s(a, b), send_s(b, a)) for (_, a), (_, b) in itertools.pairwise(cut)]
    expected = walked(stage_s, sends, microbatches)
    for rank, of_rank in enumerate(expected):
        seen = sorted((piece.start_s, piece.end_s) for piece in found.timeline.ranks[rank].stages)
        assert [end for pair in seen for end in pair] == pytest.approx([t for pair in of_rank for t in pair], rel=1e-6)
        on = cut[rank][1]
        assert found.static_memory_bytes[rank] == reports[on].static_memory_bytes[rank]
        # what has arrived and is not yet read differs by when neighbours send
        assert found.peak_memory_bytes[rank] == pytest.approx(reports[on].peak_memory_bytes[rank], rel=1e-3)
        assert found.memory[rank].optimizer == reports[on].memory[rank].optimizer
    busy = sum(on * (end - begin) for (_, on), of_rank in zip(cut, expected, strict=True) for begin, end in of_rank)
    assert found.bubble_ratio == pytest.approx(1 - busy / (gpus * found.makespan_s), rel=1e-6)
    peak = profile.peak_flop_per_s(semu.DType.BF16) * gpus * found.iteration_time_s
    assert found.mfu == pytest.approx(next(iter(reports.values())).model_flop / peak, rel=1e-9)
    assert found.num_gpus == gpus


def test_pipelines_with_stages_of_different_sizes_together() -> None:
    """Beside a pipeline of equal stages: every layer in as many shards as its holders' sizes have in common, as long as
    all-reduces of their bytes; all ranks end together; the same bytes each time."""
    job = a_job(2, 4, overlaps=False)
    templates, pipelines = a_set(job, 32, ([16, 16], 2, 8), ([16, 16], 2, 8))
    stages = (Stage(0, 18, 2), Stage(18, 25, 1), Stage(25, 32, 1))
    odd = replace(pipelines.pipelines[0], stages=stages)
    pair = replace(pipelines, pipelines=(odd, pipelines.pipelines[1]))
    found, again = simulate_pipelines(templates, pair), simulate_pipelines(templates, pair)
    assert found.to_json() == again.to_json() and found.gpus == 8
    group = CommGroup("dp", 2, 2)
    each: dict[int, int] = {}
    for path, parameter in job.model.named_parameters():
        words = f".{path}".split(".layers.")
        if len(words) == 2:
            layer = int(words[1].split(".")[0])
            each[layer] = each.get(layer, 0) + 4 * math.prod(parameter.shape)
    pieces = {
        piece.name: piece
        for rank in found.pipelines[0].report.timeline.ranks
        for piece in rank.outer
        if piece.stream == "dp"
    }
    for layer, size in each.items():
        piece = next(piece for name, piece in pieces.items() if name.endswith(f"layers.{layer}"))
        turns = 1 if layer < 18 else 2
        lasts = turns * collective_latency(job.cluster.profile, OpKind.ALL_REDUCE, group, size // 2)
        assert piece.end_s - piece.start_s == pytest.approx(lasts, rel=2e-2)
    assert found.pipelines[0].report.iteration_time_s == found.iteration_time_s
    assert "stages of 2-1-1 GPUs" in found.pipelines[0].report.title
    assert [rank.gpu for rank in found.timeline().ranks] == [0, 2, 3, 4, 6]


def test_templates_of_unequal_stages_are_timed_by_the_engine() -> None:
    """Stages of equal size as ``evaluate`` has them, bit for bit; others as their report has them."""
    job = semu.TrainingJob(
        semu_models.lm_7b(),
        semu.Cluster("h100", nodes=2, gpus_per_node=4),
        semu.Parallel(tp=4, pp=2, zero=0),
        semu.Training(global_batch=32, seq_len=2048, recompute="full"),
    )
    modules = np.zeros(32, dtype=np.int64)
    equal = time_pipeline(job, modules, 1, (Stage(0, 16, 2), Stage(16, 32, 2)), 16)
    parallel = semu.Parallel(tp=2, pp=2, zero=0, layout=semu.PipelineLayout(layers=(16, 16)))
    alone = semu.evaluate(
        replace(
            job,
            cluster=replace(job.cluster, nodes=1),
            parallel=parallel,
            training=replace(job.training, global_batch=16, schedule="1f1b"),
        )
    )
    assert equal.alone_s() == alone.iteration_time_s  # stages of equal size: bit for bit
    mixed = time_pipeline(job, modules, 1, (Stage(0, 16, 2), Stage(16, 24, 1), Stage(24, 32, 1)), 16)
    time_s = mixed.alone_s()
    assert time_s is not None and time_s == mixed.report(mixed.iterations()).iteration_time_s


def test_a_set_fits_where_each_of_its_kinds_does() -> None:
    """Weights, gradients and Adam's states of 7e9 parameters, 16 bytes each, need two of 80 GB and no less."""
    found = simulate_pipelines(*a_set(a_job(3), 32, ([16, 16], 1, 16), ([32], 1, 16)))
    fits = {len(one.template.stages): one.report.fits for one in found.pipelines}
    assert fits == {1: False, 2: True}
    assert not found.fits


@pytest.mark.slow
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
