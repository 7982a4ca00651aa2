"""DIP Fig. 4c and d: model FLOP of 100 packed batches of VLM-S and T2V-S, sorted; 4.15 times from the least to the most
for T2V."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.paper._jobs import batch_of, job_of, model_flop
from benchmarks.paper._parts import OneMicrobatch
from benchmarks.paper._pictures import OURS, new_figure, save
from benchmarks.paper._results import PaperResult, PaperRow
from benchmarks.paper.choices import Choices

SPREAD = 4.15
TEXT = """
A batch is one microbatch: a packed sequence of 8,192 tokens, or a group of clips of at most 16 s. The spread of T2V
hangs on the resolution, which DIP does not print: attention grows with its fourth power, the rest with its square. Of
VLM-S the paper draws a curve and prints no number; ours goes from a sequence without images to the one with the most.
"""


def run(choices: Choices, *, quick: bool, out: Path) -> PaperResult:
    """See the module; ``Script.run``."""
    count = 12 if quick else choices.batches.value
    vlm, t2v = work("vlm-s", choices, count), work("t2v-s", choices, count)
    told: dict[str, float] = {}
    vlm_told: dict[str, float] = {}
    if not quick:
        for size in choices.resolution.alternatives:
            told[f"resolution {size[0]}"] = spread(work("t2v-s", choices.changed(resolution=size), count))
        told["first_seed 1000"] = spread(work("t2v-s", choices.changed(first_seed=1000), count))
        for mean in choices.images_mean.alternatives:
            vlm_told[f"images_mean {mean}"] = spread(work("vlm-s", choices.changed(images_mean=mean), count))
    rows = (
        PaperRow(
            "T2V-S: most over least FLOP",
            SPREAD,
            spread(t2v),
            "x",
            margin=0.1,
            sensitivity=told,
            note="Margin 10 %: two extremes of 100 random batches; seeds alone move them by more.",
        ),
        PaperRow("VLM-S: most over least FLOP", None, spread(vlm), "x", sensitivity=vlm_told),
        PaperRow("VLM-S: median batch", None, float(np.median(vlm)), "TFLOP"),
        PaperRow("T2V-S: median batch", None, float(np.median(t2v)), "TFLOP"),
    )
    return PaperResult(
        name="fig04",
        title=f"FLOP of {count} packed batches",
        source="DIP Fig. 4c-d",
        rows=rows,
        pictures=(draw(out / "fig04.png", vlm, t2v),),
        text=TEXT,
    )


def work(setup: str, choices: Choices, count: int) -> NDArray[np.float64]:
    """Model FLOP of packed batches, rising: float64[count] [TFLOP]."""
    job = job_of(setup, choices)
    training = replace(job.training, global_batch=1)
    batch = batch_of(job, choices, choices.first_seed.value)
    jobs = (replace(job, training=training, batch=OneMicrobatch(own)) for own in batch.microbatches(count, 1))
    return np.sort([model_flop(own) for own in jobs]) / 1e12


def spread(values: NDArray[np.float64]) -> float:
    """The most over the least."""
    return float(values[-1] / values[0])


def draw(path: Path, vlm: NDArray[np.float64], t2v: NDArray[np.float64]) -> Path:
    """Both curves."""
    figure, panels = new_figure(10, 3.4, 2)
    for axes, values, name in zip(panels, (vlm, t2v), ("VLM-S (VLM 12B)", "T2V-S (T2V 13B)"), strict=True):
        at = np.arange(1, len(values) + 1)
        axes.bar(at, values, width=1.0, color=OURS)
        axes.set_title(f"{name}: {spread(values):.2f} times from least to most", fontsize=10)
        axes.set_xlabel("packed batch, by rising work")
        axes.set_ylabel("model FLOP [TFLOP]")
        axes.set_xlim(0.5, len(values) + 0.5)
    return save(figure, path)
