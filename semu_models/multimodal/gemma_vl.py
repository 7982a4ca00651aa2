"""Gemma 3 with eyes (2503.19786 §2.2): SigLIP at 896 px, means of 4 x 4 patches, a linear map, and Gemma 3.

An image's 256 tokens see one another in both directions; here the backbone is causal for them too, which leaves out
the upper half of a 256 x 256 block for each image and layer.
"""

from __future__ import annotations

import math

from semu.checks import check_sizes, nearest_divisor
from semu.errors import ConfigError
from semu.nn import InputSpec, Linear, ModalityModule, ModalityRole, Model, Module, RMSNorm, Sequential, Tensor
from semu.nn import functional as F
from semu.records import dataclass
from semu_models.multimodal.multimodal import make_multimodal
from semu_models.text.encoder import VISION_STREAM, VISION_TOKENS, merged_images, tokens_of
from semu_models.text.gemma import GEMMA3_4B, GEMMA3_12B, GEMMA3_27B, Gemma3Config
from semu_models.text.language import language_model
from semu_models.vision.siglip import SiglipVisionConfig, siglip_blocks


@dataclass(frozen=True)
class Gemma3VLConfig:
    """A multimodal Gemma 3.

    Attributes:
        vision, language: its parts. tokens_per_image: of the backbone.
    Raises:
        ConfigError: patches that do not pool into ``tokens_per_image``.
    """

    vision: SiglipVisionConfig
    language: Gemma3Config
    tokens_per_image: int = 256

    def __post_init__(self) -> None:
        check_sizes(self, "tokens_per_image")
        side = self.vision.image_size // self.vision.patch_size
        root = math.isqrt(self.tokens_per_image)
        if root**2 != self.tokens_per_image or side % root:
            raise ConfigError(
                f"{side} x {side} patches do not pool into {self.tokens_per_image} tokens",
                where="Gemma3VLConfig.tokens_per_image",
                expected=f"the square of a divisor of {side}",
                got=self.tokens_per_image,
                nearest=nearest_divisor(side, root) ** 2,
            )

    @property
    def group(self) -> int:
        """Patches of a token."""
        return self.vision.num_patches // self.tokens_per_image


class GemmaProjector(Module):
    """Means of squares of patches, a norm, a linear map to the backbone."""

    def __init__(self, hidden: int, width: int, group: int) -> None:
        super().__init__()
        self.group = group
        self.norm = RMSNorm(hidden)
        self.projection = Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[patches, hidden] -> [patches / group, width], stream ``vision_tokens``."""
        pooled = F.pool_tokens(x, tokens_of(x, VISION_TOKENS, self.group))
        out: Tensor = self.projection(self.norm(pooled))
        return out


def make_gemma_vl(name: str, config: Gemma3VLConfig) -> Model:
    """Modules ``vision`` (encoder with projector) and ``llm``.

    Args:
        name: for reports. config: its parts.
    """
    vision = config.vision
    projector = GemmaProjector(vision.hidden, config.language.hidden, config.group)
    encoder = ModalityModule(
        "vision",
        ModalityRole.ENCODER,
        Sequential({**siglip_blocks(vision), "projector": projector}),
        (InputSpec(VISION_STREAM, vision.patch_features),),
        merging=merged_images(config.group, vision.num_patches),
    )
    return make_multimodal(name, [encoder], language_model(config.language))


SIGLIP_SO400M_896 = SiglipVisionConfig(
    layers=27, hidden=1152, ffn=4304, heads=16, image_size=896, patch_size=14, head=False
)
"""SigLIP So400m/14 at 896 px, without its pooling head (2503.19786 §2.2; config.json of gemma-3-4b-pt)."""


def gemma3_vl_4b() -> Model:
    """Gemma 3 4B with its vision encoder."""
    return make_gemma_vl("gemma3-vl-4b", Gemma3VLConfig(SIGLIP_SO400M_896, GEMMA3_4B))


def gemma3_vl_12b() -> Model:
    """Gemma 3 12B with its vision encoder."""
    return make_gemma_vl("gemma3-vl-12b", Gemma3VLConfig(SIGLIP_SO400M_896, GEMMA3_12B))


def gemma3_vl_27b() -> Model:
    """Gemma 3 27B with its vision encoder."""
    return make_gemma_vl("gemma3-vl-27b", Gemma3VLConfig(SIGLIP_SO400M_896, GEMMA3_27B))
