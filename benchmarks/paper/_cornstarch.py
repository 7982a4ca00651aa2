"""Cornstarch's MLLMs (Table 3.1, §3.5.1) on its 24 A40s, and how they are cut with and without regard to freezing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import semu
from benchmarks.paper.choices import Choices
from semu.nn import MLP, InputSpec, LayerNorm, ModalityModule, ModalityRole, Model, Module, Sequential, Tensor
from semu.nn import functional as F
from semu.nn.merging import Merging, Rounding
from semu.parallel.layout import PipelineLayout
from semu.parallel.pipeline import partition
from semu.parallel.segments import heaviest_group
from semu.parallel.stage_layers import layer_parts
from semu.workload import Microbatch
from semu.workload.listed import ListedBatch
from semu_models.multimodal.multimodal import make_multimodal
from semu_models.multimodal.whisper import AUDIO_STREAM, AUDIO_TOKENS, STRIDE, AudioConfig, audio_blocks
from semu_models.text.encoder import tokens_of
from semu_models.text.language import language_model
from semu_models.text.llama import LlamaConfig
from semu_models.vision.qwen_vision import QwenVisionConfig, qwen_vision_module

LANGUAGE = {
    "S": LlamaConfig(layers=16, hidden=2048, ffn=8192, heads=32, kv_heads=8, vocab=128256, head_dim=64),
    "M": LlamaConfig(layers=32, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocab=128256),
    "L": LlamaConfig(layers=64, hidden=5120, ffn=27648, heads=40, kv_heads=8, vocab=152064, head_dim=128),
}
"""Table 3.1: Llama 3.2 1b, Llama 3.1 8b, and a 32b of 64 layers and hidden 5,120 (Qwen2.5 32b has those)."""
VISION = {"S": (32, 1280, 16), "M": (48, 2560, 32), "L": (64, 3840, 48)}
AUDIO = {"S": (24, 1024, 16, 0.5), "M": (32, 3072, 48, 3.4), "L": (48, 5120, 80, 12.4)}
"""Layers, width, heads of 80 (64) each, and of the audio encoders the printed parameters [10^9]."""
NAMES = ("SSS", "MMS", "LLS", "SSM", "MMM", "LLM", "SSL", "MML", "LLL")
"""Table 3.2: sizes of vision encoder, audio encoder and language model."""
FROZEN = ("vision.embedding", "vision.layers", "audio.embedding", "audio.layers", "llm")
"""All but the projectors (§3.5.1)."""
TEXT_TOKENS, PATCHES, IMAGE_TOKENS = 1000, 92 * 52, 46 * 26
"""A sample's text; an image of 1280 x 720 px in patches of 14 px, to whole tokens of 2 x 2 patches."""
FRAMES, AUDIO_TOKENS_OF_CLIP = 3000, 1500
"""Two minutes: eight times fewer than 12,000 mel frames, four times before the encoder that is simulated."""
NIC = {"nic_bytes_per_s": 200e9 / 8 / 4}
"""One NIC of 200 Gbit/s for the four GPUs of a node (§3.5.1)."""
STAGES, MICROBATCHES, PER_MICROBATCH = 6, 12, 4


class Projector(Module):
    """A norm and two layers; as many tokens as come in."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.norm = LayerNorm(hidden)
        self.mlp = MLP(hidden, width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens, width], stream ``audio_tokens``."""
        out: Tensor = self.mlp(F.rename_tokens(self.norm(x), tokens_of(x, AUDIO_TOKENS)))
        return out


@lru_cache(maxsize=16)
def mllm(name: str, choices: Choices) -> Model:
    """A model of Table 3.1; all but its projectors frozen."""
    language = LANGUAGE[name[2]]
    layers, hidden, heads = VISION[name[0]]
    vision = qwen_vision_module(QwenVisionConfig(layers, hidden, 4 * hidden, heads, out=language.hidden))
    layers, hidden, heads, billions = AUDIO[name[1]]
    ffn = 4 * hidden
    if choices.cornstarch_audio.value == "printed":
        ffn = round((billions * 1e9 / layers - 4 * hidden**2) / (2 * hidden) / 128) * 128
    config = AudioConfig(layers, hidden, ffn, heads, mels=80, table=False)
    body = Sequential({**audio_blocks(config), "projector": Projector(hidden, language.hidden)})
    merging = Merging(AUDIO_STREAM, AUDIO_TOKENS, ((STRIDE, Rounding.UP),), item="clip")
    inputs = (InputSpec(AUDIO_STREAM, config.mels),)
    audio = ModalityModule("audio", ModalityRole.ENCODER, body, inputs, merging=merging)
    model = make_multimodal(f"mllm-{name.lower()}", [vision, audio], language_model(language))
    return model.freeze(FROZEN)


def mllm_job(name: str, choices: Choices, layout: PipelineLayout | None = None) -> semu.TrainingJob:
    """A model on six nodes of four A40s, a stage a node: 12 microbatches of 4 samples, 1F1B."""
    tp, cp = choices.cornstarch_stage.value
    return semu.TrainingJob(
        mllm(name, choices),
        semu.hardware.cluster.Cluster("a40", 6, 4, NIC),
        semu.Parallel(dp=1, tp=tp, cp=cp, pp=STAGES, layout=layout),
        semu.Training(
            micro_batch=PER_MICROBATCH,
            global_batch=MICROBATCHES * PER_MICROBATCH,
            recompute=choices.cornstarch_recompute.value,
        ),
        samples(MICROBATCHES, PER_MICROBATCH),
    )


def samples(microbatches: int, each: int) -> ListedBatch:
    """Equal microbatches of equal samples."""
    streams = {
        "text": TEXT_TOKENS + IMAGE_TOKENS + AUDIO_TOKENS_OF_CLIP,
        "vision": PATCHES,
        "vision_tokens": IMAGE_TOKENS,
        "audio": FRAMES,
        "audio_tokens": AUDIO_TOKENS_OF_CLIP,
    }
    return ListedBatch((Microbatch({name: [length] * each for name, length in streams.items()}, each),) * microbatches)


@dataclass(frozen=True)
class LayerTimes:
    """Forward and backward of every layer [s], with what stands before the first and behind the last of a module.

    Attributes:
        encoders: of both encoders in a row. language: of the language model.
    """

    encoders: tuple[tuple[float, float], ...]
    language: tuple[tuple[float, float], ...]


@lru_cache(maxsize=32)
def layer_times(name: str, choices: Choices) -> LayerTimes:
    """Of a model; how it is cut does not matter."""
    job = mllm_job(name, choices)
    report = semu.simulate(job)
    found: dict[str, list[tuple[float, float]]] = {}
    for module in job.model.modules:
        rows = [row for row in report.layer_times if row.module == module.name]
        blocks = [(row.forward_s, row.backward_s) for row in rows for _ in range(row.layers)]
        parts = [blocks[part.first : part.last] for part in layer_parts(module)]
        found[module.name] = [(sum(f for f, _ in part), sum(b for _, b in part)) for part in parts]
    return LayerTimes((*found["vision"], *found["audio"]), tuple(found["llm"]))


@dataclass(frozen=True)
class Cut:
    """Encoders one after another on some stages, the language model on the others (§3.3, colocated).

    Attributes:
        encoder_stages: of six. layout: in layers.
        encoder_s, language_s: forward and backward of a stage, means [s].
    """

    encoder_stages: int
    layout: PipelineLayout
    encoder_s: tuple[float, float]
    language_s: tuple[float, float]


def cut(name: str, choices: Choices, *, is_aware: bool) -> Cut:
    """The cut whose heaviest stage is lightest: by forward plus backward, or by forward."""
    times = layer_times(name, choices)
    weights = [[f + (b if is_aware else 0.0) for f, b in own] for own in (times.encoders, times.language)]
    most = [len(own) for own in weights]
    counts = [n for n in range(1, STAGES) if n <= most[0] and STAGES - n <= most[1]]
    count = min(counts, key=lambda n: max(heaviest_group(weights[0], n), heaviest_group(weights[1], STAGES - n)))
    return Cut(count, _layout(name, weights, count), *(_mean(own, n) for own, n in _shares(times, count)))


def _shares(times: LayerTimes, count: int) -> tuple[tuple[tuple[tuple[float, float], ...], int], ...]:
    return (times.encoders, count), (times.language, STAGES - count)


def _mean(layers: tuple[tuple[float, float], ...], stages: int) -> tuple[float, float]:
    return sum(f for f, _ in layers) / stages, sum(b for _, b in layers) / stages


def _layout(name: str, weights: list[list[float]], count: int) -> PipelineLayout:
    """Layers of every module in every stage."""
    vision = VISION[name[0]][0]
    encoders = [*pairwise(partition(weights[0], count))]
    language = [*pairwise(partition(weights[1], STAGES - count))]
    before, behind = (0,) * count, (0,) * (STAGES - count)
    modules: Mapping[str, tuple[int, ...]] = {
        "vision": (*(max(min(b, vision) - a, 0) for a, b in encoders), *behind),
        "audio": (*(max(b - max(a, vision), 0) for a, b in encoders), *behind),
        "llm": (*before, *(b - a for a, b in language)),
    }
    return PipelineLayout(modules=dict(modules))


@lru_cache(maxsize=64)
def iteration_s(name: str, choices: Choices, way: str) -> float:
    """Of ``aware``, ``unaware``, ``fsdp`` or ``megatron`` [s]."""
    if way == "fsdp":
        return _fully_sharded_s(name, choices)
    layout = _encoders_first(name) if way == "megatron" else cut(name, choices, is_aware=way == "aware").layout
    return semu.evaluate(mllm_job(name, choices, layout)).iteration_time_s


def _encoders_first(name: str) -> PipelineLayout:
    """Megatron*: the encoders are the first stage, the language model's layers are dealt evenly to the others."""
    rest = STAGES - 1
    layers = LANGUAGE[name[2]].layers
    share = [layers // rest + (stage < layers % rest) for stage in range(rest)]
    encoders = {"vision": VISION[name[0]][0], "audio": AUDIO[name[1]][0]}
    modules = {module: (count, *(0,) * rest) for module, count in encoders.items()}
    return PipelineLayout(modules={**modules, "llm": (0, *share)})


def _fully_sharded_s(name: str, choices: Choices) -> float:
    """FSDP2 on all GPUs, two samples on each."""
    job = mllm_job(name, choices)
    gpus, each = 24, 2
    training = replace(job.training, micro_batch=each, global_batch=gpus * each, software="torch")
    parallel = semu.Parallel(dp=gpus, zero=3)
    return semu.evaluate(replace(job, parallel=parallel, training=training, batch=samples(gpus, each))).iteration_time_s
