"""Entrain's setups (dissertation 001, chapter 4): two vision-language models, four data sets, 64 emulated A40s."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

import semu
from benchmarks.paper._cornstarch import NIC
from benchmarks.paper.choices import Choices
from semu.nn import Model
from semu.searcher.assignment.assigner import Assigner
from semu.searcher.assignment.costs import weighted
from semu.workload.listed import ListedBatch
from semu.workload.packing import offsets
from semu.workload.samples import Items, Samples
from semu_models.multimodal.multimodal import make_multimodal
from semu_models.text.language import language_model
from semu_models.text.llama import LLAMA3_2_1B, LLAMA3_2_3B
from semu_models.vision.qwen_vision import qwen2_5_vision, qwen2_vision, qwen_vision_module

LANGUAGE = {"1b": LLAMA3_2_1B, "3b": LLAMA3_2_3B}
DATA = {
    "SynthChartNet": (1000, 700, 0.5, 150, 0.7),
    "LLaVA-150k": (640, 480, 0.1, 210, 0.5),
    "ChartQA": (750, 550, 0.25, 45, 0.4),
    "CocoQA": (640, 480, 0.1, 35, 0.3),
}
"""Surrogates: median width and height of the one image of a sample [px], spread of their logarithms, median text tokens
and spread. Charts are rendered in many sizes with long answers, COCO's pictures are 640 x 480 px or so."""
PATCH, MERGE = 14, 2
REPLICAS, TP, RANKS = 4, 2, 8
GLOBAL_BATCH, MICRO_BATCH = 512, 4
GPUS = TP * RANKS
"""Of a replica."""


@lru_cache(maxsize=8)
def model(size: str, choices: Choices) -> Model:
    """Qwen2.5's vision encoder in front of Llama 3.2."""
    language = LANGUAGE[size]
    make = qwen2_5_vision if choices.entrain_vision.value == "qwen2.5" else qwen2_vision
    return make_multimodal(f"entrain-{size}", [qwen_vision_module(make(language.hidden))], language_model(language))


def draw(data: str, count: int, seed: int, choices: Choices) -> Samples:
    """Samples of a data set's surrogate."""
    width, height, spread, text, text_spread = DATA[data]
    how = choices.entrain_samples.value
    wide = 1.5 if how == "wide" else 1.0
    generator = np.random.default_rng([seed, [*DATA].index(data)])
    scale = np.exp(generator.normal(0, wide * spread, count))
    shape = np.exp(generator.normal(0, wide * spread / 4, count))
    step = PATCH * MERGE
    sides = [
        np.clip(np.rint(side * scale * other / step), 2, 4096 // step).astype(np.int64)
        for side, other in ((width, shape), (height, 1 / shape))
    ]
    tokens = sides[0] * sides[1]
    longer = 2 if how == "long" else 1
    texts = np.clip(np.rint(longer * text * np.exp(generator.normal(0, wide * text_spread, count))), 4, 4096)
    return Samples(
        texts.astype(np.int64), {"vision": Items(offsets(np.ones(count, np.int64)), MERGE**2 * tokens, tokens)}
    )


def job_of(size: str, encoder_ranks: int, choices: Choices, samples: Samples | None = None) -> semu.TrainingJob:
    """Four replicas of eight pipeline ranks with two tensor ranks each, the encoder on ranks of its own.

    Args:
        encoder_ranks: of eight. samples: packed in their order; None: some.
    """
    rows = draw("CocoQA", GLOBAL_BATCH, 0, choices) if samples is None else samples
    count = GLOBAL_BATCH // MICRO_BATCH
    bounds = np.arange(count + 1) * len(rows.text_tokens) // count
    items = rows.microbatches(bounds, count, 1, False)
    return semu.TrainingJob(
        model=model(size, choices),
        cluster=semu.hardware.cluster.Cluster("a40", REPLICAS * GPUS // 4, 4, NIC),
        parallel=semu.Parallel(
            dp=REPLICAS,
            tp=TP,
            pp=RANKS,
            segments="apart",
            shares={"vision": encoder_ranks, "llm": RANKS - encoder_ranks},
            partition="latency",
        ),
        training=semu.Training(
            global_batch=GLOBAL_BATCH,
            micro_batch=MICRO_BATCH,
            seq_len=8192,
            recompute=choices.entrain_recompute.value,
        ),
        batch=ListedBatch(tuple(items), "samples in order"),
    )


@lru_cache(maxsize=64)
def assigner(size: str, encoder_ranks: int, data: str, choices: Choices) -> Assigner:
    """Of a setup, with costs fitted to samples of the data set."""
    return Assigner(job_of(size, encoder_ranks, choices), samples=draw(data, 4096, 1, choices))


def work(size: str, data: str, choices: Choices, count: int = 20_000) -> np.ndarray:
    """Time of every sample in the encoder and in the language model, both ways: float64[count, 2] [s]."""
    samples = draw(data, count, 2, choices)
    costs = assigner(size, RANKS // 2, data, choices).costs(samples)
    found = weighted(costs.features(samples), costs.per_module[1])
    return found[:, [costs.modules.index(name) for name in ("vision", "llm")]]
