"""FlexPipe Fig. 2: how unequal the stages of a 5B GPT are as its vocabulary grows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import semu
from benchmarks.paper._flexpipe import SIZES, VOCABULARIES, gpt
from benchmarks.paper._results import PaperResult, PaperRow
from benchmarks.paper.choices import Choices
from semu.job import TrainingJob
from semu.simulation import prepare

TEXT = """
Eight pipeline ranks, layers evenly, embedding on the first and head on the last, as Megatron-LM cuts them. The paper
prints no micro batch, no data parallelism and no optimizer sharding for this figure. Time is a stage's forward and
backward without its transfers. Memory is what a rank allocates at its
peak.
"""


def run(choices: Choices, *, quick: bool, out: Path) -> PaperResult:
    """See the module; ``Script.run``."""
    rows = []
    for vocab, times, memory in [
        (VOCABULARIES["5B"][-1], 5.63, 4.87),
        *((v, None, None) for v in VOCABULARIES["5B"][:-1]),
    ]:
        own = ratios(vocab, choices)
        moved = {}
        if times is not None and not quick:
            for name in ("flexpipe_micro_batch", "flexpipe_zero"):
                for value in getattr(choices, name).alternatives:
                    moved[f"{name} {value}"] = ratios(vocab, choices.changed(**{name: value}))
        word = f"{vocab // 1000}K words"
        for number, (what, theirs) in enumerate((("slowest over fastest stage", times), ("memory", memory))):
            sensitivity = {key: value[number] for key, value in moved.items()}
            rows.append(PaperRow(f"{what}, {word}", theirs, own[number], "x", 0.15, sensitivity))
    return PaperResult("flexpipe_fig02", "Unequal stages", "FlexPipe Fig. 2", tuple(rows), text=TEXT.strip())


def ratios(vocab: int, choices: Choices) -> tuple[float, float]:
    """Time of the slowest stage over that of the fastest; memory of the fullest rank over that of the emptiest."""
    micro = choices.flexpipe_micro_batch.value
    job = TrainingJob(
        gpt("5B", vocab),
        semu.Cluster("a800", 4, 8),
        semu.Parallel(dp=4, pp=8, partition="layers", zero=choices.flexpipe_zero.value),
        semu.Training(global_batch=128, micro_batch=micro, seq_len=SIZES["5B"][3]),
    )
    checkpoint = prepare(job)
    costs = [own.forward.latency + own.backward.latency for own in checkpoint.evaluation.chunks if own.backward]
    seconds = np.array([float(own[0]) for own in costs])
    peaks = checkpoint.estimate().peak_memory_bytes
    return float(seconds.max() / seconds.min()), max(peaks) / min(peaks)
