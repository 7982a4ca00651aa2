"""Small jobs for the simulation tests: a language model, a vision-language model, a text-to-video model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from semu.hardware.cluster import Cluster
from semu.job import Training, TrainingJob
from semu.nn import Model
from semu.parallel.config import Overlap, Parallel
from semu.workload import AbstractBatch, Microbatch
from semu_models.dit import DiTConfig
from semu_models.gpt import GPT, GPTConfig
from semu_models.llama import LlamaConfig
from semu_models.t2v import T2VConfig, make_t2v
from semu_models.vit import ViTConfig
from semu_models.vlm import VLMConfig, make_vlm

PATCHES = 16
"""Patches of an image of the tiny vision transformer."""
MERGED = 4
"""Tokens that the backbone gets of an image."""


@dataclass(frozen=True)
class ListedBatch(AbstractBatch):
    """Microbatches as listed."""

    items: tuple[Microbatch, ...]

    def microbatches(self, count: int, micro_batch: int, seq_len: int | None = None) -> list[Microbatch]:
        assert count <= len(self.items)
        return list(self.items[:count])

    @property
    def default_seq_len(self) -> int | None:
        return None

    def describe(self) -> dict[str, object]:
        return {"kind": "listed", "items": len(self.items)}


def text_items(count: int, seed: int = 0) -> list[Microbatch]:
    """Packed sequences of different lengths; the sums do not divide by 2."""
    random = Random(seed)
    return [
        Microbatch({"text": [random.randint(20, 400) for _ in range(random.randint(1, 3))]}, samples=1)
        for _ in range(count)
    ]


def vlm_items(count: int, seed: int = 0, *, empty: Sequence[int] = ()) -> list[Microbatch]:
    """Packed sequences with images; those numbered in ``empty`` have none."""
    random = Random(seed)
    items = []
    for number in range(count):
        images = 0 if number in empty else random.randint(1, 12)
        text = [MERGED * images + random.randint(10, 100), random.randint(30, 200)]
        streams = {"text": text, "vision": [PATCHES] * images, "vision_tokens": [MERGED] * images}
        items.append(Microbatch(streams, samples=2))
    return items


def t2v_items(count: int, seed: int = 0) -> list[Microbatch]:
    """Groups of clips with captions."""
    random = Random(seed)
    items = []
    for _ in range(count):
        clips = random.randint(1, 4)
        captions = [random.randint(5, 60) for _ in range(clips)]
        items.append(Microbatch({"text": captions, "video": [random.randint(50, 400) for _ in range(clips)]}, samples=clips))
    return items


def gpt(layers: int = 3) -> Model:
    """GPT with tied embeddings."""
    return Model.from_module(GPT(GPTConfig(layers=layers, hidden=128, heads=4, vocab=512, positions=256)), name="llm")


LANGUAGE = LlamaConfig(layers=3, hidden=128, ffn=256, heads=4, kv_heads=2, vocab=384)


def vlm(*, frozen: Sequence[str] = (), layers: int = 3) -> Model:
    """ViT and a grouped-query language model."""
    vision = ViTConfig(layers=layers, hidden=64, ffn=192, heads=4, image_size=56, patch_size=14, merge=2)
    return make_vlm("tiny-vlm", VLMConfig(vision, LANGUAGE)).freeze(frozen)


def t2v(*, frozen: Sequence[str] = (), layers: int = 3) -> Model:
    """Language model and diffusion transformer."""
    video = DiTConfig(layers=layers, hidden=96, ffn=256, heads=4, latent_features=16, timestep_features=32)
    return make_t2v("tiny-t2v", T2VConfig(LANGUAGE, video)).freeze(frozen)


def job_of(
    model: Model,
    items: Sequence[Microbatch],
    parallel: Parallel | None = None,
    *,
    overlap: Overlap | None = None,
    schedule: str = "1f1b",
    recompute: str = "none",
    override: dict[str, object] | None = None,
    gpus_per_node: int = 0,
) -> TrainingJob:
    """A job that runs all the listed microbatches on one node (or on nodes of ``gpus_per_node``)."""
    layout = parallel if parallel is not None else Parallel()
    per_node = gpus_per_node or layout.num_gpus
    return TrainingJob(
        model,
        Cluster("h800", layout.num_gpus // per_node, per_node, override or {}),
        layout,
        Training(
            micro_batch=1,
            global_batch=len(items),
            schedule=schedule,
            recompute=recompute,
            overlap=overlap if overlap is not None else Overlap(param_gather=False, grad_reduce=False),
        ),
        ListedBatch(tuple(items)),
    )
