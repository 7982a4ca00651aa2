"""LLaVA: a CLIP vision tower, a projector of two layers, and a language model (2304.08485; 1.5: 2310.03744)."""

from __future__ import annotations

from semu.errors import ConfigError
from semu.nn import MLP, InputSpec, ModalityModule, ModalityRole, Model, Module, Sequential, Tensor
from semu.nn import functional as F
from semu.records import dataclass
from semu_models.multimodal.multimodal import make_multimodal
from semu_models.text.encoder import VISION_STREAM, VISION_TOKENS, Held, merged_images, tokens_of
from semu_models.text.language import LanguageConfig, language_model
from semu_models.text.llama import LlamaConfig
from semu_models.vision.clip_vision import CLIP_VIT_L_14_336, ClipVisionConfig, PooledClass, clip_embedding, clip_layer


@dataclass(frozen=True)
class LlavaConfig:
    """A LLaVA.

    Attributes:
        vision, language: its parts.
        feature_layer: whose output is projected, counted from the end: -1 the last layer's, -2 the one's before.
        keeps_class: the class token's features are projected too.
        projector_bias: biases of the projector.
    Raises:
        ConfigError: a layer that does not exist.
    """

    vision: ClipVisionConfig
    language: LanguageConfig
    feature_layer: int = -2
    keeps_class: bool = False
    projector_bias: bool = True

    def __post_init__(self) -> None:
        if not -self.vision.layers <= self.feature_layer <= -1:
            raise ConfigError(
                "no such layer",
                where="LlavaConfig.feature_layer",
                expected=f"-{self.vision.layers} to -1",
                got=self.feature_layer,
                nearest=max(-self.vision.layers, min(-1, self.feature_layer)),
            )


class LlavaProjector(Module):
    """Features of the chosen layer -> tokens of the backbone: class tokens away, two layers with GELU.

    It holds what comes behind the chosen layer in the published tower: parameters that nothing uses.
    """

    def __init__(self, config: LlavaConfig) -> None:
        super().__init__()
        vision, width = config.vision, config.language.hidden
        behind = [clip_layer(vision) for _ in range(-1 - config.feature_layer)]
        self.unused = Held(*behind, PooledClass(vision.hidden))
        self.keeps_class = config.keeps_class
        self.mlp = MLP(vision.hidden, width, width, bias=config.projector_bias)

    def forward(self, x: Tensor) -> Tensor:
        """[patches + images, hidden] -> [patches, width], stream ``vision_tokens``."""
        x = self.unused(x)
        kept = x if self.keeps_class else F.drop_tokens(x)
        out: Tensor = self.mlp(F.rename_tokens(kept, tokens_of(kept, VISION_TOKENS)))
        return out


def make_llava(name: str, config: LlavaConfig) -> Model:
    """Modules ``vision`` (encoder with projector) and ``llm``.

    Args:
        name: for reports. config: its parts.
    """
    vision = config.vision
    layers = {f"layers.{i}": clip_layer(vision) for i in range(vision.layers + 1 + config.feature_layer)}
    body = Sequential({"embedding": clip_embedding(vision), **layers, "projector": LlavaProjector(config)})
    merging = merged_images(1, vision.num_patches)
    encoder = ModalityModule(
        "vision", ModalityRole.ENCODER, body, (InputSpec(VISION_STREAM, vision.patch_features),), merging=merging
    )
    return make_multimodal(name, [encoder], language_model(config.language))


VICUNA_7B = LlamaConfig(layers=32, hidden=4096, ffn=11008, heads=32, kv_heads=32, vocab=32064)
"""Vicuna 7B v1.5, that is Llama 2 7B (2307.09288), with the 64 rows that llava-1.5-7b-hf adds to its tables."""
VICUNA_13B = LlamaConfig(layers=40, hidden=5120, ffn=13824, heads=40, kv_heads=40, vocab=32064)
"""Vicuna 13B v1.5, as above."""


def llava_1_5_7b() -> Model:
    """LLaVA-1.5 7B."""
    return make_llava("llava-1.5-7b", LlavaConfig(CLIP_VIT_L_14_336, VICUNA_7B))


def llava_1_5_13b() -> Model:
    """LLaVA-1.5 13B."""
    return make_llava("llava-1.5-13b", LlavaConfig(CLIP_VIT_L_14_336, VICUNA_13B))
