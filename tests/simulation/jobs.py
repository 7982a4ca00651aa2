"""Small jobs for the simulation tests: a language model, a vision-language model, a text-to-video model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from semu.hardware.cluster import Cluster
from semu.job import Training, TrainingJob
from semu.nn import InputSpec, Linear, ModalityModule, ModalityRole, Model, Module, Sequential, Tensor
from semu.nn import functional as F
from semu.parallel.config import Overlap, Parallel
from semu.workload import AbstractBatch, Microbatch
from semu_models.generation.dit import DiTConfig
from semu_models.generation.t2v import T2VConfig, make_t2v
from semu_models.multimodal.multimodal import make_multimodal
from semu_models.multimodal.qwen_audio import audio_module
from semu_models.multimodal.qwen_omni import OmniAudioProjector
from semu_models.multimodal.vlm import VLMConfig, make_vlm
from semu_models.multimodal.whisper import AudioConfig
from semu_models.text.gpt import GPT, GPTConfig
from semu_models.text.language import language_model
from semu_models.text.llama import LlamaConfig
from semu_models.vision.vit import ViTConfig, vision_module

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
        videos = [random.randint(50, 400) for _ in range(clips)]
        items.append(Microbatch({"text": captions, "video": videos}, samples=clips))
    return items


def gpt(layers: int = 3) -> Model:
    """GPT with tied embeddings."""
    return Model.from_module(GPT(GPTConfig(layers=layers, hidden=128, heads=4, vocab=512, positions=256)), name="llm")


def wide(layers: int = 4) -> Model:
    """Enough parameters for several buckets (50 million a layer), at no cost: there is no data."""
    return Model.from_module(GPT(GPTConfig(layers, hidden=2048, heads=16, vocab=512, positions=256)), name="llm")


LANGUAGE = LlamaConfig(layers=3, hidden=128, ffn=256, heads=8, kv_heads=4, vocab=384)


def vlm(*, frozen: Sequence[str] = (), layers: int = 3) -> Model:
    """ViT and a grouped-query language model."""
    vision = ViTConfig(layers=layers, hidden=64, ffn=192, heads=4, image_size=56, patch_size=14, merge=2)
    return make_vlm("tiny-vlm", VLMConfig(vision, LANGUAGE)).freeze(frozen)


def valm(*, frozen: Sequence[str] = (), layers: int = 2) -> Model:
    """ViT, an audio encoder, and a language model that reads both."""
    vision = ViTConfig(layers=layers, hidden=64, ffn=192, heads=4, image_size=56, patch_size=14, merge=2)
    audio = AudioConfig(layers=layers, hidden=64, ffn=128, heads=4, mels=16, positions=400)
    encoders = [
        vision_module(vision, LANGUAGE.hidden, ModalityRole.ENCODER),
        audio_module(audio, OmniAudioProjector(audio.hidden, LANGUAGE.hidden), is_padded=False),
    ]
    return make_multimodal("tiny-valm", encoders, language_model(LANGUAGE)).freeze(frozen)


def valm_items(count: int, seed: int = 0) -> list[Microbatch]:
    """``vlm_items`` with clips of sound: two mel frames make a step of the encoder, two steps a token."""
    random = Random(seed)
    items = []
    for item in vlm_items(count, seed):
        streams = {name: lengths.tolist() for name, lengths in item.lengths.items()}
        tokens = [random.randint(8, 90) for _ in range(random.randint(1, 4))]
        streams["text"][0] += sum(tokens)
        streams |= {"audio": [4 * n for n in tokens], "audio_tokens": tokens}
        items.append(Microbatch(streams, samples=2))
    return items


def t2v(*, frozen: Sequence[str] = (), layers: int = 3) -> Model:
    """Language model and diffusion transformer."""
    video = DiTConfig(layers=layers, hidden=96, ffn=256, heads=4, latent_features=16, timestep_features=32)
    return make_t2v("tiny-t2v", T2VConfig(LANGUAGE, video)).freeze(frozen)


# -- models of a few lines, each with one awkward shape ----------------------------------------------------------------
WIDTH = 64
FEATURES = (InputSpec("text", WIDTH),)


class Attention(Module):
    """Attention without a projection behind it: what it returns is also what its backward reads."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).split((WIDTH, WIDTH, WIDTH))
        q, k, v = (part.unflatten(self.heads, WIDTH // self.heads) for part in parts)
        return F.attention(q, k, v, causal=True).flatten()


class Sum(Module):
    """A projection of its first input plus its second."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.projection(x) + y


class Fork(Module):
    """One input, two outputs, the second made of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Linear(WIDTH, WIDTH), Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.first(x)
        return z, self.second(F.gelu(z))


class Along(Module):
    """Works on its first input and hands the second one on."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return F.gelu(self.projection(x)), y


class Distance(Module):
    """Loss of a projection of the first input; the others end here unread."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.projection = Linear(width, width)

    def forward(self, x: Tensor, *_: Tensor) -> Tensor:
        return F.mean_squared_error(self.projection(x))


def chain(*blocks: Module) -> Model:
    """One module of these blocks."""
    return Model("chain", [ModalityModule("chain", ModalityRole.BACKBONE, Sequential(*blocks), FEATURES)])


def attention_encoder() -> Model:
    """An encoder that ends in attention: its output is kept for its own backward and, elsewhere, for another."""
    return Model(
        "attention-encoder",
        [
            ModalityModule("encoder", ModalityRole.ENCODER, Sequential(Linear(WIDTH, WIDTH), Attention()), FEATURES),
            ModalityModule(
                "backbone", ModalityRole.BACKBONE, Sequential(Sum(), Distance()), FEATURES, sources=("encoder",)
            ),
        ],
    )


def carry_along() -> Model:
    """Two tensors between all blocks; the second one is used at the end."""
    return chain(Linear(WIDTH, WIDTH), Fork(), Along(), Along(), Along(), Sum(), Distance())


def overlap(
    *, tensor: bool = False, pipeline: bool = False, gradients: bool = False, parameters: bool = False
) -> Overlap:
    """Which communication hides; by default none."""
    return Overlap(grad_reduce=gradients, param_gather=parameters, tensor_parallel=tensor, pipeline=pipeline)


NO_OVERLAP = overlap()


def job_of(
    model: Model,
    items: Sequence[Microbatch],
    parallel: Parallel | None = None,
    *,
    overlap: Overlap = NO_OVERLAP,
    schedule: str = "1f1b",
    recompute: str | list[str] = "none",
    recompute_layers: int | None = None,
    recompute_method: str | None = None,
    attention: str = "fused",
    override: dict[str, object] | None = None,
    gpus_per_node: int = 0,
    **options: Any,
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
            overlap=overlap,
            recompute_layers=recompute_layers,
            recompute_method=recompute_method,
            attention=attention,
            **options,
        ),
        ListedBatch(tuple(items)),
    )
