"""Qwen2-VL (2409.12191) and Qwen2.5-VL (2502.13923): their vision encoders in front of Qwen2 language models."""

from __future__ import annotations

from semu.errors import ConfigError
from semu.nn import Model
from semu.records import dataclass
from semu_models.multimodal.multimodal import make_multimodal
from semu_models.text.language import language_model
from semu_models.text.qwen import QWEN2_1_5B, QWEN2_5_3B, QWEN2_7B, QWEN2_32B, QWEN2_72B, QwenConfig
from semu_models.vision.qwen_vision import QwenVisionConfig, qwen2_5_vision, qwen2_vision, qwen_vision_module


@dataclass(frozen=True)
class QwenVLConfig:
    """A Qwen-VL.

    Attributes:
        vision: its ``out`` is the language model's width. language: the backbone.
    Raises:
        ConfigError: image tokens of another width than the backbone.
    """

    vision: QwenVisionConfig
    language: QwenConfig

    def __post_init__(self) -> None:
        if self.vision.out != self.language.hidden:
            raise ConfigError(
                "image tokens are not as wide as the backbone",
                where="QwenVLConfig.vision.out",
                expected=str(self.language.hidden),
                got=self.vision.out,
                nearest=self.language.hidden,
            )


def make_qwen_vl(name: str, config: QwenVLConfig) -> Model:
    """Modules ``vision`` (encoder with merger) and ``llm``.

    Args:
        name: for reports. config: its parts.
    """
    return make_multimodal(name, [qwen_vision_module(config.vision)], language_model(config.language))


def qwen2_vl_2b() -> Model:
    """Qwen2-VL 2B."""
    return make_qwen_vl("qwen2-vl-2b", QwenVLConfig(qwen2_vision(1536), QWEN2_1_5B))


def qwen2_vl_7b() -> Model:
    """Qwen2-VL 7B."""
    return make_qwen_vl("qwen2-vl-7b", QwenVLConfig(qwen2_vision(3584), QWEN2_7B))


def qwen2_vl_72b() -> Model:
    """Qwen2-VL 72B."""
    return make_qwen_vl("qwen2-vl-72b", QwenVLConfig(qwen2_vision(8192), QWEN2_72B))


def qwen2_5_vl_3b() -> Model:
    """Qwen2.5-VL 3B."""
    return make_qwen_vl("qwen2.5-vl-3b", QwenVLConfig(qwen2_5_vision(2048), QWEN2_5_3B))


def qwen2_5_vl_7b() -> Model:
    """Qwen2.5-VL 7B."""
    return make_qwen_vl("qwen2.5-vl-7b", QwenVLConfig(qwen2_5_vision(3584), QWEN2_7B))


def qwen2_5_vl_32b() -> Model:
    """Qwen2.5-VL 32B."""
    return make_qwen_vl("qwen2.5-vl-32b", QwenVLConfig(qwen2_5_vision(5120, ffn=3456), QWEN2_32B))


def qwen2_5_vl_72b() -> Model:
    """Qwen2.5-VL 72B."""
    return make_qwen_vl("qwen2.5-vl-72b", QwenVLConfig(qwen2_5_vision(8192, ffn=3456), QWEN2_72B))
