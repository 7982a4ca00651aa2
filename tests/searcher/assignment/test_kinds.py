"""Text under context parallelism, and loads of three modules at once: vision, audio and language."""

from __future__ import annotations

import numpy as np
import pytest
from searcher.assignment.jobs import SEQ_LEN, draw_text

import semu
from semu.searcher.assignment.assigner import Assigner
from semu.searcher.assignment.export import microbatch_lines
from semu.workload.packing import offsets
from semu.workload.samples import Items, Samples


def draw_omni(count: int, seed: int) -> Samples:
    """Samples of up to two images, up to two clips of sound, and text."""
    generator = np.random.default_rng(seed)
    text = np.clip(np.exp(generator.normal(5, 1, count)), 4, 1500).astype(np.int64)
    images, clips = generator.integers(0, 3, count), generator.integers(0, 3, count)
    tokens = np.exp(generator.normal(4.5, 0.7, images.sum())).astype(np.int64) + 1
    frames = 4 * (np.exp(generator.normal(4.5, 0.7, clips.sum())).astype(np.int64) + 1)
    vision = Items(offsets(images), 4 * tokens, tokens)
    return Samples(text, {"vision": vision, "audio": Items(offsets(clips), frames, frames // 4)})


def test_text_is_balanced_by_tokens_and_pairs_under_context_parallelism():
    settings = ["training.global_batch=16", f"training.seq_len={SEQ_LEN}"]
    job = semu.load_run("llama3-8b", settings, cluster="h100:2x8", parallel="dp2-tp2-pp2-cp2")
    assigner = Assigner(job, samples=draw_text(2000, 1))
    for seed in (5, 6, 7):
        samples = draw_text(110, seed)
        order, coupled = assigner(samples, method="order"), assigner(samples, method="coupled")
        assert coupled.iteration_s < order.iteration_s
        assert coupled.fitted_s.max() == pytest.approx(coupled.estimate.makespan_s, rel=0.02)
        held = np.bincount(coupled.dealt.bins, weights=samples.lengths)
        assert held.max() <= SEQ_LEN
        assert coupled.balance["llm"] <= 1.05 * coupled.balance_bound["llm"] < order.balance["llm"]


def test_three_modules_are_balanced_together():
    job = semu.load_run("qwen2.5-omni-7b", ["training.global_batch=16"], cluster="h100:2x8", parallel="dp2-tp2-pp4")
    assigner = Assigner(job, samples=draw_omni(2000, 1))
    samples = draw_omni(160, 3)
    found = {name: assigner(samples, method=name) for name in ("order", "coupled", "entrain-literal", "entrain")}
    assert found["coupled"].costs.modules == ("vision", "audio", "llm")
    assert found["coupled"].iteration_s < found["order"].iteration_s
    assert found["entrain"].fitted_s.max() <= min(own.fitted_s.max() for own in found.values())
    for own in found.values():
        read = [name for line in microbatch_lines(own) for name in line["ids"]]
        assert sorted(read) == list(range(160))
        items = own.batch.microbatches(own.dp * own.num_microbatches, 1)
        for stream in ("vision", "audio"):
            assert sum(item.tokens(stream) for item in items) == int(samples.items[stream].lengths.sum())


def test_unequal_pipelines_are_refused_by_name():
    job = semu.load_run("llama3-8b", ["training.global_batch=16"], cluster="h100:2x8", parallel="dp2-tp2-pp4")
    with pytest.raises(semu.ConfigError, match=r"equal numbers of microbatches.*told by speeds; got list"):
        Assigner([job, job])
