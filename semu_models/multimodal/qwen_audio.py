"""Qwen2-Audio (2407.10759): Whisper's encoder, means of two tokens, a linear map, and a Qwen language model."""

from __future__ import annotations

from semu.nn import InputSpec, LayerNorm, Linear, ModalityModule, ModalityRole, Model, Module, Sequential, Tensor
from semu.nn import functional as F
from semu.nn.merging import Merging, Rounding
from semu.nn.streams import Change, changed
from semu.records import dataclass
from semu_models.multimodal.multimodal import make_multimodal
from semu_models.multimodal.whisper import (
    AUDIO_STREAM,
    AUDIO_TOKENS,
    STRIDE,
    WHISPER_LARGE_V3_AUDIO,
    AudioConfig,
    audio_blocks,
)
from semu_models.text.encoder import tokens_of
from semu_models.text.language import LanguageConfig, language_model
from semu_models.text.qwen import QwenConfig

POOL = 2
"""Tokens of the encoder that become one of the backbone."""


@dataclass(frozen=True)
class QwenAudioConfig:
    """A Qwen2-Audio: encoder and backbone."""

    audio: AudioConfig
    language: LanguageConfig


class AudioProjector(Module):
    """Means of two tokens, the encoder's last norm, a linear map to the backbone; what was padding is left out."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.norm = LayerNorm(hidden)
        self.projection = Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, hidden] -> [audio tokens, width], stream ``audio_tokens``."""
        pooled = F.pool_tokens(x, changed(x, Change.shorter(POOL)))
        projected = self.projection(self.norm(pooled))
        return F.select_tokens(projected, tokens_of(projected, AUDIO_TOKENS))


def audio_merging(*, frames: int | None) -> Merging:
    """How mel frames become tokens. ``frames``: of a padded clip; None: clips keep their length."""
    steps = ((STRIDE, Rounding.UP), (POOL, Rounding.DOWN))
    return Merging(AUDIO_STREAM, AUDIO_TOKENS, steps, frames, is_padded=frames is not None, item="clip")


def audio_module(config: AudioConfig, projector: Module, *, is_padded: bool) -> ModalityModule:
    """An audio encoder with what the data loader gives it; named ``audio``.

    Args:
        config: sizes. projector: its last member. is_padded: all clips are padded to the encoder's window.
    """
    return ModalityModule(
        "audio",
        ModalityRole.ENCODER,
        Sequential({**audio_blocks(config), "projector": projector}),
        (InputSpec(AUDIO_STREAM, config.mels),),
        merging=audio_merging(frames=config.frames if is_padded else None),
    )


def make_qwen_audio(name: str, config: QwenAudioConfig) -> Model:
    """Modules ``audio`` (encoder with projector) and ``llm``.

    Args:
        name: for reports. config: its parts.
    """
    projector = AudioProjector(config.audio.hidden, config.language.hidden)
    encoder = audio_module(config.audio, projector, is_padded=True)
    return make_multimodal(name, [encoder], language_model(config.language))


QWEN_7B_AUDIO = QwenConfig(layers=32, hidden=4096, ffn=11008, heads=32, kv_heads=32, vocab=156032)
"""Qwen 7B (2309.16609) as the backbone of Qwen2-Audio 7B (config.json)."""


def qwen2_audio_7b() -> Model:
    """Qwen2-Audio 7B."""
    return make_qwen_audio("qwen2-audio-7b", QwenAudioConfig(WHISPER_LARGE_V3_AUDIO, QWEN_7B_AUDIO))
