"""Algorithm 3 of 001 against enumeration under its own formula, and how far its choice is from the best simulated."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from searcher.assignment.jobs import draw_vlm

import semu
from semu.baselines.costs_of_layers import layer_costs
from semu.cli.command import main
from semu.searcher.assignment import configuration
from semu.searcher.assignment.configuration import configurations, entrain, entrain_literal, formula_s
from semu.workload.listed import ListedBatch
from semu.workload.samples import Items, Samples
from semu_models.multimodal.multimodal import make_multimodal
from semu_models.text.language import language_model
from semu_models.text.llama import LlamaConfig
from semu_models.vision.qwen_vision import QwenVisionConfig, qwen_vision_module


@cache
def small_job() -> semu.TrainingJob:
    """Six layers each of an encoder and a language model, on eight GPUs."""
    language = LlamaConfig(layers=6, hidden=1024, ffn=4096, heads=16, kv_heads=4, vocab=32000, head_dim=64)
    vision = qwen_vision_module(QwenVisionConfig(6, 768, 3072, 12, out=1024))
    drawn = draw_vlm(64, 1)
    images = drawn.items["vision"]
    samples = Samples(drawn.text_tokens, {"vision": Items(images.ptr, 4 * images.tokens, images.tokens)})
    items = samples.microbatches(np.arange(17) * 4, 16, 1, False)
    return semu.TrainingJob(
        model=make_multimodal("small", [vision], language_model(language)),
        cluster=semu.Cluster("h100", 1, 8),
        parallel=semu.Parallel(dp=8),
        training=semu.Training(global_batch=16, seq_len=8192),
        batch=ListedBatch(tuple(items), "drawn"),
    )


def layer_times(job: semu.TrainingJob, tp: int, cp: int) -> list[np.ndarray] | None:
    cluster = semu.Cluster("h100", 1, tp * cp)
    try:
        alone = replace(job, cluster=cluster, parallel=semu.Parallel(dp=1, tp=tp, cp=cp))
        costs = layer_costs(alone, job.batch, 8)
    except semu.SemuError:
        return None
    return [costs.latency_s[0, costs.module == number] for number in range(2)]


@pytest.mark.slow
def test_the_first_is_the_best_of_all_splits_sizes_and_cuts():
    """Every whole split of the GPUs that rounds the work, every size, every cut of the layers."""
    job = small_job()
    alone = layer_times(job, 1, 1)
    share = alone[0].sum() / (alone[0].sum() + alone[1].sum())
    best, seen = np.inf, 0
    for dp in (1, 2, 4):
        gpus = 8 // dp
        vision = min(range(1, gpus), key=lambda n: abs(n - share * gpus))
        sizes = [
            [(t, c) for t in (1, 2, 4, 8) for c in range(1, own + 1) if own % (t * c) == 0]
            for own in (vision, gpus - vision)
        ]
        for (tp0, cp0), (tp1, cp1) in product(*sizes):
            times = [layer_times(job, tp0, cp0), layer_times(job, tp1, cp1)]
            parts = (vision // (tp0 * cp0), (gpus - vision) // (tp1 * cp1))
            if None in times or any(len(own[k]) < n for k, (own, n) in enumerate(zip(times, parts, strict=True))):
                continue
            stages = []
            for k, count in enumerate(parts):
                own = times[k][k]
                cuts = combinations(range(1, len(own)), count - 1)
                rows = [[own[a:b].sum() for a, b in pairwise((0, *cut, len(own)))] for cut in cuts]
                stages += min(rows, key=max)
            seen += 1
            best = min(best, sum(stages) + (16 // dp - 1) * max(stages))
    found = configurations(job)
    assert len(found) == seen > 5
    assert found[0].time_s == pytest.approx(best, rel=1e-9)
    assert [own.time_s for own in found] == sorted(own.time_s for own in found)


def test_the_formula_is_the_end_of_a_pipeline_whose_slowest_stage_never_waits():
    assert formula_s(np.array([1.0, 3.0, 2.0]), 5) == 6 + 4 * 3


@pytest.mark.slow
def test_what_is_chosen_is_within_two_percent_of_the_best_simulated():
    job = small_job()
    every = [seconds for _, seconds in configuration._simulated(job, "x")]
    chosen, literal = entrain(job), entrain_literal(job)
    assert len(every) > 5
    assert chosen.evaluate().iteration_time_s <= 1.02 * min(every)
    assert literal.evaluate().iteration_time_s == every[0]
    assert "eq. 4.2 says" in chosen.notes[0]


def test_a_configuration_is_a_run_file(capsys):
    """Modules with GPUs of their own go through the run file and back."""
    words = [
        "vlm-s",
        "--cluster",
        "h800:1x8",
        "--parallel",
        "dp1-tp2-pp4",
        "--set",
        "training.global_batch=8",
        "--quiet",
    ]
    assert main(["simulate", *words, "--baseline", "entrain-literal", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["iteration_time_s"]
    job = semu.load_run("vlm-s", ["training.global_batch=8"], cluster="h800:1x8", parallel="dp1-tp2-pp4")
    assert entrain_literal(job).evaluate().iteration_time_s == first


def test_a_batch_that_no_replicas_divide_is_refused():
    job = small_job()
    one = replace(job, training=replace(job.training, micro_batch=1, global_batch=8), parallel=semu.Parallel(dp=8))
    assert configurations(one)
    with pytest.raises(semu.ConfigError, match="no configuration of 1 GPUs for 2 modules"):
        configurations(replace(one, cluster=semu.Cluster("h100", 1, 1), parallel=semu.Parallel(dp=1)))
