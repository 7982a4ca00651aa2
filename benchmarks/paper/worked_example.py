"""DIP §2.2 and §2.3, the worked example: 64 ViT layers and 64 LM layers in 16 stages under 1F1B, 64 microbatches.

The paper's layer times, its cut, its pipeline; then what does not need them: layer times on semu's own H800, the FLOP
of two packed sequences, and the number of ways to fill an iteration.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

import semu
from benchmarks.paper._jobs import job_of
from benchmarks.paper._parts import OneMicrobatch, one_f_one_b_makespan
from benchmarks.paper._pictures import OURS, THEIRS, new_figure, save
from benchmarks.paper._results import PaperResult, PaperRow
from benchmarks.paper.choices import Choices
from semu.baselines.costs_of_layers import layer_costs
from semu.parallel.pipeline import partition
from semu.workload.batch import Microbatch
from semu.workload.vlm import DEFAULT_VLM_SEQ_LEN, PATCHES_PER_IMAGE, TOKENS_PER_IMAGE

LAYERS, STAGES, MICROBATCHES = 64, 16, 64
VIT_MS, LM_MS = 6.75, 10.5
TEXT = """
The layer times are the paper's; the cut is the exact optimum of all cuts into 16 stages, and the pipeline runs 1F1B
without transfers. *Bubble* is 1 - busy time / (stages x makespan). It is not what imbalance adds: equal stages have one
of 19 % already (15 / 79), and the uneven ones take 5.2 % longer. The paper's sentence reads as if all of it were added.

Below, the same layers on semu's H800, as VLM-M runs them (TP 8): one ViT layer on 8 images of 2,704 patches each, one
LM layer on 8,192 text tokens, forward and backward, nothing recomputed.
"""


def run(choices: Choices, *, quick: bool, out: Path) -> PaperResult:
    """See the module; ``Script.run``."""
    weights = [VIT_MS] * LAYERS + [LM_MS] * LAYERS
    stages = [sum(weights[a:b]) for a, b in pairwise(partition(weights, STAGES))]
    makespan = one_f_one_b_makespan(stages, MICROBATCHES)
    bubble = 100 * (1 - MICROBATCHES * sum(weights) / (STAGES * makespan))
    vit, lm = layer_times(choices, "8", recompute=0)
    vit_again, lm_again = layer_times(choices, "8", recompute=1)
    vit_4, lm_4 = layer_times(choices, "4", recompute=0)
    full = DEFAULT_VLM_SEQ_LEN // TOKENS_PER_IMAGE
    rows = (
        PaperRow("longest stage of the best cut", 73.5, max(stages), "ms"),
        PaperRow("shortest stage of the best cut", 63.0, min(stages), "ms"),
        PaperRow("variation of stages", 16.7, 100 * (max(stages) / min(stages) - 1), "%"),
        PaperRow("bubble under 1F1B", 22.8, bubble, "%", note="DIP does not define it."),
        PaperRow("image FLOP of 10 images over 1", 10.0, image_flop(choices, 10) / image_flop(choices, 1), "x"),
        PaperRow("images that a packed sequence holds", 48.0, float(full), "images"),
        PaperRow(
            "ways to fill 64 microbatches, log10",
            math.log10(1.5e108),
            MICROBATCHES * math.log10(full + 1),
            "",
            note="49^64; DIP prints 1.5e108.",
        ),
        PaperRow(
            "ViT 5B layer on 8 images",
            VIT_MS,
            1e3 * vit,
            "ms",
            margin=0.1,
            sensitivity={"recomputed": 1e3 * vit_again, "TP 4": 1e3 * vit_4},
            note="DIP says neither TP nor recomputation of it. Margin 10 %: DIP's simulator before calibration.",
        ),
        PaperRow(
            "Qwen2 32B layer on 8,192 tokens",
            LM_MS,
            1e3 * lm,
            "ms",
            margin=0.1,
            sensitivity={"recomputed": 1e3 * lm_again, "TP 4": 1e3 * lm_4},
            note="As above.",
        ),
        PaperRow("ViT layer over LM layer", VIT_MS / LM_MS, vit / lm, "x", margin=0.1, note="Free of TP, nearly."),
    )
    return PaperResult(
        name="worked_example",
        title="the worked example",
        source="DIP §2.2, §2.3",
        rows=rows,
        pictures=(draw(out / "worked_example.png", stages, bubble),),
        text=TEXT,
    )


def layer_times(choices: Choices, tp: str, *, recompute: int) -> tuple[float, float]:
    """Forward plus backward of a ViT layer on 8 images, and of an LM layer on 8,192 text tokens [s].

    Args:
        tp: tensor-parallel size. recompute: 1: with it, 0: without.
    """
    job = job_of("vlm-m", choices)
    job = replace(job, parallel=replace(job.parallel, tp=int(tp), dp=8 // int(tp)))
    tokens = [TOKENS_PER_IMAGE] * 8
    images = Microbatch({"text": [sum(tokens)], "vision": [PATCHES_PER_IMAGE] * 8, "vision_tokens": tokens}, samples=1)
    text = Microbatch({"text": [DEFAULT_VLM_SEQ_LEN], "vision": [], "vision_tokens": []}, samples=1)
    costs = [layer_costs(job, OneMicrobatch(only), 1) for only in (images, text)]
    own = [float(np.median(c.latency_s[recompute, c.module == k])) for k, c in enumerate(costs)]
    return own[0], own[1]


def image_flop(choices: Choices, images: int) -> float:
    """Model FLOP of the image stages of one packed sequence of 8,192 tokens: what it takes beyond its text.

    The backbone works on the same tokens whatever they come from, so images alone are counted by a sequence of no text.
    """
    job = job_of("vlm-s", choices)
    training = replace(job.training, global_batch=1)

    def flop(count: int) -> float:
        tokens = [TOKENS_PER_IMAGE] * count
        text = [DEFAULT_VLM_SEQ_LEN]
        only = Microbatch({"text": text, "vision": [PATCHES_PER_IMAGE] * count, "vision_tokens": tokens}, samples=1)
        return semu.simulate(replace(job, training=training, batch=OneMicrobatch(only))).model_flop

    return flop(images) - flop(0)


def draw(path: Path, stages: list[float], bubble: float) -> Path:
    """Stage times of the best cut."""
    figure, (axes,) = new_figure(8, 3.2)
    at = np.arange(len(stages))
    axes.bar(at, stages, color=OURS, width=0.7)
    mean = sum(stages) / len(stages)
    axes.axhline(mean, color=THEIRS, linestyle="--", label=f"mean {mean:.1f} ms")
    for level, word in ((63.0, "DIP: shortest 63 ms"), (73.5, "DIP: longest 73.5 ms")):
        axes.axhline(level, color="#D1495B", linewidth=0.9, linestyle=":")
        axes.text(len(stages) - 0.4, level + 0.8, word, color="#D1495B", fontsize=8)
    axes.set_xticks(at, [str(k + 1) for k in at])
    axes.set_ylim(0, 92)
    axes.set_xlim(-0.6, len(stages) + 3)
    axes.set_xlabel("pipeline stage")
    axes.set_ylabel("forward + backward [ms]")
    axes.set_title(
        f"best of all cuts of 64 + 64 layers into 16 stages; bubble {bubble:.1f} % (DIP: 22.8 %)", fontsize=10
    )
    axes.legend(frameon=False, fontsize=8, loc="upper left", ncols=2)
    return save(figure, path)
