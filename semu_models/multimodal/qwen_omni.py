"""Qwen2.5-Omni's thinker (2503.20215 §2): a vision and an audio encoder, and one language model for both.

The vision encoder is Qwen2.5-VL's. The audio encoder is Whisper's, without its padding: clips are cut into blocks of
2 s, 100 tokens, that do not attend to one another. The talker, which speaks, is left out: ``thinker_config``
describes a complete model.
"""

from __future__ import annotations

from semu.nn import LayerNorm, Linear, Model, Module, Parameter, Tensor
from semu.nn import functional as F
from semu.records import dataclass
from semu_models.multimodal.multimodal import make_multimodal
from semu_models.multimodal.qwen_audio import POOL, audio_module
from semu_models.multimodal.whisper import AUDIO_TOKENS, AudioConfig
from semu_models.text.encoder import Held, tokens_of
from semu_models.text.language import language_model
from semu_models.text.qwen import QWEN2_7B, QwenConfig
from semu_models.vision.qwen_vision import QwenVisionConfig, qwen2_5_vision, qwen_vision_module


@dataclass(frozen=True)
class QwenOmniConfig:
    """A thinker: two encoders and the backbone."""

    vision: QwenVisionConfig
    audio: AudioConfig
    language: QwenConfig


class BoundaryTokens(Module):
    """Embeddings of the begin and the end of a clip: the published encoder has them and does not use them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = Parameter(2, width)


class OmniAudioProjector(Module):
    """Means of two tokens, a norm, a linear map to the backbone."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.unused = Held(BoundaryTokens(width))
        self.norm = LayerNorm(hidden)
        self.projection = Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> [tokens / 2, width], stream ``audio_tokens``."""
        pooled = F.pool_tokens(self.unused(x), tokens_of(x, AUDIO_TOKENS, POOL))
        out: Tensor = self.projection(self.norm(pooled))
        return out


def make_qwen_omni(name: str, config: QwenOmniConfig) -> Model:
    """Modules ``vision``, ``audio`` (encoders) and ``llm``.

    Args:
        name: for reports. config: its parts.
    """
    projector = OmniAudioProjector(config.audio.hidden, config.language.hidden)
    encoders = [qwen_vision_module(config.vision), audio_module(config.audio, projector, is_padded=False)]
    return make_multimodal(name, encoders, language_model(config.language))


OMNI_AUDIO = AudioConfig(layers=32, hidden=1280, ffn=5120, heads=20, table=False, window=100)
"""Qwen2.5-Omni's audio encoder (config.json: ``n_window`` 100, blocks of 200 frames)."""


def qwen2_5_omni_7b() -> Model:
    """The thinker of Qwen2.5-Omni 7B."""
    return make_qwen_omni("qwen2.5-omni-7b", QwenOmniConfig(qwen2_5_vision(3584), OMNI_AUDIO, QWEN2_7B))
