"""Small versions of the encoders and multimodal models, with items that fit them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from semu.nn import Model, Sequential
from semu.workload import Microbatch
from semu_models.multimodal.gemma_vl import Gemma3VLConfig, make_gemma_vl
from semu_models.multimodal.intern_vl import InternVLConfig, make_intern_vl
from semu_models.multimodal.llava import LlavaConfig, make_llava
from semu_models.multimodal.qwen_audio import QwenAudioConfig, make_qwen_audio
from semu_models.multimodal.qwen_omni import QwenOmniConfig, make_qwen_omni
from semu_models.multimodal.qwen_vl import QwenVLConfig, make_qwen_vl
from semu_models.multimodal.whisper import AudioConfig, WhisperConfig, whisper_model
from semu_models.text.gemma import Gemma3Config
from semu_models.text.llama import LlamaConfig
from semu_models.text.qwen import QwenConfig
from semu_models.vision.clip_vision import ClipVisionConfig, clip_vision_model
from semu_models.vision.intern_vit import InternViTConfig
from semu_models.vision.qwen_vision import QwenVisionConfig
from semu_models.vision.siglip import SiglipVisionConfig, siglip_vision_model
from semu_models.vision.vit_classic import ClassicViT, ClassicViTConfig, tower_model

WIDTH = 64
LLAMA = LlamaConfig(layers=2, hidden=WIDTH, ffn=96, heads=4, kv_heads=4, vocab=128)
QWEN = QwenConfig(layers=2, hidden=WIDTH, ffn=96, heads=4, kv_heads=4, vocab=128)
IMAGE = {"layers": 2, "hidden": 32, "ffn": 48, "heads": 4, "image_size": 24, "patch_size": 4}
"""36 patches an image."""
QWEN2_VISION = QwenVisionConfig(layers=2, hidden=32, ffn=48, heads=4, out=WIDTH, patch_size=4)
QWEN2_5_VISION = QwenVisionConfig(
    layers=3, hidden=32, ffn=48, heads=4, out=WIDTH, patch_size=4, gated=True, window=16, full_layers=(1,)
)
SIGLIP = SiglipVisionConfig(**IMAGE, head=False)
GEMMA = Gemma3Config(layers=3, hidden=WIDTH, ffn=96, heads=4, kv_heads=4, vocab=128, window=16)
AUDIO = AudioConfig(layers=2, hidden=32, ffn=48, heads=4, mels=16, positions=40)
"""80 frames a clip."""
OMNI_AUDIO = AudioConfig(layers=2, hidden=32, ffn=48, heads=4, mels=16, positions=40, table=False, window=10)

Items = Callable[[Random, int], dict[str, list[int]]]


def _fixed(patches: int, tokens: int) -> Items:
    """Images of one size."""
    return lambda random, count: {"vision": [patches] * count, "vision_tokens": [tokens] * count}


def _any(random: Random, count: int) -> dict[str, list[int]]:
    tokens = [random.randint(2, 30) for _ in range(count)]
    return {"vision": [4 * n for n in tokens], "vision_tokens": tokens}


def _padded(random: Random, count: int) -> dict[str, list[int]]:
    return {"audio": [80] * count, "audio_tokens": [random.randint(1, 20) for _ in range(count)]}


def _spoken(random: Random, count: int) -> dict[str, list[int]]:
    frames = [random.randint(4, 99) for _ in range(count)]
    return {"audio": frames, "audio_tokens": [(n + 1) // 2 // 2 for n in frames]}


def _both(random: Random, count: int) -> dict[str, list[int]]:
    return _any(random, count) | _spoken(random, random.randint(0, 4))


def vit() -> Model:
    """With a classifier."""
    config = ClassicViTConfig(**IMAGE, labels=10)
    return tower_model("tiny-vit", config, ClassicViT(config))


def llava() -> Model:
    """The last but one of three layers is projected."""
    return make_llava("tiny-llava", LlavaConfig(ClipVisionConfig(**{**IMAGE, "layers": 3}), LLAMA))


def whisper() -> Model:
    """Encoder and decoder."""
    return whisper_model("tiny-whisper", WhisperConfig(AUDIO, layers=2, ffn=48, heads=4, vocab=64, positions=200))


KINDS: dict[str, tuple[Callable[[], Model], Items]] = {
    "vit": (vit, _fixed(36, 36)),
    "clip": (lambda: clip_vision_model("tiny-clip", ClipVisionConfig(**IMAGE)), _fixed(36, 36)),
    "siglip": (lambda: siglip_vision_model("tiny-siglip", SiglipVisionConfig(**IMAGE)), _fixed(36, 36)),
    "llava": (llava, _fixed(36, 36)),
    "qwen2-vl": (lambda: make_qwen_vl("tiny-qwen2-vl", QwenVLConfig(QWEN2_VISION, QWEN)), _any),
    "qwen2.5-vl": (lambda: make_qwen_vl("tiny-qwen2.5-vl", QwenVLConfig(QWEN2_5_VISION, QWEN)), _any),
    "internvl": (
        lambda: make_intern_vl("tiny-internvl", InternVLConfig(InternViTConfig(**IMAGE), QWEN)),
        _fixed(36, 9),
    ),
    "gemma3": (lambda: make_gemma_vl("tiny-gemma3", Gemma3VLConfig(SIGLIP, GEMMA, tokens_per_image=4)), _fixed(36, 4)),
    "qwen2-audio": (lambda: make_qwen_audio("tiny-qwen2-audio", QwenAudioConfig(AUDIO, QWEN)), _padded),
    "omni": (lambda: make_qwen_omni("tiny-omni", QwenOmniConfig(QWEN2_5_VISION, OMNI_AUDIO, QWEN)), _both),
    "whisper": (whisper, lambda random, count: {"audio": [80] * count}),
}
"""Model and items by family."""


def items_of(kind: str, count: int, seed: int = 0, *, empty: Sequence[int] = ()) -> list[Microbatch]:
    """Microbatches that fit the model; those numbered in ``empty`` have text only."""
    random = Random(seed)
    result = []
    for number in range(count):
        streams = KINDS[kind][1](random, 0 if number in empty else random.randint(1, 4))
        if kind == "whisper":
            text = [random.randint(3, 30) for _ in streams["audio"]]
        else:
            taken = sum(sum(streams[name]) for name in streams if name.endswith("_tokens"))
            text = [taken + random.randint(10, 60), random.randint(20, 90)]
        result.append(Microbatch({"text": text, **streams}, samples=len(text)))
    return result


def model_of(kind: str) -> Model:
    """A new model."""
    return KINDS[kind][0]()


def blocks_of(model: Model, name: str) -> Sequential:
    """The body of a module."""
    body = next(module.body for module in model.modules if module.name == name)
    assert isinstance(body, Sequential)
    return body
