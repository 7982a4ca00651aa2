"""Text-to-video models: a language model encodes captions, a DiT decodes videos from them.

The language model ends with its final norm: its features are what the DiT's cross-attention reads, so it has no
vocabulary projection and no loss.
"""

from __future__ import annotations

from collections.abc import Sequence

from semu.errors import ConfigError
from semu.nn import InputSpec, ModalityModule, ModalityRole, Model, Module
from semu.records import dataclass
from semu_models.generation.dit import DIT_5B, DIT_30B, DiT, DiTConfig, video_inputs
from semu_models.text.language import LanguageConfig, text_encoder
from semu_models.text.llama import LLAMA3_8B
from semu_models.text.qwen import QWEN2_32B, QWEN2_72B


@dataclass(frozen=True)
class T2VConfig:
    """A text-to-video model: text encoder and video decoder."""

    text: LanguageConfig
    video: DiTConfig


def make_t2v(name: str, config: T2VConfig) -> Model:
    """Modules ``llm`` (encoder) and ``dit`` (decoder).

    Args:
        name: for reports. config: encoder and decoder.
    """
    width = config.text.hidden
    inputs = video_inputs(config.video.latent_features, config.video.timestep_features)
    return behind_text_encoder(name, config.text, width, DiT(config.video, width), inputs)


def behind_text_encoder(
    name: str, text: LanguageConfig, width: int, body: Module, inputs: Sequence[InputSpec]
) -> Model:
    """Modules ``llm`` (encoder) and ``dit`` (decoder, with any body).

    Args:
        name: for reports. text: of the encoder. width: of the features that the decoder reads.
        body, inputs: of the decoder; the features come behind its inputs.
    Raises:
        ConfigError: an encoder of another width.
    """
    if text.hidden != width:
        raise ConfigError(
            "the text encoder does not fit the decoder",
            where=f"{name}.text",
            expected=f"a language model of width {width}",
            got=text.hidden,
            nearest=width,
        )
    return Model(
        name,
        [
            ModalityModule("llm", ModalityRole.ENCODER, text_encoder(text)),
            ModalityModule("dit", ModalityRole.DECODER, body, tuple(inputs), sources=("llm",)),
        ],
    )


T2V_S = T2VConfig(LLAMA3_8B, DIT_5B)
"""DIP Table 3."""
T2V_L = T2VConfig(QWEN2_32B, DIT_30B)
"""DIP Table 3."""
T2V_XL = T2VConfig(QWEN2_72B, DIT_30B)
"""DIP Table 6."""


def t2v_s() -> Model:
    """Llama3 8B + DiT 5B."""
    return make_t2v("t2v-s", T2V_S)


def t2v_l() -> Model:
    """Qwen2 32B + DiT 30B."""
    return make_t2v("t2v-l", T2V_L)


def t2v_xl() -> Model:
    """Qwen2 72B + DiT 30B."""
    return make_t2v("t2v-xl", T2V_XL)
