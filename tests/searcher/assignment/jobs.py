"""Jobs and samples of the tests of assignment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np

import semu
from semu.searcher.assignment.assigner import Assigner
from semu.workload.packing import offsets
from semu.workload.samples import Items, Samples

SEQ_LEN = 8192


@cache
def vlm_job(dp: int = 2, num_microbatches: int = 8, schedule: str = "1f1b") -> semu.TrainingJob:
    """A small vision-language model on ``dp`` replicas of four pipeline ranks."""
    settings = [f"training.global_batch={dp * num_microbatches}", f"training.schedule={schedule}"]
    return semu.load_run("vlm-s", settings, cluster=f"h800:{dp}x8", parallel=f"dp{dp}-tp2-pp4")


@cache
def text_job(dp: int = 2, num_microbatches: int = 8) -> semu.TrainingJob:
    """A language model on ``dp`` replicas of four pipeline ranks."""
    settings = [f"training.global_batch={dp * num_microbatches}", f"training.seq_len={SEQ_LEN}"]
    return semu.load_run("llama3-8b", settings, cluster=f"h100:{dp}x8", parallel=f"dp{dp}-tp2-pp4")


def draw_vlm(count: int, seed: int) -> Samples:
    """Samples of images of drawn sizes and text."""
    generator = np.random.default_rng(seed)
    images = np.minimum(generator.geometric(0.5, count), 5)
    sides = np.clip(np.exp(generator.normal(2.2, 0.5, int(images.sum()))), 3, 24).astype(np.int64)
    text = np.clip(np.exp(generator.normal(5.0, 1.0, count)), 4, 2000).astype(np.int64)
    return Samples(text, {"vision": Items(offsets(images), 16 * sides**2, sides**2)})


def draw_text(count: int, seed: int, largest: int = 4096) -> Samples:
    """Documents of drawn lengths."""
    generator = np.random.default_rng(seed)
    return Samples(np.clip(np.exp(generator.normal(5.8, 1.0, count)), 8, largest).astype(np.int64), {})


@cache
def vlm_assigner(dp: int = 2, num_microbatches: int = 8, schedule: str = "1f1b") -> Assigner:
    """An assigner whose costs are fitted."""
    return Assigner(vlm_job(dp, num_microbatches, schedule), "coupled", samples=draw_vlm(2000, 1))


@cache
def text_assigner(dp: int = 2, num_microbatches: int = 8) -> Assigner:
    """An assigner whose costs are fitted."""
    return Assigner(text_job(dp, num_microbatches), "coupled", samples=draw_text(2000, 1))


def lines(samples: Samples, prefix: str = "s") -> Iterator[str]:
    """Samples as lines of a metadata file."""
    for number, text in enumerate(samples.text_tokens.tolist()):
        line: dict[str, object] = {"id": f"{prefix}{number}", "text_tokens": text}
        if "vision" in samples.items:
            own = samples.items["vision"]
            mine = slice(int(own.ptr[number]), int(own.ptr[number + 1]))
            pairs = zip(own.lengths[mine].tolist(), own.tokens[mine].tolist(), strict=True)
            line["images"] = [{"patches": patches, "tokens": tokens} for patches, tokens in pairs]
        yield json.dumps(line)


def write_samples(path: Path, samples: Samples) -> Path:
    """A metadata file of samples."""
    path.write_text("".join(line + "\n" for line in lines(samples)))
    return path
